"""Time and memory of a federated round: fedsuite's engines, a bare loop, its peers.

    python benchmarks/speed.py f1 --data-dir FOLDER --repeats 5 --pfl-python PYTHON

A case is f1 to f5 or an experiment file. Each run of each arm is a fresh process; in every
repeat the arms take turns. The script fails, results written, where arms that must have
the floor's bits have others, or any arm another accuracy than the tolerance allows.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from measuring.arms import (
    BENCHMARKS,
    ENGINES,
    EXPERIMENTS,
    PACKAGES,
    PEERS,
    SIMULATED,
    TWICE,
    environment,
    is_method,
    make_arm,
    method_file,
)
from measuring.tables import (
    ArmRun,
    arm_run,
    disagreements,
    second_core_table,
    speed_table,
    work_table,
)
from measuring.watch import watch

TOLERANCES = {
    "f1": 0.02,
    "f2": 0.02,
    "f3": 0.04,
    "f4": 0.15,
    "f5": 0.02,
    "blazefl": 0.15,
    "blazefl_resnet": 0.15,
}
"""Largest difference of mean accuracy from the floor's, as fractions. The peers draw other
clients and mini-batches. F4's clients have two classes each, and after 50 rounds its
accuracy still moves by several points from round to round; BlazeFL's own case ends after
a few rounds of such clients."""

STOCK = "flower,simulate,hand-loop"
BLAZEFL = "blazefl-process,blazefl-thread"
DEFAULT_ARMS = {
    "f1": f"floor,local,local-2,ray,{STOCK},pfl,{BLAZEFL}",
    "f3": f"floor,local,local-2,local-twice,ray,{STOCK},pfl,{BLAZEFL}",
    "f4": f"floor,local,local-2,local-twice,ray,flower,pfl,{BLAZEFL},"
    "fedeba-plus,fedakd,fedal",
    "blazefl": f"floor,local,local-2,{BLAZEFL}",
    "blazefl_resnet": f"floor,local,local-2,{BLAZEFL}",
}
"""Of the other cases: all engines, stock Flower and pfl. Methods are named."""

SAME_BITS = (*ENGINES, TWICE)


def module(name: str, *arguments: str) -> str:
    """Run a module of this folder in a process of its own; return its last line."""
    command = [sys.executable, "-m", name, *arguments]
    done = subprocess.run(
        command, env=environment(), check=True, stdout=subprocess.PIPE, text=True
    )
    return (done.stdout.strip().splitlines() or [""])[-1]


def usable(
    arms: Sequence[str], case: Path, pythons: Mapping[str, str], facts: dict[str, Any]
) -> list[str]:
    """Return the arms that can be run, and say why others are skipped."""
    chosen = []
    for arm in arms:
        if arm in PACKAGES and not pythons[PACKAGES[arm]]:
            print(f"{arm} skipped: give --{PACKAGES[arm]}-python", file=sys.stderr)
        elif arm == "local-2" and not facts["workers-key"]:
            print("local-2 skipped: this fedsuite has no key workers", file=sys.stderr)
        elif arm in {*ENGINES, *PEERS, *SIMULATED, TWICE} or is_method(case, arm):
            chosen.append(arm)
        else:
            raise SystemExit(
                f"no arm {arm!r}: {', '.join([*PEERS, *SIMULATED, *SAME_BITS])}, a method"
            )
    return chosen


def measure(
    arms: Sequence[str],
    case: Path,
    prepared: Path,
    repeats: int,
    pythons: Mapping[str, str],
) -> list[ArmRun]:
    """Run all arms so many times, in turns; each repeat begins with the next arm."""
    runs = []
    for repeat in range(repeats):
        first = repeat % len(arms)
        for name in [*arms[first:], *arms[:first]]:
            folder = prepared / f"run-{name}-{repeat}"
            folder.mkdir()
            arm = make_arm(name, case, prepared, folder, pythons)
            run = arm_run(name, watch(arm.command, arm.rounds, environment(), folder))
            print(f"{name} {repeat}: {run.seconds:.4f} s/round", file=sys.stderr)
            runs.append(judged(run, case, prepared, arm.model))
            shutil.rmtree(folder)
    return sorted(runs, key=lambda run: arms.index(run.arm))


def judged(run: ArmRun, case: Path, prepared: Path, model: Path) -> ArmRun:
    """Return the run with accuracy and fingerprint of its model; methods have others."""
    if is_method(case, run.arm):
        return run
    answer = json.loads(module("measuring.compare", str(prepared), str(model)))
    return replace(run, **answer[str(model)])


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure a case and return the results."""
    case = Path(arguments.case)
    if not case.is_file():
        case = EXPERIMENTS / f"{arguments.case}.toml"
    default = DEFAULT_ARMS.get(case.stem, f"floor,local,local-2,ray,{STOCK},pfl")
    wanted = (arguments.arms or default).split(",")
    settings = [*arguments.set]
    if arguments.data_dir:
        settings.append(f"data-dir={os.path.abspath(arguments.data_dir)}")
    if arguments.rounds:
        settings.append(f"num-rounds={arguments.rounds}")
    with tempfile.TemporaryDirectory(prefix="speed-") as name:
        prepared = Path(name)
        module("measuring.prepare", str(case), name, *settings)
        facts = json.loads((prepared / "facts.json").read_text())
        pythons = {"pfl": arguments.pfl_python, "blazefl": arguments.blazefl_python}
        arms = usable(wanted, case, pythons, facts)
        methods = [arm for arm in arms if is_method(case, arm)]
        for arm in methods:
            file, folder = str(method_file(case, arm)), str(prepared / arm)
            module("measuring.prepare", "--no-data", file, folder, *settings)
        runs = measure(arms, case, prepared, arguments.repeats, pythons)
        return {
            "case": case.stem,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "facts": facts,
            "settings": json.loads((prepared / "settings.json").read_text()),
            "runs": [asdict(run) for run in runs],
            "work": counted(methods, prepared) if "local" in arms else {},
        }


