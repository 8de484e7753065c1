"""Generated patients: Table 7's numbers exactly, padding, and shift between states."""

from typing import Any

import numpy as np
import pytest

from fedsuite.data import DATASETS, RawData, load_federated_data
from fedsuite.data.synthetic_ehr import (
    CODES,
    EVENTS,
    POSTAL_CODES_OF_A_STATE,
    SyntheticEhr,
    states,
)

SPEC = DATASETS["synthetic-ehr"]


def generate(scale: float = 0.02, shift: float = 1.0) -> RawData:
    return SyntheticEhr(ehr_scale=scale, ehr_shift=shift).load(SPEC, None)


def test_states_are_those_of_table_7() -> None:
    found = states()
    assert len(found) == 50
    assert [state.name for state in found] == sorted(state.name for state in found)
    # The sums that the specification checked, and three rows of the table.
    assert sum(state.positives for state in found) == 89_515
    assert sum(state.negatives for state in found) == 149_061
    counts = {state.name: (state.positives, state.negatives) for state in found}
    assert counts["WY"] == (113, 245)
    assert counts["CA"] == (7_116, 12_924)
    assert counts["NJ"] == (3_762, 3_585)


@pytest.mark.parametrize("scale", [0.02, 0.001])
def test_generated_numbers_are_the_states(scale: float) -> None:
    raw = generate(scale)
    assert raw.ids is not None
    for number, state in enumerate(states(scale)):
        labels = raw.labels[raw.ids == number]
        assert (labels == 1).sum() == state.positives >= 1
        assert (labels == 0).sum() == state.negatives >= 1
    assert states(0.02)[4].positives == 142  # California: 0.02 x 7,116


def test_records_by_their_form() -> None:
    features = generate().features
    assert features.shape[1:] == SPEC.input_shape == (1 + EVENTS, 3)
    assert features.dtype == np.float32
    sex, postal, unused = features[:, 0].T
    assert set(np.unique(sex)) == {1, 2}
    assert postal.min() >= 1 and postal.max() <= 50 * POSTAL_CODES_OF_A_STATE
    assert not unused.any()
    codes, ages = features[:, 1:, 0], features[:, 1:, 2]
    assert (codes == codes.astype(int)).all() and codes.max() <= CODES
    lengths = (codes > 0).sum(axis=1)
    assert 4 <= lengths.min() < EVENTS / 3 and lengths.max() <= EVENTS
    # Padding stands at the end alone, and is 0 in all columns.
    real = np.arange(EVENTS) < lengths[:, None]
    assert ((codes > 0) == real).all()
    assert not features[:, 1:][~real].any()
    # Events are in order of age.
    assert (np.diff(ages, axis=1)[real[:, 1:]] >= 0).all()
    assert ages.min() >= 0 and ages.max() <= 0.95


def test_postal_codes_are_of_one_state() -> None:
    raw = generate()
    postal = raw.features[:, 0, 1].astype(int)
    assert raw.ids is not None
    assert ((postal - 1) // POSTAL_CODES_OF_A_STATE == raw.ids).all()


def test_same_patients_each_time_and_for_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    first = generate(0.001).features.copy()
    monkeypatch.setenv("FEDSUITE_CACHE", "/proc/no/cache")
    assert np.array_equal(generate(0.001).features, first)


def code_means(raw: RawData, state: int) -> Any:
    assert raw.ids is not None
    codes = raw.features[raw.ids == state, 1:, 0].astype(int)
    return np.bincount(codes[codes > 0], minlength=CODES + 1) / (codes > 0).sum()


def test_states_shift_as_asked() -> None:
    """Distance of two large states' codes: noise alone without a shift, then more."""
    distances = [
        np.abs(code_means(raw, 4) - code_means(raw, 8)).sum()
        for raw in (generate(0.1, shift) for shift in (0.0, 0.5, 1.5))
    ]
    assert distances[0] < 0.15
    assert distances[0] < distances[1] / 2 < distances[2] / 2
    assert distances[1] < distances[2]


def test_labels_follow_one_rule() -> None:
    """The same codes are risky in two states: their differences of means agree."""
    raw = generate(0.1)
    assert raw.ids is not None

    def lean(state: int) -> Any:
        rows = raw.ids == state
        codes = raw.features[rows, 1:, 0].astype(int)
        ill = raw.labels[rows] == 1
        counts = [
            np.bincount(c[c > 0], minlength=CODES + 1) for c in (codes[ill], codes[~ill])
        ]
        positive, negative = (part / part.sum() for part in counts)
        return positive - negative

    assert np.corrcoef(lean(4), lean(8))[0, 1] > 0.5


def test_each_state_is_a_client() -> None:
    values = {
        "dataset": "synthetic-ehr",
        "ehr-scale": 0.02,
        "partitioner": "natural-id",
        "natural-ids": "largest",
        "num-clients": 50,
        "test-fraction": 2 / 9,
    }
    data = load_federated_data(values, 0)
    sizes = data.class_counts() + data.test_class_counts()
    wanted = sorted(
        ((s.negatives, s.positives) for s in states(0.02)), key=lambda c: -sum(c)
    )
    assert sizes.sum(axis=1).tolist() == [sum(c) for c in wanted]
    assert sorted(map(tuple, sizes.tolist())) == sorted(wanted)
    share = data.test_class_counts().sum() / sizes.sum()
    assert share == pytest.approx(2 / 9, abs=0.01)
    assert "GENERATED" in SPEC.description
