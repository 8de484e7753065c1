"""Keys of noise at the server, and what it cannot go with.

An epsilon is a promise about whatever was released. So a method takes part only where its
class says itself what a round of it releases, and why the accounting holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedsuite.core.keys import Unless, Value
from fedsuite.core.settings import Declared, key
from fedsuite.rounds.epsilon import Sampling

NOISE, TARGET = "dp-noise-multiplier", "target-epsilon"

_NOISED = (Unless(NOISE, 0.0), Unless(TARGET, 0.0))


@dataclass(frozen=True)
class Release:
    """What a round of a method releases.

    Parameters
    ----------
    kind
        ``mean``: the sum of the clients' clipped changes of one shared model, over a fixed
        number; one client moves it by C at most. ``weighted``: their mean with weights that
        each depend on one client's reply, up to a common factor; one client moves it by
        2 C times the largest weight. ``refused``: something else.
    why
        Why that holds, or why the method is refused; a clause without a subject's name.
    needs
        Values of the method's own keys without which the weights are of another form.
    """

    kind: Literal["mean", "weighted", "refused"]
    why: str
    needs: Mapping[str, Value] = field(default_factory=dict)


UNARGUED = Release(
    "refused",
    "its class does not say what a round of it releases: see PRIVACY in "
    "fedsuite.rounds.declaration",
)


class PrivacyKeys(Declared):
    """Keys of noise at the server."""

    dp_noise_multiplier: float = key(
        default=0.0,
        help="noise at the server on the sum of clipped updates: standard deviation over "
        "what one client can move; 0 is none",
        minimum=0.0,
    )
    target_epsilon: float = key(
        default=0.0,
        help="epsilon after all rounds, for which the noise is solved; 0 leaves the noise "
        "to dp-noise-multiplier",
        minimum=0.0,
    )
    dp_clipping_norm: float = key(
        default=1.0,
        help="largest norm of a client's update under dp-noise-multiplier; the first one "
        "where it adapts",
        above=0.0,
        needs=_NOISED,
    )
    dp_adaptive_clipping: bool = key(
        default=False,
        help="let dp-clipping-norm follow a quantile of the updates' norms; false keeps it",
        needs=_NOISED,
    )
    dp_clipping_quantile: float = key(
        default=0.5,
        help="share of updates that adaptive clipping leaves whole",
        minimum=0.0,
        maximum=1.0,
        needs=(Unless("dp-adaptive-clipping", False),),
    )
    dp_clipping_rate: float = key(
        default=0.2,
        help="rate of adaptive clipping; 0 keeps the norm",
        minimum=0.0,
        needs=(Unless("dp-adaptive-clipping", False),),
    )
    dp_count_noise: float = key(
        default=0.0,
        help="standard deviation of the noise on the number of updates left whole; 0 is a "
        "20th of the round's clients",
        minimum=0.0,
        needs=(Unless("dp-adaptive-clipping", False),),
    )
    dp_delta: float = key(
        default=1e-5,
        help="probability delta beside epsilon; below 1 over the number of clients",
        above=0.0,
        maximum=0.1,
        needs=_NOISED,
    )
    dp_sampling: Sampling = key(
        default="cycles",
        help="who takes part: public groups in turn (cycles), each client by a secret coin "
        "(poisson), or a secret sample of clients-per-round (fixed)",
        needs=_NOISED,
        value_needs=(
            ("poisson", Unless("clients-per-round", 0)),
            ("fixed", Unless("clients-per-round", 0)),
        ),
    )
    dp_epsilon_max: float = key(
        default=0.0,
        help="epsilon that ends the run before the round that would pass it; 0 is no limit",
        minimum=0.0,
        needs=_NOISED,
    )
    dp_max_weight: float = key(
        default=0.0,
        help="largest share of a client under noise, for methods with weights by losses: "
        "the noise grows with it; 0 refuses them",
        minimum=0.0,
        maximum=1.0,
        needs=_NOISED,
    )


def is_noised(values: Mapping[str, Value]) -> bool:
    """Return whether the server adds noise that is accounted for."""
    return bool(values[NOISE] or values[TARGET])


def refusal(method: str, release: Release, values: Mapping[str, Value]) -> str:
    """Return why noise at the server cannot go with a method or keys; empty if it can.

    Parameters
    ----------
    method
        Name for the error.
    release
        What a round of the method releases.
    values
        Key to value; those of the method and of :class:`PrivacyKeys` at least.
    """
    if not is_noised(values):
        return ""
    name = NOISE if values[NOISE] else TARGET
    said = f"{name} = {values[name]!r}"
    if values[NOISE] and values[TARGET]:
        return f"{TARGET} = {values[TARGET]!r} solves for the noise: leave {NOISE} out"
    if release.kind == "refused":
        return (
            f"{said}: no epsilon holds for {method}: {release.why}; leave it out, or "
            "choose another method, such as fedavg"
        )
    return _of_weights(method, release, values, said) or _of_others(values, said)


def _of_weights(
    method: str, release: Release, values: Mapping[str, Value], said: str
) -> str:
    if release.kind == "mean":
        if values["dp-max-weight"]:
            return (
                f"dp-max-weight = {values['dp-max-weight']!r} has no effect with {method}, "
                "which counts all clients alike under noise: leave it out"
            )
        return ""
    if not values["dp-max-weight"]:
        return (
            f"{said}: {method} weighs clients by what they report, so that one client "
            "moves the model by up to 2 C: set dp-max-weight, such as 2 over the clients "
            "of a round, at the price of so much more noise, or choose fedavg"
        )
    for key_name, value in release.needs.items():
        if values[key_name] != value:
            return (
                f"{said}: {method} with {key_name} = {values[key_name]!r} makes a weight "
                f"depend on all clients' replies, which no cap bounds: set {key_name} = "
                f"{value!r}"
            )
    return ""


def _of_others(values: Mapping[str, Value], said: str) -> str:
    """Return which other key breaks the promise; keys that nobody gave break none."""
    if values.get("fedvarp"):
        return (
            f"{said}: fedvarp lets a client's stored update into later rounds, which no "
            "accountant counts: leave one of them out"
        )
    if int(values.get("quorum", 1)) > 1:
        return (
            f"{said}: a quorum would tell who answered, because the model stays where too "
            "few did: leave quorum out"
        )
    for name in ("best-model-metric", "early-stop-metric"):
        if values.get(name):
            return (
                f"{said}: {name} chooses by the clients' own scores, which get no noise: "
                "leave it out"
            )
    for name in ("max-examples", "max-update-norm", "max-loss-ratio"):
        if values.get(name, "off") not in ("auto", "off"):
            return (
                f"{said}: {name} compares clients, so that one would change what another "
                "counts with: leave it out; dp-clipping-norm bounds each alone"
            )
    if values.get("aggregator", "mean") != "mean":
        return (
            f"{said}: how far one client moves aggregator = {values['aggregator']!r} is "
            "not known, so no noise is enough: leave one of them out"
        )
    if values.get("max-client-weight", "auto") not in ("auto", 1.0):
        return (
            f"{said}: max-client-weight divides by what others claim, so that one client "
            "would change what another counts with: leave it out; dp-max-weight bounds each"
        )
    if values.get("decomposition"):
        return (
            f"{said}: nobody has argued what a round with decomposition releases: leave "
            "one of them out"
        )
    return ""
