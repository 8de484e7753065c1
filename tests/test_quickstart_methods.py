"""Every method learns something on the quickstart, by ``--set method=NAME`` alone."""

from pathlib import Path

import pytest

from fedsuite.experiment import Experiment
from fedsuite.registry import METHODS
from tests.helpers import run_digits

QUICKSTART = Path(__file__).parents[1] / "simulations" / "quickstart.toml"

LEARNT = 0.2
"""Mean accuracy over clients that is no chance: ten classes, and two of them a client.

The lowest seen at seed 0 is 0.29, of FedAVE, whose clients get less than the whole.
"""

MISSED = {
    "fedeba-plus": "alpha = 0.9, printed in the paper, with 18 steps at 0.1 moves a model "
    "by 1.6 along one fixed gradient: 10, 13 and 20 per cent at seeds 0 to 2; on rows held "
    "out of the training part 41, 10 and 32, and 60, 79 and 60 with alpha = 0.1"
}
"""Methods that do not learn there with their own defaults, and what was seen."""


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_on_the_quickstart(
    method: str, request: pytest.FixtureRequest
) -> None:
    if method in MISSED:
        request.applymarker(pytest.mark.xfail(reason=MISSED[method], strict=False))
    trace = run_digits(Experiment.load(QUICKSTART, {"method": method}))
    assert trace.reports[-1].metrics["accuracy_mean"] > LEARNT
