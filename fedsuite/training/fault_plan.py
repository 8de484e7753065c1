"""Planned failures of clients: drop-outs and stragglers, drawn from the experiment's seed.

One number is drawn per client and round, from a stream of its own, at the client. So the
same clients fail in every engine, on any number of nodes, and a larger share adds failures
to those of a smaller one.

- A *drop-out* answers nothing in the round: neither queries nor training.
- A *straggler* answers queries and trains, but the trained reply comes after the deadline
  and is discarded, as by Flower. What the client stored meanwhile is void, as the server
  does not know of it.

The server waits for neither: it hears of them at once and records refused replies.
Evaluation is a measurement, and always answered.
"""

from typing import ClassVar, Literal

from fedsuite.core.errors import RunError
from fedsuite.core.rng import numpy_stream
from fedsuite.core.rules import Rule
from fedsuite.core.settings import Settings, given, key
from fedsuite.messages.records import EVALUATE, TRAIN, Reply, Request
from fedsuite.training.app import Answering

Fate = Literal["fine", "drop-out", "straggler"]


class FaultPlan(Settings):
    """Which clients fail in which rounds."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("drop-out", "straggler"),
            (lambda values: values["drop-out"] + values["straggler"] > 1,),
            "their sum is a probability",
            "set at most 1 together",
        ),
    )

    drop_out: float = key(
        default=0.0,
        help="probability that a client answers nothing in a round, evaluation apart; 0 is "
        "never, 1 always",
        minimum=0.0,
        maximum=1.0,
    )
    straggler: float = key(
        default=0.0,
        help="probability that what a client trained in a round comes after the deadline "
        "and is discarded; with drop-out at most 1",
        minimum=0.0,
        maximum=1.0,
    )
    seed: int = given(default=0, help="seed of the experiment")

    def __bool__(self) -> bool:
        return self.drop_out + self.straggler > 0

    def fate(self, server_round: int, client_id: int) -> Fate:
        """Return whether a client fails in a round, and how."""
        draw = numpy_stream(self.seed, "fault-plan", server_round, client_id).random()
        if draw < self.drop_out:
            return "drop-out"
        return "straggler" if draw < self.drop_out + self.straggler else "fine"


class PlannedClient:
    """A client that fails when the plan says so."""

    def __init__(self, client: Answering, plan: FaultPlan) -> None:
        self._client = client
        self._plan = plan

    def answer(self, request: Request) -> Reply:
        """Answer a request; a planned failure raises RunError, which the server records."""
        category = request.message_type.partition(".")[0]
        fate = self._plan.fate(request.server_round, request.client_id)
        if category == EVALUATE or fate == "fine":
            return self._client.answer(request)
        if fate == "drop-out":
            raise RunError("planned drop-out")
        reply = self._client.answer(request)
        if category != TRAIN:
            return reply
        raise RunError("planned straggler: its reply came after the deadline")
