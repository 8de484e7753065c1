"""What FedAL does on real digits: the only figures that are asserted are large ones."""

from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

import fedsuite
from fedsuite.clients.distillation.fedal import FedALClient
from fedsuite.core.keys import Value
from fedsuite.messages.records import ADVERSARIAL_GRADIENT, LOGITS, Request
from fedsuite.results.reader import Run

STEPS = 600
DIGITS: dict[str, Value] = {
    "dataset": "digits",
    "num-clients": 10,
    "partitioner": "dirichlet-client",
    "dirichlet-client-alpha": 0.1,
    "client-models": ", ".join(
        f"mlp:hidden-width={width}:hidden-layers=1" for width in (32, 64, 48)
    ),
    "client-model-assignment": "round-robin",
    "public-size": 200,
    "num-rounds": STEPS // 5,
    "evaluate-every": STEPS // 5,
    "checkpoint-every": 0,
    "score-whole-test": True,
    "device": "cpu",
    "report": False,
}


def run(folder: Path, name: str, **changes: Value) -> Run:
    values = DIGITS | {key.replace("_", "-"): value for key, value in changes.items()}
    return fedsuite.run({**values, "output-dir": str(folder), "run-name": name})


def accuracy(found: Run) -> float:
    return float(found.rounds[-1]["evaluate_whole_test_accuracy"])


def late_mean(found: Run, name: str) -> float:
    return float(np.mean([row[name] for row in found.rounds[-20:]]))


@pytest.mark.slow
def test_the_discriminator_brings_clients_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedal = run(tmp_path, "fedal", method="fedal")
    without = run(tmp_path, "without", method="fedal", adversarial=False)
    assert late_mean(fedal, "output_divergence") < late_mean(without, "output_divergence")
    usual = FedALClient.received

    def flipped(
        self: FedALClient, request: Request, record: str, name: str = LOGITS
    ) -> Tensor:
        found = usual(self, request, record, name)
        return -found if record == ADVERSARIAL_GRADIENT else found

    monkeypatch.setattr(FedALClient, "received", flipped)
    wrong = run(tmp_path, "wrong", method="fedal")
    assert accuracy(wrong) < accuracy(fedal) - 0.05
    assert late_mean(wrong, "discriminator_loss") < late_mean(fedal, "discriminator_loss")
