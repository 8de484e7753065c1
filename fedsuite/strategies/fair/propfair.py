"""PropFair: proportional fairness, a logarithmic utility of each client's loss.

G. Zhang, S. Malekmohammadi, X. Chen, Y. Yu, "Proportional Fairness in Federated Learning",
TMLR 2023, arXiv:2202.01666.

Objective (PF): min_w -sum_k p_k log(M - F_k(w)), M > F_k a baseline. Clients minimise,
batch by batch, l the mean cross-entropy of a batch, the surrogate

    -log(1 - l / M)                                    where M - l >= epsilon,
    -log(epsilon / M) + (l - M + epsilon) / epsilon    else,

whose gradient is that of l divided by max(M - l, epsilon); the server averages as FedAvg
does.

Deviations: the constant log M makes the surrogate 0 at l = 0. The authors' code continues
by l / M instead of the tangent, so that batches past the threshold count 1 / M rather than
1 / epsilon: ``propfair-extension = "code"`` does that. (Its option ``huber`` has the
tangent's gradient.) The two agree where M = epsilon, as in FedEBA+'s table, and are then
FedAvg with the learning rate divided by M.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Unpack

from fedsuite.core.keys import Key
from fedsuite.messages.records import Arrays
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.options import FedAvgOptions
from fedsuite.strategies.averaging.fedavg import FedAvg

Extension = Literal["tangent", "code"]


class PropFair(FedAvg):
    """FedAvg whose clients minimise a logarithm of how far their loss is below a baseline.

    Parameters
    ----------
    propfair_baseline
        M > 0, in units of the loss. Large M with the learning rate multiplied by M is
        FedAvg. Sent to clients, as the other two are, under the key's name.
    propfair_threshold
        epsilon > 0: below this distance from M the surrogate is linear.
    propfair_extension
        How it goes on there: ``tangent`` (the paper) or ``code`` (l / M).
    options
        Keywords of :class:`~fedsuite.strategies.averaging.fedavg.FedAvg`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "PropFairClient", "minimises PropFair's logarithm of the loss"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        *FedAvg.KEYS,
        Key(
            "propfair-baseline",
            2.0,
            "baseline M of PropFair; large, with learning-rate times M, is FedAvg",
            above=0.0,
        ),
        Key(
            "propfair-threshold",
            0.2,
            "distance epsilon from M below which PropFair's loss is linear",
            above=0.0,
        ),
        Key(
            "propfair-extension",
            "tangent",
            "how PropFair's loss goes on there: the paper's tangent, or its code's l / M",
            choices=("tangent", "code"),
        ),
    )

    def __init__(
        self,
        *,
        propfair_baseline: float = 2.0,
        propfair_threshold: float = 0.2,
        propfair_extension: Extension = "tangent",
        **options: Unpack[FedAvgOptions],
    ) -> None:
        for name, value in (
            ("propfair_baseline", propfair_baseline),
            ("propfair_threshold", propfair_threshold),
        ):
            if not value > 0:
                raise ValueError(f"{name} = {value}: expected a number > 0")
        if propfair_extension not in ("tangent", "code"):
            raise ValueError(
                f"propfair_extension = {propfair_extension!r}: expected tangent or code"
            )
        super().__init__(**options)
        self.baseline = propfair_baseline
        self.threshold = propfair_threshold
        self.extension = propfair_extension

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send baseline, threshold and extension along with the model."""
        exchange = super().train_exchange(arrays, client_ids)
        config = {
            "propfair-baseline": self.baseline,
            "propfair-threshold": self.threshold,
            "propfair-extension": self.extension,
        }
        return replace(exchange, config=config)
