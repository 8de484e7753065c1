"""Paired differences, with numbers worked out by hand."""

import json

import pytest

from fedsuite.core.errors import RunError
from fedsuite.results.compare import compare
from fedsuite.results.paired import paired_differences, tables, to_markdown, write
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


QUANTILE = 12.7062
"""Of Student's t with one degree of freedom, at 97.5 %: tan(0.475 pi)."""


def test_only_common_seeds_count(comparison):
    prox, sgd = paired_differences(comparison)
    assert (prox.label, prox.num_pairs) == ("fedprox", 2)
    # Differences 4 and 2, whose mean has the standard error 1; FedProx's seed 3 has no
    # partner.
    assert prox.metrics["mean"].mean == pytest.approx(3)
    assert prox.metrics["mean"].half_width == pytest.approx(QUANTILE, rel=1e-5)
    assert prox.metrics["mean"].num_positive == 2
    assert prox.metrics["variance"].num_positive == 0
    assert sgd.num_pairs == 1
    assert sgd.metrics["mean"] is None


def test_the_first_experiment_is_the_baseline_unless_another_is_named(comparison):
    assert comparison.baseline == "fedavg"
    assert minus(comparison, "fedavg") == comparison


def minus(comparison, baseline):
    """Return the comparison with another baseline."""
    paths = [run.path for group in comparison.groups for run in group.runs]
    return compare(paths, baseline=baseline)


def test_runs_of_one_seed_on_other_data_are_no_pair(tmp_path):
    paths = []
    for method, partitions in {"fedavg": "abc", "fedprox": "xbc"}.items():
        for seed, partition in enumerate(partitions):
            paths.append(tmp_path / f"{method}-{seed}")
            experiment = {"method": method, "seed": seed}
            make_run(paths[-1], experiment=experiment, data_fingerprint=partition)
    (prox,) = paired_differences(compare(paths))
    assert prox.num_pairs == 2
    (unknown,) = paired_differences(compare([paths[0], without_fingerprint(paths[3])]))
    assert unknown.num_pairs == 0


def without_fingerprint(path):
    for name in (path, path.with_name("fedavg-0")):
        manifest = json.loads((name / "manifest.json").read_text())
        del manifest["data_fingerprint"]
        (name / "manifest.json").write_text(json.dumps(manifest))
    return path


def test_one_pair_has_a_difference_and_no_interval(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    make_run(paths[0], accuracies=[[0.5]])
    make_run(paths[1], accuracies=[[0.4]], experiment={"method": "fedprox"})
    (difference,) = paired_differences(compare(paths))
    assert str(difference.metrics["mean"]) == "-10.00 (0)"


def test_differences_are_written_where_there_are_pairs_alone(comparison, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    assert len(tables(comparison)) == 3
    write(minus(comparison, "fedprox"), folder)
    text = (folder / "differences.md").read_text()
    assert text == to_markdown(
        paired_differences(other := minus(comparison, "fedprox")), other
    )
    apart = [tmp_path / "fedavg-2", tmp_path / "fedprox-3"]
    assert len(tables(compare(apart))) == 2
    write(compare(apart), folder)
    assert not (folder / "differences.md").exists()


def test_sign_turns_with_the_baseline(comparison):
    avg, _ = paired_differences(minus(comparison, "fedprox"))
    assert avg.metrics["mean"].mean == pytest.approx(-3)
    assert avg.metrics["mean"].num_positive == 0


def test_markdown(comparison):
    lines = to_markdown(paired_differences(comparison), comparison).splitlines()
    assert lines[2].startswith("| fedprox | 2 | +3.00 [-9.71, +15.71] (2) | +3.00 [")
    assert lines[3].startswith("| fedsgd | 1 | – |")
    assert "Minus fedavg, pair by pair" in lines[-1]
    other = minus(comparison, "fedprox")
    lines = to_markdown(paired_differences(other), other).splitlines()
    assert lines[2].startswith("| fedavg | 2 | -3.00 [-15.71, +9.71] (0) |")


def test_unknown_baseline_names_those_there_are(comparison):
    with pytest.raises(RunError, match="no experiment 'fedfoo': there are fedavg; fedprox"):
        minus(comparison, "fedfoo")


@pytest.mark.parametrize("fresh", [True, False])
def test_runs_that_drew_their_own_test_rows_have_a_corrected_interval(tmp_path, fresh):
    """A test row for two training rows: sqrt((1/2 + 1/2) / (1/2)) as wide."""
    paths = []
    data = {"train-rows": 200, "test-rows": 100}
    for method, means in {"fedavg": (0.5, 0.6), "fedprox": (0.54, 0.62)}.items():
        for seed, mean in enumerate(means):
            paths.append(tmp_path / f"{method}-{seed}")
            experiment = {"method": method, "seed": seed, "fresh-test-split": fresh}
            make_run(paths[-1], experiment=experiment, accuracies=[[mean, mean]], data=data)
    (prox,) = paired_differences(compare(paths))
    difference = prox.metrics["mean"]
    if fresh:
        assert difference.corrected == pytest.approx(2**0.5 * difference.half_width)
    else:
        assert difference.corrected is None


@pytest.mark.parametrize(("few", "one"), [(10, True), (11, False)])
def test_the_legend_says_in_which_rows_the_worst_tenth_is_one_client(tmp_path, few, one):
    for clients in (few, 100):
        make_run(
            tmp_path / f"{clients}",
            experiment={"num-clients": clients},
            accuracies=[[0.5] * clients],
            num_clients=clients,
        )
    legend = compare([tmp_path / f"{few}", tmp_path / "100"]).legend
    assert ("the worst 10 % are one client" in legend) is one
