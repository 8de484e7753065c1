"""Relay, app and SuperNode are killed at each step of a message, as real processes.

All of it takes minutes, since a SuperLink takes a killed node for alive for one.
"""

import json
import os
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import fedsuite
from fedsuite.deploy.folders import POLICY
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.deploy.relay.ledger import LEDGER, read_chain
from fedsuite.deploy.relay.policy import default_text
from fedsuite.engines.processes import World
from tests.deploy import killed_node
from tests.deploy.test_ways_out import APP
from tests.engines.tiny_app import processes_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("FEDSUITE_FAULTS") != "all", reason="minutes: `make faults` runs it"
    ),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]

PATIENCE_S = 90.0
"""Time for a message that a kill has lost."""


@pytest.mark.parametrize(
    ("shelter", "victim", "steps"),
    [
        ("landlock", "relay", killed_node.STEPS),
        ("bwrap", "relay", ("begun", "half-pushed")),
        ("landlock", "app", ("begun", "taken")),
        ("bwrap", "app", ("begun", "taken")),
        ("landlock", "SuperNode", killed_node.STEPS),
    ],
)
def test_a_kill_sends_nothing_twice_and_leaves_nothing(
    shelter: str, victim: str, steps: tuple[str, ...], tmp_path: Path
) -> None:
    app, output = tmp_path / "app", tmp_path / "arrived.json"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    keys = app / "pyproject.toml"
    # A message that was on its way to a dead node takes no pair off the plan.
    ways = ",".join(["honest"] * (len(steps) + 3))
    text = keys.read_text().replace('"honest"', json.dumps(ways))
    text = text.replace("patience = 120.0", f"patience = {PATIENCE_S}")
    keys.write_text(text.replace('output = ""', f'output = "{output}"'))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps([[step, victim] for step in steps]))
    (tmp_path / "tmp").mkdir()
    with World("fedsuite") as world:
        text = default_text().replace('shelter = "bwrap"', f'shelter = "{shelter}"')
        federation = LocalFederation(world, tmp_path / "federation", 1, policy=text)
        federation.start_superlink()
        node = federation.nodes[0].path
        root = Path(fedsuite.__file__).parents[1]
        world.environment |= {"PYTHONPATH": str(root), "TMPDIR": str(tmp_path / "tmp")}
        words = [sys.executable, "-m", "tests.deploy.killed_node", str(plan), str(node)]
        watcher = world.start("watched", [*words, str(world.reserve_port())])
        watcher.wait_until(partial(lambda: "SuperNode ID" in watcher.text))
        federation.run_app(app, lambda _: None)
        kept = watcher.text
        watcher.process.terminate()
        watcher.process.wait(60)
        deadline = time.monotonic() + 20
        while left := processes_of(str(node)):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
        assert not list((tmp_path / "tmp").iterdir())
    assert json.loads(plan.read_text()) == []
    for step in steps:
        assert f"killing the {victim} once a message is {step}" in kept
    chain = read_chain(node / LEDGER)
    assert not chain.broken
    assert not chain.torn
    noted = [line["reply"] for line in chain.lines if line["event"] == "reply"]
    assert len(set(noted)) == len(noted)
    rounds = [line["round"] for line in chain.lines if line["event"] == "reply"]
    assert len(set(rounds)) == len(rounds), "a message was answered twice"
    rows = json.loads(output.read_text())
    arrived = [row["reply"] for row in rows if "records" in row]
    assert set(arrived) <= set(noted), "what is not in the ledger has left"
    assert len(set(arrived)) == len(arrived)
    # The last messages, after all kills, are answered.
    assert "records" in rows[-1], rows[-1]
    extra = {path.name for path in node.iterdir()}
    known = {"ca.crt", "key", "key.pub", "node.toml", "superexec.secret", POLICY, LEDGER}
    assert extra - known <= {"empty", "state", "flwr", f".{LEDGER}.lock"}
    print(*((round(row["seconds"]), row.get("reason", "an answer")) for row in rows))
