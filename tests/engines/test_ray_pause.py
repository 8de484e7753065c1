"""How often the SuperExec of a run under Ray looks for work, of which it has none."""

from typing import Any

import pytest

from fedsuite.engines import ray
from fedsuite.engines.processes import POLL_INTERVAL, World
from fedsuite.engines.ray import run_ray


def pause_of_a_run(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the seconds that the SuperLink and what it starts are told."""
    told: list[str] = []

    def start_superlink(world: World, _options: Any) -> None:
        told.append(world.environment[POLL_INTERVAL])

    monkeypatch.setattr(ray, "start_superlink", start_superlink)
    monkeypatch.setattr(ray, "run_app", lambda *_: None)
    run_ray({}, num_supernodes=1)
    (seconds,) = told
    return float(seconds)


def test_superexec_looks_neither_often_nor_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(POLL_INTERVAL, raising=False)
    # Flower's own pause is a second: no run is to start later than under it.
    assert 0.25 <= pause_of_a_run(monkeypatch) <= 1.0


def test_a_pause_that_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLL_INTERVAL, "0.125")
    assert pause_of_a_run(monkeypatch) == 0.125
