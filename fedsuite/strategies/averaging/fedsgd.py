"""FedSGD: one gradient step over all of a client's data in a round.

B. McMahan et al., AISTATS 2017, arXiv:1602.05629, section 2: w <- w - eta sum_k (n_k / n)
grad F_k(w), with F_k the loss over all data of client k.

Deviation: clients take the step themselves and the server averages models. It is the same
update, since the step is linear in the gradient, and it gives layers with running
statistics (batch normalisation) a defined meaning.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from typing_extensions import override

from fedsuite.method import (
    NUM_STEPS,
    Arrays,
    BadReply,
    ClientNeeds,
    ClientReply,
    Exchange,
    Release,
    Value,
    with_advice,
)
from fedsuite.rounds.kinds import Kind
from fedsuite.strategies.averaging.fedavg import FedAvg


class FedSGD(FedAvg):
    """FedAvg of one full-batch step; the client ignores epochs, steps and batch size."""

    PRIVACY: ClassVar[Release] = Release(
        "mean",
        "each reply is the model after one step over one client's data",
    )

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        "momentum": "its one step a round begins with none"
    }
    NEEDS_OF_CLIENT: ClassVar[ClientNeeds] = ClientNeeds(
        "FedSGDClient", "takes one step over all its rows"
    )

    DEFAULTS: ClassVar[Mapping[str, Value]] = {"local-steps": 1, "batch-size": 0}
    UNUSED: ClassVar[Sequence[str]] = ("local-epochs", "local-steps", "batch-size")

    @override
    def claims(self) -> Collection[str]:
        return (NUM_STEPS,)

    @override
    def train_exchange(self, arrays: Arrays, client_ids: Sequence[int]) -> Exchange:
        exchange = super().train_exchange(arrays, client_ids)
        expected = replace(
            exchange.expected, metrics=(NUM_STEPS,), check=self._refuse_more_steps
        )
        return replace(exchange, expected=expected)

    def _refuse_more_steps(self, reply: ClientReply) -> None:
        steps = reply.metrics[NUM_STEPS]
        if steps > 1:
            reason = f"{NUM_STEPS} is {steps:g}, and a round of FedSGD is one step"
            reason = with_advice(reason, self.NEEDS_OF_CLIENT.advice)
            raise BadReply(Kind.MISSING, reason, "one step")
