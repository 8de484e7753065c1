"""A hostile app in a real federation, at a site with a policy."""

import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsuite.core.keys import Value
from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.deploy.relay.audit import audit
from fedsuite.deploy.relay.ledger import LEDGER, read_chain
from fedsuite.deploy.relay.policy import default_text
from fedsuite.engines.processes import World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]

APP = Path(__file__).parent / "ways_out"
SECRET_TEXTS = ("patient", "row", "positive", "smuggled", "beef")

SEEN = {"seen": {"seen": "'none'"}}
ALLOWED = {
    "arrays": {"fc.weight": ["float32", [10], [2.0, 2.0, 2.0]]},
    "metrics": {"num-examples": "100", "loss": "0.123457"},
}

REFUSED = {
    "more_records": "leave.records",
    "more_arrays": "leave.arrays",
    "longer_array": "leave.arrays",
    "text_array": "leave.dtypes",
    "wide_dtype": "leave.arrays",
    "not_a_number": "form",
    "metric_name": "leave.metrics",
    "metric_list": "leave.longest-list",
    "huge_count": "leave.most-rows",
    "config_text": "leave.strings",
    "create_task": "leave.records",
    "acquire_task": "leave.records",
    "push_logs": "leave.records",
    "too_slow": "limits.seconds",
}
"""Ways that end with nothing at the server, and the rule that the ledger names."""

BUILT_ANEW = ("declared_dtype", "metadata", "change_config", "leave_process")
"""Ways whose reply loses what it smuggled."""

LOOKS = (
    *("see_config", "other_processes", "node_key", "other_ports", "abstract_socket"),
    *("leave_file", "environment", "named_socket", "other_signals"),
)
"""Ways that look at what the app can reach."""


def policy(**changes: str) -> str:
    text = default_text()
    for key, value in changes.items():
        lines = [
            f"{key.replace('_', '-')} = {value}"
            if line.startswith(f"{key.replace('_', '-')} = ")
            else line
            for line in text.split("\n")
        ]
        text = "\n".join(lines)
    return text


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def arrived(
    world: World,
    folder: Path,
    ways: tuple[str, ...],
    text: str,
    config: Mapping[str, Value],
) -> tuple[dict[str, Any], LocalFederation]:
    app = folder / "app"
    shutil.copytree(APP, app, ignore=shutil.ignore_patterns("__pycache__"))
    output = folder / "arrived.json"
    keys = app / "pyproject.toml"
    words = keys.read_text().replace('"honest"', json.dumps(",".join(ways)))
    keys.write_text(words.replace('output = ""', f'output = "{output}"'))
    federation = LocalFederation(
        world, folder / "federation", 1, node_config=config, policy=text
    )
    federation.start()
    federation.run_app(app, lambda _: None)
    return {row["way"]: row for row in json.loads(output.read_text())}, federation


def test_nothing_leaves_but_what_the_policy_allows(world: World, tmp_path: Path) -> None:
    ways = (
        *("honest", "few_rows", "metric_digits", "error_text", "second_reply"),
        *BUILT_ANEW,
        *REFUSED,
    )
    left = tmp_path / "left"
    left.mkdir()
    rows, federation = arrived(
        world,
        tmp_path,
        ways,
        policy(seconds="15.0", most_rows="1000"),
        {"left": str(left)},
    )
    assert rows.keys() == set(ways)
    assert rows["honest"]["records"]["arrays"] == ALLOWED["arrays"]
    assert rows["few_rows"]["records"]["metrics"] == {"num-examples": "4"}
    assert rows["metric_digits"]["records"]["metrics"]["accuracy"] == "0.123457"
    assert rows["error_text"]["reason"] == "the client failed: the site's own log says why"
    # The first of two replies counts, and what it says of its group does not.
    assert rows["second_reply"]["records"]["metrics"]["accuracy"] == "0.5"
    for name in BUILT_ANEW:
        assert rows[name]["records"] == ALLOWED, name
    for name in REFUSED:
        assert rows[name].get("reason") == "refused by the site's policy", name
    assert not any(word in json.dumps(list(rows.values()))[0:] for word in ("patient 7",))
    for row in rows.values():
        assert row["type"] == "train"
        told = json.dumps({k: v for k, v in row.items() if k not in ("way", "seconds")})
        assert not [word for word in SECRET_TEXTS if word in told], row
    assert not list(left.iterdir())
    chain = read_chain(federation.nodes[0].path / LEDGER)
    assert not chain.broken
    rules = {
        ways[int(line["round"]) - 1]: line["rule"]
        for line in chain.lines
        if line["event"] == "refused"
    }
    assert rules == REFUSED
    page = tmp_path / "audit.html"
    audit("node-0", chain).write_page(page)
    assert "The chain of hashes is whole" in page.read_text()


@pytest.mark.parametrize("shelter", ["bwrap", "landlock"])
def test_an_app_reaches_nothing_else(world: World, tmp_path: Path, shelter: str) -> None:
    left = tmp_path / "left"
    left.mkdir()
    with (
        socket.socket(socket.AF_UNIX) as outside,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named,
    ):
        named.bind(str(tmp_path / "n"))
        named.settimeout(0.5)
        abstract = f"fedsuite-way-out-{os.getpid()}"
        outside.bind(f"\0{abstract}")
        outside.listen()
        datagrams.bind(("127.0.0.1", 0))
        datagrams.settimeout(0.5)
        config: dict[str, Value] = {
            "left": str(left),
            "folder": str(tmp_path / "federation" / "nodes" / "node-0"),
            "abstract": abstract,
            "named": str(tmp_path / "n"),
            "process": os.getpid(),
            "datagrams": datagrams.getsockname()[1],
            "control": 8000,
            "runtime": 9094,
        }
        rows, _ = arrived(
            world,
            tmp_path,
            ("change_config", *LOOKS, "leave_process", "name_lookup"),
            policy(
                shelter=f'"{shelter}"',
                records='"arrays, metrics, seen"',
                strings='"seen.seen"',
                longest_string="400",
            ),
            config,
        )
        with pytest.raises(TimeoutError):
            datagrams.recv(10)
        with pytest.raises(TimeoutError):
            named.recv(10)
    for name in LOOKS:
        expected = "'unchanged'" if name == "see_config" else "'none'"
        assert rows[name]["records"]["seen"] == {"seen": expected}, name
    assert not list(left.iterdir())
