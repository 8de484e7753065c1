"""Processors and GPUs for clients: too many are one line before anything starts."""

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedsuite
from fedsuite.cli import command
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.engines import room
from fedsuite.engines.processes import World
from fedsuite.engines.room import Room
from tests.small_runs import SMALL


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have 8 CPUs and 2 GPUs."""
    monkeypatch.setattr(room, "cpus_of_ray", lambda: 8)
    monkeypatch.setattr(room, "gpus_of_ray", lambda: 2)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Room(client_cpus=8), ""),
        (Room(client_cpus=9), "--client-cpus 9: this machine has 8"),
        (Room(client_gpus=2.0), ""),
        (Room(client_gpus=3.0), "--client-gpus 3: this machine has 2"),
        (Room(client_gpus=0.99), ""),
        (Room(client_gpus=0.5), ""),
        (Room(client_gpus=0.1), ""),
        (Room(client_gpus=0.3333), ""),
        # Ray lays a share on one GPU; Flower divides both GPUs by it.
        (Room(client_gpus=0.6), "room for 2 such clients, .* would start 3: set 1$"),
        (Room(client_gpus=0.4), "room for 4 such clients, .* would start 5: set 0.5$"),
        # Processors let no more than two start.
        (Room(client_cpus=4, client_gpus=0.6), ""),
    ],
)
def test_what_fits_this_machine(wanted: Room, words: str) -> None:
    if not words:
        wanted.check_here()
        return
    with pytest.raises(ConfigError, match=words):
        wanted.check_here()


def test_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "gpus_of_ray", lambda: 0)
    with pytest.raises(ConfigError, match=r"client-gpus 0\.5: this machine has 0, so no"):
        Room(client_gpus=0.5).check_here()


@pytest.mark.parametrize("cpus", [0, -1])
def test_no_processor(cpus: int) -> None:
    with pytest.raises(ConfigError, match=r"--client-cpus .*: expected at least 1"):
        Room(client_cpus=cpus).check("ray")


@pytest.mark.parametrize("gpus", [-1.0, 1.5, 0.000099, math.nan, math.inf])
def test_amounts_that_ray_does_not_take(gpus: float) -> None:
    with pytest.raises(ConfigError, match=r"a share of a GPU such as 0\.25, or whole GPUs"):
        Room(client_gpus=gpus).check("ray")
    Room(client_gpus=0.000101).check("ray")


def test_a_gpu_that_ray_would_hide() -> None:
    with pytest.raises(ConfigError, match=r"key device = 'cuda': Ray hides all GPUs"):
        Room().check("ray", "cuda")
    Room(client_gpus=0.25).check("ray", "cuda")
    Room().check("local", "cuda")
    Room().check("ray", "auto")


def test_the_count_is_this_machine_s() -> None:
    assert room.cpus_of_ray() >= 1
    assert room.gpus_of_ray() >= 0


@pytest.mark.parametrize(
    "option", [["--client-cpus", "100000"], ["--client-gpus", "64"]], ids=lambda o: o[0]
)
def test_too_much_is_refused_before_anything_is_made(
    option: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(world: World, package: str = "") -> None:
        pytest.fail("something began")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(World, "__init__", begin)
    file = tmp_path / "e.toml"
    file.write_text('model = "linear"\nreport = false\n')
    words = ["run", str(file), "--engine", "ray", *option]
    result = CliRunner().invoke(command.app, words)
    assert isinstance(result.exception, ConfigError), result.output
    assert option[0] in str(result.exception) and "\n" not in str(result.exception)
    assert list(tmp_path.iterdir()) == [file]


def test_an_engine_that_sets_nothing_aside(tmp_path: Path) -> None:
    places = {"output-dir": str(tmp_path / "runs")}
    with pytest.raises(ConfigError, match="engine local sets nothing aside"):
        fedsuite.run({**SMALL, **places}, client_cpus=2)
    with pytest.raises(ConfigError, match=r"--client-gpus 0\.5: the engine local"):
        fedsuite.run({**SMALL, **places}, client_gpus=0.5)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_round_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsuite.strategies import FedAvg

    def fail(*_: object, **__: object) -> None:
        raise RunError("sites b did not connect within 9 s")

    values = {**SMALL, "output-dir": str(tmp_path), "run-name": "run"}
    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, "start", fail)
        with pytest.raises(RunError, match="did not connect"):
            fedsuite.run(values)
    assert (tmp_path / "run" / "manifest.json").exists()
    assert fedsuite.run(values).manifest["status"] == "finished"
    with pytest.raises(RunError, match="exists and is not empty"):
        fedsuite.run(values)


def test_what_rays_own_variable_says_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"GPU": 1, "CPU": 3}')
    Room(client_cpus=3, client_gpus=0.5).check_here()
    with pytest.raises(ConfigError, match="--client-cpus 4: this machine has 3"):
        Room(client_cpus=4).check_here()
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", "no JSON")
    assert room.cpus_of_ray() >= 1
