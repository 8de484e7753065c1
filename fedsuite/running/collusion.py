"""Liars who know the honest replies of a round: the attacks alie and ipm.

In a simulation one process sees all replies, so the attack is played there, the same in
every engine: behind the clients, in front of a server that knows nothing of it. The round's
replies are held in memory.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from typing_extensions import override

from fedsuite.callbacks.checkpoint_writer import PersistsClients
from fedsuite.clients import load_client
from fedsuite.core.registry import METHODS
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    ERROR,
    EVALUATE,
    HELLO,
    SHARES,
    Arrays,
    client_record,
    records_of,
    split_replies,
    unpack_requests,
)
from fedsuite.messages.statistics import is_statistic
from fedsuite.training.attack_plan import COLLUSION, AttackPlan, cast
from fedsuite.workarounds.prompt_grid import PromptGrid, once


def with_liars(experiment: Experiment, grid: Grid) -> Grid:
    """Return the grid, with the experiment's colluding liars if it has some."""
    plan = experiment.group(
        AttackPlan, seed=experiment.seed, num_clients=experiment.num_clients
    )
    if plan.attack not in COLLUSION or not plan.liars():
        return grid
    trained = load_client(METHODS[str(experiment["method"])]).TRAINED
    return ColludingGrid(grid, plan, trained)


class ColludingGrid(PromptGrid):
    """A Grid on which some clients' replies are made from the others'.

    Parameters
    ----------
    grid
        Grid that sends and receives.
    plan
        The attack: alie or ipm.
    trained
        Records of replies that hold the received model after training.
    """

    def __init__(self, grid: Grid, plan: AttackPlan, trained: Collection[str]) -> None:
        super().__init__(grid)
        self._plan = plan
        self._liars = plan.liars()
        self._trained = trained

    def persist_clients(self, versions: Mapping[int, str]) -> None:
        """Write the clients' states of a checkpoint."""
        if isinstance(self._grid, PersistsClients):
            self._grid.persist_clients(versions)

    def prune_clients(self, versions: Mapping[int, str]) -> None:
        """Delete clients' states that no checkpoint needs."""
        if isinstance(self._grid, PersistsClients):
            self._grid.prune_clients(versions)

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        sent = list(messages)
        replies = self._grid.send_and_receive(sent, timeout=timeout)
        kind = sent[0].metadata.message_type if sent else HELLO
        if kind == HELLO or kind.partition(".")[0] == EVALUATE:
            return iter(once(replies))
        return iter(self._forged(sent, list(once(replies))))

    def _forged(self, sent: Sequence[Message], replies: list[Message]) -> list[Message]:
        received = _received(sent)
        contents: dict[int, RecordDict] = {}
        trained: dict[int, dict[str, Arrays]] = {}
        for reply in replies:
            content = reply.content if reply.has_content() else RecordDict()
            for client_id, entry in split_replies(content, received).items():
                if ERROR not in entry:
                    contents[client_id] = content
                    records = records_of(entry, ArrayRecord)
                    trained[client_id] = {n: to_arrays(r) for n, r in records.items()}
        updates = {
            k: {
                n: self._update(n, record, received[k])
                for n, record in trained[k].items()
                # Forged, they would be no shares, and refused at sight.
                if n != SHARES
            }
            for k in sorted(trained)
        }
        honest = [updates[k] for k in updates if k not in self._liars]
        deviations = self._plan.deviations(len(updates), len(updates) - len(honest))
        factors = {"ipm": (-self._plan.strength, 0.0), "alie": (1.0, -deviations)}
        for client_id in sorted(self._liars & set(trained)):
            for name, record in trained[client_id].items():
                start = received[client_id] if name in self._trained else {}
                others = [update.get(name, {}) for update in honest]
                lie = forged(record, start, others, *factors[self._plan.attack])
                contents[client_id][client_record(client_id, name)] = to_record(lie)
        return replies

    def _update(self, name: str, record: Arrays, received: Arrays) -> Arrays:
        start = received if name in self._trained else {}
        return {
            key: np.subtract(a, start.get(key, 0.0), dtype=np.float64)
            for key, a in record.items()
            if not is_statistic(key, a)
        }


def forged(
    record: Arrays,
    start: Arrays,
    updates: Sequence[Arrays],
    of_mean: float,
    of_deviation: float,
) -> Arrays:
    """Return a record whose update is made from the others' mean and standard deviation.

    Parameters
    ----------
    record
        What the liar would send honestly, whose names and dtypes it keeps. What no other
        client sent stays.
    start
        Where the update starts; 0 where a name is missing.
    updates
        The others' updates of this record, float64.
    of_mean, of_deviation
        Factors of their mean and of their standard deviation, by coordinate.
    """
    lies = dict(record)
    for name, array in record.items():
        others = [update[name] for update in updates if name in update]
        others = [other for other in others if other.shape == array.shape]
        if not others:
            continue
        mean = sum(others, np.zeros(array.shape)) / len(others)
        squares = sum(((other - mean) ** 2 for other in others), np.zeros(array.shape))
        lie = of_mean * mean + of_deviation * np.sqrt(squares / len(others))
        lies[name] = cast(start.get(name, 0.0) + lie, array)
    return lies


def _received(sent: Sequence[Message]) -> dict[int, Arrays]:
    """Return the model that each asked client got; empty where it got none."""
    return {
        request.client_id: request.arrays.get(ARRAYS, {})
        for message in sent
        for request in unpack_requests(
            message.content, message.metadata.message_type, message.metadata.group_id, 0
        )[0]
    }
