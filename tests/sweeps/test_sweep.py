"""Whole sweeps: what is started, skipped, resumed, refused."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from fedsuite.core.errors import ConfigError, FedsuiteError, RunError
from fedsuite.core.files import TEMPORARY_PATTERN
from fedsuite.experiment.experiment import Experiment, read_file
from fedsuite.sweeps.sweep import LOCK, run_sweep
from fedsuite.sweeps.workers import Outcome
from tests.small_runs import final_model, write_experiment

# Whole sweeps, the workers in this process where they are not the matter.


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Run sweeps of the small experiment; keep the tasks that each one starts."""
    from fedsuite.engines.api import resume, run
    from fedsuite.experiment.experiment import parse_assignment

    monkeypatch.setattr("fedsuite.sweeps.sweep.paired.write", note_comparison)
    file = write_experiment(tmp_path / "small.toml")
    started = []

    def run_here(tasks, workers, on_end, *others):
        for task in tasks:
            started.append((task.arguments[0], task.name))
            error = None
            try:
                if task.arguments[0] == "resume":
                    resume(task.arguments[1])
                else:
                    settings = dict(map(parse_assignment, task.arguments[3::2]))
                    run(task.arguments[1], overrides=settings)
            except FedsuiteError as caught:
                error = str(caught)
            on_end(Outcome(task.name, error, 0.0))

    monkeypatch.setattr("fedsuite.sweeps.sweep.run_tasks", run_here)

    def start(*grid, seeds=1, first_seed=0, file=file, **overrides):
        started.clear()
        settings = {name.replace("_", "-"): value for name, value in overrides.items()}
        output = tmp_path / "sweep"
        return run_sweep(
            file,
            grid=grid,
            seeds=seeds,
            first_seed=first_seed,
            workers=1,
            output=output,
            overrides=settings,
        )

    start.folder = tmp_path / "sweep"
    start.started = started
    return start


def note_comparison(comparison, folder):
    rows = {row.label: row.num_seeds for row in comparison.rows}
    (folder / "compared.json").write_text(json.dumps(rows))


def test_seeds_begin_where_told(sweep):
    sweep(seeds=2, first_seed=7)
    assert [name for _, name in sweep.started] == ["s7", "s8"]


def test_a_method_set_for_all_points_lets_go_of_the_files_own(sweep, tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text(f'{(tmp_path / "small.toml").read_text()}method = "fedprox"\n')
    with file.open("a") as own:
        own.write("proximal-mu = 0.5\n")
    (run,) = sweep(file=file, method="fedavg")
    assert "left out, as they have no effect here: proximal-mu\n" in capsys.readouterr().out
    assert read_file(run / "experiment.toml")["method"] == "fedavg"


def test_a_sweep_says_once_what_its_methods_bring(sweep, capsys):
    sweep("method=fedavg,fedeba", seeds=2, batch_size="auto")
    note = "method fedeba brings local-steps = 10, batch-size = 50, "
    assert capsys.readouterr().out.count(f"\n{note}") == 1 + 2  # and in each run's log


def test_a_sweep_and_its_extension(sweep, capsys):
    runs = sweep("momentum=0.0,0.9", seeds=2)
    names = [f"momentum-{m}_s{s}" for m in (0.0, 0.9) for s in (0, 1)]
    assert [run.name for run in runs] == names
    assert sweep.started == [("run", name) for name in names]
    assert json.loads((sweep.folder / "compared.json").read_text()) == {
        "fedavg, momentum=0.0": 2,
        "fedavg, momentum=0.9": 2,
    }
    out = capsys.readouterr().out
    assert "4 runs: 4 to start" in out
    assert re.search(r"\[4/4\] momentum-0.9_s1  finished, mean accuracy \d+\.\d\d %", out)
    before = [final_model(run) for run in runs]
    sweep("momentum=0.9,0.5", seeds=3)
    assert sweep.started == [
        ("run", name) for name in ("momentum-0.9_s2", "momentum-0.5_s0")
    ] + [("run", f"momentum-0.5_s{seed}") for seed in (1, 2)]
    assert "6 runs: 2 finished before, 4 to start" in capsys.readouterr().out
    assert [final_model(run) for run in runs] == before
    # The comparison is of the whole sweep.
    assert json.loads((sweep.folder / "compared.json").read_text()) == {
        "fedavg, momentum=0.0": 2,
        "fedavg, momentum=0.9": 3,
        "fedavg, momentum=0.5": 3,
    }
    experiment = read_file(runs[3] / "experiment.toml")
    assert (experiment["momentum"], experiment["seed"]) == (0.9, 1)


def set_status(run, status):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"status": status}))


