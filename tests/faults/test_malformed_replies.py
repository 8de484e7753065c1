"""A client sends another malformed reply each round: it counts as one that never came."""

from pathlib import Path
from typing import Any

import pytest
from flwr.clientapp import ClientApp

import fedsuite.engines.local
from fedsuite.engines.local import LocalGrid
from fedsuite.results.reader import load_run
from tests.deploy.hostile_mod import TAMPERINGS, Mod, raises, tamper, tampering
from tests.deploy.test_hostile_nodes import check_reasons
from tests.faults.runs import ALL, EXPERIMENTS, outcome, start

ROUNDS = len(TAMPERINGS)


def grid_with(mod: Mod) -> type[LocalGrid]:
    """Return a grid whose ClientApp has one more mod of Flower's, the outermost."""

    class ModGrid(LocalGrid):
        def __init__(self, client_app: ClientApp, *rest: Any) -> None:
            super().__init__(lambda m, context: mod(m, context, client_app), *rest)  # type: ignore[arg-type]

    return ModGrid


@pytest.mark.parametrize("name", EXPERIMENTS if ALL else ["scaffold"])
def test_no_malformed_reply_counts(name: str, tmp_path: Path) -> None:
    mods = {"malformed": tamper, "absent": tampering([raises] * ROUNDS)}
    for run_name, mod in mods.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fedsuite.engines.local, "LocalGrid", grid_with(mod))
            patch.setattr(fedsuite.engines.local, "CLIENTS_PER_MESSAGE", 1)
            changes = {"num-rounds": ROUNDS + 1, "clients-per-round": 0}
            start(name, tmp_path, run_name, **changes)
    check_reasons(load_run(tmp_path / "malformed"))
    malformed, absent = (outcome(tmp_path / run_name) for run_name in mods)
    assert malformed.model == absent.model
    assert malformed.states == absent.states
    assert malformed.clients == absent.clients
