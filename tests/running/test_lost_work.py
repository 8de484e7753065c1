"""What is made of a finished run, or told of it, does not fail the run."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedsuite
from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.core.errors import Stopped
from fedsuite.core.logs import harmless
from fedsuite.core.output import outliving_terminal
from fedsuite.messages.records import NUM_EXAMPLES, Reply
from fedsuite.results.layout import read_manifest
from fedsuite.rounds.events import Callback
from tests.small_runs import SMALL, write_experiment

RUN = SMALL | {"run-name": "x", "num-rounds": 2, "clients-per-round": 0, "report": False}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def reporting(monkeypatch, change):
    """Let clients change the metrics of their evaluations."""
    usual = FedAvgClient.on_evaluate

    def on_evaluate(self, request):
        reply = usual(self, request)
        reply.metrics.update(change(self.client_id, dict(reply.metrics)))
        return reply

    monkeypatch.setattr(FedAvgClient, "on_evaluate", on_evaluate)


def per_cent(client_id, metrics):
    return {"accuracy": 95.0} if client_id == 1 else {}


def finished(folder="runs/x"):
    """Return whether a run ended well, with its model."""
    model = Path(folder, "model.safetensors").exists()
    return read_manifest(Path(folder))["status"] == "finished" and model


# Accuracies that are no fractions


def test_a_client_that_reports_per_cent_costs_nothing_but_its_number(
    monkeypatch, capsys, caplog
):
    reporting(monkeypatch, per_cent)
    run = fedsuite.run(RUN | {"report": True}, num_supernodes=4)
    assert finished()
    assert (run.path / "report.html").exists()
    out = capsys.readouterr().out
    assert "no report" not in out
    assert out.count(" of 3 of 4 clients  worst client") == 2
    assert "Accuracy over 3 of 4 clients" in out
    (told,) = [r.getMessage() for r in caplog.records if "is 95" in r.getMessage()]
    assert told == (
        "round 1: client 1: metric accuracy is 95, where a fraction from 0 to 1 is "
        "expected: it is left out of the means, here and later, and all else in "
        "the reply counts"
    )
    others = [value for k, value in run.client_values("evaluate", "accuracy").items()]
    assert len(others) == 3 and max(others) <= 1
    last = run.rounds[-1]
    assert last["accuracy_mean"] == pytest.approx(sum(others) / 3)
    assert (last["accuracy_clients"], last["accuracy_clients_asked"]) == (3, 4)
    assert (last["evaluate_accuracy"] <= 1, last["evaluate_accuracy_clients"]) == (True, 3)
    assert min(others) <= last["accuracy_median"] <= max(others)
    assert last["clients_trained"] == 4 and last["replies_rejected"] == 0
    summary = run.summary["accuracy_in_per_cent"]
    assert (summary["num_clients"], summary["num_asked"]) == (3, 4)
    whys = {(event["kind"], event["cause"]) for event in run.events()}
    assert whys == {("left-out-metric", "wrong-metrics")}


@pytest.mark.parametrize("value", [95.0, 1.0000001, -0.01, 100])
def test_where_all_report_something_else_no_accuracy_is_shown(monkeypatch, capsys, value):
    reporting(monkeypatch, lambda *_: {"accuracy": value})
    run = fedsuite.run(RUN, num_supernodes=4)
    assert finished()
    out = capsys.readouterr().out
    assert "mean accuracy of 0 of 4 clients" in out
    assert "No accuracy over clients: 0 of 4 clients have a score" in out
    assert "accuracy_mean" not in run.rounds[-1]
    assert run.summary["accuracy_in_per_cent"] is None


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_the_ends_of_the_range_are_fractions(monkeypatch, value, caplog):
    reporting(monkeypatch, lambda *_: {"accuracy": value})
    run = fedsuite.run(RUN, num_supernodes=4)
    assert run.rounds[-1]["accuracy_mean"] == value
    assert "accuracy_clients" not in run.rounds[-1]
    assert "a fraction" not in caplog.text


def test_a_client_without_test_rows_has_no_accuracy(monkeypatch):
    reporting(
        monkeypatch, lambda k, _: {NUM_EXAMPLES: 0, "accuracy": 0.0} if k == 1 else {}
    )
    run = fedsuite.run(RUN, num_supernodes=4)
    assert len(run.client_values("evaluate", "accuracy")) == 3
    # It has nothing to score, so nothing is missing.
    assert "accuracy_clients" not in run.rounds[-1]
    assert run.summary["accuracy_in_per_cent"]["num_clients"] == 3


def test_a_client_whose_loss_is_nan_is_missing_from_the_mean(monkeypatch, capsys):
    reporting(monkeypatch, lambda k, _: {"accuracy": float("nan")} if k < 2 else {})
    run = fedsuite.run(RUN, num_supernodes=4)
    assert run.rounds[-1]["accuracy_clients"] == 2
    assert " of 2 of 4 clients  worst client" in capsys.readouterr().out


def test_a_followed_metric_may_be_missing_once_it_was_there(monkeypatch):
    rounds = {}

    def later(client_id, _):
        rounds[client_id] = rounds.get(client_id, 0) + 1
        return {"accuracy": 95.0} if rounds[client_id] == 2 else {}

    reporting(monkeypatch, later)
    keys = {"early-stop-metric": "accuracy_mean", "best-model-metric": "accuracy_mean"}
    run = fedsuite.run(RUN | keys | {"num-rounds": 4}, num_supernodes=4)
    assert [row.get("accuracy_clients", 4) for row in run.rounds] == [4, 0, 4, 4]


@pytest.mark.parametrize("lie", [{"loss": None}, {"loss": -1e300}, {"loss": 1e9}])
def test_one_of_four_ends_no_run_by_what_it_says_of_its_loss(monkeypatch, lie):
    """It leaves the loss out, or lies in a way that a mean would follow."""

    def on_evaluate(self, request):
        reply = usual(self, request)
        if self.client_id == 1:
            metrics = {**reply.metrics, **{k: v for k, v in lie.items() if v is not None}}
            lacking = {k for k, v in lie.items() if v is None}
            reply = Reply(metrics={k: v for k, v in metrics.items() if k not in lacking})
        return reply

    usual = FedAvgClient.on_evaluate
    monkeypatch.setattr(FedAvgClient, "on_evaluate", on_evaluate)
    keys = {"early-stop-metric": "evaluate_loss", "best-model-metric": "evaluate_loss"}
    keys |= {"early-stop-patience": 2, "num-rounds": 5}
    run = fedsuite.run(RUN | keys, num_supernodes=4)
    assert finished()
    counted = [row.get("evaluate_loss_clients", 4) for row in run.rounds]
    assert counted == [4 if lie["loss"] == 1e9 else 3] * 5
    assert all(0 <= row["evaluate_loss_median"] < 10 for row in run.rounds)
    assert run.summary["best_model"]["round"] == 5


# What is made of a finished run


def fail(*_arguments, **_options):
    raise ZeroDivisionError("a bug\nof two lines")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (
            "fedsuite.results.summary.fairness_report",
            "no tables: ZeroDivisionError: a bug of",
        ),
        (
            "fedsuite.results.report.page",
            "no report: ZeroDivisionError: a bug of two lines",
        ),
    ],
)
def test_what_fails_after_the_rounds_is_one_line(monkeypatch, capsys, place, told):
    monkeypatch.setattr(place, fail)
    fedsuite.run(RUN | {"report": True})
    assert finished()
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith(told)]
    assert "test_lost_work.py, line " in line


def test_a_report_on_a_full_disk_is_one_line(monkeypatch, capsys):
    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("fedsuite.results.report.atomic_write", full)
    fedsuite.run(RUN | {"report": True})
    assert finished()
    assert "no report: [Errno 28] No space left on device" in capsys.readouterr().out


def test_the_model_is_there_when_the_summary_is_written(monkeypatch):
    from fedsuite.running import server

    seen = []
    monkeypatch.setattr(
        server, "write_summary", lambda folder: seen.append(os.listdir(folder.path))
    )
    fedsuite.run(RUN)
    assert "model.safetensors" in seen[0]
    assert finished()


@pytest.mark.parametrize(
    "place", ["running.server.tell_summary", "callbacks.tracking.Tracking.close"]
)
def test_ctrl_c_after_the_rounds_leaves_the_run_finished(monkeypatch, place):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"fedsuite.{place}", interrupt)
    with pytest.raises(Stopped, match=r"^stopped after the rounds: .*/x is finished"):
        fedsuite.run(RUN | {"trackers": "tensorboard"})
    assert finished()


class Failing(Callback):
    def on_end(self, state, error):
        raise ZeroDivisionError("at the end")


def test_a_callback_that_fails_at_the_end_costs_no_result(monkeypatch, caplog):
    from fedsuite.running import server

    usual = server.build_callbacks
    monkeypatch.setattr(
        server, "build_callbacks", lambda *given: [Failing(), *usual(*given)]
    )
    fedsuite.run(RUN)
    assert finished()
    assert (
        "Failing failed at the end of the run: ZeroDivisionError: at the end" in caplog.text
    )


class FailingInRound(Callback):
    """Fails after one round, which may be the last or the one that ends the run."""

    def on_round_end(self, state, report):
        if report.server_round == 2:
            state.stop_reason = "enough"
            raise ZeroDivisionError("in the last round")


@pytest.mark.parametrize(("num_rounds", "place"), [(2, 0), (2, 99), (9, 99)])
def test_a_callback_that_fails_in_the_last_round_costs_no_model(
    monkeypatch, num_rounds, place
):
    from fedsuite.running import server

    usual = server.build_callbacks

    def build(*given):
        callbacks = usual(*given)
        callbacks.insert(place, FailingInRound())
        return callbacks

    monkeypatch.setattr(server, "build_callbacks", build)
    with pytest.raises(ZeroDivisionError):
        fedsuite.run(RUN | {"num-rounds": num_rounds})
    assert Path("runs/x/model.safetensors").exists()
    assert read_manifest(Path("runs/x"))["status"] == "failed"


def test_a_run_that_fails_before_its_last_round_has_no_final_model(monkeypatch):
    from fedsuite.callbacks.progress import Progress

    monkeypatch.setattr(Progress, "on_round_end", fail)
    with pytest.raises(ZeroDivisionError):
        fedsuite.run(RUN)
    assert not Path("runs/x/model.safetensors").exists()


def test_stop_signals_are_no_failures():
    with pytest.raises(KeyboardInterrupt), harmless("tables"):
        raise KeyboardInterrupt


# Output that cannot be written


def test_a_terminal_that_goes_away_is_no_stop():
    before = signal.getsignal(signal.SIGHUP)
    with outliving_terminal():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_programs_own_handler_stays():
    came = []
    before = signal.signal(signal.SIGHUP, lambda number, _: came.append(number))
    try:
        with outliving_terminal():
            os.kill(os.getpid(), signal.SIGHUP)
        assert came == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


PROGRAM = """
import contextlib, os, sys
from fedsuite.core.output import outliving_readers, print_line
with outliving_readers():
    for _ in range(100):
        print("\u2501" * 100, flush=True)
        print("\u2501" * 100, file=sys.stderr)
    with open("end", "w") as end:
        end.write("x")
        for number in (1, 2):
            with contextlib.suppress(OSError):
                os.write(number, b"of a library")
