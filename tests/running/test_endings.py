"""How a run ends early: Ctrl-C, a reader that goes, a client with a programming error."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import httpx
import pytest

import fedsuite
from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.core.errors import RunError, Stopped
from fedsuite.core.output import outliving_readers, print_line
from fedsuite.results.layout import read_manifest
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import RoundReport
from fedsuite.strategies.averaging.fedavg import FedAvg
from tests.results.made_runs import make_run
from tests.small_runs import SMALL, write_experiment


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def interrupt_in(monkeypatch, server_round, error=KeyboardInterrupt):
    """Interrupt runs of this process when a round has been recorded."""
    from fedsuite.callbacks.progress import Progress

    usual = Progress.on_round_end

    def on_round_end(self, state, report: RoundReport):
        usual(self, state, report)
        if report.server_round == server_round:
            raise error

    monkeypatch.setattr(Progress, "on_round_end", on_round_end)


# Ctrl-C


@pytest.mark.parametrize(
    ("every", "words"),
    [
        (2, "goes on after round 2"),
        (0, "starts it again, for there is no checkpoint yet"),
    ],
)
def test_ctrl_c_says_where_and_what_goes_on(monkeypatch, tmp_path, every, words):
    interrupt_in(monkeypatch, 3)
    keys = {"run-name": "my run".replace(" ", "-"), "num-rounds": 5}
    with pytest.raises(Stopped) as stopped:
        fedsuite.run(SMALL | keys | {"checkpoint-every": every})
    folder = tmp_path / "runs" / "my-run"
    assert str(stopped.value) == (
        f"stopped after round 3 of 5: `fedsuite resume {folder}` {words}"
    )
    assert read_manifest(folder)["status"] == "stopped"
    monkeypatch.undo()
    assert fedsuite.resume(folder).manifest["status"] == "finished"


def test_ctrl_c_before_there_is_a_folder(monkeypatch):
    def interrupt(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsuite.running.server.federated_data", interrupt)
    with pytest.raises(Stopped, match=r"^stopped before the first round: nothing is lost$"):
        fedsuite.run(SMALL)


def test_a_folder_with_a_space_is_quoted(monkeypatch, tmp_path):
    interrupt_in(monkeypatch, 1)
    with pytest.raises(Stopped, match=r"`fedsuite resume '.*a b/x'`"):
        fedsuite.run(SMALL | {"output-dir": str(tmp_path / "a b"), "run-name": "x"})


def _of_http():
    request = httpx.Request("POST", "http://superlink")
    refused = httpx.Response(401, request=request)
    return httpx.HTTPStatusError("401", request=request, response=refused)


@pytest.mark.parametrize(
    ("error", "federation"),
    [(_of_http(), ""), (httpx.ConnectError(""), "fed/superlink"), (grpc.RpcError("x"), "")],
)
def test_a_superlink_that_is_gone_ends_a_run_with_the_command_to_go_on(
    monkeypatch, tmp_path, error, federation
):
    converse = FedAvg.converse

    def gone(strategy, *arguments):
        if strategy.server_round == 3:
            raise error
        return converse(strategy, *arguments)

    monkeypatch.setattr(FedAvg, "converse", gone)
    monkeypatch.setenv("FEDSUITE_FEDERATION", federation)
    folder = tmp_path / "a b" / "x"
    places = {"output-dir": str(folder.parent), "run-name": "x", "checkpoint-every": 1}
    with pytest.raises(RunError) as ended:
        fedsuite.run(SMALL | places | {"num-rounds": 4})
    again = """the same `flwr run` with 'resume=true run-name="x"' in its --run-config"""
    again = f"`fedsuite resume '{folder}'`" if federation else again
    assert str(ended.value).endswith(f"start it again if it is down, and go on by {again}")
    assert read_manifest(folder)["error"] == str(ended.value)
    monkeypatch.undo()
    assert fedsuite.resume(folder, engine="local").manifest["status"] == "finished"


def test_a_run_whose_processes_were_killed_is_marked(monkeypatch, tmp_path):
    def killed(*_arguments, **_options):
        make_run("runs/x", status="running")
        raise KeyboardInterrupt

    monkeypatch.setattr("fedsuite.engines.ray.run_ray", killed)
    with pytest.raises(Stopped, match="stopped after round 1 of"):
        fedsuite.run(SMALL | {"run-name": "x"}, engine="ray")
    assert read_manifest(tmp_path / "runs/x")["status"] == "stopped"


def test_a_run_that_is_at_work_is_not_marked(tmp_path):
    folder = RunFolder.create(tmp_path / "x", SMALL, {})
    RunFolder.stop(tmp_path / "x")
    assert read_manifest(tmp_path / "x")["status"] == "running"
    folder.finish("finished")
    RunFolder.stop(tmp_path / "x")
    assert read_manifest(tmp_path / "x")["status"] == "finished"


def interrupted(arguments, ready, *, patience=300.0):
    """Run a command until a moment comes, interrupt it; return code and error output."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsuite", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + patience
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def begun(folder):
    return lambda: (folder / "rounds.jsonl").exists()


LONG = {"num-rounds": 100_000, "run-name": "x", "checkpoint-every": 1}


@pytest.mark.smoke
@pytest.mark.slow
def test_ctrl_c_of_run_and_resume(tmp_path):
    file, folder = write_experiment(tmp_path / "long.toml"), tmp_path / "runs/x"
    options = [f"--set={key}={value}" for key, value in LONG.items()]
    for arguments in (["run", file, *options], ["resume", folder]):
        table = folder / "rounds.jsonl"
        before = lines(table)

        def more(before=before, table=table):
            # The checkpoint of a round is written after its line.
            return lines(table) > before + 1

        code, errors = interrupted(arguments, more)
        assert code == 130
        (line,) = errors.splitlines()
        assert line.startswith("fedsuite: stopped after round ")
        assert f"`fedsuite resume {folder}` goes on after round " in line
        assert read_manifest(folder)["status"] == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "deployment"])
