"""Epsilon: golden numbers, two independent accountants, and what must grow or fall."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb

from fedsuite.core.errors import ConfigError
from fedsuite.rounds import epsilon as module
from fedsuite.rounds.epsilon import Accounting, gaussian_epsilon

DELTA = 1e-5


def plan(sampling, noise, num_clients=100, per_round=10, delta=DELTA):
    return Accounting(sampling, noise, num_clients, per_round, delta)


def spent(sampling, noise, rounds, num_clients=100, per_round=10, delta=DELTA):
    made = plan(sampling, noise, num_clients, per_round, delta)
    return made.epsilon(made.most_visits(rounds))


needs_library = pytest.mark.skipif(
    module.importlib.util.find_spec("dp_accounting") is None, reason="needs dp-accounting"
)


@needs_library
@pytest.mark.parametrize(
    ("noise", "rounds", "num_clients", "expected"),
    [
        (1.0, 1, 100, 1.6845),
        (1.0, 50, 100, 5.1483),
        (1.0, 100, 100, 7.0466),
        (2.0, 100, 100, 2.3374),
        (0.5, 100, 100, 31.371),
        (4.0, 100, 100, 0.9829),
        (5.0, 100, 100, 0.7583),
        (1.0, 1000, 1000, 1.8282),
    ],
)
def test_golden_numbers_of_poisson_samples(noise, rounds, num_clients, expected):
    found = spent("poisson", noise, rounds, num_clients)
    assert found == pytest.approx(expected, abs=8e-4)
    assert found >= expected - 1e-4, "the grid must err upwards"


@needs_library
@pytest.mark.parametrize(("noise", "expected"), [(1, 4.784), (2, 1.544), (10, 0.200)])
def test_golden_numbers_at_the_delta_of_a_hundred_clients(noise, expected):
    assert spent("poisson", noise, 100, delta=1e-3) == pytest.approx(expected, abs=1e-3)


@needs_library
@pytest.mark.parametrize(
    ("noise", "expected"), [(1.0, 83.937), (2.0, 14.0538), (4.0, 5.3790), (8.0, 2.2941)]
)
def test_a_fixed_number_is_handed_over_as_half_the_noise(noise, expected):
    assert spent("fixed", noise, 100) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("noise", "expected"), [(1, 17.857), (2, 7.511), (4, 3.341)])
def test_golden_numbers_of_public_cycles(noise, expected):
    """Each of 100 clients is in 10 of 100 rounds."""
    assert spent("cycles", noise, 100) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "cycles"])
@pytest.mark.parametrize(
    ("noise", "rounds", "expected"), [(1, 1, 4.3772), (10, 100, 4.3772), (1, 100, 91.817)]
)
def test_no_sample_is_a_plain_gaussian(sampling, noise, rounds, expected):
    found = spent(sampling, noise, rounds, per_round=100)
    assert found == pytest.approx(expected, abs=1e-3)


@needs_library
def test_the_closed_curve_is_the_librarys():
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.GaussianDpEvent(2.0), 7)
    expected = accountant.get_epsilon(DELTA)
    assert gaussian_epsilon(math.sqrt(7) / 2, DELTA) == pytest.approx(expected, abs=1e-3)


@needs_library
@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "bound"),
    [(1.0, 0.1, 100, 7.9729), (2.0, 0.1, 100, 2.5867), (1.0, 0.01, 1000, 2.1078)],
)
def test_moments_computed_by_hand_bound_it_from_above(noise, rate, rounds, bound):
    by_hand = _moments(noise, rate, rounds)
    assert by_hand == pytest.approx(bound, abs=1e-4)
    size = round(10 / rate)
    assert spent("poisson", noise, rounds, size) < by_hand


def _moments(noise, rate, rounds):
    """Return epsilon by integer orders, with no library."""
    found = []
    for order in range(2, 25):
        total = sum(
            comb(order, k)
            * (1 - rate) ** (order - k)
            * rate**k
            * math.exp((k * k - k) / (2 * noise**2))
            for k in range(order + 1)
        )
        spends = rounds * math.log(total) / (order - 1)
        rest = (math.log(DELTA) + math.log(order)) / (order - 1)
        found.append(spends + math.log((order - 1) / order) - rest)
    return min(found)


@needs_library
def test_the_noise_for_an_epsilon():
    made = plan("poisson", 1.0)
    noise = made.noise_for(8.0, 100)
    assert noise == pytest.approx(0.93593, rel=1e-3)
    assert plan("poisson", noise).epsilon(100) <= 8.0


@settings(max_examples=40, deadline=None)
@given(
    target=st.floats(0.05, 200.0),
    visits=st.integers(1, 500),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
)
def test_solved_noise_is_enough_and_hardly_more(target, visits, delta):
    made = plan("cycles", 1.0, delta=delta)
    noise = made.noise_for(target, visits)
    spends = [plan("cycles", z, delta=delta).epsilon(visits) for z in (noise, noise / 1.01)]
    assert spends[0] <= target < spends[1]


@settings(max_examples=60, deadline=None)
@given(noise=st.floats(0.2, 50.0), visits=st.integers(1, 2000))
def test_more_releases_and_less_noise_spend_more(noise, visits):
    made = plan("cycles", noise)
    assert made.epsilon(visits) < made.epsilon(visits + 1)
    assert made.epsilon(visits) < plan("cycles", noise / 1.1).epsilon(visits)


def test_groups_need_not_divide_the_clients():
    made = plan("cycles", 1.0, num_clients=7, per_round=3)
    assert made.groups == 3
    assert [made.most_visits(rounds) for rounds in (0, 1, 3, 4, 7)] == [0, 1, 1, 2, 3]


def test_nothing_released_spends_nothing():
    assert spent("cycles", 1.0, 0) == 0.0


def test_a_secret_sample_without_the_library_is_refused(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'dp-accounting"):
        spent("poisson", 1.0, 5)