"""

PROGRAM_OF_LINES = """
from fedsuite.core.output import print_line
for _ in range(3):
    print_line("\u2501" * 100)
open("end", "w").write("x")
"""


@pytest.mark.parametrize("program", [PROGRAM, PROGRAM_OF_LINES])
@pytest.mark.parametrize(
    "redirected",
    [
        ">/dev/full",
        "2>/dev/full",
        ">/dev/full 2>&1",
        ">&-",
        ">&- 2>&-",
        "<&- >&- 2>&-",
    ],
)
@pytest.mark.parametrize("encoding", ["cp1252"])
def test_a_program_whose_output_cannot_be_written(tmp_path, program, redirected, encoding):
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        f"{sys.executable} program.py {redirected}",
        shell=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert done.returncode == 0
    # No file took the number of a closed stream, whose text would stand in it.
    assert (tmp_path / "end").read_text() == "x"


def test_what_an_encoding_lacks_is_a_question_mark(tmp_path):
    program = "from fedsuite.core.output import print_line; print_line('a \u2501 \u00b1')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONIOENCODING": "cp1252"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.strip() == b"a ? \xb1"


SHELL = {
    "cp1252": "PYTHONIOENCODING=cp1252 {run} >/dev/null",
    "a full disk": "{run} >/dev/full 2>/dev/full",
    "closed": "{run} >&- 2>&-",
    "a log on a full disk": "FEDSUITE_LOG=json {run} 2>/dev/full",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", SHELL.values(), ids=SHELL)
def test_a_run_whose_output_cannot_be_written(tmp_path, command):
    file = write_experiment(tmp_path / "small.toml")
    run = f"{sys.executable} -m fedsuite run {file} --set run-name=x"
    assert subprocess.run(command.format(run=run), shell=True, check=False).returncode == 0
    assert finished()


@pytest.mark.slow
@pytest.mark.smoke
def test_a_run_goes_on_without_its_terminal(tmp_path):
    """The terminal is the run's own, so that the system hangs it up."""
    file = write_experiment(tmp_path / "small.toml", num_rounds=100)
    command = [sys.executable, "-m", "fedsuite", "run", str(file), "--set", "run-name=x"]
    process, terminal = pty.fork()
    if not process:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, command)
    text = b""
    while b"round" not in text:
        text += os.read(terminal, 1000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert finished()
    assert len(json.loads(Path("runs/x/summary.json").read_text())) > 3
