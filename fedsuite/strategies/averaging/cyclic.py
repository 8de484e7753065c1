"""Cyclic weight transfer: the model goes from client to client, and each trains it on.

K. Chang, N. Balachandar, C. Lam, D. Yi, J. Brown, A. Beers, B. Rosen, D. L. Rubin,
J. Kalpathy-Cramer, "Distributed deep learning networks among institutions for medical
imaging", JAMIA 25(8):945-954, 2018.

A round asks the next ``clients-per-round`` clients of an order of all clients, one unless
said otherwise, and a cycle ends when each was asked once. With one client a round the new
model is that client's; with all clients in each round the method is FedAvg.

Deviations: each cycle has an order of its own, drawn from the stream ``"cycle"``, where the
paper keeps one order. A client that fails misses its turn: the round has no reply, and
counts as a failed one.
"""

from collections.abc import Mapping
from typing import ClassVar

from typing_extensions import override

from fedsuite.method import TRAIN, Release, Rule, Value, With, alike, numpy_stream
from fedsuite.strategies.averaging.fedavg import FedAvg


class Cyclic(FedAvg):
    """Hands the model from client to client, each once before any comes again."""

    PRIVACY: ClassVar[Release] = Release(
        "refused",
        "who trains in a round is no sample, and its model goes on unmixed",
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = {"clients-per-round": 1}

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("selection", "over-select"), "each client has its turn"
    )

    # No weight matters to a round of one client.
    RULES: ClassVar[tuple[Rule, ...]] = alike(With("clients-per-round", 1))

    clients_per_round: int = 1

    @override
    def drawn(self, phase: str) -> list[int]:
        members = self.members()
        size = self.num_drawn(TRAIN, len(members))
        if phase != TRAIN or not 0 < size < len(members):
            return super().drawn(phase)
        cycle, turn = divmod(self.server_round - 1, -(-len(members) // size))
        order = numpy_stream(self.seed, "cycle", cycle).permutation(len(members))
        turns = order[turn * size : (turn + 1) * size]
        return list(self.those_there(sorted(members[k] for k in turns)))
