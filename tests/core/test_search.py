"""What tuning tries: draws are allowed, defaults are among them, few keys per method."""

import numpy as np
import pytest

from fedsuite.core.registry import METHODS
from fedsuite.core.search import Between, HalfDecades
from fedsuite.strategies import load_strategy
from fedsuite.training.loop import TrainingOptions


def stream() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_draw_between_two_numbers_is_even_on_a_logarithmic_scale() -> None:
    numbers = stream()
    drawn = [Between(0.01, 100.0).draw(numbers, 1.0) for _ in range(2000)]
    assert min(drawn) >= 0.01
    assert max(drawn) <= 100.0
    assert 0.45 < np.mean(np.array(drawn) < 1.0) < 0.55
    assert all(float(f"{value:.3g}") == value for value in drawn)


def test_the_ladder_has_two_rungs_a_decade() -> None:
    ladder = HalfDecades()
    assert [ladder.rung(n) for n in range(-4, 3)] == [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    assert all(ladder.nearest(ladder.rung(n)) == n for n in range(-12, 6))
    assert ladder.nearest(0.02) == -3


def test_a_draw_around_the_default_moves_with_it() -> None:
    first, second = stream(), stream()
    for _ in range(100):
        small = HalfDecades().draw(first, 0.001)
        large = HalfDecades().draw(second, 0.1)
        assert 0.001 * 10**-0.26 < small < 0.001 * 10**0.26
        assert large / small == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_tunes_two_keys_of_its_own_at_most(method: str) -> None:
    keys = [k for k in load_strategy(METHODS[method]).method_keys() if k.search]
    assert len(keys) <= 2
    for key in keys:
        assert key.search is not None
        assert isinstance(key.default, int | float)
        numbers = stream()
        for _ in range(50):
            drawn = key.search.draw(numbers, key.default)
            assert key.parse(drawn) == drawn


def test_of_the_keys_of_training_these_can_be_tuned() -> None:
    """The learning rate always is, the options' keys where a contender names them."""
    can = {key.name for key in TrainingOptions.KEYS if key.search}
    assert can == {"learning-rate", "decorrelation-weight", "logit-calibration"}
