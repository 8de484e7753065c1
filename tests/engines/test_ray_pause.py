"""How often the SuperExec of a run under Ray looks for work, and when the run is over."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsuite.engines import early, ray
from fedsuite.engines.processes import POLL_INTERVAL, World
from fedsuite.engines.ray import run_ray
from fedsuite.results.layout import FORMAT, MANIFEST


def pause_of_a_run(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the seconds that the SuperLink and what it starts are told."""
    told: list[str] = []

    def launch(world: World, _options: Any) -> None:
        told.append(world.environment[POLL_INTERVAL])

    without_programs(monkeypatch, launch, lambda *_: None)
    run_ray({}, num_supernodes=1)
    run_ray({}, num_supernodes=1, address="127.0.0.1:1")
    own, of_a_cluster = told
    assert own == of_a_cluster
    return float(own)


def without_programs(
    monkeypatch: pytest.MonkeyPatch,
    launch: Callable[..., None],
    run_app: Callable[..., None],
) -> None:
    """Have a run start nothing but a SuperLink, and submit to nobody."""
    monkeypatch.setattr(early, "launch_superlink", launch)
    monkeypatch.setattr(early.EarlyWorld, "start", lambda *_: None)
    monkeypatch.setattr(ray, "launch_superlink", launch)
    monkeypatch.setattr(ray, "wait_for", lambda _: None)
    monkeypatch.setattr(ray, "run_app", run_app)


def test_superexec_looks_neither_often_nor_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(POLL_INTERVAL, raising=False)
    # Flower's own pause is a second: no run is to start later than under it.
    assert 0.25 <= pause_of_a_run(monkeypatch) <= 1.0


def test_a_pause_that_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLL_INTERVAL, "0.125")
    assert pause_of_a_run(monkeypatch) == 0.125


def lines_of_a_run(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], address: str = ""
) -> list[str]:
    """Return the lines that are handed on before the run is over."""

    def run_app(
        world: World, app: Path, superlink: Any, options: Any, on_line: Any
    ) -> None:
        for line in lines:
            on_line(line)

    heard: list[str] = []
    without_programs(monkeypatch, lambda *_: None, run_app)
    run_ray({}, num_supernodes=1, address=address, on_line=heard.append)
    return heard


@pytest.mark.parametrize("status", ["finished", "running", "failed"])
def test_a_run_whose_folder_is_complete_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    text = json.dumps({"format": FORMAT, "status": status})
    (tmp_path / MANIFEST).write_text(text)
    lines = ["run folder: ", "run folder: /no/where", f"run folder: {tmp_path}", "Ray ends"]
    heard = lines_of_a_run(monkeypatch, lines)
    assert heard == (lines[:3] if status == "finished" else lines)
    assert lines_of_a_run(monkeypatch, lines, address="127.0.0.1:1") == lines
