"""The benchmarks' parts on digits: the floor is the local engine, bit for bit."""

import sys
import time

import numpy as np
import pytest
import torch
from measuring.arms import EXPERIMENTS
from measuring.at_once import APART, run_both
from measuring.compare import fingerprint, judge, read_model
from measuring.prepare import prepare, resolve
from measuring.watch import WatchedFailure, watch
from measuring.work import work_of_a_round
from peers import floor, hand_loop
from peers.prepared import Prepared, save_model
from torch import nn

import fedsuite
from fedsuite.experiment.experiment import Experiment
from fedsuite.training.multiplications import Counter

DIGITS = {
    "dataset": "digits",
    "num-clients": 7,
    "clients-per-round": 3,
    "num-rounds": 2,
    "local-steps": 4,
    "batch-size": 100,
    "evaluate-every": 2,
    "checkpoint-every": 0,
    "report": False,
}


@pytest.mark.parametrize(
    "values",
    [
        {"model": "mlp", "hidden-width": 9, "partitioner": "dirichlet"},
        {"model": "linear", "local-steps": 0, "local-epochs": 2, "batch-size": 30},
    ],
)
def test_the_floor_ends_with_the_bits_of_the_local_engine(values, tmp_path):
    experiment = Experiment.from_values({**DIGITS, **values})
    prepare(experiment, tmp_path)
    prepared = Prepared(tmp_path)
    save_model(tmp_path, floor.run(prepared, tmp_path))
    changes = {"output-dir": str(tmp_path), "run-name": "run"}
    run = fedsuite.run(experiment.values, overrides=changes)
    ours = judge(prepared, run.path / "model.safetensors")
    assert judge(prepared, tmp_path / "model.npz") == ours
    assert ours["accuracy"] == pytest.approx(run.column("evaluate_accuracy")[1][-1])
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 2


def test_a_loop_by_hand_has_the_code_of_the_unchanged_app(tmp_path):
    """With all clients in each round, and seeds alike but for who draws what."""
    whole = {"clients-per-round": 7, "num-rounds": 9, "learning-rate": 0.3}
    experiment = Experiment.from_values(
        {**DIGITS, "evaluate-every": 9, "model": "linear", **whole}
    )
    prepare(experiment, tmp_path)
    judged = []
    for name in ("simulate", "hand-loop"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "simulate":
            config = {"prepared": str(tmp_path), "output": str(folder)}
            app = EXPERIMENTS.parent / "peers"
            fedsuite.simulate(app, num_supernodes=7, run_config=config, seed=0)
        else:
            torch.manual_seed(0)
            save_model(folder, hand_loop.run(Prepared(tmp_path), folder))
        assert len((folder / "rounds.jsonl").read_text().splitlines()) == 9
        judged.append(judge(Prepared(tmp_path), folder / "model.npz")["accuracy"])
    assert judged[0] == pytest.approx(judged[1], abs=0.05)
    assert judged[0] > 0.7


def test_a_fingerprint_sees_one_bit(tmp_path):
    save_model(tmp_path, {"weight": torch.ones(2)})
    arrays = read_model(tmp_path / "model.npz")
    before = fingerprint(arrays)
    arrays["weight"][1] = np.nextafter(np.float32(1), np.float32(2))
    assert fingerprint(arrays) != before


def test_what_the_peers_cannot_do_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="momentum"):
        prepare(Experiment.from_values({**DIGITS, "momentum": 0.9}), tmp_path)


def test_fewer_rounds_are_still_evaluated_at_the_end_alone(tmp_path):
    file = tmp_path / "case.toml"
    file.write_text("num-rounds = 50\nevaluate-every = 50\n")
    assert resolve(file, {"num-rounds": 6})["evaluate-every"] == 6
    file.write_text("num-rounds = 50\nevaluate-every = 10\n")
    assert resolve(file, {"num-rounds": 6})["evaluate-every"] == 10


def test_the_work_of_a_step_is_that_of_its_matrices():
    model = nn.Linear(5, 3)
    with Counter() as counter:
        model(torch.ones(7, 5)).sum().backward()
    # Forward, and the gradient of the weights; nobody asks for that of the inputs.
    assert counter.total == 2 * 7 * 5 * 3


