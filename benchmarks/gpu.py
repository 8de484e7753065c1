"""The GPU kit: tests, F3 and F4, Ray, CIFAR-10 as in the papers.

    python benchmarks/gpu.py [--minutes 20] [--data-dir FOLDER] [--reduced]

Without a GPU, or with ``--reduced``, all of it runs on the processor with a few rows. Each
step is a fresh process and may take its part of the time that is left; a failure is a row.
What the results already hold of this device is not run again: delete them to start anew.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring.arms import BENCHMARKS, engine_arm, environment
from measuring.device import driver, gpu_name, sampled, used
from measuring.gpu_page import draw, page
from measuring.gpu_steps import REDUCED, SETS, WHOLE, Form, Step, steps
from measuring.tables import steady
from measuring.watch import Watched, WatchedFailure, watch

from fedsuite.experiment.experiment import read_file

ROOT = BENCHMARKS.parent
TESTS: tuple[str, ...] = (sys.executable, "-m", "pytest", "-q", "tests/test_gpu.py")
NO_GPU = "CPU, faked"


def real_data(folder: str | None) -> Path | None:
    """Return the folder that holds the data sets; None if one of them lacks."""
    named = folder or os.environ.get("FEDSUITE_DATA")
    if named and all(any(Path(named, s).glob("*.parquet")) for s in SETS.values()):
        return Path(named).resolve()
    return None


def facts(gpu: str, data: Path | None) -> dict[str, str]:
    """Return what the results depend on."""
    missing = f"generated, because no folder has {' and '.join(SETS.values())}"
    return {
        "device": gpu or NO_GPU,
        "driver, memory": (driver() if gpu else "") or "not available",
        **{name: importlib.metadata.version(name) for name in ("torch", "flwr", "ray")},
        "cores": f"{len(os.sched_getaffinity(0))}",
        "load at the start": f"{os.getloadavg()[0]:.0f}",
        "data": "the real sets" if data else missing if gpu else "generated, a few rows",
    }


def commit() -> str:
    """Return the commit, with a plus where files differ from it."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def run_step(step: Step, form: Form, limit_s: float) -> dict[str, Any]:
    """Run a step and return what it took, or its error."""
    surroundings = {**environment(), **dict(form.environment)}
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        command, lines = TESTS, Path(name, "none")
        if step.options:
            experiment, *options = step.options
            arm = engine_arm(Path(experiment), Path(name), options)
            command, lines = arm.command, arm.rounds
        try:
            with sampled() as samples:
                began = time.time()
                watched = watch(command, lines, surroundings, ROOT, limit_s)
            if not step.options:
                return tested(watched)
            row = measured(watched, lines)
        except (WatchedFailure, ValueError) as error:
            print(error, file=sys.stderr)
            return {"error": str(error).splitlines()[-1]}
    first, last = (began + watched.marks[place].wall for place in (0, -2))
    return {**row, **used(samples, first, last)}


def tested(watched: Watched) -> dict[str, Any]:
    """Return what the tests say in their last line."""
    if watched.cut:
        raise ValueError(f"not through in {watched.wall:.0f} s")
    return {"outcome": watched.output.splitlines()[-1]}


def measured(watched: Watched, lines: Path) -> dict[str, Any]:
    """Return what a run took, and what accuracies it came to."""
    if watched.cut and len(watched.marks) < 3:
        done = len(watched.marks)
        raise ValueError(f"{done} rounds in {watched.wall:.0f} s, its part of the time")
    seconds, cpu = steady(watched.marks)
    rows = map(json.loads, lines.read_text().splitlines())
    key = "evaluate_accuracy"
    return {
        "seconds": seconds,
        "cpu": cpu,
        "start": watched.marks[0].wall,
        "peak_mib": watched.peak_mib,
        "rounds": len(watched.marks),
        "of_rounds": read_file(lines.with_name("experiment.toml"))["num-rounds"],
        "accuracy": [(row["round"], row[key]) for row in rows if key in row],
    }


def standing(file: Path, device: str) -> dict[str, Any]:
    """Return the rows that a file holds of a device, without those that failed."""
    kept = json.loads(file.read_text()) if file.exists() else {}
    if kept.get("facts", {}).get("device") != device:
        return {}
    return {name: row for name, row in kept["steps"].items() if "error" not in row}


def main() -> None:
    """Run what does not stand yet, then write page and pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--data-dir", help="folder of data sets; else FEDSUITE_DATA")
    parser.add_argument("--reduced", action="store_true", help="on the processor")
    parser.add_argument("--output", type=Path, help="default: results/gpu or gpu-faked")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    gpu = "" if arguments.reduced else gpu_name()
    form = WHOLE if gpu else REDUCED
    data = real_data(arguments.data_dir) if gpu else None
    known = facts(gpu, data)
    print(f"device: {known['device']}; data: {known['data']}", file=sys.stderr)
    folder = arguments.output or BENCHMARKS / "results" / ("gpu" if gpu else "gpu-faked")
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    planned, rows = steps(form, data), standing(results, known["device"])
    left = [step for step in planned if step.name not in rows]
    for place, step in enumerate(left):
        share = step.weight / sum(other.weight for other in left[place:])
        row = run_step(step, form, max(1.0, share * (end - time.monotonic())))
        print(f"{step.name}: {row}", file=sys.stderr)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        rows[step.name] = {"commit": commit(), "date": date, **row}
        results.write_text(json.dumps({"facts": known, "steps": rows}, indent=1) + "\n")
    (folder / "README.md").write_text(page(known, planned, rows, faked=not gpu))
    title = f"Device: {known['device']}" + ("" if gpu else ". No number is a GPU's")
    draw(title, planned, rows, folder)
    if failed := [name for name, row in rows.items() if "error" in row]:
        raise SystemExit(f"failed: {', '.join(failed)}; see {folder / 'README.md'}")


if __name__ == "__main__":
    main()
