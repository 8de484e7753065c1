"""Experiments on digits through a grid that keeps all messages."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flwr.app import Message

from fedsuite.experiment.data_and_models import experiment_model, federated_data
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.models.arrays import model_arrays
from fedsuite.models.groups import parameter_groups
from fedsuite.running.server import build_strategy
from fedsuite.running.server_parts import ServerParts
from fedsuite.running.worker import Worker, client_app_for
from fedsuite.training.store import MemoryStore
from tests.helpers import Tamper, TamperingGrid, Trace, run


class Watching(TamperingGrid):
    """A grid that keeps all replies too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.replies: list[Message] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        for reply in super().send_and_receive(messages, timeout=timeout):
            self.replies.append(reply)
            yield reply

    def arrays_seen(self) -> set[tuple[str, bytes]]:
        """Return name and bytes of each array in any message, either way."""
        seen = set()
        for message in [*self.sent, *self.replies]:
            for record in message.content.array_records.values():
                for name, array in to_arrays(record).items():
                    seen.add((name, array.tobytes()))
        return seen


def watched(
    experiment: Experiment, tamper: Tamper | None = None, rounds: Sequence[int] = (1,)
) -> tuple[Watching, MemoryStore, Any, Trace]:
    """Run the experiment; return the grid, what clients keep, strategy and trace."""
    store = MemoryStore()
    model = experiment_model(experiment, federated_data(experiment))
    grid = Watching(client_app_for(Worker(experiment, store)), 4, tamper, rounds)
    strategy = build_strategy(experiment, ServerParts(parameter_groups(model)))
    trace = run(strategy, grid, experiment["num-rounds"], to_record(model_arrays(model)))
    return grid, store, strategy, trace
