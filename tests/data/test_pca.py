import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import DataError
from fedsuite.data import pca
from fedsuite.data.pca import Frame, fit_frame, pool_frame

RNG = np.random.default_rng(5)
MIXING = np.linalg.qr(RNG.normal(size=(30, 30)))[0] * 1.2 ** -np.arange(30)[:, None]
POOL = RNG.normal(size=(5000, 30)) @ MIXING + np.arange(30)


def exact(pool, dimensions):
    """Variances and directions by the eigenvectors of the whole covariance."""
    values, vectors = np.linalg.eigh(np.cov(pool, rowvar=False, bias=True))
    return values[::-1][:dimensions], vectors[:, ::-1][:, :dimensions].T


@pytest.mark.parametrize("dimensions", [1, 5, 30])
def test_components_are_the_leading_eigenvectors(dimensions):
    variances, directions = exact(POOL, dimensions)
    frame = fit_frame(POOL, dimensions)
    assert np.allclose(frame.mean, POOL.mean(axis=0))
    assert np.allclose(frame.deviations**2, variances, rtol=1e-6)
    overlap = frame.components @ directions.T
    assert np.allclose(np.abs(overlap), np.eye(dimensions), atol=1e-3)
    assert np.allclose(frame.components @ frame.components.T, np.eye(dimensions))


def test_the_largest_entry_of_a_component_is_positive():
    for pool in (POOL, -POOL):
        components = fit_frame(pool, 6).components
        largest = np.abs(components).argmax(axis=1)
        assert (components[range(6), largest] > 0).all()


def test_the_pool_is_white_in_its_frame():
    images = RNG.integers(0, 256, (3000, 1, 6, 6)).astype(np.uint8)
    frame = fit_frame(images, 7)
    white = frame.whiten(images)
    assert np.allclose(white.mean(axis=0), 0, atol=1e-12)
    assert np.allclose(np.cov(white, rowvar=False, bias=True), np.eye(7))
    by_hand = (images.reshape(3000, -1)[2500] - frame.mean) @ frame.components.T
    assert np.allclose(white[2500], by_hand / frame.deviations)


def test_a_displacement_of_inputs_moves_coordinates_by_as_much():
    frame = fit_frame(POOL, 4)
    shift = np.array([1.0, -2.0, 0.5, 3.0])
    moved = frame.whiten(POOL + (shift * frame.deviations) @ frame.components)
    assert np.allclose(moved - frame.whiten(POOL), shift)


@given(st.integers(1, 4), st.integers(1, 4))
def test_directions_without_variance_are_refused(rank, dimensions):
    flat = (
        np.random.default_rng(rank).normal(size=(50, rank))
        @ np.ones((rank, 6)).cumsum(axis=1) ** np.arange(1, rank + 1)[:, None]
    )
    if dimensions <= rank:
        assert fit_frame(flat, dimensions).components.shape == (dimensions, 6)
        return
    message = f"vary in {rank} directions only, fewer than shift-dimensions = {dimensions}"
    with pytest.raises(DataError, match=message):
        fit_frame(flat, dimensions)


@pytest.mark.parametrize("pool", [np.ones((9, 3)), np.array([[0.0, np.nan]] * 9)])
def test_a_pool_without_variance_or_numbers_is_refused(pool):
    with pytest.raises(DataError, match=r"0 directions only|NaN or infinity"):
        fit_frame(pool, 1)


def test_frames_of_large_pools_are_kept_on_disk(monkeypatch):
    fits = []

    def counted(features, dimensions):
        fits.append(dimensions)
        return fit_frame(features, dimensions)

    monkeypatch.setattr(pca, "fit_frame", counted)
    pool_frame(POOL, 3)
    pool_frame(POOL, 3)
    assert fits == [3, 3]
    monkeypatch.setattr(pca, "_WORTH_KEEPING", POOL.size)
    kept = [pool_frame(POOL, 3) for _ in range(2)]
    assert fits == [3, 3, 3]
    assert all(isinstance(frame, Frame) for frame in kept)
    assert np.array_equal(kept[0].whiten(POOL), fit_frame(POOL, 3).whiten(POOL))
    assert np.array_equal(kept[1].whiten(POOL), kept[0].whiten(POOL))
    other = POOL.copy()
    other[0, 0] += 1
    pool_frame(other, 3)
    pool_frame(POOL, 4)
    assert fits == [3, 3, 3, 3, 4]
