"""Sweeps: the workers; Python stands in for fedsuite, nothing is computed."""

import fcntl
import signal
import time
from multiprocessing.process import BaseProcess

import pytest

from fedsuite.sweeps.workers import Task, run_tasks


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """Make tasks whose program is given, with the time they started and ended in files."""

    def task(name, program):
        return Task(name, (program,), tmp_path / f"{name}.log")

    monkeypatch.setattr("fedsuite.sweeps.workers.MODULE", "tests.sweeps.stand_in")
    monkeypatch.setattr("fedsuite.sweeps.workers.PRELOADED", [])
    return task


def run_all(tasks, workers):
    outcomes = []
    run_tasks(tasks, workers, outcomes.append)
    return {outcome.name: outcome.error for outcome in outcomes}


def test_failures_are_one_line_and_stop_nobody(programs):
    tasks = [
        programs("told", "print('x'); exit('fedsuite: error: no such thing')"),
        programs("crash", "raise ValueError('of what')"),
        programs("silent", "exit(3)"),
        programs("killed", "import os; os.kill(os.getpid(), 9)"),
        programs("good", "print('fedsuite: error: not one')"),
    ]
    assert run_all(tasks, 2) == {
        "told": "no such thing",
        "crash": "ValueError: of what",
        "silent": "exit code 3",
        "killed": "killed by SIGKILL",
        "good": None,
    }


def test_so_many_at_a_time(programs, tmp_path):
    program = (
        f"import os, time; path = {str(tmp_path)!r} + '/at-work-' + str(os.getpid())\n"
        "open(path, 'w').close()\n"
        f"names = os.listdir({str(tmp_path)!r})\n"
        "print(sum(name.startswith('at-work') for name in names))\n"
        "time.sleep(0.3); os.unlink(path)"
    )
    tasks = [programs(f"t{number}", program) for number in range(6)]
    assert set(run_all(tasks, 2).values()) == {None}
    seen = [int(task.log.read_text()) for task in tasks]
    assert max(seen) == 2


def test_workers_have_one_thread_and_this_fedsuite(programs, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    program = (
        "import os, sys, fedsuite\n"
        "print(os.environ['OMP_NUM_THREADS'], fedsuite.__file__, sys.flags.safe_path)\n"
        "print('PYTHONSAFEPATH' in os.environ)"
    )
    import fedsuite

    task = programs("t", program)
    run_all([task], 1)
    # No file in the current folder shadows a module; what a run starts is as it was.
    assert task.log.read_text().split() == ["1", fedsuite.__file__, "True", "False"]


def test_where_the_process_that_forks_is_killed_another_one_goes_on(programs):
    """As the kernel may do where memory ends."""
    kill = "import os, time; os.kill(os.getppid(), 9); time.sleep(0.1)"
    outcomes = run_all([programs("first", kill), programs("second", "print(2)")], 1)
    assert outcomes == {"first": "exit code 255", "second": None}


def test_what_is_kept_open_is_open_in_each_task(programs, tmp_path, monkeypatch):
    """Such as a sweep's lock, which is held as long as a task runs."""
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        task = programs(
            "t", f"import time; open({str(tmp_path / 't')!r}, 'w'); time.sleep(1)"
        )

        def look():
            if (tmp_path / "t").exists() and not seen:
                lock.close()
                with open(tmp_path / "lock") as again, pytest.raises(BlockingIOError):
                    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen.append(True)

        seen = []
        monkeypatch.setattr("fedsuite.sweeps.workers.redraw", look)
        run_tasks([task], 1, lambda outcome: None, (lock.fileno(),))
    assert seen
    with open(tmp_path / "lock") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


STUBBORN = "import signal, time; signal.signal(2, signal.SIG_IGN); print(1, flush=True)\n"
POLITE = (
    "import time\nprint(1, flush=True)\n"
    "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('bye', flush=True)"
)


def test_interruption_stops_all_workers(programs, monkeypatch):
    monkeypatch.setattr("fedsuite.sweeps.workers._STOP_PATIENCE_S", 3.0)
    polite = programs("polite", POLITE)
    stubborn = programs("stubborn", STUBBORN + "time.sleep(60)")
    waiting = programs("waiting", "print(1)")

    def interrupt(_seconds):
        logs = (polite.log, stubborn.log)
        if not interrupted and all(
            log.exists() and log.read_text().startswith("1\n") for log in logs
        ):
            interrupted.append(True)
            raise KeyboardInterrupt
        real_sleep(0.01)

    real_sleep = time.sleep
    interrupted, started = [], []
    start = BaseProcess.start
    monkeypatch.setattr(
        BaseProcess, "start", lambda self: started.append(self) or start(self)
    )
    monkeypatch.setattr("fedsuite.sweeps.workers.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_tasks([polite, stubborn, waiting], 2, lambda outcome: None)
    assert [process.exitcode for process in started] == [0, -signal.SIGKILL]
    assert polite.log.read_text() == "1\nbye\n"
    assert not waiting.log.exists()


def test_workers_heed_ctrl_c_where_the_sweep_ignores_it(programs):
    """As what a shell's script starts with ``&`` does, and what that starts in turn."""
    task = programs("t", "import signal; print(signal.getsignal(2))")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run_all([task], 1)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert "default_int_handler" in task.log.read_text()


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_while_a_worker_starts_stops_it_too(programs, monkeypatch, number, error):
    started = []
    start = BaseProcess.start

    def signalled(self):
        start(self)
        started.append(self)
        signal.raise_signal(number)

    monkeypatch.setattr(BaseProcess, "start", signalled)
    with pytest.raises(error):
        run_tasks([programs("t", "import time; time.sleep(60)")], 1, lambda outcome: None)
    (process,) = started
    # It heard the signal, however early that came, and was not killed in the end.
    assert process.exitcode == 1
