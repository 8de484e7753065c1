"""Structured logs: one JSON object a line that names run, round, client and site."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.core.logs import (
    LONGEST,
    VARIABLE,
    JsonFormatter,
    configure_logs,
    json_logs,
    log_scope,
    write_line,
)
from fedsuite.experiment.experiment import Experiment
from fedsuite.running.node_app import log_mod
from tests.data.site_files import NAMES, write_sites
from tests.helpers import for_client, run_tampered, set_metrics
from tests.small_runs import SMALL

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def as_json(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Log JSON in this test, and leave the package's logger as it was."""
    package = logging.getLogger("fedsuite")
    before = package.handlers[:], package.level, package.propagate
    monkeypatch.setenv(VARIABLE, "json")
    yield
    package.handlers[:], package.level, package.propagate = before


def lines(capture: Capture) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capture.readouterr().err.splitlines()]


def test_a_line_by_hand(as_json: None, capsys: Capture) -> None:
    configure_logs()
    configure_logs()
    with log_scope(run="fedavg"), log_scope(round=3, client="north"):
        logging.getLogger("fedsuite.some.module").warning("%d of %s", 2, "three")
    logging.getLogger("fedsuite").info("nothing is known")
    assert not logging.getLogger("fedsuite").propagate, "others would write it again"
    first, second = lines(capsys)
    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "warning",
        "logger": "fedsuite.some.module",
        "run": "fedavg",
        "round": 3,
        "client": "north",
        "message": "2 of three",
    }
    assert set(second) == {"time", "level", "logger", "message"}


def test_no_text_breaks_a_line_or_fills_the_disk() -> None:
    nasty = 'a\nb\r\x1b[2J\u2028"}' + "x" * 10 * LONGEST
    record = logging.LogRecord("fedsuite", logging.INFO, "", 0, nasty, (), None)
    with log_scope(client="no\nrth\u202e"):
        text = JsonFormatter().format(record)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)["client"] == "no\nrth\u202e"
    assert len(json.loads(text)["message"]) == LONGEST


def test_an_exception_is_a_field_not_a_traceback() -> None:
    try:
        raise KeyError("gone")
    except KeyError:
        caught = sys.exc_info()
    record = logging.LogRecord("fedsuite", logging.ERROR, "", 0, "it failed", (), caught)
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["error"]) == ("it failed", "KeyError: 'gone'")


def test_facts_end_with_their_block() -> None:
    def known() -> set[str]:
        record = logging.LogRecord("fedsuite", logging.INFO, "", 0, "", (), None)
        return set(json.loads(JsonFormatter().format(record)))

    before = known()
    with pytest.raises(ValueError, match="out"), log_scope(round=1):
        assert known() - before == {"round"}
        raise ValueError("out")
    assert known() == before


def test_the_variable(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for value, expected in (("", False), ("text", False), ("json", True)):
        monkeypatch.setenv(VARIABLE, value)
        assert json_logs() is expected
    monkeypatch.setenv(VARIABLE, "xml")
    with pytest.raises(ConfigError, match="FEDSUITE_LOG = 'xml': text or json"):
        configure_logs()
    monkeypatch.delenv(VARIABLE)
    configure_logs()
    assert not logging.getLogger("fedsuite").handlers
    write_line("round 1")
    assert capsys.readouterr().out == "round 1\n"


def test_a_refused_reply_names_round_and_client(as_json: None, capsys: Capture) -> None:
    configure_logs()
    capsys.readouterr()
    with log_scope(run="mine"):
        run_tampered("hosted", for_client(1, "hosted", set_metrics(loss=float("nan"))), 2)
    (line,) = [line for line in lines(capsys) if line["level"] == "warning"]
    assert (line["round"], line["client"]) == (1, 1)
    assert "metric loss is nan" in line["message"]


def test_a_run_of_sites_from_end_to_end(
    as_json: None,
    capsys: Capture,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    sites = {"sites": ",".join(NAMES), "site-dirs": str(write_sites(tmp_path / "at"))}
    places = {"output-dir": str(tmp_path), "run-name": "logged"}
    keys = {**SMALL, **sites, **places, "num-clients": 3, "num-rounds": 2}
    fedsuite.run(keys)
    assert not caplog.records, "nothing goes to Flower's logger too"
    found = lines(capsys)
    assert {line["run"] for line in found} == {"logged"}
    assert not capsys.readouterr().out
    trained = [line for line in found if line["message"].startswith("answered train in")]
    assert sorted({line["round"] for line in trained}) == [1, 2]
    assert all(line["client"] in (0, 1, 2) for line in trained)
    assert any(line["message"].startswith("round 2 of 2") for line in found)


def test_a_node_names_run_and_site(as_json: None, capsys: Capture) -> None:
    values = dict(Experiment.from_values({**SMALL, "run-name": "mine"}).values)
    context = Context(7, 1, {"site": "north\n"}, RecordDict(), values)
    seen: list[Any] = []

    def answer(message: Any, context: Any) -> Any:
        logging.getLogger("fedsuite.clients").info("working")
        seen.append(message)
        return "reply"

    message: Any = "message"
    assert log_mod(message, context, answer) == "reply"
    assert seen == ["message"]
    (line,) = [line for line in lines(capsys) if line["message"] == "working"]
    assert (line["run"], line["site"]) == ("mine", "north\n")


def test_without_json_a_node_does_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    nothing: Any = np.nan
    assert log_mod(nothing, nothing, lambda message, context: message) is nothing