def test_ctrl_c_of_other_engines(tmp_path, engine):
    file, folder = write_experiment(tmp_path / "long.toml"), tmp_path / "runs/x"
    options = [f"--set={key}={value}" for key, value in LONG.items()]
    options += ["--engine", engine, "--num-supernodes", "2"]
    code, errors = interrupted(["run", file, *options], begun(folder))
    assert code == 130
    assert errors.splitlines()[-1].startswith("fedsuite: stopped after round ")
    assert read_manifest(folder)["status"] == "stopped"


# A reader that goes


def test_readers_of_the_command_may_go(tmp_path):
    """In a process of its own: what it prints after the reader has gone is lost."""
    program = (
        "import sys, time\n"
        "from fedsuite.core.output import outliving_readers, print_line\n"
        "with outliving_readers():\n"
        "    print('first', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    for _ in range(100): print('x' * 1000, flush=True)\n"
        "open('end', 'w').close()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"first\n"
    process.stdout.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    assert (tmp_path / "end").exists()


def test_output_of_a_test_or_a_notebook_is_left_alone(capsys):
    with outliving_readers():
        print("seen")
    assert capsys.readouterr().out == "seen\n"


def test_a_line_without_a_reader_is_no_error(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        print_line("one")
        print_line("two")
        monkeypatch.undo()


@pytest.mark.slow
def test_a_run_goes_on_without_its_reader(tmp_path):
    file = write_experiment(tmp_path / "small.toml", num_rounds=6)
    for command, count in (
        (f"run {file} --set run-name=x", 2),
        (f"sweep {file} --output sweep", 1),
        ("methods fedavg --all", 1),
        ("--help", 1),
    ):
        done = subprocess.run(
            f"set -o pipefail; {sys.executable} -m fedsuite {command} | head -{count}",
            shell=True,
            executable="/bin/bash",
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert len(done.stdout.splitlines()) == count
    assert read_manifest(tmp_path / "runs/x")["status"] == "finished"
    assert (tmp_path / "runs/x/model.safetensors").exists()
    assert (tmp_path / "sweep/comparison.md").exists()


# A programming error in a client


def failing(monkeypatch, fails):
    """Let clients raise in training, those for whom ``fails`` says so."""
    usual = FedAvgClient.on_train

    def on_train(self, request):
        if fails(self.client_id):
            raise TypeError(f"client {self.client_id} counts apples")
        return usual(self, request)

    monkeypatch.setattr(FedAvgClient, "on_train", on_train)


ALL = SMALL | {"clients-per-round": 0, "run-name": "x", "num-rounds": 4}


def tracebacks(caplog):
    return [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("nodes", [0, 2])
def test_all_clients_that_fail_alike_end_a_run_at_once(monkeypatch, caplog, nodes):
    failing(monkeypatch, lambda _: True)
    with pytest.raises(RunError) as caught:
        fedsuite.run(ALL, num_supernodes=nodes)
    assert "all clients failed alike" in str(caught.value)
    assert "TypeError: client 0 counts apples" in str(caught.value)
    assert len(tracebacks(caplog)) == 1
    assert read_manifest(Path("runs/x"))["status"] == "failed"
    assert not Path("runs/x/rounds.jsonl").exists()


def test_one_client_that_fails_is_told_with_one_traceback(monkeypatch, caplog):
    failing(monkeypatch, lambda client_id: client_id == 2)
    run = fedsuite.run(ALL)
    assert [row["replies_rejected"] for row in run.rounds] == [1, 1, 1, 1]
    (shown,) = tracebacks(caplog)
    assert "client 2 failed" in shown.getMessage()


def test_clients_that_fail_in_two_ways_are_given_the_usual_rounds(monkeypatch, caplog):
    def on_train(self, request):
        if self.client_id % 2:
            raise TypeError("odd")
        raise ValueError("even")

    monkeypatch.setattr(FedAvgClient, "on_train", on_train)
    with pytest.raises(RunError, match="3 rounds in a row"):
        fedsuite.run(ALL)
    assert len(tracebacks(caplog)) == 2


def test_one_client_a_round_ends_nothing_at_once(monkeypatch):
    failing(monkeypatch, lambda _: True)
    with pytest.raises(RunError, match="3 rounds in a row"):
        fedsuite.run(ALL | {"clients-per-round": 1})


def test_what_may_pass_is_no_programming_error(monkeypatch):
    def on_train(self, request):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FedAvgClient, "on_train", on_train)
    with pytest.raises(RunError, match="3 rounds in a row"):
        fedsuite.run(ALL)


@pytest.mark.slow
def test_workers_show_it_once_too(monkeypatch, caplog, tmp_path):
    # Worker processes load modules anew: the error must stand in a file that they find.
    (tmp_path / "sitecustomize.py").write_text(
        "import fedsuite.clients.averaging.fedavg as module\n"
        "def on_train(self, request):\n"
        "    raise TypeError('counts apples')\n"
        "module.FedAvgClient.on_train = on_train\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    file = write_experiment(tmp_path / "x.toml", clients_per_round=0, workers=2)
    done = subprocess.run(
        [sys.executable, "-m", "fedsuite", "run", file, "--set=run-name=x"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "all clients failed alike" in done.stderr.splitlines()[-1]
    assert json.loads(Path("runs/x/manifest.json").read_text())["status"] == "failed"
