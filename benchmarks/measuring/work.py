"""Count the arithmetic of an experiment's rounds: multiplications of matrices and filters.

    python -m measuring.work EXPERIMENT

Counted where torch carries them out, forward, backward or written by hand, so that a loss
measured without a gradient counts as the third of a gradient evaluation that it is. Two
runs are counted, of two rounds and of all; evaluation, at the end of both, cancels out.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fedsuite
from fedsuite.experiment.experiment import Experiment

aten = torch.ops.aten
FEW_ROUNDS = 2


def _matrices(arguments: tuple[Any, ...], result: Any) -> int:
    """Return the multiplications of the last two matrices among the arguments."""
    first, second = [a for a in arguments if isinstance(a, torch.Tensor)][-2:]
    return first.numel() * second.shape[-1]


def _convolution(arguments: tuple[Any, ...], result: torch.Tensor) -> int:
    weight = arguments[1]
    return result.numel() * math.prod(weight.shape[1:])


def _convolution_backward(arguments: tuple[Any, ...], result: Any) -> int:
    gradient, weight, wanted = arguments[0], arguments[2], arguments[-1]
    return gradient.numel() * math.prod(weight.shape[1:]) * sum(map(bool, wanted[:2]))


COUNTED: dict[Any, Callable[[tuple[Any, ...], Any], int]] = {
    aten.mm: _matrices,
    aten.bmm: _matrices,
    aten.addmm: _matrices,
    aten.addmm_: _matrices,
    aten.baddbmm: _matrices,
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
}


class Counter(TorchDispatchMode):
    """Adds up multiplications while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, operation: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Carry out an operation and count it."""
        result = operation(*args, **(kwargs or {}))
        count = COUNTED.get(operation.overloadpacket)
        if count is not None:
            self.total += count(args, result)
        return result


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
