"""What runs begin something before their keys are read, and that it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedsuite
from fedsuite.cli import command
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.engines import api, early
from fedsuite.engines.ahead import begun_for
from fedsuite.results.layout import EXPERIMENT


@contextmanager
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note what happens to a world in place of beginning one."""
    seen: list[str] = []

    class Noted:
        def __init__(self) -> None:
            seen.append("begun")

        def close(self, grace_s: float) -> None:
            seen.append("ended")

    monkeypatch.setattr(early, "EarlyWorld", Noted)
    monkeypatch.setattr(early, "can_begin", lambda: True)
    yield seen


@pytest.mark.parametrize(
    ("values", "changes", "address", "begins"),
    [
        ({}, {}, "", False),
        ({"engine": "ray"}, {}, "", True),
        ({"engine": "ray"}, {"engine": "local"}, "", False),
        ({"engine": "auto"}, {"engine": "ray"}, "", True),
        ({"engine": "deployment"}, {}, "", False),
        ({"engine": "ray"}, {}, "10.0.0.1:6379", False),
        ({"engine": "ray", "ray-address": "local"}, {}, "10.0.0.1:6379", True),
        ({"engine": "ray", "ray-address": "10.0.0.1:6379"}, {}, "", False),
        ({"engine": "ray", "ray-address": "nonsense"}, {}, "", False),
    ],
)
def test_only_a_run_under_a_ray_of_its_own_begins(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    values: dict[str, str],
    changes: dict[str, str],
    address: str,
    begins: bool,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    file = tmp_path / "experiment.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in values.items()))
    with begun(monkeypatch) as seen:
        for given in (values, file):
            with begun_for(given, changes):
                seen.append("read")
    assert seen == (["begun", "read", "ended"] if begins else ["read"]) * 2


@pytest.mark.parametrize("text", ["no toml", b"\xff", None])
def test_what_cannot_be_read_begins_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | bytes | None
) -> None:
    file = tmp_path / "experiment.toml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with begun(monkeypatch) as seen, begun_for(file, {}):
        pass
    assert seen == []


def test_a_wrong_experiment_ends_what_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    with begun(monkeypatch) as seen, pytest.raises(ConfigError, match="no-such-key"):
        fedsuite.run({"engine": "ray", "method": "fedavg", "no-such-key": 1})
    assert seen == ["begun", "ended"]


@pytest.mark.parametrize("option", [["--engine", "ray"], ["--set", "engine=ray"]])
def test_the_command_begins_before_it_reads_the_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: list[str]
) -> None:
    (tmp_path / "e.toml").write_text("no-such-key = 1\n")
    with begun(monkeypatch) as seen:
        words = ["run", str(tmp_path / "e.toml"), *option]
        result = CliRunner().invoke(command.app, words)
        assert "no-such-key" in str(result.exception)
    assert seen == ["begun", "ended"]


def test_a_run_that_goes_on_begins_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def resumable(*_: object) -> None:
        raise RunError("no checkpoint")

    (tmp_path / EXPERIMENT).write_text('engine = "ray"\n')
    monkeypatch.setattr(api, "federation_of", lambda _: "")
    monkeypatch.setattr(api, "resumable", resumable)
    with begun(monkeypatch) as seen:
        with pytest.raises(RunError, match="no checkpoint"):
            fedsuite.resume(tmp_path)
        with pytest.raises(RunError, match="no checkpoint"):
            fedsuite.resume(tmp_path, engine="local")
    assert seen == ["begun", "ended"]
