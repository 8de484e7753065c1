"""Replies that wait for a later round: as changes, on a later model, and as a state."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from fedsuite.messages.records import ARRAYS, Arrays, ConfigValue, grouped, joined
from fedsuite.messages.statistics import is_statistic
from fedsuite.rounds.aggregation import cast_like
from fedsuite.rounds.validation import ClientReply

_METRIC = "metric/"


@dataclass(frozen=True)
class Held:
    """A reply that waits for its round.

    Parameters
    ----------
    arrival
        When it comes, in the plan's time; 0 of a real one, which is there.
    server_round
        Round whose model the client started from.
    reply
        Of an earlier round: with the changes of what is trained, in place of the model.
    """

    arrival: float
    server_round: int
    reply: ClientReply


def change_of(model: Arrays, sent: Arrays) -> Arrays:
    """Return what a client changed of what is trained, and statistics as they are."""
    return {n: a if is_statistic(n, a) else a - sent[n] for n, a in model.items()}


def moved(arrays: Arrays, change: Arrays, share: float) -> Arrays:
    """Return the arrays moved by a share of a change, with its statistics."""
    return {
        name: part
        if is_statistic(name, part)
        else cast_like(arrays[name] + share * part.astype(np.float64), part.dtype)
        for name, part in change.items()
    }


def as_change(held: Held, sent: Arrays) -> Held:
    """Return a reply that waits with its changes in place of its model."""
    change = change_of(held.reply.arrays[ARRAYS], sent)
    return replace(held, reply=replace(held.reply, arrays={ARRAYS: change}, content={}))


def state_of(held: Sequence[Held]) -> tuple[Arrays, dict[str, ConfigValue]]:
    """Return waiting replies as a method's state: changes, and a column of each number."""
    replies = [one.reply for one in held]
    if not replies:
        return {}, {}
    columns: dict[str, ConfigValue] = {
        "clients": [reply.client_id for reply in replies],
        "arrivals": [one.arrival for one in held],
        "rounds": [one.server_round for one in held],
        "examples": [reply.num_examples for reply in replies],
    }
    for name in sorted({name for reply in replies for name in reply.metrics}):
        values = [reply.metrics.get(name, math.nan) for reply in replies]
        columns[f"{_METRIC}{name}"] = values
    return joined({reply.client_id: reply.arrays[ARRAYS] for reply in replies}), columns


def held_of(changes: Arrays, columns: Mapping[str, ConfigValue]) -> list[Held]:
    """Return the replies of a state: the inverse of :func:`state_of`."""
    models = grouped(changes)
    numbers = {name: cast(list[float], column) for name, column in columns.items()}
    held = []
    for row, client_id in enumerate(numbers.get("clients", [])):
        metrics = {
            name.removeprefix(_METRIC): column[row]
            for name, column in numbers.items()
            if name.startswith(_METRIC) and not math.isnan(column[row])
        }
        change = {ARRAYS: models[str(client_id)]}
        reply = ClientReply(int(client_id), change, metrics, numbers["examples"][row])
        began = int(numbers["rounds"][row])
        held.append(Held(numbers["arrivals"][row], began, reply))
    return held
