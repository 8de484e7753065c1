"""FedwAvg: golden weights, what counts as forgotten, and what survives between rounds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.clients.averaging.fedwavg import FedwAvgClient
from fedsuite.core.errors import RunError
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, Request
from fedsuite.strategies.averaging.fedwavg import FedwAvg, forgetting_weights
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import TamperingGrid, final_bits, matrix_app, run
from tests.strategies.fair.fair_rounds import FEDAVG, fair_round, final, shares, three

EXAMPLES = (50, 30, 20)
FORGOTTEN = (2, 6, 12)


def test_golden_weights() -> None:
    """0.7 (0.5, 0.3, 0.2) + 0.3 (0.1, 0.3, 0.6)."""
    trace = fair_round(
        FedwAvg(**three()),
        examples=EXAMPLES,
        extra=lambda client: {"forgotten": FORGOTTEN[client]},
    )
    assert shares(trace) == pytest.approx([0.38, 0.30, 0.32])
    np.testing.assert_allclose(
        final(trace), [0.076 - 0.03 + 0.032, 0.09 - 0.064], atol=1e-7
    )


def test_alpha_0_is_fedavg_bit_for_bit() -> None:
    assert final_bits(method="fedwavg", fedwavg_alpha=0.0) == final_bits()


def test_nothing_forgotten_is_fedavg() -> None:
    trace = fair_round(FedwAvg(**three()), extra=lambda client: {"forgotten": 0})
    np.testing.assert_allclose(final(trace), FEDAVG)


def test_alpha_1_is_forgetting_alone() -> None:
    trace = fair_round(
        FedwAvg.of_paper(fedwavg_alpha=1.0, **three()),
        extra=lambda client: {"forgotten": client},
    )
    assert shares(trace) == pytest.approx([0, 1 / 3, 2 / 3])


def test_claims_are_bounded_by_the_examples() -> None:
    """1e300 forgotten of 10 counts as 10; a negative number is refused."""
    trace = fair_round(
        FedwAvg(fedwavg_alpha=1.0, **three()),
        extra=lambda client: {"forgotten": (1e300, 10.0, 5.0)[client]},
    )
    assert shares(trace) == pytest.approx([0.4, 0.4, 0.2])
    trace = fair_round(
        FedwAvg(**three()), extra=lambda client: {"forgotten": 1.0 - 2 * client}
    )
    reasons = [rejection.reason for rejection in trace.reports[0].train.rejections]
    assert reasons == [f"metric forgotten is {x}: expected 0 to inf" for x in (-1, -3)]


def test_client_that_does_not_count_is_told_what_to_use() -> None:
    words = r"'forgotten' is missing .*train with fedsuite\.clients\.FedwAvgClient"
    with pytest.raises(RunError, match=words):
        run(FedwAvg(**three()), TamperingGrid(matrix_app(), 3))


rows = st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(0, 1e9)), min_size=1, max_size=6)


@given(rows, st.floats(0, 1))
def test_weights_sum_to_the_examples(
    drawn: list[tuple[float, float]], alpha: float
) -> None:
    examples, forgotten = map(np.array, zip(*drawn, strict=True))
    weights = forgetting_weights(examples, forgotten, alpha)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(examples.sum())


# ---- the client: a linear model of one feature whose sign decides

FEATURES = torch.tensor([[1.0], [2.0], [-1.0], [3.0]])
LABELS = torch.tensor([1, 1, 0, 0])
NEVER = TrainingOptions(local_steps=1, batch_size=0, learning_rate=1e-12)


def model_of(slope: float) -> dict[str, np.ndarray]:
    """Return a model that says 1 where ``slope * feature > 0``."""
    return {"weight": np.array([[0.0], [slope]], dtype=np.float32)}


def client_rounds(slopes: list[float], every: int = 1) -> list[tuple[float, float]]:
    """Return (forgotten, never learnt) after the client saw each model."""
    store = MemoryStore()
    data = Split(FEATURES, LABELS)
    found = []
    version = ""
    for server_round, slope in enumerate(slopes, start=1):
        model = torch.nn.Linear(1, 2, bias=False)
        client = FedwAvgClient(model, data, data, training=NEVER, store=store)
        config = {"server-round": server_round, "fedwavg-every": every}
        new = f"{server_round}.1"
        reply = client.answer(
            Request("train", 0, {ARRAYS: model_of(slope)}, config, version, "", new)
        )
        assert reply.metrics["stored-state"] == 1
        version = new
        found.append((reply.metrics["forgotten"], reply.metrics["never-learned"]))
    return found


def test_forgetting_by_hand() -> None:
    """Slope 1 has samples 0, 1, 2 right and 3 wrong; slope -1 the other way round.

    Round 1: nothing to forget, 3 never learnt. Round 2: 0, 1, 2 forgotten, 3 learnt. Round
    3: 3 forgotten too. Once forgotten counts once.
    """
    assert client_rounds([1, -1, 1, -1]) == [(0, 1), (3, 0), (4, 0), (4, 0)]
    assert client_rounds([1, 1, 1]) == [(0, 1)] * 3


def test_looks_are_every_few_rounds() -> None:
    """With 2, the model of round 2 is not looked at: nothing changed by round 3."""
    assert client_rounds([1, -1, 1, -1], every=2) == [(0, 1)] * 4
    assert client_rounds([1, 1, -1, 1], every=2) == [(0, 1), (0, 1), (3, 0), (3, 0)]


def test_how_often_travels_with_the_message() -> None:
    grid = TamperingGrid(matrix_app(), 3)
    with pytest.raises(RunError, match="'forgotten' is missing"):
        run(FedwAvg(fedwavg_every=7, **three(fraction_evaluate=0.0)), grid)
    configs = [m.content["config"] for m in grid.sent if "config" in m.content]
    assert {config.get("fedwavg-every") for config in configs} - {None} == {7}


def test_look_leaves_no_trace() -> None:
    """Training is FedAvg's: with equal weights the model is too."""
    assert final_bits(
        method="fedwavg", fedwavg_alpha=0.0, local_epochs=2, num_rounds=4
    ) == final_bits(local_epochs=2, num_rounds=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fedwavg_alpha": 1.1}, "fedwavg_alpha = 1.1: expected"),
        ({"fedwavg_every": 0}, "fedwavg_every = 0: expected"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedwAvg(**options)