def test_what_was_killed_goes_on_or_starts_over(sweep):
    runs = sweep(seeds=4, num_rounds=2)
    models = [final_model(run) for run in runs]
    set_status(runs[0], "running")
    set_status(runs[1], "failed")
    # Killed before its manifest was written.
    for path in sorted(runs[2].rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (runs[2] / LOCK).touch()
    (runs[2] / "experiment.toml").touch()
    (runs[2] / ".manifest.json.12-34.tmp").write_text("{")
    sweep(seeds=4, num_rounds=2)
    assert sweep.started == [("resume", "s0"), ("resume", "s1"), ("run", "s2")]
    assert [final_model(run) for run in runs] == models
    assert not list(runs[2].glob(TEMPORARY_PATTERN))


def test_what_is_not_ours_is_not_touched(sweep):
    sweep.folder.mkdir()
    (sweep.folder / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="is not empty and holds no sweep"):
        sweep()
    assert [path.name for path in sweep.folder.iterdir()] == ["thesis.txt"]
    (sweep.folder / "thesis.txt").rename(sweep.folder.parent / "thesis.txt")
    (run,) = sweep()
    (sweep.folder / "s1").mkdir()
    (sweep.folder / "s1" / "experiment.toml").write_text("")
    (sweep.folder / "s1" / "thesis.txt").write_text("years of work")
    with pytest.raises(RunError, match="s1 is in the way"):
        sweep(seeds=2)
    assert sweep.started == []
    assert {path.name for path in (sweep.folder / "s1").iterdir()} == {
        "experiment.toml",
        "thesis.txt",
    }
    changed = Experiment.load(run / "experiment.toml").replace(learning_rate=0.7)
    (run / "experiment.toml").write_text(changed.to_toml())
    with pytest.raises(RunError, match="s0 holds another experiment"):
        sweep()


def test_another_base_is_refused(sweep):
    sweep()
    with pytest.raises(RunError, match=r"key learning-rate is not set there and 0\.5"):
        sweep(learning_rate=0.5)
    assert sweep.started == []


def test_a_file_that_changes_meanwhile_changes_no_run(sweep, tmp_path, monkeypatch):
    from fedsuite.sweeps import sweep as module

    run_tasks = module.run_tasks

    def change_first(*arguments):
        write_experiment(tmp_path / "small.toml", learning_rate=0.5)
        run_tasks(*arguments)

    monkeypatch.setattr(module, "run_tasks", change_first)
    (run,) = sweep()
    assert read_file(run / "experiment.toml")["learning-rate"] == 0.1


@pytest.mark.parametrize("name", ["seed", "run_name", "output_dir", "resume"])
def test_keys_that_the_sweep_sets_are_refused(sweep, name):
    with pytest.raises(ConfigError, match="a sweep sets this key itself"):
        sweep(**{name: 1})
    assert not sweep.folder.exists()


def test_failed_points_are_reported_at_the_end(sweep, capsys):
    with pytest.raises(RunError) as caught:
        sweep("num-clients=2000,4")
    assert str(caught.value).startswith(
        "1 of 2 runs failed; the first: num-clients-2000_s0: key num-clients = 2000: "
    )
    assert "num-clients-4_s0  finished" in capsys.readouterr().out
    assert json.loads((sweep.folder / "compared.json").read_text()) == {"fedavg": 1}
    with pytest.raises(RunError, match="1 of 2 runs failed"):
        sweep("num-clients=2000,4")
    assert sweep.started == [("run", "num-clients-2000_s0")]


def test_two_sweeps_at_once_are_refused(sweep):
    sweep()
    with open(sweep.folder / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with pytest.raises(RunError, match="a sweep is already at work in"):
            sweep()
    sweep()


# With real workers.


@pytest.fixture
def command(tmp_path):
    """Return the sweep command on the small experiment."""
    file = write_experiment(tmp_path / "small.toml", num_rounds=3)
    output = tmp_path / "sweep"
    return [sys.executable, "-m", "fedsuite", "sweep", file, "--output", output]


@pytest.mark.slow
def test_a_sweep_in_processes(command, tmp_path):
    grid = ["--grid", "num-clients=4,2000", "--workers", "2"]
    result = subprocess.run([*command, *grid], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith(
        "fedsuite: error: 1 of 2 runs failed; the first: num-cl"
    )
    assert result.stderr.count("\n") == 1
    assert "num-clients-4_s0  finished" in result.stdout
    names = {path.name for path in (tmp_path / "sweep").iterdir()}
    assert names == {
        LOCK,
        "base.toml",
        "by_seed.csv",
        "comparison.md",
        "logs",
        "num-clients-4_s0",
    }
    log = tmp_path / "sweep" / "logs" / "num-clients-4_s0.log"
    assert "round 3 of 3" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "in_background"),
    [
        (signal.SIGINT, False),
        (signal.SIGTERM, False),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.smoke),
    ],
)
def test_one_signal_stops_the_workers(command, tmp_path, number, in_background):
    options = ["--set", "num-rounds=3000", "--set", "checkpoint-every=1", "--workers", "2"]
    # What a script starts with & ignores Ctrl-C, and so would its children.
    deaf = ["sh", "-c", 'trap "" INT; exec "$0" "$@"']
    start = deaf if in_background else []
    sweep = subprocess.Popen(
        [*start, *command, *options, "--seeds", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    folder = tmp_path / "sweep"
    deadline = time.monotonic() + 300
    # Both must have begun: one alone may write several checkpoints before.
    while len({p.parent for p in folder.glob("s*/checkpoints/*.safetensors")}) < 2:
        assert time.monotonic() < deadline
        assert sweep.poll() is None
        time.sleep(0.05)
    sweep.send_signal(number)
    _, errors = sweep.communicate(timeout=20)
    assert sweep.returncode == 128 + number
    (line,) = errors.splitlines()
    assert line.startswith("fedsuite: stopped with 0 of 2 runs done: `fedsuite sweep ")
    assert f"--output {folder}" in line and "--set num-rounds=3000" in line
    # Nobody holds the lock: all workers are gone.
    descriptor = os.open(folder / LOCK, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    for run in ("s0", "s1"):
        manifest = json.loads((folder / run / "manifest.json").read_text())
        assert manifest["status"] == "stopped"
