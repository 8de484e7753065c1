"""How a worker process starts, and that it ends with its parent."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from fedsuite.core.own_process import environment
from fedsuite.engines.pool import process

PROGRAM = """
import os, signal, sys, time
from contextvars import ContextVar
import fedsuite
from fedsuite.callbacks.progress import Progress
from fedsuite.engines.pool import process
from fedsuite.engines.pool.workers import WorkerPool
from fedsuite.training.base import FederatedClient

# What would start a new Python.
process.subprocess = None
train = FederatedClient.on_train
# A fork is to know nothing of what goes on here.
mark = ContextVar("mark", default="none")
mark.set("ours")
signal.signal(signal.SIGTERM, lambda *_: None)

def told(self, request):
    own = mark.get(), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    print("trains in", *own, os.getpid())
    return train(self, request)

FederatedClient.on_train = told
take_in = WorkerPool._take_in

# However fast the others are: this process looks for replies when it has to wait.
def late(self, exchange, timeout):
    return timeout is None and take_in(self, exchange, timeout)

WorkerPool._take_in = late

def hang(self, state, report):
    listed = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read()
    print("workers", *listed.split(), flush=True)
    time.sleep(600)

if sys.argv[1] == "hang":
    Progress.on_round_end = hang
fedsuite.run(
    {"method": "ditto", "dataset": "digits", "num-clients": 6, "num-rounds": 2,
     "workers": 3, "report": False, "output-dir": sys.argv[2], "run-name": "run"},
    engine="local",
)
"""


def program(tmp_path: Path, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, how, str(tmp_path)]
    values = environment()
    del values["PYTHONUNBUFFERED"]
    return subprocess.Popen(command, env=values, stdout=subprocess.PIPE, text=True)


def test_one_thread_without_a_gpu_forks_and_what_clients_print_is_seen(
    tmp_path: Path,
) -> None:
    with program(tmp_path, "go") as started:
        printed, _ = started.communicate(timeout=120)
    assert started.returncode == 0
    trained = {
        tuple(line.split()[2:]) for line in printed.splitlines() if "trains in" in line
    }
    assert ("ours", "False", str(started.pid)) in trained
    assert {own[:2] for own in trained if own[2] != str(started.pid)} == {("none", "True")}
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_forks_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with program(tmp_path, "hang") as started:
        assert started.stdout is not None
        workers = next(line for line in started.stdout if line.startswith("workers"))
        pids = list(map(int, workers.split()[1:]))
        assert len(pids) == 2 and {os.getsid(pid) for pid in pids} == set(pids)
        started.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(
        Path(f"/proc/{pid}").exists() for pid in pids
    ):
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_threads_and_gpus_need_a_new_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert process._can_fork(1) == (sys.platform == "linux")
    assert not process._can_fork(2)
    for owner, name, value in (
        (threading, "active_count", lambda: 2),
        (torch, "get_num_threads", lambda: 2),
        (torch.cuda, "is_available", lambda: True),
        (sys, "platform", "darwin"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert not process._can_fork(1), name
