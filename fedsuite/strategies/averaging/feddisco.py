"""FedDisco: clients whose labels are distributed like the target's count more.

R. Ye, M. Xu, J. Wang, C. Xu, S. Chen, Y. Wang, "FedDisco: Federated Learning with
Discrepancy-Aware Collaboration", ICML 2023.

With p_k = n_k / n over the clients of the round and d_k the discrepancy between a client's
label frequencies and the target's (Eq. 8):

    omega_k = max(p_k - a d_k + b, 0) / sum_j max(p_j - a d_j + b, 0).

Deviations: the target is the uniform distribution. d is the KL divergence from it, which
as in the authors' code is divided by its sum over the round, or the Euclidean distance,
which is not (FedEBA+ uses that one). Clients compute and send d_k alone, not their label
counts. Where every weight is 0 they are FedAvg's; the authors' code fails there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Unpack

import numpy as np

from fedsuite.core.keys import Key
from fedsuite.core.vectors import Vector
from fedsuite.messages.records import Arrays
from fedsuite.rounds.all_replies import GatheredStrategy, examples_of, metric_of
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.options import StrategyOptions
from fedsuite.rounds.validation import ClientReply

DISCREPANCY = "discrepancy"

Measure = Literal["kl", "l2"]


def shares_of_sum(values: Vector) -> Vector:
    """Return values >= 0 divided by their sum; zeros stay zeros."""
    largest = values.max()
    if largest == 0:
        return values
    relative = values / largest
    shares: Vector = relative / relative.sum()
    return shares


def discrepancy_weights(
    examples: Vector, discrepancies: Vector, a: float, b: float
) -> Vector:
    """Return omega_k up to a common factor, ``[clients]``.

    Parameters
    ----------
    examples
        n_k, ``[clients]``, > 0.
    discrepancies
        d_k, ``[clients]``, >= 0.
    a
        Weight of the discrepancy, >= 0; 0 with b = 0 returns n_k.
    b
        Added to each share, >= 0; large b with a = 0 approaches equal weights.
    """
    with np.errstate(over="ignore"):
        weights = np.maximum(examples + examples.sum() * (b - a * discrepancies), 0.0)
    return weights if weights.any() else examples


class FedDISCO(GatheredStrategy):
    """FedAvg with weights lowered by how far a client's labels are from uniform.

    Parameters
    ----------
    feddisco_a, feddisco_b
        a >= 0 and b >= 0; both 0 is FedAvg.
    feddisco_measure
        ``kl`` (the paper's) or ``l2``. Sent to clients as ``feddisco-measure``.
    options
        Keywords of :class:`~fedsuite.rounds.base.FederatedStrategy`.
    """

    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedDISCOClient", "measures its labels"
    )

    KEYS: ClassVar[tuple[Key, ...]] = (
        Key(
            "feddisco-a",
            0.5,
            "weight a of a client's discrepancy in FedDisco; with b = 0, 0 is FedAvg",
            minimum=0.0,
        ),
        Key("feddisco-b", 0.1, "added by FedDisco to each client's share", minimum=0.0),
        Key(
            "feddisco-measure",
            "kl",
            "FedDisco's distance of labels from uniform: KL divergence or Euclidean",
            choices=("kl", "l2"),
        ),
    )

    def __init__(
        self,
        *,
        feddisco_a: float = 0.5,
        feddisco_b: float = 0.1,
        feddisco_measure: Measure = "kl",
        **options: Unpack[StrategyOptions],
    ) -> None:
        for name, value in (("feddisco_a", feddisco_a), ("feddisco_b", feddisco_b)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} = {value}: expected a number >= 0")
        if feddisco_measure not in ("kl", "l2"):
            raise ValueError(f"feddisco_measure = {feddisco_measure!r}: expected kl or l2")
        super().__init__(**options)
        self.a = feddisco_a
        self.b = feddisco_b
        self.measure = feddisco_measure

    def needed_metrics(self) -> Mapping[str, tuple[float, float]]:
        """Return the client's discrepancy."""
        return {DISCREPANCY: (0.0, math.inf)}

    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        """Send along what to measure."""
        exchange = super().train_exchange(arrays, client_ids)
        return replace(exchange, config={"feddisco-measure": self.measure})

    def combine(self, arrays: Arrays, replies: Sequence[ClientReply]) -> Arrays | None:
        """Return the mean of the clients' models."""
        discrepancies = metric_of(replies, DISCREPANCY)
        if self.measure == "kl":
            discrepancies = shares_of_sum(discrepancies)
        examples = examples_of(replies)
        weights = discrepancy_weights(examples, discrepancies, self.a, self.b)
        return self.mean_of(replies, weights)
