"""The mean of LoRA's products, and clients whose adapters have ranks of their own."""

import numpy as np
import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.models import build_model
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.lora import add_lora
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.decomposition.lora_average import (
    adapter_of,
    completed,
    cut,
    pairs_of,
    products,
)
from tests.helpers import digits_experiment, final_bits, play, run_digits

LORA = {
    "model": "mlp",
    "hidden_width": 8,
    "hidden_layers": 2,
    "lora_rank": 8,
    "lora_alpha": 8.0,
    "travels": "trainable",
    "learning_rate": 0.3,
}
EXACT = {**LORA, "lora_average": "products"}


def adapted(rank=8):
    network = build_model("mlp", (64,), 10, 0, hidden_width=8, hidden_layers=2)
    return add_lora(network, rank, 8.0)


def trained(rng, rank=8):
    """Return a model's arrays whose adapters are drawn."""
    arrays = model_arrays(adapted(rank))
    for name, array in arrays.items():
        if "lora" in name:
            arrays[name] = rng.normal(size=array.shape).astype(np.float32)
    return arrays


def distance(left, right):
    off = sum(np.square(left[n] - right[n]).sum() for n in right)
    return (off / sum(np.square(array).sum() for array in right.values())) ** 0.5


def test_a_stack_of_adapters_has_the_mean_of_their_products():
    rng, shares = np.random.default_rng(0), (0.2, 0.5, 0.3)
    ranks = (1, 2, 4)
    a = [rng.normal(size=(r, 9)) for r in ranks]
    b = [rng.normal(size=(6, r)) for r in ranks]
    stack = np.hstack([p * x for p, x in zip(shares, b, strict=True)]) @ np.vstack(a)
    mean = sum(p * x @ y for p, x, y in zip(shares, b, a, strict=True))
    np.testing.assert_allclose(stack, mean)
    new_a, new_b = adapter_of(stack, 6)
    np.testing.assert_allclose(new_b @ new_a, mean)
    np.testing.assert_allclose(np.linalg.norm(new_a, axis=1), 3**-0.5)
    # The first directions are the nearest adapter of their number.
    left, values, right = np.linalg.svd(stack, full_matrices=False)
    nearest = (left[:, :2] * values[:2]) @ right[:2]
    np.testing.assert_allclose(new_b[:, :2] @ new_a[:2], nearest)


def test_what_a_client_is_not_sent_stays_in_its_reply():
    whole = trained(np.random.default_rng(1))
    pairs = pairs_of(whole)
    assert [a for a, _ in pairs] == ["1.lora_a", "3.lora_a"]
    short = cut(whole, pairs, 3)
    assert short["1.lora_a"].shape == (3, 64) and short["1.lora_b"].shape == (8, 3)
    again = completed(short, pairs, whole)
    assert all(np.array_equal(again[name], whole[name]) for name in whole)


def test_a_network_takes_the_rank_of_what_is_loaded():
    model = adapted()
    whole = trained(np.random.default_rng(2))
    short = cut(whole, pairs_of(whole), 2)
    for arrays in (short, whole):
        load_arrays(model, arrays)
        loaded = model_arrays(model)
        assert all(np.array_equal(loaded[name], arrays[name]) for name in arrays)
    with pytest.raises(Exception, match="does not fit the model"):
        load_arrays(model, {"1.lora_a": np.zeros((2, 63), np.float32)})


def replies_of(experiment):
    """Run; return the last round's products and weights, and the trace."""
    taken, take = [], FedAvg.take

    def noting(self, reply):
        arrays = reply.arrays["arrays"]
        taken.append((products(arrays, pairs_of(arrays)), reply.num_examples))
        take(self, reply)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedAvg, "take", noting)
        trace = run_digits(experiment)
    return taken[-4:], trace


@pytest.mark.parametrize("own", ["", "1: lora-rank=2; 3: lora-rank=1"])
def test_the_new_product_is_the_mean_of_the_clients_products(own):
    settings = {"client_settings": own} if own else {}
    last, trace = replies_of(digits_experiment(**EXACT, **settings))
    total = sum(weight for _, weight in last)
    mean = {n: sum(weight * one[n] for one, weight in last) / total for n in last[0][0]}
    assert not any(report.train.rejections for report in trace.reports)
    new = trace.arrays[-1]
    assert distance(products(new, pairs_of(new)), mean) < 1e-5


def test_the_error_of_averaged_factors_is_told_and_small_ranks_send_less():
    whole = play(**EXACT)
    short = play(**EXACT, client_settings="1: lora-rank=2; 3: lora-rank=1")
    sent = [trace.reports[-1].train.bytes_up for trace in (whole, short)]
    # Of two clients 6 and 7 of 8 directions, each 64 + 8 and 8 + 8 numbers of 4 bytes.
    assert sent[0] - sent[1] == (6 + 7) * (72 + 16) * 4
    for trace in (whole, short):
        told = trace.reports[-1].metrics
        assert told["lora_error_of_factors"] > 1e-4 > 1e-6 > told["lora_error_of_rank"]


def test_one_client_gets_back_what_it_sent():
    last, trace = replies_of(digits_experiment(**EXACT, num_clients=1, num_rounds=1))
    new = trace.arrays[-1]
    assert distance(products(new, pairs_of(new)), last[-1][0]) < 1e-6


def test_a_rank_of_its_own_that_is_that_of_all_changes_no_bit():
    given = {**EXACT, "client_settings": "2: lora-rank=8"}
    assert final_bits(**given) == final_bits(**EXACT)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({**LORA, "client_settings": "1: lora-rank=2"}, "set lora-average = 'products'"),
        ({**EXACT, "client_settings": "1: lora-rank=9"}, "from 1 to that of all"),
        ({**EXACT, "client_settings": "1: lora-rank=0"}, "from 1 to that of all"),
        ({**EXACT, "method": "fednova"}, "defined for the mean by examples"),
        ({**EXACT, "server_momentum": 0.5}, "defined for the mean by examples"),
        ({**EXACT, "travels": "*.lora_b, 5.*"}, "plain mean is exact"),
        ({**EXACT, "compress_down": "qsgd"}, "what it makes of the model"),
        ({**EXACT, "secure_aggregation": "masked"}, "multiplies each client's adapters"),
    ],
)
def test_what_cannot_go_together_is_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        play(**keys)
