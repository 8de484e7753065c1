"""Every method learns something on the quickstart, with its own network if it has one."""

from pathlib import Path

import pytest

from fedsuite.core.registry import METHODS
from fedsuite.experiment.experiment import Experiment
from fedsuite.strategies import load_strategy
from tests.helpers import run_digits

QUICKSTART = Path(__file__).parents[1] / "simulations" / "quickstart.toml"

LEARNT = 0.2
"""Mean accuracy over clients that is no chance: ten classes, and two of them a client.

The lowest seen at seed 0 is 0.29, of FedAVE, whose clients get less than the whole.
"""


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_on_the_quickstart(method: str) -> None:
    own = load_strategy(METHODS[method]).DEFAULTS
    network = {key: value for key, value in own.items() if key == "model"}
    trace = run_digits(Experiment.load(QUICKSTART, {"method": method, **network}))
    assert trace.reports[-1].metrics["accuracy_mean"] > LEARNT
