"""The GPU kit: its page from numbers by hand, and all of it against a faked device."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu import NO_GPU, real_data, standing
from measuring.device import driver, read_samples, sampled, used
from measuring.gpu_page import draw, page
from measuring.gpu_steps import REDUCED, WHOLE, Step, steps
from peers.generated import few_cifar10

from fedsuite.experiment.experiment import Experiment, parse_assignment

KIT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"

# Tells what nvidia-smi tells, in its words: 37 % busy, then a moment without a figure.
STAND_IN = f"""#!{sys.executable}
import datetime, sys, time
if "--format=csv,noheader" in sys.argv:
    print("550.54.15, 81559 MiB")
    sys.exit()
while True:
    now = datetime.datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
    print(f"{{now}}, 37, 1234\\n{{now}}, [N/A], 99999", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text(STAND_IN)
    script.chmod(0o755)
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)


def row(seconds, **more):
    of = {"rounds": 4, "of_rounds": 40, "peak_mib": 100.0, "start": 2.0}
    return {**of, "seconds": seconds, "commit": "abc", "date": "2026-01-01", **more}


WHOLE_GPU = Step("ray", ("1",))
HALF = Step("ray", ("0.5",), base=WHOLE_GPU.name)
METHOD = Step("cifar10", ("FedAKD",))
PLAN = [Step("tests"), Step("f3", ("10",)), WHOLE_GPU, HALF, METHOD]
ROWS = {
    "tests": {"outcome": "7 passed in 9.00s", "commit": "abc", "date": "2026-01-01"},
    WHOLE_GPU.name: row(3.0, busy=12.4, gpu_mib=700.0, accuracy=[(2, 0.25), (4, 0.5)]),
    HALF.name: row(0.5, busy=None, gpu_mib=None, accuracy=[]),
    METHOD.name: {"error": "CUDA out of memory", "commit": "abd", "date": "2026-01-01"},
}


def test_a_row_says_how_much_faster_than_its_base_and_what_is_not_known():
    lines = page({"device": "X9"}, PLAN, ROWS, faked=False).splitlines()
    assert "| 1 | 3.0000 | - | 12 | 700 | 100 | 2.0 | 4 of 40 | 2.0 | 50.00 (4) |" in lines
    assert "| 0.5 | 0.5000 | 6.00 | - | - | 100 | 2.0 | 4 of 40 | 0.3 | - |" in lines
    assert "| commit | abc, abd |" in lines


def test_the_page_names_the_device_the_failures_and_what_was_not_run():
    text = page({"device": "X9"}, PLAN, ROWS, faked=False)
    assert text.startswith("# GPU kit: X9\n")
    assert "7 passed" in text
    assert "- cifar10 FedAKD: CUDA out of memory" in text
    assert "Not run: f3 10." in text
    assert "No number" not in text
    assert "**No number on this page comes from a GPU" in page(
        {"device": NO_GPU}, PLAN, ROWS, faked=True
    )


def test_pictures_are_drawn_of_what_there_is(tmp_path):
    draw("X9", PLAN, ROWS, tmp_path)
    draw("X9", PLAN, {}, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"speed.png", "cifar10.png"}


def test_the_device_is_looked_at_meanwhile(stand_in):
    start = time.time()
    with sampled() as samples:
        time.sleep(0.5)
    assert used(samples, start, time.time()) == {"busy": 37.0, "gpu_mib": 1234.0}
    assert used(samples, start - 9, start - 8)["busy"] is None
    assert driver() == "550.54.15, 81559 MiB"


def test_without_nvidia_smi_nothing_is_known(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with sampled() as samples:
        pass
    assert driver() == ""
    assert used(samples, 0, 1e12) == {"busy": None, "gpu_mib": None}


def test_a_mean_is_of_the_looks_between_two_times():
    lines = [f"2026/01/02 03:04:0{s}.500, {10 * s}, {s}" for s in (1, 2, 3, 4)]
    samples = read_samples("\n".join(["Unable to determine the device", *lines]))
    second = samples[1][0]
    assert used(samples, second, second + 1) == {"busy": 25.0, "gpu_mib": 4.0}


def test_what_stands_is_of_this_device_and_has_not_failed(tmp_path):
    file = tmp_path / "results.json"
    assert standing(file, "X9") == {}
    file.write_text(json.dumps({"facts": {"device": "X9"}, "steps": ROWS}))
    assert list(standing(file, "X9")) == ["tests", WHOLE_GPU.name, HALF.name]
    assert standing(file, NO_GPU) == {}


def test_real_data_are_all_sets_or_none(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSUITE_DATA", raising=False)
    for name in ("cifar10", "fashion_mnist"):
        assert real_data(str(tmp_path)) is None
        (tmp_path / name).mkdir()
        (tmp_path / name / "train-0.parquet").touch()
    assert real_data(str(tmp_path)) == tmp_path
    assert real_data(None) is None


@pytest.mark.parametrize("form", [WHOLE, REDUCED])
@pytest.mark.parametrize("data", [None, Path("/data")])
def test_every_step_is_an_experiment(form, data):
    planned = steps(form, data)
    assert len({step.name for step in planned}) == len(planned)
    assert {step.base for step in planned} <= {"", *(step.name for step in planned)}
    for step in planned[1:]:
        words = step.options[1:]
        chosen = [
            value
            for flag, value in zip(words[::2], words[1::2], strict=True)
            if flag == "--set"
        ]
        values = dict(map(parse_assignment, chosen))
        engine = {"engine": "ray"} if step.table == "ray" else {}
        experiment = Experiment.load(Path(step.options[0]), {**values, **engine})
        assert experiment["device"] == form.device


def test_generated_images_are_the_same_each_time_and_can_be_learned():
    first, second = few_cifar10(None, 0.0), few_cifar10(None, 0.0)
    assert first.train.features.equal(second.train.features)
    assert first.train.features.shape == (1000, 3, 32, 32)
    means = [first.train.features[first.train.labels == c].float().mean(0) for c in (0, 1)]
    unseen = first.test.features[first.test.labels == 1].float()
    nearer = [((x - means[1]) ** 2).sum() < ((x - means[0]) ** 2).sum() for x in unseen]
    assert all(nearer)


@pytest.mark.slow
def test_all_of_it_runs_against_a_faked_device(stand_in, tmp_path):
    options = ("--reduced", "--minutes", "60", "--output", str(tmp_path / "page"))
    command = [sys.executable, str(KIT), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = (tmp_path / "page" / "README.md").read_text()
    assert done.returncode == 0, done.stderr
    assert "No number on this page comes from a GPU" in text
    assert f"# GPU kit: {NO_GPU}" in text
    assert " passed" in text
    rows = json.loads((tmp_path / "page" / "results.json").read_text())["steps"]
    assert list(rows) == [step.name for step in steps(REDUCED, None)]
    busy = {row["busy"] for row in rows.values() if "busy" in row}
    assert busy - {None} == {37.0}  # a step may be over between two looks
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert len(again.stderr.splitlines()) == 1, "a step that stands was run once more"
