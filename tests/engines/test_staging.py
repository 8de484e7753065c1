"""What is handed to Flower: the staged app, its values, and outcomes that come back."""

import io
import json
import math
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import flatten_dict, get_fab_config, parse_config_args
from hypothesis import given
from hypothesis import strategies as st

import fedsuite
from fedsuite.core.errors import RunError
from fedsuite.engines import flower
from fedsuite.engines.deployment import node_config_text
from fedsuite.engines.flower import (
    NoAnswerError,
    Outcome,
    StoppedThereError,
    describe_failure,
    failure,
    parse_outcome,
)
from fedsuite.engines.processes import Program, World
from fedsuite.engines.staging import stage_app, stage_keys
from tests.engines.tiny_app import ODD_VALUES

# Staging


def staged_config(app: Path) -> dict[str, Any]:
    return tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]


def test_staged_app_holds_the_package_and_nothing_else(
    tmp_path: Path, package: Path
) -> None:
    app = stage_app(tmp_path / "an app", {"key": 1}, package=package)
    files = {str(f.relative_to(app)) for f in app.rglob("*") if f.is_file()}
    assert files == {
        "pyproject.toml",
        "tiny_app/__init__.py",
        "tiny_app/client_app.py",
        "tiny_app/server_app.py",
        "tiny_app/shared.py",
    }
    assert staged_config(app)["components"] == {
        "serverapp": "tiny_app.server_app:app",
        "clientapp": "tiny_app.client_app:app",
    }


def test_by_default_the_running_fedsuite_is_staged(tmp_path: Path) -> None:
    app = stage_app(tmp_path, {})
    source = Path(fedsuite.__file__).parent
    for name in ("__init__.py", "engines/flower.py"):
        assert (app / "fedsuite" / name).read_bytes() == (source / name).read_bytes()


def test_an_app_of_keys_alone_holds_no_code(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    stage_keys(tmp_path / "app", {"of": "the run before"})
    app = stage_keys(tmp_path / "app", ODD_VALUES)
    bundle = build_fab_from_disk(app)
    names = zipfile.ZipFile(io.BytesIO(bundle)).namelist()
    assert set(names) == {"pyproject.toml", ".info/CONTENT"}
    found = get_fab_config(bundle)["tool"]["flwr"]["app"]
    assert flatten_dict(found["config"]) == ODD_VALUES
    assert found["components"]["clientapp"] == "fedsuite.client_app:app"


def test_flower_reads_the_staged_values_exactly(tmp_path: Path, package: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    app = stage_app(tmp_path / "app", ODD_VALUES, package=package)
    config = get_fab_config(build_fab_from_disk(app))["tool"]["flwr"]["app"]["config"]
    read = flatten_dict(config)
    assert read == ODD_VALUES
    assert [type(v) for v in read.values()] == [type(v) for v in ODD_VALUES.values()]


values = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True), values))
def test_any_node_config_survives_flowers_command_line(config: dict[str, Any]) -> None:
    read = parse_config_args([node_config_text(config)])
    assert read == config
    for key, value in config.items():
        assert type(read[key]) is type(value)
        if isinstance(value, float):
            assert math.copysign(1, read[key]) == math.copysign(1, value)


# Outcomes


def answer(*statuses: str) -> str:
    runs = [{"status": s, "status-details": "Simulation failed"} for s in statuses]
    return json.dumps({"success": True, "runs": runs})


def test_outcome_is_read_from_flwr_ls() -> None:
    assert parse_outcome(answer()) is None
    completed = parse_outcome(answer("finished:completed"))
    assert completed is not None and completed.finished and completed.completed
    failed = parse_outcome(answer("finished:failed"))
    assert failed is not None and failed.finished and not failed.completed
    running = parse_outcome(answer("running"))
    assert running is not None and not running.finished and not running.completed


def test_outcome_of_one_run_among_several() -> None:
    """A SuperLink that stands has other runs, the newest first."""
    entries = [
        {"run-id": "33", "status": "running", "status-details": ""},
        {"run-id": "22", "status": "finished:failed", "status-details": "why"},
        {"run-id": "11", "status": "finished:completed", "status-details": ""},
    ]
    text = json.dumps({"success": True, "runs": entries})
    assert parse_outcome(text) == Outcome("running", "")
    assert parse_outcome(text, "22") == Outcome("finished:failed", "why")
    assert parse_outcome(text, "11") == Outcome("finished:completed", "")
    assert parse_outcome(text, "44") is None


