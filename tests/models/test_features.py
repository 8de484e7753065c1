"""Features of every network: what its classifier is given, in one forward pass."""

import pytest
import torch
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.models import MODELS, build_model, decompose
from fedsuite.models.features import check_trained, feature_width, with_features
from fedsuite.models.fedpara import fedpara
from fedsuite.models.head import find_head
from tests.models.test_models import CLASSIFIERS, OF_WORDS, SHAPES


def inputs_of(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if name in OF_WORDS:
        return torch.randint(10, (4, *SHAPES[name]), generator=generator)
    return torch.randn(4, *SHAPES[name], generator=generator)


def forward(model: nn.Module, inputs: torch.Tensor, with_them: bool) -> tuple:
    """Return features (None by the plain way), logits, and buffers afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = with_features(model, inputs) if with_them else (None, model(inputs))
    return *found, [buffer.clone() for buffer in model.buffers()]


def assert_one_pass(build, inputs: torch.Tensor) -> None:
    model = build().train()
    _, plain, plain_buffers = forward(build().train(), inputs, with_them=False)
    features, logits, buffers = forward(model, inputs, with_them=True)
    assert torch.equal(logits, plain)
    for buffer, twin in zip(buffers, plain_buffers, strict=True):
        assert torch.equal(buffer, twin)
    assert features.shape == (*logits.shape[:-1], feature_width(model))
    _, head = find_head(model)
    assert torch.equal(head(features), logits)
    assert not head._forward_pre_hooks
    features.sum().backward()
    assert head.weight.grad is None
    others = [p for p in model.parameters() if p is not head.weight and p is not head.bias]
    assert not others or any(p.grad is not None and p.grad.any() for p in others)


@pytest.mark.parametrize("name", MODELS)
def test_features_of_every_network(name: str) -> None:
    def build() -> nn.Module:
        return build_model(name, SHAPES[name], 10, seed=0)

    inputs = inputs_of(name)
    if name == "linear":
        features, _ = with_features(build(), inputs)
        assert torch.equal(features, inputs.flatten(1))
        return
    assert_one_pass(build, inputs)
    if name in CLASSIFIERS:
        assert with_features(build(), inputs)[0].dim() == 2


@pytest.mark.parametrize("name", ["cnn-3x3", "wide-resnet-10-1"])
@pytest.mark.parametrize("kind", [decompose, fedpara])
def test_features_of_factored_networks(name: str, kind) -> None:
    assert_one_pass(
        lambda: kind(build_model(name, SHAPES[name], 10, seed=0)), inputs_of(name)
    )


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.head(inputs))


def test_a_model_without_a_classifier_is_refused() -> None:
    model = Twice()
    with pytest.raises(ConfigError, match="takes part 2 times"):
        with_features(model, torch.zeros(2, 3))
    assert not model.head._forward_pre_hooks
    with pytest.raises(ConfigError, match="no linear layer"):
        with_features(nn.Sequential(nn.Flatten()), torch.zeros(2, 3))


def test_a_pass_that_fails_leaves_no_trace() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(RuntimeError):
        with_features(model, torch.zeros(2, 4))
    assert not model._forward_pre_hooks


def test_features_that_are_the_inputs_cannot_be_trained() -> None:
    with pytest.raises(ConfigError, match="its features are its inputs"):
        check_trained(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    check_trained(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
