"""What leaves a client of a network: key ``travels``, and LoRA's adapters."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import fedsuite
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.models import build_model
from fedsuite.models.arrays import model_arrays
from fedsuite.models.lora import LoRALinear, add_lora
from fedsuite.models.travelling import hold_at_home, names_at_home
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.store import MemoryStore
from tests.helpers import bits, digits_experiment, final_bits, play, run_digits
from tests.small_runs import SMALL

NETWORK = {"model": "mlp", "hidden_width": 8, "hidden_layers": 2}
LORA = {**NETWORK, "lora_rank": 2, "lora_alpha": 2.0}


def network():
    return build_model("mlp", (64,), 10, 0, hidden_width=8, hidden_layers=2)


class Normalised(nn.Module):
    """A frozen layer with statistics, then one that is trained."""

    def __init__(self):
        super().__init__()
        self.first = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.second(self.first(inputs))


def test_what_does_not_travel_stays_as_it_was_and_out_of_messages_and_state():
    store = MemoryStore()
    experiment = digits_experiment(method="ditto", travels="3.*, 5.*", **NETWORK)
    trace = run_digits(experiment, store)
    assert list(trace.arrays[-1]) == ["3.weight", "3.bias", "5.weight", "5.bias"]
    size = sum(array.nbytes for array in trace.arrays[-1].values())
    assert [r.train.bytes_up for r in trace.reports] == [4 * size] * 3
    assert [r.train.bytes_down for r in trace.reports] == [4 * size] * 3
    model = hold_at_home(network(), "3.*, 5.*")
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        *trace.arrays[-1]
    }
    state = store.load(0, max(store._versions[0]))
    assert state and not any("1." in name for name in state)


def test_all_is_what_it_was_and_a_pattern_of_all_is_the_same():
    assert final_bits(**NETWORK) == final_bits(travels="*", **NETWORK)


@pytest.mark.parametrize("method", ["scaffold", "fedper", "fedbuff"])
def test_any_method_that_averages_trains_what_travels(method):
    trace = play(method=method, travels="trainable", **LORA, learning_rate=0.05)
    assert not any(report.train.rejections for report in trace.reports)
    assert {n.rpartition(".")[2] for n in trace.arrays[-1]} >= {"lora_a", "lora_b"}
    assert "1.weight" not in trace.arrays[-1]


def test_a_run_writes_the_whole_model(tmp_path):
    given = {**SMALL, "travels": "trainable", "lora-rank": 2, "output-dir": str(tmp_path)}
    given |= {"model": "mlp", "hidden-width": 8, "best-model-metric": "accuracy_mean"}
    run = fedsuite.run({**given, "run-name": "run"})
    for file in ("model.safetensors", "best-model.safetensors"):
        arrays = load_file(run.path / file)
        assert arrays.keys() == run.model().state_dict().keys()
    assert run.client_model(0) is not None
    again = fedsuite.run(
        {**given, "run-name": "again", "initial-model": str(run.path), "num-rounds": 1}
    )
    assert again.manifest["initial_model"]
    with pytest.raises(ConfigError, match="is another than the clients have"):
        fedsuite.run({**given, "run-name": "no", "initial-model": str(run.path), "seed": 1})


def test_trainable_takes_the_statistics_of_what_is_trained_alone():
    model = Normalised()
    model.first.requires_grad_(False)
    hold_at_home(model, "trainable")
    assert names_at_home(model) == {n for n in model.state_dict() if "first" in n}
    before = model.first.running_mean.clone()
    model.train()
    assert model.second.training
    model(torch.ones(3, 4))
    assert torch.equal(model.first.running_mean, before)
    other = hold_at_home(Normalised(), "trainable")
    assert not names_at_home(other)


class Tied(nn.Module):
    """One parameter under two names."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight


def test_one_parameter_under_two_names_travels_under_both():
    model = hold_at_home(Tied(), "first.weight")
    assert names_at_home(model) == {"first.bias", "last.bias"}
    assert model.last.weight.requires_grad


@pytest.mark.parametrize(
    ("travels", "words"),
    [("3.x*", "has no array '3.x\\*'"), ("first.running*", "no parameter that is trained")],
)
def test_a_pattern_that_says_nothing_is_refused(travels, words):
    model = Normalised() if "first" in travels else network()
    with pytest.raises(ConfigError, match=words):
        hold_at_home(model, travels)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "fedmd", "public_size": 20}, "do not all train one shared model"),
        ({"method": "newton", "model": "linear"}, "Hessian"),
        ({"lora_rank": 2, "fedpara": True, "method": "fedpara"}, "layers of its own"),
    ],
)
def test_what_cannot_go_together_is_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        digits_experiment(travels="trainable", **keys)


def test_a_part_of_its_own_that_is_frozen_ends_in_one_line_of_ours():
    with pytest.raises(RunError, match=r"nothing of the Linear .* requires a gradient"):
        play(method="fedrod", travels="1.*", **NETWORK)


def test_adapters_begin_as_the_network_that_they_stand_in():
    plain, adapted = network(), add_lora(network(), 2, 16.0)
    inputs = torch.rand(5, 64)
    assert torch.equal(plain(inputs), adapted(inputs))
    layers = [m for m in adapted.modules() if isinstance(m, LoRALinear)]
    assert [m.lora_a.shape for m in layers] == [(2, 64), (2, 8)]
    with torch.no_grad():
        layers[0].lora_b.fill_(1.0)
        added = 8.0 * (inputs @ layers[0].lora_a.T).sum(1, keepdim=True)
        expected = nn.functional.linear(inputs, layers[0].weight, layers[0].bias) + added
        torch.testing.assert_close(layers[0](inputs), expected)
    trained = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert trained == {
        *("1.lora_a", "1.lora_b", "3.lora_a", "3.lora_b", "5.weight", "5.bias")
    }
    with pytest.raises(ConfigError, match="beside its head"):
        add_lora(build_model("linear", (64,), 10, 0), 2, 16.0)


def test_only_the_adapters_seed_draws_them():
    drawn = [model_arrays(add_lora(network(), 2, 1.0, seed=s)) for s in (0, 0, 1)]
    assert bits(drawn[0]) == bits(drawn[1])
    assert not np.array_equal(drawn[0]["1.lora_a"], drawn[2]["1.lora_a"])


def products(arrays, like):
    """Return the products of adapters; an A that did not travel is the network's."""
    a = {n: arrays.get(n, like[n]).astype(float) for n in like if n.endswith("lora_a")}
    return {n: arrays[n.replace("_a", "_b")].astype(float) @ a[n] for n in a}


@pytest.mark.parametrize("travels", ["*lora_b, 5.*", "trainable"])
def test_ffa_averages_the_products_and_the_plain_mean_does_not(travels):
    like = model_arrays(add_lora(network(), 2, 2.0))
    experiment = digits_experiment(**LORA, travels=travels, learning_rate=0.5)
    taken, weights, take = [], [], FedAvg.take

    def noting(self, reply):
        taken.append(products(reply.arrays["arrays"], like))
        weights.append(reply.num_examples)
        take(self, reply)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedAvg, "take", noting)
        trace = run_digits(experiment)
    last, shares = taken[-4:], np.array(weights[-4:]) / sum(weights[-4:])
    mean = products(trace.arrays[-1], like)
    error = scale = 0.0
    for name in mean:
        exact = sum(s * one[name] for s, one in zip(shares, last, strict=True))
        error += float(np.square(mean[name] - exact).sum())
        scale += float(np.square(exact).sum())
    ratio = (error / scale) ** 0.5
    assert ratio < 1e-6 if "lora_b" in travels else ratio > 1e-4