def counted(methods: Sequence[str], prepared: Path) -> dict[str, float]:
    """Return the arithmetic of a round of each method, and of FedAvg as ``local``."""
    if not methods:
        return {}
    folders = {"local": prepared, **{arm: prepared / arm for arm in methods}}
    return {
        arm: json.loads(module("measuring.work", str(folder / "experiment.toml")))
        for arm, folder in folders.items()
    }


def report(results: dict[str, Any]) -> None:
    """Print the tables."""
    runs = [ArmRun.of(row) for row in results["runs"]]
    print(speed_table(runs, "floor"))
    second = second_core_table(runs)
    if second:
        print(f"\n{second}")
    if results["work"]:
        print()
        print(work_table(runs, results["work"], "local"))


def main() -> None:
    """Measure or rebuild, print, and fail where arms disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", help="f1 to f5, an experiment file, or results to rebuild")
    parser.add_argument("--data-dir", help="folder of data sets; else FEDSUITE_DATA")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, help="fewer or more rounds, at least 3")
    parser.add_argument("--arms", help="comma-separated; default: all of the case")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--pfl-python", default="", help="interpreter that has pfl 0.6.0")
    parser.add_argument(
        "--blazefl-python", default="", help="interpreter that has blazefl 2.0.3"
    )
    parser.add_argument("--tolerance", type=float, help="of accuracy, a fraction")
    parser.add_argument("--output", type=Path, help="default: results/CASE.json")
    arguments = parser.parse_args()
    if arguments.case.endswith(".json"):
        if not Path(arguments.case).is_file():
            parser.error(f"there is no {arguments.case}")
        report(json.loads(Path(arguments.case).read_text()))
        return
    results = compare(arguments)
    output = arguments.output or BENCHMARKS / "results" / f"{results['case']}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=1) + "\n")
    report(results)
    tolerance = arguments.tolerance or TOLERANCES.get(results["case"], 0.02)
    runs = [ArmRun.of(row) for row in results["runs"]]
    wrong = disagreements(runs, "floor", SAME_BITS, tolerance)
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
