"""What the page on slow clients says of FedBuff is what the CSV has."""

import importlib.util

from tests.results_pages.recomputed import SIMULATIONS, absent

SCRIPT = SIMULATIONS / "slow_clients" / "fedbuff.py"
PAGE = SIMULATIONS.parent / "docs" / "how-to" / "slow_clients.md"


def test_all_runs_ended_and_stand_on_the_page() -> None:
    spec = importlib.util.spec_from_file_location("fedbuff", SCRIPT)
    fedbuff = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fedbuff)
    assert set(fedbuff.read()) == {(a, s) for a in fedbuff.ARMS for s in fedbuff.SEEDS}
    assert not absent(PAGE.read_text(), fedbuff.lines())
