"""Label noise: how many labels, which ones, and whom they reach."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.core.rng import numpy_stream
from fedsuite.data import load_federated_data
from fedsuite.data.label_noise import flip_labels

SHARDS = {"partitioner": "shards", "num-clients": 5}


def test_two_classes_by_hand():
    """Of two classes the other one is known: at ratio 1 every label is turned around."""
    labels = np.array([0, 1, 1, 0, 1])
    assert flip_labels(labels, 2, 1.0, numpy_stream(0, "x")).tolist() == [1, 0, 0, 1, 0]
    assert labels.tolist() == [0, 1, 1, 0, 1]


def test_no_noise_hands_the_labels_on():
    labels = np.arange(4)
    rng = numpy_stream(0, "x")
    assert flip_labels(labels, 4, 0.0, rng) is labels
    assert rng.random() == numpy_stream(0, "x").random()


@given(
    st.lists(st.integers(0, 6), max_size=40),
    st.floats(0, 1),
    st.integers(0, 2**32),
)
def test_exactly_the_share_is_wrong(labels, ratio, seed):
    true = np.array(labels, dtype=np.int64)
    noisy = flip_labels(true, 7, ratio, np.random.default_rng(seed))
    assert (noisy != true).sum() == np.rint(ratio * len(true))
    assert ((noisy >= 0) & (noisy < 7)).all()
    assert noisy.dtype == true.dtype


def test_all_other_classes_are_equally_likely():
    """9,000 flips over 9 classes: 1,000 each, give or take 5 standard deviations (150)."""
    noisy = flip_labels(np.full(9_000, 3), 10, 1.0, numpy_stream(0, "x"))
    counts = np.bincount(noisy, minlength=10)
    assert counts[3] == 0
    assert np.abs(np.delete(counts, 3) - 1_000).max() < 150


def test_one_class_cannot_be_flipped():
    with pytest.raises(DataError, match="at least two classes"):
        flip_labels(np.zeros(3, np.int64), 1, 0.5, numpy_stream(0, "x"))


def test_only_training_labels_of_each_client_are_noisy():
    clean = load_federated_data(SHARDS, 1)
    noisy = load_federated_data({**SHARDS, "label-noise": 0.5}, 1)
    for k in range(5):
        before, after = clean.client(k), noisy.client(k)
        wrong = int((before.train.labels != after.train.labels).sum())
        assert wrong == round(0.5 * len(before.train))
        assert torch.equal(before.train.features, after.train.features)
        assert torch.equal(before.test.labels, after.test.labels)
        counts = np.bincount(after.train.labels, minlength=10)
        assert np.array_equal(noisy.class_counts()[k], counts)
    assert torch.equal(clean.test_set().labels, noisy.test_set().labels)
    assert np.array_equal(clean.test_class_counts(), noisy.test_class_counts())


def test_noise_is_recorded_and_seeded():
    clean = load_federated_data(SHARDS, 1)
    off = load_federated_data({**SHARDS, "label-noise": 0}, 1)
    half = load_federated_data({**SHARDS, "label-noise": 0.5}, 1)
    third = load_federated_data({**SHARDS, "label-noise": 0.3}, 1)
    assert off.description == clean.description
    assert "label-noise" not in clean.description
    assert half.description["label-noise"] == 0.5
    assert len({data.fingerprint for data in (clean, half, third)}) == 3
    labels = [half.client(k).train.labels for k in range(5)]
    half_again = load_federated_data({**SHARDS, "label-noise": 0.5, "scaling": "unit"}, 1)
    assert all(torch.equal(half_again.client(k).train.labels, labels[k]) for k in range(5))
    assert half_again.fingerprint == half.fingerprint


def test_two_clients_draw_from_streams_of_their_own():
    """With IID clients of equal sizes the flipped positions would coincide otherwise."""
    keys = {"num-clients": 2, "test-fraction": 0.1}
    clean = load_federated_data(keys, 0)
    noisy = load_federated_data({**keys, "label-noise": 0.5}, 0)
    flips = [clean.client(k).train.labels != noisy.client(k).train.labels for k in (0, 1)]
    length = min(map(len, flips))
    assert not torch.equal(flips[0][:length], flips[1][:length])


@pytest.mark.parametrize("ratio", [-0.1, 1.1, "half"])
def test_shares_outside_0_to_1_are_refused(ratio):
    with pytest.raises(ConfigError, match="key label-noise"):
        load_federated_data({"label-noise": ratio}, 0)


def test_standardisation_undoes_the_scaling():
    data = load_federated_data({"num-clients": 1}, 0)
    assert data.standardisation == ((0.0,), (1.0,))
