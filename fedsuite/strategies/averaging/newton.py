"""Newton's method on the sum of all clients' losses: a pooled fit without pooled rows.

Y. Wu, X. Jiang, J. Kim, L. Ohno-Machado, "Grid Binary LOgistic REgression (GLORE)", JAMIA
19(5):758-764, 2012: each site sends the gradient g_k and the Hessian H_k of its summed
loss at the received parameters w_t, and the server takes

    w_{t+1} = w_t - (sum_k H_k)^{-1} sum_k g_k.

Where the loss is a sum over rows, this is Newton's method on all rows together. With the
Cox loss each site is a stratum: the rows at risk are those of the site, and the fit is that
of the Cox model stratified by site (the model of D. Cox, "Partial likelihood", Biometrika
62:269-276, 1975, with a baseline hazard of its own for each site).

For models with few parameters and a convex loss, such as ``model = "linear"``.

Deviations. The step is the shortest least-squares solution. So columns that follow from
others are allowed, frozen parameters stay, and the copies of a tied one move alike. After a
step that raised the sum of the same clients' losses, the server goes back half the way. A
singular optimum at infinity (a column that tells all events apart) needs ``weight-decay``.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from fedsuite.method import (
    CURVATURE,
    GRADIENT,
    HESSIAN,
    NO_COMMON_STEP,
    NO_MODEL_BACK,
    OWN_RULE,
    TRAIN,
    Arrays,
    ClientNeeds,
    ClientReply,
    ConfigError,
    ConfigValue,
    Exchange,
    Expected,
    GatheredStrategy,
    Release,
    Rule,
    Unless,
    Value,
    Vector,
    cast_like,
    flatten,
    parameter_names,
    state,
    unflatten,
)

MOST_PARAMETERS = 2_000
"""Most parameters of a model: of a Hessian's 4 million numbers come 32 MB a client."""

_ROUNDING = 1e-10
"""Part of a sum of losses that two rounds of one optimum differ by."""


def newton_step(gradient: Vector, hessian: Vector) -> Vector:
    """Return the shortest step ``[p]`` to the minimum of the quadratic of both.

    Parameters
    ----------
    gradient
        Gradient of the sum ``[p]``.
    hessian
        Its Hessian ``[p, p]``, symmetric; it may be singular.
    """
    return np.asarray(np.linalg.lstsq(hessian, -gradient, rcond=1e-12)[0], np.float64)


class Newton(GatheredStrategy):
    """Sums gradients and Hessians of the clients' losses: a pooled fit of small models."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "a client sends a gradient and a Hessian, which nothing clips",
    )
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "NewtonClient", "sends the gradient and the Hessian of its loss"
    )
    NOT_LEGACY: ClassVar[str] = "a legacy NumPyClient sends no Hessian"
    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        **OWN_RULE,
        **NO_COMMON_STEP,
        **NO_MODEL_BACK,
        **dict.fromkeys(("compress-up", "compress-down"), "its clients send no model back"),
        "client-settings": "no client takes steps of its own",
    }
    DEFAULTS: ClassVar[Mapping[str, Value]] = {"model": "linear"}
    FIXED: ClassVar[Mapping[str, Value]] = {
        "decorrelation-weight": 0.0,
        "upload-noise-multiplier": 0.0,
    }
    FIXED_REASON: ClassVar[str] = "its uploads are derivatives of the plain loss"
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("travels", "method"),
            (Unless("travels", "all"),),
            "its Hessian is of the whole model",
            "leave it out, or choose another method",
        ),
    )
    UNUSED: ClassVar[Sequence[str]] = (
        "local-epochs",
        "local-steps",
        "batch-size",
        "learning-rate",
        "learning-rate-decay",
        "learning-rate-decay-every",
        "optimizer",
        "momentum",
        "clip-gradient-norm",
        "crop-and-flip",
    )

    _past: dict[str, Vector] = state(default_factory=dict)
    """Clients of the last step, the sum of their losses before it, and the step."""

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        size = sum(arrays[name].size for name in parameter_names(arrays))
        if size > MOST_PARAMETERS:
            raise ConfigError(
                f"method newton: the model has {size:,} parameters, and a Hessian of more "
                f"than {MOST_PARAMETERS:,} is too large to send: choose model = 'linear'"
            )
        spec = {GRADIENT: ((size,), "float64"), HESSIAN: ((size, size), "float64")}
        expected = Expected({CURVATURE: spec}, metrics=("loss",))
        exchange = super().train_exchange(arrays, client_ids)
        return Exchange(
            TRAIN, client_ids, exchange.shared, config=exchange.config, expected=expected
        )

    @override
    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        sums = {
            name: np.sum([r.arrays[CURVATURE][name] for r in replies], axis=0)
            for name in (GRADIENT, HESSIAN)
        }
        total = sum(reply.metrics["loss"] * reply.num_examples for reply in replies)
        clients = np.array([reply.client_id for reply in replies], np.float64)
        self.round_metrics["gradient_norm"] = float(np.abs(sums[GRADIENT]).max())
        past = self._past
        if past and np.array_equal(clients, past["clients"]):
            before = float(past["loss"])
            if total > before + _ROUNDING * abs(before):
                past["step"] = past["step"] / 2
                return self._moved(arrays, -past["step"])
        step = newton_step(sums[GRADIENT], sums[HESSIAN])
        self._past = {"clients": clients, "loss": np.array(total), "step": step}
        return self._moved(arrays, step)

    def _moved(self, arrays: Arrays, step: Vector) -> Arrays:
        names = parameter_names(arrays)
        parameters = {name: arrays[name] for name in names}
        moved = flatten(parameters, names) + step
        pieces = unflatten(moved, parameters)
        return {**arrays, **{n: cast_like(pieces[n], arrays[n].dtype) for n in names}}

    @override
    def state(self) -> tuple[Arrays, dict[str, ConfigValue]]:
        return dict(self._past), {}

    @override
    def restore(self, arrays: Arrays, scalars: Mapping[str, ConfigValue]) -> None:
        self._past = {name: np.array(array) for name, array in arrays.items()}
