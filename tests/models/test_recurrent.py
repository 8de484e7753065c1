"""The network for events: padding changes nothing, and attention is where events are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedsuite.core.errors import ConfigError
from fedsuite.models import build_model, count_parameters
from fedsuite.models.recurrent import EventSequenceNet

EVENTS = 6


def network() -> EventSequenceNet:
    model = build_model("gru-events", (1 + EVENTS, 3), 2, 0, event_codes=9, postal_codes=4)
    assert isinstance(model, EventSequenceNet)
    return model.eval()


def records(*lengths: int, seed: int = 0) -> Tensor:
    """Return patients with so many events each."""
    stream = torch.Generator().manual_seed(seed)
    made = torch.zeros(len(lengths), 1 + EVENTS, 3)
    for record, length in zip(made, lengths, strict=True):
        record[0, 0] = torch.randint(0, 3, (1,), generator=stream)
        record[0, 1] = torch.randint(0, 5, (1,), generator=stream)
        events = slice(1, 1 + length)
        record[events, 0] = torch.randint(1, 10, (length,), generator=stream).float()
        record[events, 1:] = torch.randn(length, 2, generator=stream)
    return made


def test_size_by_hand() -> None:
    """Sizes with 400 codes of 64, 250 postal codes, 2 classes.

    Embeddings 25,664 + 24 + 4,016; GRU of 66 inputs 2 x (3 x 256 x (66 + 256) + 1,536),
    then of 512 inputs 2 x (3 x 256 x (512 + 256) + 1,536); attention 131,328 + 256; scores
    (512 + 8 + 16) x 2 + 2.
    """
    first, second = 2 * (768 * 322 + 1536), 2 * (768 * 768 + 1536)
    total = 25_664 + 24 + 4_016 + first + second + 131_328 + 256 + 1_074
    model = build_model("gru-events", (33, 3), 2, 0)
    assert count_parameters(model) == total == 1_842_746


def test_scores_of_each_patient_stand_alone() -> None:
    model, whole = network(), records(6, 1, 3, 4)
    together = model(whole)
    assert together.shape == (4, 2)
    alone = torch.cat([model(record[None]) for record in whole])
    assert torch.allclose(together, alone, atol=1e-6)


@given(st.integers(0, 50), st.integers(1, EVENTS - 1))
def test_padding_changes_nothing(seed: int, length: int) -> None:
    model, record = network(), records(length, seed=seed)
    cut = model(record[:, : 1 + length])
    assert torch.allclose(model(record), cut, atol=1e-6)


def test_attention_is_where_events_are() -> None:
    model = network()
    states = torch.randn(2, EVENTS, 512, generator=torch.Generator().manual_seed(0))
    weights = model.attention_weights(states, torch.tensor([2, 6]))
    assert torch.allclose(weights.sum(dim=1), torch.ones(2))
    assert (weights > 0).tolist() == [[True] * 2 + [False] * 4, [True] * 6]
    energy = torch.tanh(states @ model.energy.weight.T + model.energy.bias)
    scores = (energy @ model.attention.weight.T).squeeze(2)
    assert torch.allclose(weights[0, :2], scores[0, :2].softmax(dim=0), atol=1e-6)


def test_every_part_of_a_record_counts() -> None:
    model, record = network(), records(4)
    base = model(record)
    for place, column in ((0, 0), (0, 1), (2, 0), (2, 1), (4, 2)):
        changed = record.clone()
        changed[0, place, column] = 1 if record[0, place, column] != 1 else 2
        assert not torch.allclose(model(changed), base, atol=1e-7), (place, column)


def test_both_directions_see_the_whole_record() -> None:
    """A change of the last event reaches the state of the first, and the other way."""
    model, record = network(), records(5)
    seen: list[Tensor] = []
    model.energy.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(record)
    for changed, looked_at in ((5, 0), (1, 4)):
        other = record.clone()
        other[0, changed, 1] += 1.0
        model(other)
        assert (seen[-1][0, looked_at] != seen[0][0, looked_at]).any()


def test_patient_without_events_has_scores() -> None:
    scores = network()(records(0, 3))
    assert scores.isfinite().all()


def test_dropout_in_training_alone() -> None:
    model, record = network(), records(4)
    assert torch.equal(model(record), model(record))
    model.train()
    assert not torch.equal(model(record), model(record))
    assert model.gru.dropout == model.dropout.p == 0.3


@pytest.mark.parametrize("input_shape", [(1, 8, 8), (5, 2), (1, 3), (32,)])
def test_other_inputs_are_refused(input_shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="gru-events: takes records of events"):
        build_model("gru-events", input_shape, 2, 0)
