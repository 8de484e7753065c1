"""Decides what begins before an experiment is read and checked, which takes a second."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.keys import AUTO
from fedsuite.core.text import read_toml
from fedsuite.engines.room import Room
from fedsuite.experiment.shipped import find_experiment

if TYPE_CHECKING:
    from fedsuite.engines.early import EarlyWorld


_USUAL = Room()


@contextmanager
def begun_for(
    experiment: Path | Mapping[str, object],
    changes: Mapping[str, object],
    room: Room = _USUAL,
) -> Iterator["EarlyWorld | None"]:
    """Begin what an experiment will need, if it will run under a Ray of its own.

    Nothing is checked here: who reads the experiment says what is wrong with it.

    Parameters
    ----------
    experiment
        File, or keys and values.
    changes
        Values that override the experiment's.
    room
        What clients are to get.

    Yields
    ------
    EarlyWorld or None
        None if another engine or a Ray cluster will run it, if it is not known yet, or if
        no client will fit here. The world ends with the block.
    """
    given = experiment if isinstance(experiment, Mapping) else _keys_of(experiment)
    if not _wants_own_ray({**given, **changes}) or not _fits(room):
        yield None
        return
    # Other engines begin without this and what it needs.
    from fedsuite.engines.early import EarlyWorld, can_begin

    if not can_begin():
        yield None
        return
    world = EarlyWorld()
    try:
        yield world
    finally:
        # What runs an experiment closes it itself, with more patience.
        world.close(grace_s=0.0)


def _keys_of(file: Path) -> dict[str, object]:
    try:
        return read_toml(find_experiment(file))
    except (OSError, ValueError):
        return {}


def _fits(room: Room) -> bool:
    try:
        room.check("ray")
        room.check_here()
    except FedsuiteError:
        return False
    return True


def _wants_own_ray(values: Mapping[str, object]) -> bool:
    if values.get("engine", AUTO) != "ray":
        return False
    from fedsuite.engines.cluster import chosen_address

    try:
        return not chosen_address(str(values.get("ray-address", "")), os.environ)
    except FedsuiteError:
        return False
