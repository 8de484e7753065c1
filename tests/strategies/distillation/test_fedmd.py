"""FedMD and FedMD-LF through their real strategies and clients."""

from typing import Any

import numpy as np
import pytest
import torch

from fedsuite.clients.distillation.fedmd import FedMDClient
from fedsuite.messages.records import LOGITS
from fedsuite.strategies.distillation.fedmd import FedMD, FedMDLF
from fedsuite.training.loop import TrainingOptions
from tests.strategies.distillation.fixed_pair import F1, F2, golden, moved
from tests.strategies.distillation.public import (
    FIXTURE,
    NO_TRAINING,
    Federation,
    Fixed,
    assert_same_models,
    differ,
    normalised,
    small,
    strategy_of,
    tables,
    tables_strategy,
)

DISTILLED = (0.654872, -0.458806, -0.196065)


def test_the_worked_example_without_a_discriminator() -> None:
    away = moved(golden(FedMD, FedMDClient))
    np.testing.assert_allclose(away, [DISTILLED, [-x for x in DISTILLED]], atol=2e-6)


@pytest.mark.parametrize(
    ("options", "losses"),
    [
        ({}, (1.167604, 0.993077)),
        ({"distillation_target": "all"}, (0.265677, 0.318785)),
    ],
)
def test_the_worked_example_s_losses(
    options: dict[str, Any], losses: tuple[float, float]
) -> None:
    federation = Federation(
        FedMDClient, [lambda: Fixed(*F1), lambda: Fixed(*F2)], training=NO_TRAINING
    )
    trace = federation.run(strategy_of(FedMD, 2, transfer_steps=1, **options), 1)
    rows_of = trace.reports[0].train.rows
    assert [row["transfer_loss"] for row in rows_of] == pytest.approx(losses, abs=1e-6)


def matched(kind: str, target: str) -> tuple[list[float], np.ndarray]:
    """Return losses of one exchange on the fixture, and the first client's gradient."""
    federation = tables(FedMDClient)
    strategy = tables_strategy(FedMD, distillation_loss=kind, distillation_target=target)
    trace = federation.run(strategy, 1)
    losses = [row["transfer_loss"] for row in trace.reports[0].train.rows]
    return losses, np.array(FIXTURE[1]) - federation.models()[0][0]


def test_matches_of_logits_on_the_fixture() -> None:
    losses, slope = matched("kl", "others")
    assert losses == pytest.approx((0.855172, 0.324344, 0.974310), abs=1e-6)
    np.testing.assert_allclose(
        slope,
        [
            (0.165244, -0.150282, -0.014962),
            (-0.004821, 0.108968, -0.104148),
            (0.082342, 0.064544, -0.146886),
            (-0.053066, -0.076258, 0.129325),
        ],
        atol=2e-6,
    )
    losses, _ = matched("kl", "all")
    assert losses == pytest.approx((0.374046, 0.167925, 0.426531), abs=1e-6)
    losses, slope = matched("l1", "all")
    assert losses == pytest.approx((0.791667, 0.513889, 0.750000), abs=1e-6)
    signs = [(1, -1, -1), (0, 1, -1), (0, 1, -1), (-1, -1, 1)]
    np.testing.assert_allclose(slope, np.array(signs) / 12, atol=2e-6)
    losses, _ = matched("mse", "all")
    assert losses == pytest.approx((0.905093, 0.460648, 0.939815), abs=1e-6)


def test_one_step_of_fedmd_lf_is_fedmd() -> None:
    one_step = TrainingOptions(
        local_steps=1, batch_size=8, learning_rate=0.01, optimizer="adam"
    )
    runs = [Federation(FedMDClient, training=one_step) for _ in range(2)]
    for federation, kind in zip(runs, (FedMD, FedMDLF), strict=True):
        federation.run(strategy_of(kind, transfer_steps=1), 3)
    assert_same_models(*runs)


@pytest.mark.parametrize("phase", ["local", "transfer"])
def test_each_less_forgetting_term_counts(phase: str) -> None:
    runs = [Federation(FedMDClient) for _ in range(2)]
    runs[0].run(strategy_of(FedMD), 2)
    runs[1].run(strategy_of(FedMD, less_forgetting=phase), 2)
    assert differ(*runs)


def test_less_forgetting_counts_from_the_second_local_step() -> None:
    training = TrainingOptions(
        local_steps=1, batch_size=8, learning_rate=0.01, optimizer="adam"
    )
    runs = [Federation(FedMDClient, training=training) for _ in range(2)]
    runs[0].run(strategy_of(FedMD, transfer_steps=2), 2)
    runs[1].run(strategy_of(FedMD, less_forgetting="local", transfer_steps=2), 2)
    assert_same_models(*runs)


def test_less_forgetting_of_one_transfer_step_is_refused() -> None:
    """The step starts from the model to stay near to."""
    with pytest.raises(ValueError, match="cannot go with transfer_steps = 1"):
        strategy_of(FedMD, less_forgetting="transfer", transfer_steps=1)


def test_less_forgetting_may_wait_for_a_round() -> None:
    runs = [Federation(FedMDClient) for _ in range(3)]
    runs[0].run(strategy_of(FedMDLF, less_forgetting_from=3), 2)
    runs[1].run(strategy_of(FedMD), 2)
    runs[2].run(strategy_of(FedMDLF), 2)
    assert_same_models(runs[0], runs[1])
    assert differ(runs[0], runs[2])


def test_references_are_of_the_start_of_their_phase() -> None:
    class Noting(FedMDClient):
        def before_local_phase(self, request: Any) -> None:
            super().before_local_phase(request)
            starts.append([t.clone() for t in self.model.state_dict().values()])
            references.append(self._reference)

        def after_local_phase(self, request: Any) -> None:
            kept = references[-1]
            for parameter, start in zip(
                kept.parameters(), self._starting_parameters(starts[-1]), strict=True
            ):
                assert torch.equal(parameter, start)
            super().after_local_phase(request)
            ends.append([t.clone() for t in self.model.state_dict().values()])
            wanted = [self.outputs_without_trace(request, step)[LOGITS] for step in (1, 2)]
            for step, logits in enumerate(wanted, start=1):
                np.testing.assert_array_equal(self._kept(step), logits)

        def _starting_parameters(self, state: Any) -> Any:
            names = [n for n, _ in self.model.named_parameters()]
            return [
                t for n, t in zip(self.model.state_dict(), state, strict=True) if n in names
            ]

    starts: list[Any] = []
    ends: list[Any] = []
    references: list[Any] = []
    federation = Federation(Noting, [normalised, small])
    trace = federation.run(strategy_of(FedMDLF, 2, transfer_steps=3), 2)
    # What fails inside a client is a reply that is not used.
    assert not any(report.train.rejections for report in trace.reports)
    assert len(starts) == 4
    # The second round starts where the first one's transfer ended, not its local phase.
    assert any(not torch.equal(a, b) for a, b in zip(ends[0], starts[2], strict=True))
