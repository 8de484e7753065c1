"""HeteroFL: blocks and means by hand, and the extreme that is FedAvg."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.messages.records import ARRAYS
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.averaging.heterofl import MeanOfHolders, leading_block
from tests.helpers import final_bits, play

WIDTHS = "mlp:hidden-width=16, mlp:hidden-width=8"
MLP = {"model": "mlp", "hidden_width": 16}


def reply(client_id: int, array: np.ndarray, count: float) -> ClientReply:
    return ClientReply(client_id, {ARRAYS: {"w": array}}, {}, count)


def test_mean_by_hand() -> None:
    """Entry (0, 0): (1 * 2 + 3 * 5) / 4; the last row has no holder."""
    whole = {"w": np.float32([[7, 7], [7, 7], [9, 9]])}
    wide, narrow = np.float32([[2, 4], [6, 8]]), np.float32([[5]])
    mean = MeanOfHolders(whole)
    mean.add({"w": wide}, 1.0)
    mean.add({"w": narrow}, 3.0)
    found = mean.result()
    assert found["w"].tolist() == [[4.25, 4.0], [6.0, 8.0], [9.0, 9.0]]
    assert found["w"].dtype == np.float32


@given(st.integers(1, 4), st.integers(1, 4))
def test_a_block_is_the_first_entries(rows: int, columns: int) -> None:
    whole = {"w": np.arange(16.0).reshape(4, 4)}
    block = leading_block(whole, {"w": np.zeros((rows, columns))})
    assert block["w"].tolist() == whole["w"][:rows, :columns].tolist()


def test_equal_networks_are_fedavg_bit_for_bit() -> None:
    options = {**MLP, "partitioner": "dirichlet", "dirichlet_alpha": 0.3}
    found = final_bits(method="heterofl", client_models="mlp:hidden-width=16", **options)
    plain = final_bits(**options)
    assert {name.partition("/")[2]: bits for name, bits in found.items()} == plain


def test_networks_stay_blocks_of_the_widest_and_cost_less() -> None:
    options = {"client_models": WIDTHS, "client_model_assignment": "round-robin"}
    trace = play(method="heterofl", **MLP, **options)
    final = trace.arrays[-1]
    for name, array in final.items():
        index, _, own = name.partition("/")
        if index == "1":
            whole = final[f"0/{own}"]
            assert array.tolist() == whole[tuple(map(slice, array.shape))].tolist()
    whole_bytes = play(**MLP).reports[-1].train.bytes_up
    assert trace.reports[-1].train.bytes_up < 0.8 * whole_bytes
    assert trace.reports[-1].train.column("weight") == pytest.approx([0.25] * 4, abs=0.01)


def test_narrow_networks_learn() -> None:
    options = {"client_models": WIDTHS, "client_model_assignment": "round-robin"}
    trace = play(method="heterofl", num_rounds=15, **MLP, **options)
    accuracy = [report.evaluate.means()["accuracy"] for report in trace.reports]
    assert accuracy[-1] > accuracy[0] + 0.3


@pytest.mark.parametrize(
    "models", ["mlp:hidden-width=16, linear", "mlp:hidden-layers=1, mlp:hidden-layers=2"]
)
def test_networks_of_another_form_are_refused(models: str) -> None:
    with pytest.raises(ConfigError, match="differ in width alone"):
        play(method="heterofl", **MLP, client_models=models)
