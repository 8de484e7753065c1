import numpy as np
import pytest
from sklearn.datasets import load_digits as sklearn_digits

from fedsuite.data import DATASETS, digits


@pytest.mark.parametrize("packaged", [True, False])
def test_same_as_scikit_learn(packaged, monkeypatch):
    if packaged:
        assert digits._packaged_table() is not None
    else:
        monkeypatch.setattr(digits, "_packaged_table", lambda: None)
    raw = digits.Digits().load(DATASETS["digits"], None)
    expected = sklearn_digits()
    assert raw.features.shape == (1797, 1, 8, 8) and raw.features.dtype == np.uint8
    assert np.array_equal(raw.features[:, 0], expected.images)
    assert np.array_equal(raw.labels, expected.target)
    assert raw.labels.dtype == np.int64
    assert raw.ids is None and raw.num_train is None
