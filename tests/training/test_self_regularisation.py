"""LSR: the loss by hand, its extremes, and that methods see it."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from fedsuite.clients.averaging.fedavg import FedAvgClient
from fedsuite.core.registry import METHODS
from fedsuite.core.rng import torch_stream
from fedsuite.data import Split
from fedsuite.engines.api import run
from fedsuite.messages.records import ARRAYS, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.strategies import load_strategy
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.self_regularisation import (
    LSROptions,
    SelfRegularisation,
    classification_loss,
    regularisation_loss,
)

P1 = torch.log(torch.tensor([[0.8, 0.2]]))
P2 = torch.log(torch.tensor([[0.4, 0.6]]))


def test_losses_by_hand() -> None:
    """Mixed half and half: (0.6, 0.4); squared and normalised: 0.36 / 0.52 = 9 / 13.

    Jensen-Shannon about (0.6, 0.4): 0.0915162 and 0.0810930, mean 0.0863046.
    """
    label = torch.tensor([0])
    classified = classification_loss(P1, P2, label, torch.tensor(0.5), 0.5)
    assert float(classified) == pytest.approx(-math.log(9 / 13), rel=1e-6)
    assert float(regularisation_loss(P1, P2, 1.0)) == pytest.approx(0.0863046, rel=1e-5)
    # At T_d = 1 / 2 the two are (16, 1) / 17 and (4, 9) / 13.
    q1, q2 = torch.tensor([16 / 17, 1 / 17]), torch.tensor([4 / 13, 9 / 13])
    middle = (q1 + q2) / 2
    expected = sum(float((q * (q / middle).log()).sum()) / 2 for q in (q1, q2))
    assert float(regularisation_loss(P1, P2, 0.5)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("mix", "kept"), [(1.0, P1), (0.0, P2)])
def test_the_mix_goes_from_one_view_to_the_other(mix: float, kept: torch.Tensor) -> None:
    label = torch.tensor([1])
    loss = classification_loss(P1, P2, label, torch.tensor(mix), 1.0)
    torch.testing.assert_close(loss, functional.cross_entropy(kept, label))


logits = st.lists(st.floats(-20, 20), min_size=6, max_size=6).map(
    lambda values: torch.tensor(values).reshape(2, 3)
)


@given(logits, logits, st.floats(0.1, 4))
def test_divergence_is_symmetric_and_at_most_log_two(
    first: torch.Tensor, second: torch.Tensor, temperature: float
) -> None:
    apart = float(regularisation_loss(first, second, temperature))
    back = float(regularisation_loss(second, first, temperature))
    assert -1e-5 <= apart <= math.log(2) + 1e-5
    assert apart == pytest.approx(back, abs=1e-5)
    assert float(regularisation_loss(first, first, temperature)) == pytest.approx(
        0, abs=1e-6
    )


@given(logits, st.floats(0, 1))
def test_equal_views_without_sharpening_are_plain_cross_entropy(
    outputs: torch.Tensor, mix: float
) -> None:
    labels = torch.tensor([2, 0])
    loss = classification_loss(outputs, outputs, labels, torch.tensor(mix), 1.0)
    expected = functional.cross_entropy(outputs, labels)
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)


def test_gradients_are_finite_at_the_ends_of_the_mix() -> None:
    for mix in (0.0, 1.0):
        outputs = torch.tensor([[50.0, -50.0]], requires_grad=True)
        loss = classification_loss(outputs, P2, torch.tensor([1]), torch.tensor(mix), 0.5)
        loss.backward()
        assert outputs.grad is not None and torch.isfinite(outputs.grad).all()


def test_the_weight_grows_linearly() -> None:
    options = LSROptions(lsr_gamma=0.4, lsr_ramp_rounds=4)
    weights = [options.gamma_at(t) for t in (1, 2, 3, 5, 50)]
    assert weights == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.4])
    assert LSROptions(lsr_gamma=0.4).gamma_at(1) == 0.4


def test_views_are_made_of_pixels_and_scaled_back() -> None:
    """In standard scaling black is not 0: what a rotation brings in must be black."""
    lsr = SelfRegularisation(LSROptions(), (0.5,), (0.25,))
    white = torch.full((8, 1, 9, 9), 2.0)  # (1 - 0.5) / 0.25
    view = lsr.view(white, torch_stream(0, "views"))
    torch.testing.assert_close(view[:, 0, 4, 4], torch.full((8,), 2.0))
    torch.testing.assert_close(view.min(), torch.tensor(-2.0), atol=0.2, rtol=0)


def client(
    gamma: float | None, client_class: type[FederatedClient] = FedAvgClient
) -> FederatedClient:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    generator = torch_stream(1, "toy")
    data = Split(torch.rand(12, 1, 4, 4, generator=generator), torch.arange(12) % 3)
    options = None if gamma is None else LSROptions(lsr_gamma=gamma)
    return client_class(
        model,
        data,
        data,
        training=TrainingOptions(local_steps=3, batch_size=5),
        self_regularisation=options and SelfRegularisation(options),
    )


def trained(it: FederatedClient) -> Any:
    it.train_locally(Request("train", 0, {ARRAYS: model_arrays(it.model)}))
    return model_arrays(it.model)


def test_training_repeats_and_depends_on_the_weight() -> None:
    first, again, other, plain = (trained(client(g)) for g in (0.4, 0.4, 4.0, None))
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)
    assert any((first[name] != plain[name]).any() for name in first)


def test_batches_are_those_of_plain_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The views draw from a stream of their own: the order of the data stays."""
    seen: list[list[float]] = []
    usual = FederatedClient.loss

    def watch(self: FederatedClient, model: Any, features: Any, labels: Any) -> Any:
        seen[-1] += features.flatten().tolist()
        return usual(self, model, features, labels)

    monkeypatch.setattr(FederatedClient, "loss", watch)
    monkeypatch.setattr(FederatedClient, "known_loss", lambda self: self.loss)
    for gamma in (None, 0.4):
        seen.append([])
        trained(client(gamma))
    assert seen[0] == seen[1]


