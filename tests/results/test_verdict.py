"""A comparison's headline: who is ahead, and whether the interval leaves out 0."""

from dataclasses import replace

import pytest

from fedsuite.core.errors import RunError
from fedsuite.results.compare import compare
from fedsuite.results.reader import load_run
from fedsuite.results.report.forest import forest_figure
from fedsuite.results.verdict import network_words, verdict
from tests.results.made_runs import make_run

FEDAVG = (0.50, 0.60, 0.70)


@pytest.fixture
def folders(tmp_path):
    """Return folders of runs of three seeds, by the gains over FedAvg in points."""

    def make(**gains):
        paths = []
        for method, by_seed in {"fedavg": (0, 0, 0), **gains}.items():
            for seed, gain in enumerate(by_seed):
                path = tmp_path / f"{method}-{seed}"
                value = FEDAVG[seed] + gain / 100
                experiment = {"method": method, "seed": seed}
                make_run(path, experiment=experiment, accuracies=[[value, value]])
                paths.append(path)
        return paths

    return make


@pytest.mark.parametrize(
    ("gains", "placebo", "ending", "meaning"),
    [
        # Mean 4 and standard deviation 1: 4.30 * 1 / sqrt(3) = 2.48 to both sides.
        ((3, 4, 5), None, "leaves out 0", "No placebo was named"),
        (
            (3, 4, 5),
            (0.1, -1.0, 0.2),
            "leaves out 0 and the placebo's spread of 1.00",
            "counts.",
        ),
        (
            (3, 4, 5),
            (0.1, -2.0, 0.2),
            "reaches into the placebo's spread of 2.00",
            "not count.",
        ),
        ((-3, 4, 11), (0.1, -1.0, 0.2), "holds 0", "no difference."),
    ],
)
def test_the_headline_says_whether_a_difference_counts(
    folders, gains, placebo, ending, meaning
):
    more = {} if placebo is None else {"fedsgd": placebo}
    paths = folders(fedprox=gains, **more)
    answer = verdict(compare(paths, placebos=list(more)))
    start = "fedprox is ahead of fedavg by 4.00 points of mean accuracy"
    if meaning in ("no difference.", "not count."):
        # What may be chance is not called ahead.
        start = "No difference in mean accuracy is shown between fedprox and fedavg"
    assert answer.headline.startswith(f"{start} on digits; the 95 % ")
    assert answer.headline.endswith(ending)
    assert answer.sentences[0].startswith("fedprox minus fedavg: +4.00 [")
    assert meaning in answer.sentences[1]
    assert len(answer.sentences) == 2


def test_a_loss_beyond_the_placebos_spread_counts_too(folders):
    paths = folders(fedprox=(-3, -4, -5), fedsgd=(0.1, -1.0, 0.2))
    answer = verdict(compare(paths, placebos=["fedsgd"]))
    assert answer.headline.startswith("fedavg is ahead of fedprox by 4.00 points")
    assert answer.sentences[1] == "The difference counts."


def test_the_baseline_may_be_ahead_and_a_choice_among_many_is_told(folders):
    answer = verdict(compare(folders(fedprox=(-3, -4, -5), scaffold=(-9, -9, -8))))
    assert answer.headline.startswith("fedavg is ahead of fedprox by 4.00 points of mean")
    assert answer.sentences[-1].startswith("Of 2 experiments this is the one with the best")


def test_of_a_score_of_which_less_is_better_the_lower_one_is_ahead(folders):
    comparison = compare(folders(fedprox=(3, 4, 5), scaffold=(-2, -2, -2.5)))
    score = replace(comparison.score, title="RMSE", unit="days", higher=False)
    answer = verdict(replace(comparison, score=score))
    assert answer.headline.startswith(
        "scaffold is ahead of fedavg by 2.17 days of mean RMSE (lower is better) on digits"
    )
    (figure,) = forest_figure(replace(comparison, score=score), answer)
    assert [trace["y"][0] for trace in figure.data] == ["fedprox", "scaffold"]
    assert "difference in days" in figure.x


def test_one_pair_and_no_pair_show_nothing(folders):
    paths = folders(fedprox=(3, 4, 5))
    one = verdict(compare([paths[0], paths[3]]))
    assert one.headline.endswith("one pair has no interval")
    none = verdict(compare([paths[0], paths[4]]))
    assert none.headline == "fedprox and fedavg have no pair on digits: nothing is shown"
    assert verdict(compare(paths[:3])).sentences == (
        "One experiment: nothing to compare it with.",
    )


def test_the_forest_has_an_interval_for_each_and_the_placebo_as_a_shade(folders):
    comparison = compare(
        folders(fedprox=(3, 4, 5), fedsgd=(0.1, -1.0, 0.2)), placebos=["fedsgd"]
    )
    (figure,) = forest_figure(comparison, verdict(comparison))
    placebo, prox = figure.data
    assert (prox["x"], prox["y"]) == ([4], ["fedprox"])
    # 4.3027 is Student's t of two degrees of freedom.
    assert prox["error_x"]["array"] == pytest.approx([4.3027 / 3**0.5], rel=1e-4)
    assert placebo["marker"]["color"] != prox["marker"]["color"]
    zero, shade = figure.layout["shapes"]
    assert (zero["x0"], zero["x1"]) == (0, 0)
    assert (shade["x0"], shade["x1"]) == pytest.approx((-1, 1))


def test_a_placebo_is_another_experiment_of_the_comparison(folders):
    paths = folders(fedprox=(3, 4, 5))
    with pytest.raises(RunError, match="no experiment 'fedsgd': there are fedavg; fedprox"):
        compare(paths, placebos=["fedsgd"])
    with pytest.raises(RunError, match="'fedavg' is the baseline"):
        compare(paths, placebos=["fedavg"])


def test_a_network_has_its_size(tmp_path):
    mlp = {"model": "mlp"}
    make_run(tmp_path / "a", experiment=mlp, parameters=55210)
    assert network_words(load_run(tmp_path / "a")) == "mlp of 55,210 parameters"
    make_run(tmp_path / "b", experiment=mlp)
    assert network_words(load_run(tmp_path / "b")) == "mlp"
