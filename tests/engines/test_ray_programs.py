"""What the programs of a run under Ray are told, and when the run is over."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsuite.engines import ray
from fedsuite.engines.processes import POLL_INTERVAL, World
from fedsuite.engines.ray import run_ray
from fedsuite.experiment.plug_ins import ALLOWED_CODE_VARIABLE
from fedsuite.results.layout import FORMAT, MANIFEST


def variables_of_a_run(
    monkeypatch: pytest.MonkeyPatch, **run_config: str
) -> dict[str, str]:
    """Return the environment of the SuperLink and of what it starts."""
    variables: dict[str, str] = {}

    def start(world: World, _options: Any) -> None:
        variables.update(world.environment)

    without_programs(monkeypatch, start, lambda *_: None)
    run_ray(run_config, num_supernodes=1)
    return variables


def without_programs(
    monkeypatch: pytest.MonkeyPatch,
    start_superlink: Callable[..., None],
    run_app: Callable[..., None],
) -> None:
    """Have a run start nothing but a SuperLink, and submit to nobody."""
    monkeypatch.setattr(ray, "start_superlink", start_superlink)
    monkeypatch.setattr(ray, "run_app", run_app)


def test_programs_are_told_to_spare_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ray._SPARING:
        monkeypatch.delenv(variable, raising=False)
    variables = variables_of_a_run(monkeypatch)
    assert variables.items() >= ray._SPARING.items()
    # Flower's own pause is a second: no run is to start later than under it.
    assert 0.25 <= float(variables[POLL_INTERVAL]) <= 1.0


def test_variables_that_the_user_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ray._SPARING:
        monkeypatch.setenv(variable, "0.125")
    variables = variables_of_a_run(monkeypatch)
    assert {variables[variable] for variable in ray._SPARING} == {"0.125"}


def test_programs_are_told_which_code_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ALLOWED_CODE_VARIABLE, "anything:at_all")
    allowed = {ALLOWED_CODE_VARIABLE: "my_code:Net"}
    here = variables_of_a_run(monkeypatch, model="my_code:Net")
    assert here.items() >= allowed.items() and "RAY_ADDRESS" not in here


def lines_of_a_run(monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> list[str]:
    """Return the lines that are handed on before the run is over."""

    def run_app(
        world: World, app: Path, superlink: Any, options: Any, on_line: Any
    ) -> None:
        for line in lines:
            on_line(line)

    heard: list[str] = []
    without_programs(monkeypatch, lambda *_: None, run_app)
    run_ray({}, num_supernodes=1, on_line=heard.append)
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
