"""Count the arithmetic of an experiment's rounds: multiplications of matrices and filters.

    python -m measuring.work EXPERIMENT

Counted where torch carries them out, forward, backward or written by hand, so that a loss
measured without a gradient counts as the third of a gradient evaluation that it is. Two
runs are counted, of two rounds and of all; evaluation, at the end of both, cancels out.
"""

import json
import sys
import tempfile
from pathlib import Path

import fedsuite
from fedsuite.experiment.experiment import Experiment
from fedsuite.training.multiplications import Counter

FEW_ROUNDS = 2


def work_of_run(experiment: Experiment, rounds: int) -> int:
    """Return the multiplications of a run in the local engine, evaluated at its end."""
    with tempfile.TemporaryDirectory() as folder, Counter() as counter:
        changes = {"num-rounds": rounds, "evaluate-every": rounds, "output-dir": folder}
        fedsuite.run({**experiment.values, **changes}, engine="local")
    return counter.total


def work_of_a_round(experiment: Experiment) -> float:
    """Return the mean multiplications of the rounds after the first two."""
    rounds = int(experiment["num-rounds"])
    if rounds <= FEW_ROUNDS:
        raise SystemExit(f"key num-rounds = {rounds}: counting needs at least 3")
    whole, few = (work_of_run(experiment, n) for n in (rounds, FEW_ROUNDS))
    return (whole - few) / (rounds - FEW_ROUNDS)


if __name__ == "__main__":
    print(json.dumps(work_of_a_round(Experiment.load(Path(sys.argv[1])))))
