"""Sweeps: the workers; Python stands in for fedsuite, nothing is computed."""

import signal
import subprocess
import time

import pytest

from fedsuite.sweeps.workers import Task, run_tasks


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """Make tasks whose program is given, with the time they started and ended in files."""

    def task(name, program):
        return Task(name, (program,), tmp_path / f"{name}.log")

    monkeypatch.setattr("fedsuite.sweeps.workers.MODULE", "tests.sweeps.stand_in")
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
    program = "import os, fedsuite; print(os.environ['OMP_NUM_THREADS'], fedsuite.__file__)"
    import fedsuite

    task = programs("t", program)
    run_all([task], 1)
    assert task.log.read_text().split() == ["1", fedsuite.__file__]


def test_a_killed_worker_fails_its_task_alone(programs):
    """As the kernel does where memory ends."""
    kill = "import os, time; os.kill(os.getppid(), 9); time.sleep(0.1)"
    outcomes = run_all([programs("first", kill), programs("second", "print(2)")], 1)
    assert outcomes == {"first": "killed by SIGKILL", "second": None}


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
    start = subprocess.Popen
    monkeypatch.setattr(
        "fedsuite.sweeps.workers.subprocess.Popen",
        lambda *a, **o: started.append(start(*a, **o)) or started[-1],
    )
    monkeypatch.setattr("fedsuite.sweeps.workers.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_tasks([polite, stubborn, waiting], 2, lambda outcome: None)
    assert [process.poll() for process in started] == [0, -signal.SIGKILL]
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
    start = subprocess.Popen

    def signalled(*arguments, **options):
        started.append(start(*arguments, **options))
        signal.raise_signal(number)
        return started[-1]

    monkeypatch.setattr("fedsuite.sweeps.workers.subprocess.Popen", signalled)
    with pytest.raises(error):
        run_tasks([programs("t", "import time; time.sleep(60)")], 1, lambda outcome: None)
    (process,) = started
    try:
        assert process.poll() is not None
    finally:
        process.kill()
