"""Paired differences, with numbers worked out by hand."""

import pytest

from fedsuite.errors import RunError
from fedsuite.results.compare import compare
from fedsuite.results.paired import paired_differences, to_markdown
from tests.results.made_runs import make_run


@pytest.fixture
def comparison(tmp_path):
    """FedAvg has 50, 60 and 70 per cent, FedProx 54, 62 and, for a fourth seed, 10."""
    paths = []
    for method, by_seed in {
        "fedavg": {0: 0.5, 1: 0.6, 2: 0.7},
        "fedprox": {0: 0.54, 1: 0.62, 3: 0.1},
        "fedsgd": {0: None},
    }.items():
        for seed, value in by_seed.items():
            paths.append(tmp_path / f"{method}-{seed}")
            accuracies = () if value is None else [[value, value]]
            experiment = {"method": method, "seed": seed}
            make_run(paths[-1], experiment=experiment, accuracies=accuracies)
    return compare(paths)


def test_only_common_seeds_count(comparison):
    prox, sgd = paired_differences(comparison, "fedavg")
    assert (prox.label, prox.num_seeds) == ("fedprox", 2)
    # Differences 4 and 2; FedProx's seed 3 has no partner.
    assert prox.metrics["mean"].mean == pytest.approx(3)
    assert prox.metrics["mean"].std == pytest.approx(2**0.5)
    assert prox.num_positive["mean"] == 2
    assert prox.num_positive["variance"] == 0
    assert sgd.num_seeds == 1
    assert sgd.metrics["mean"] is None


def test_sign_turns_with_the_baseline(comparison):
    avg, _ = paired_differences(comparison, "fedprox")
    assert avg.metrics["mean"].mean == pytest.approx(-3)
    assert avg.num_positive["mean"] == 0


def test_markdown(comparison):
    lines = to_markdown(paired_differences(comparison, "fedavg"), "fedavg").splitlines()
    assert lines[2].startswith("| fedprox | 2 | +3.00 ± 1.41 (2) | +3.00 ± 1.41 (2) |")
    assert lines[3].startswith("| fedsgd | 1 | – |")
    assert "Minus fedavg, seed by seed" in lines[-1]
    lines = to_markdown(paired_differences(comparison, "fedprox"), "fedprox").splitlines()
    assert lines[2].startswith("| fedavg | 2 | -3.00 ± 1.41 (0) |")


def test_unknown_baseline_names_those_there_are(comparison):
    with pytest.raises(RunError, match="no experiment 'fedfoo': there are fedavg; fedprox"):
        paired_differences(comparison, "fedfoo")
