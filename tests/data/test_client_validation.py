"""Which of a client's training rows are for validation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.data import Partition, load_federated_data
from fedsuite.data.client_validation import hold_out_validation, validation_masks
from tests.data import hospital_files

FRACTIONS = st.floats(0.01, 0.9)
DIVISIONS = (
    {"partitioner": "iid"},
    {"partitioner": "dirichlet", "dirichlet-alpha": 0.1, "dirichlet-min-size": 2},
    {"partitioner": "shards"},
    {"partitioner": "iid", "label-noise": 0.3},
    {"partitioner": "covariate-shift"},
)


@st.composite
def divided(draw):
    """Labels, the clients' rows, and groups within clients or across them."""
    labels = np.array(draw(st.lists(st.integers(0, 3), min_size=2, max_size=60)))
    owners = draw(st.lists(st.integers(0, 3), min_size=len(labels), max_size=len(labels)))
    clients = [np.flatnonzero(np.array(owners) == k) for k in sorted(set(owners))]
    groups = np.arange(len(labels))
    if draw(st.booleans()):
        names = st.integers(0, len(labels) // 2)
        sizes = {"min_size": len(labels), "max_size": len(labels)}
        groups = np.array(draw(st.lists(names, **sizes)))
    return labels, clients, groups


@given(divided(), FRACTIONS, st.integers(0, 3))
def test_groups_are_whole_and_every_client_still_trains(division, fraction, seed):
    labels, clients, groups = division
    masks = validation_masks(clients, labels, groups, fraction, seed)
    trained, validated = set(), set()
    for rows, mask in zip(clients, masks, strict=True):
        assert mask.shape == rows.shape
        assert not mask.all()
        validated |= set(groups[rows[mask]])
        trained |= set(groups[rows[~mask]])
    assert not trained & validated
    held = [set(groups[rows]) for rows in clients]
    for k, (rows, mask) in enumerate(zip(clients, masks, strict=True)):
        others = set().union(*held[:k], *held[k + 1 :])
        own = held[k] - others
        if len(own) > 1:
            assert mask.any(), rows


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=300).map(np.array),
    FRACTIONS,
    st.integers(0, 3),
)
def test_each_class_gives_its_share(labels, fraction, seed):
    (mask,) = validation_masks([np.arange(len(labels))], labels, None, fraction, seed)
    counts = np.bincount(labels)
    drawn = np.bincount(labels[mask], minlength=len(counts))
    some = counts > 1
    assert (drawn[some] < counts[some]).all()
    if not some.any():
        assert drawn.sum() == min(max(round(fraction * len(labels)), 1), len(labels) - 1)
        return
    assert not drawn[~some].any()
    wanted = min(max(round(fraction * len(labels)), 1), counts[some].sum())
    share = wanted / counts[some].sum() * counts
    assert (np.abs(drawn - share)[some] <= 1 + 1e-9).all()
    assert wanted - some.sum() <= drawn.sum() <= wanted
    if fraction <= 0.5 and some.all():
        assert drawn.sum() == wanted


def test_every_row_is_as_likely_as_the_others():
    labels = np.repeat([0, 1, 2], [2, 6, 12])
    times = sum(
        validation_masks([np.arange(20)], labels, None, 0.1, seed)[0].astype(int)
        for seed in range(3000)
    )
    assert np.abs(times / 3000 - 0.1).max() < 0.025


@pytest.mark.parametrize("values", DIVISIONS, ids=str)
def test_the_rows_are_the_old_training_rows(values):
    plain = load_federated_data({**values, "num-clients": 5}, 1)
    data = load_federated_data(
        {**values, "num-clients": 5, "client-validation-fraction": 0.2}, 1
    )
    held = set(np.concatenate(data.partition.train)) & set(
        np.concatenate(data.partition.validation)
    )
    assert not held  # of no client, where rows have several
    for k in range(5):
        before, now = plain.client(k), data.client(k)
        rows = np.sort(
            np.concatenate([data.partition.train[k], data.partition.validation[k]])
        )
        assert np.array_equal(rows, plain.partition.train[k])
        assert torch.equal(before.test.features, now.test.features)
        labels = torch.cat([now.train.labels, now.validation.labels]).sort().values
        assert torch.equal(labels, before.train.labels.sort().values)
        assert len(now.train) > len(now.validation) > 0
    assert np.array_equal(
        data.class_counts() + data.validation_class_counts(), plain.class_counts()
    )
    told = data.description
    assert told["client-validation-rows"] == sum(map(len, data.partition.validation))
    assert told["unused-train-rows"] == plain.description["unused-train-rows"]
    assert told["fingerprint"] != plain.fingerprint


def test_without_the_key_nothing_changes():
    values = {"partitioner": "dirichlet", "num-clients": 4}
    plain = load_federated_data(values, 0)
    zero = load_federated_data({**values, "client-validation-fraction": 0.0}, 0)
    assert zero is plain
    assert plain.client(0).validation is None
    assert plain.validation_class_counts() is None
    # The division of digits as it was before there was the key.
    assert plain.fingerprint.startswith("9d33caed9d2f10a4")


def test_seeds_and_clients_draw_differently():
    rows, labels = np.arange(40), np.zeros(80, np.int64)
    first, second = validation_masks([rows, rows + 40], labels, None, 0.5, 0)
    (other,) = validation_masks([rows], labels, None, 0.5, 1)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_group_of_two_clients_is_drawn_for_both():
    """Eight patients of two clients, five visits each, at either client."""
    groups = np.arange(80) % 8
    clients = [np.arange(40), np.arange(40, 80)]
    partition = Partition(tuple(clients), tuple(clients))
    held = hold_out_validation(partition, np.zeros(80, np.int64), groups, 0.25, 0)
    for train, validation in zip(held.train, held.validation, strict=True):
        assert len(set(groups[validation])) == 2
        assert set(groups[validation]) == set(groups[held.validation[0]])
        assert not set(groups[train]) & set(groups[validation])


def test_no_patient_is_trained_on_and_validated_on(tmp_path: Path) -> None:
    """Patients of three specialties, some of which come to two of them."""
    hospital_files.write_encounters(tmp_path)
    values = {
        "dataset": "diabetes130",
        "data-dir": str(tmp_path),
        "partitioner": "natural-id",
        "num-clients": 3,
        "client-validation-fraction": 0.2,
    }
    data = load_federated_data(values, 0)
    patients = data._raw.groups[data._rows.train]
    held = [np.concatenate(p) for p in (data.partition.train, data.partition.validation)]
    trained, validated = (set(patients[rows].tolist()) for rows in held)
    assert not trained & validated
    assert len(validated) == pytest.approx(0.2 * len(trained | validated), abs=3)
    tested = set(data._raw.groups[data._rows.test].tolist())
    assert not tested & (trained | validated)
    assert all(len(rows) for rows in data.partition.validation)


def test_sequences_have_no_class_to_draw_by():
    labels = np.zeros((10, 3), np.int64)
    (mask,) = validation_masks([np.arange(10)], labels, np.arange(10) // 2, 0.4, 0)
    assert mask.sum() == 4
    assert (mask[::2] == mask[1::2]).all()


def test_a_share_is_not_all():
    with pytest.raises(ConfigError, match="key client-validation-fraction = 1"):
        load_federated_data({"client-validation-fraction": 1.0}, 0)