def test_the_reported_loss_is_the_regularised_one() -> None:
    it = client(0.4)
    request = Request("train", 0)
    reported = it.full_loss(request)
    assert reported == it.full_loss(request)
    views = torch_stream(0, "probe-views", 1, 0)
    assert it.self_regularisation is not None
    with torch.no_grad():
        expected = it.self_regularisation.loss(
            it.model, it.train_data.features, it.train_data.labels, 1, views
        )
    assert reported == pytest.approx(float(expected), rel=1e-6)
    assert reported != pytest.approx(client(None).full_loss(request), rel=1e-3)


def test_the_loss_outside_its_streams_is_an_error() -> None:
    it = client(0.4)
    it.full_loss(Request("train", 0))
    with pytest.raises(RuntimeError, match="layer_stream"):
        it.loss(it.model, it.train_data.features, it.train_data.labels)


DIGITS = {
    "dataset": "digits",
    "num-clients": 4,
    "num-rounds": 1,
    "clients-per-round": 2,
    "checkpoint-every": 0,
    "report": False,
}


OFFERED = [n for n, m in METHODS.items() if "lsr-gamma" not in load_strategy(m).FIXED]


def test_methods_that_refuse_lsr_say_why() -> None:
    for name in set(METHODS) - set(OFFERED):
        assert "one view of a sample" in load_strategy(METHODS[name]).FIXED_REASON
    assert len(OFFERED) > len(METHODS) // 2


@pytest.mark.parametrize("method", OFFERED)
def test_every_method_trains_with_lsr(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method whose clients train without the base's loss would drop the option."""
    calls: list[int] = []
    usual = SelfRegularisation.loss

    def watch(self: SelfRegularisation, *args: Any) -> torch.Tensor:
        calls.append(args[3])
        return usual(self, *args)

    monkeypatch.setattr(SelfRegularisation, "loss", watch)
    places = {"output-dir": str(tmp_path), "run-name": "run"}
    drawn = 0 if method == "standalone" else 2
    values = {**DIGITS, **places, "clients-per-round": drawn, "lsr-gamma": 0.4}
    done = run({**values, "method": method})
    assert done.manifest["status"] == "finished"
    assert set(calls) == {1}


def test_off_is_off(tmp_path: Path) -> None:
    def model(name: str, **changes: float) -> bytes:
        keys = {key.replace("_", "-"): value for key, value in changes.items()}
        places = {"output-dir": str(tmp_path), "run-name": name}
        path = run({**DIGITS, **places, **keys}).path
        return (path / "model.safetensors").read_bytes()

    off = model("off", lsr_gamma=0.0)
    assert off == model("plain") != model("on", lsr_gamma=0.4)
