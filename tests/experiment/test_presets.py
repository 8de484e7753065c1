"""The preset of a method: its paper's values where the defaults are others."""

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.core.registry import METHODS
from fedsuite.experiment.experiment import Experiment
from fedsuite.strategies import load_strategy

PAPER = {"method": "fedeba-plus", "preset": "paper"}


def test_the_paper_brings_its_values_and_says_so():
    experiment = Experiment.from_values(PAPER)
    assert experiment["alpha"] == 0.9
    assert experiment["effective-clients"] == 0.0
    assert experiment["fair-gradient-scale"] == "printed"
    assert "alpha = 0.9" in experiment.note
    assert 'with preset = "paper"' in experiment.note
    assert "preset" not in Experiment.from_values({"method": "fedavg-ft"}).note
    assert Experiment.from_values({"method": "fedeba-plus"})["alpha"] == 0.1


def test_named_values_win_over_the_paper():
    assert Experiment.from_values({**PAPER, "alpha": 0.5})["alpha"] == 0.5


def test_the_values_identify_an_experiment_not_the_preset():
    same = {"alpha": 0.9, "effective-clients": 0.0, "fair-gradient-scale": "printed"}
    same |= {"max-share-ratio": "off", "max-client-weight": 1.0}
    named = Experiment.from_values({"method": "fedeba-plus", **same})
    assert named.fingerprint == Experiment.from_values(PAPER).fingerprint


def test_a_written_experiment_is_read_back():
    experiment = Experiment.from_values(PAPER)
    assert Experiment.from_values(dict(experiment.values)).values == experiment.values


def test_a_method_at_its_papers_values_has_no_preset():
    with pytest.raises(ConfigError, match="preset = 'paper' has no effect with method fed"):
        Experiment.from_values({"method": "fedavg", "preset": "paper"})
    file = {"method": "fedavg", "preset": "paper"}
    assert Experiment.from_values(file, ["method"]).left_out == ("preset",)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_papers_values_are_allowed_and_differ_from_the_defaults(method):
    strategy = load_strategy(METHODS[method])
    if not strategy.PAPER:
        return
    ours = Experiment.from_values({"method": method})
    paper = Experiment.from_values({"method": method, "preset": "paper"})
    for name, value in strategy.PAPER.items():
        assert paper[name] == value != ours[name]