def test_the_work_of_a_convolution():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 4, 1))
    with Counter() as counter:
        model(torch.ones(5, 2, 6, 6)).sum().backward()
    first, second = 5 * 3 * 16 * (2 * 9), 5 * 4 * 16 * 3
    assert counter.total == 2 * first + 3 * second


def test_the_work_of_a_round_leaves_evaluation_out():
    values = {**DIGITS, "model": "linear", "num-rounds": 3, "batch-size": 50}
    # 3 clients take 4 steps of 50 samples, forward and backward through 64 x 10.
    assert work_of_a_round(Experiment.from_values(values)) == 3 * 4 * 50 * 2 * 640


BURN = "import time\nwhile time.process_time() < 0.3: pass"
CHILD = f"""
import subprocess, sys, time
data = bytearray(60 << 20)
{BURN}
time.sleep(0.1)
for number in range(3):
    print(number, file=open(sys.argv[1], "a"), flush=True)
    time.sleep(0.05)
subprocess.run([sys.executable, "-c", {BURN!r}])
"""


def test_rounds_time_and_memory_are_seen_from_outside(tmp_path):
    lines = tmp_path / "lines"
    seen = watch([sys.executable, "-c", CHILD, str(lines)], lines)
    walls = [mark.wall for mark in seen.marks]
    assert len(walls) == 3
    assert sorted(walls) == walls
    assert 0.3 < walls[0] < walls[-1] <= seen.wall
    # What processes burnt themselves, less the clock's ticks; the second was short.
    assert seen.marks[0].cpu > 0.25
    assert seen.cpu > 0.55
    assert seen.peak_mib > 60


def test_a_line_is_told_of_when_it_was_written_not_when_it_was_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("measuring.watch.POLL_S", 0.6)
    lines, times = tmp_path / "lines", tmp_path / "times"
    child = (
        "import sys, time\n"
        "print(1, file=open(sys.argv[1], 'a'), flush=True)\n"
        "print(time.time(), file=open(sys.argv[2], 'a'), flush=True)\n"
        "time.sleep(1.5)\n"
    )
    began = time.time()
    seen = watch([sys.executable, "-c", child, str(lines), str(times)], lines)
    assert began + seen.marks[0].wall == pytest.approx(float(times.read_text()), abs=0.1)


def test_a_command_that_fails_is_told_with_its_last_words(tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit('too hot')"]
    with pytest.raises(WatchedFailure, match="code 1\ntoo hot"):
        watch(command, tmp_path / "lines")


def test_a_command_past_its_limit_is_ended_and_no_failure(tmp_path):
    lines = tmp_path / "lines"
    child = (
        "import sys, time\n"
        "print(1, file=open(sys.argv[1], 'a'), flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", child, str(lines)]
    seen = watch(command, lines, limit_s=1.0)
    assert seen.cut
    assert 1.0 <= seen.wall < 30.0
    fails = [sys.executable, "-c", "import sys; sys.exit('too hot')"]
    with pytest.raises(WatchedFailure, match="too hot"):
        watch(fails, lines, limit_s=60.0)
    assert not watch([sys.executable, "-c", ""], lines, limit_s=60.0).cut


def test_two_commands_run_at_once_and_a_failure_of_either_is_told(tmp_path):
    # Each waits for what the other leaves: one after the other the first gives up.
    waits = (
        "import pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "for _ in range(3000):\n"
        "    if pathlib.Path(sys.argv[2]).exists(): sys.exit(0)\n"
        "    time.sleep(0.01)\n"
        "sys.exit(1)\n"
    )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    first = [sys.executable, "-c", waits, a, b]
    assert run_both([*first, APART, sys.executable, "-c", waits, b, a]) == 0
    fails = [sys.executable, "-c", "import sys; sys.exit(3)"]
    assert run_both([*fails, APART, *first]) == run_both([*first, APART, *fails]) == 3


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda f: f.stem)
def test_each_case_is_an_experiment_that_this_fedsuite_runs(file):
    # Of generated data alone the number of clients is on the command line.
    more = {"num-clients": 1_000_000} if file.stem == "million" else {}
    assert resolve(file, {"num-rounds": 20, **more})["num-rounds"] == 20