def test_a_run_is_asked_for_by_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another one was started after it."""
    asked: list[str | None] = []

    def answers(world: World, run_id: str | None = None) -> Outcome:
        asked.append(run_id)
        return Outcome("finished:completed" if len(asked) > 1 else "running", "")

    monkeypatch.setattr(flower, "ask_outcome", answers)
    monkeypatch.setattr(flower.time, "sleep", lambda seconds: None)
    with World("fedsuite") as world:
        start = world.start
        said = "print('Using SuperLink'); print('Successfully started run 22')"

        def instead(name: str, command: Sequence[str]) -> Program:
            assert command[:2] == ["flwr", "run"]
            return start(name, [sys.executable, "-c", said])

        monkeypatch.setattr(world, "start", instead)
        lines: list[str] = []
        flower.follow_run(world, Path("app"), lines.append, lambda: None)
    assert asked == ["22", "22"]
    assert "Using SuperLink" in lines


def test_an_app_that_was_refused_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "ask_outcome", lambda *_: Outcome("finished:completed", ""))
    with World("fedsuite") as world:
        start = world.start
        words = [sys.executable, "-c", "print('no such app')"]
        monkeypatch.setattr(world, "start", lambda name, command: start(name, words))
        with pytest.raises(RunError, match="refused the app: no such app"):
            flower.follow_run(world, Path("app"), lambda line: None, lambda: None)


@pytest.mark.parametrize("text", ["", "Error: no SuperLink", "[]", "{}"])
def test_unreadable_outcome_is_a_run_error(text: str) -> None:
    with pytest.raises(RunError, match="flwr ls"):
        parse_outcome(text)


REFUSED = {"success": False, "error-message": "Using SuperLink: fedsuite\n\nNo connection."}


def test_flowers_own_error_is_told_in_its_last_line() -> None:
    with pytest.raises(NoAnswerError, match=r"^flwr ls failed: No connection\.$"):
        parse_outcome(json.dumps(REFUSED))


def test_a_superlink_that_comes_back_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [json.dumps(REFUSED), json.dumps(REFUSED), answer("running")]
    monkeypatch.setattr(flower, "ask_outcome", lambda *_: parse_outcome(answers.pop(0)))
    monkeypatch.setattr(flower.time, "sleep", lambda seconds: None)
    looks: list[None] = []
    with World("fedsuite") as world:
        found = flower._ask_patiently(world, None, lambda: looks.append(None))
        assert found is not None and found.status == "running" and len(looks) == 2
        monkeypatch.setattr(flower, "_RETURN_PATIENCE_S", -1.0)
        answers.append(json.dumps(REFUSED))
        with pytest.raises(NoAnswerError):
            flower._ask_patiently(world, "1", lambda: None)


def test_failure_is_described_by_its_cause() -> None:
    details = "ServerApp failed with exception: key seed = -1:\n  expected >= 0"
    failed = Outcome("finished:failed", details)
    expected = "the run ended as finished:failed: key seed = -1: expected >= 0"
    assert describe_failure(failed, ["a line"]) == expected


def test_a_run_that_was_stopped_quotes_no_log() -> None:
    error = failure(Outcome("finished:stopped", ""), ["round 1", "round 2"])
    assert isinstance(error, StoppedThereError)
    assert str(error) == "the run was stopped by `flwr stop`"
    other = failure(None, [])
    assert str(other) == describe_failure(None, [])


def test_failure_without_cause_quotes_the_end_of_the_log() -> None:
    log = [f"line {i}" for i in range(9)] + ["", "  the last  "]
    text = describe_failure(Outcome("finished:failed", "N/A"), log)
    assert text.endswith(": line 5 | line 6 | line 7 | line 8 | the last")
    assert describe_failure(None, []) == "flwr run refused the app: it left no log"
    framed = ["╭─ Error ───╮", "│ it is off │", "╰───────────╯"]
    assert describe_failure(None, framed) == "flwr run refused the app: Error | it is off"
