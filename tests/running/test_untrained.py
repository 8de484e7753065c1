"""A run of which no round trained is no finished run, and its folder stays whole."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedsuite
from fedsuite.core.errors import RunError
from fedsuite.results.compare import compare
from fedsuite.results.reader import load_run
from fedsuite.running.outcome import untrained

SMALL: dict[str, Any] = {
    "model": "linear",
    "num-clients": 3,
    "num-rounds": 2,
    "max-failed-rounds": 9,
    "report": False,
}
DIVERGES = {"learning-rate": 1e38, "local-epochs": 3}


def run(folder: Path, **changes: Any) -> Any:
    return fedsuite.run(SMALL | {"output-dir": str(folder), "run-name": "run"} | changes)


def failed(folder: Path, **changes: Any) -> str:
    with pytest.raises(RunError) as caught:
        run(folder, **changes)
    return one_line_of(folder, str(caught.value))


def one_line_of(folder: Path, message: str) -> str:
    assert "\n" not in message
    manifest = json.loads((folder / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["error"]) == ("failed", message)
    return message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {**DIVERGES, "num-rounds": 1},
            r"1 of 1 failed; last reason: .*client \d, round 1",
        ),
        (
            DIVERGES,
            r"2 of 2 failed; last reason: .*client \d, round 2: the training loss is",
        ),
        ({**DIVERGES, "method": "scaffold"}, "2 of 2 failed"),
        ({**DIVERGES, "method": "qffl"}, "2 of 2 failed"),
        ({"drop-out": 1.0}, "2 of 2 failed; last reason: "),
        ({"drop-out": 1.0, "engine": "local", "workers": 1}, "2 of 2 failed"),
        ({"drop-out": 1.0, "method": "fedbuff"}, "2 of 2 failed"),
        (
            {"drop-out": 1.0, "dp-noise-multiplier": 1.0, "dp-clipping-norm": 1.0},
            "2 of 2 failed",
        ),
    ],
)
def test_it_fails_with_the_last_reason(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    message = failed(tmp_path, **changes)
    assert "no round trained" in message and re.search(reason, message), message


def test_folder_and_model_can_be_read(tmp_path: Path) -> None:
    failed(tmp_path, **DIVERGES)
    found = load_run(tmp_path / "run")
    assert found.summary is not None and found.summary["rounds"] == 2
    assert [row["round_failed"] for row in found.rounds] == [1.0, 1.0]
    assert (tmp_path / "run" / "model.safetensors").is_file()
    good = fedsuite.run(SMALL | {"output-dir": str(tmp_path), "run-name": "good"})
    assert "round_failed" not in good.rounds[0]
    told = compare([tmp_path / "run", good.path]).warnings
    assert any("not finished: its status is failed" in line for line in told)


def test_going_on_without_a_trained_round_fails_again(tmp_path: Path) -> None:
    first = failed(tmp_path, **DIVERGES)
    with pytest.raises(RunError) as caught:
        fedsuite.resume(tmp_path / "run")
    assert one_line_of(tmp_path, str(caught.value)) == first
    with pytest.raises(RunError, match="3 of 3 failed"):
        fedsuite.resume(tmp_path / "run", num_rounds=3)


def test_the_command_ends_with_1_and_one_line(tmp_path: Path) -> None:
    from fedsuite.cli.command import app

    words = [f"--set={k}={str(v).lower()}" for k, v in (SMALL | DIVERGES).items()]
    file = tmp_path / "x.toml"
    file.write_text(f'output-dir = "{tmp_path}"\nrun-name = "run"\n')
    done = CliRunner().invoke(app, ["run", str(file), *words])
    assert done.exit_code == 1
    assert "no round trained" in str(done.exception) + done.output


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"round_failed": 1, "clients_trained": 2}], "1 of 1 failed"),
        ([{"clients_trained": 0}], ""),
        ([{"round_failed": 1}, {"clients_trained": 1}], ""),
        # In the second nobody was asked.
        ([{"round_failed": 1}, {"clients_trained": 0}, {"round_failed": 1}], "2 of 2"),
        ([], ""),
    ],
)
def test_one_trained_round_is_enough(
    rows: list[dict[str, int]], reason: str, tmp_path: Path
) -> None:
    folder = run(tmp_path, **{"num-rounds": 1}).path
    lines = [json.dumps({"round": k, **row}) + "\n" for k, row in enumerate(rows, 1)]
    (folder / "rounds.jsonl").write_text("".join(lines))
    found = untrained(folder)
    assert reason in found and bool(found) == bool(reason)
