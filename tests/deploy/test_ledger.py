"""A site's ledger: its chain, a crash at any byte, and whoever changes a line."""

import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.deploy.relay.audit import audit, held
from fedsuite.deploy.relay.ledger import (
    REFUSED,
    REPLY,
    SENT,
    STARTED,
    TORN,
    Ledger,
    hash_of,
    read_chain,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.write(STARTED, policy="p", server="fl.example.org:8443")
        ledger.write(
            REPLY,
            **{"run": "1", "app": "a" * 64, "app-name": "x/y", "app-version": "1"},
            **{
                "type": "train",
                "round": "2",
                "policy": "p",
                "reply": "r1",
                "bytes": 1_500_000,
            },
            records={
                "arrays": {"w": ["float32", [3], 12]},
                "metrics": {"loss": 0.5, "num-examples": 9},
            },
        )
        ledger.write(SENT, run="1", reply="r1")
        ledger.write(REFUSED, run="1", app="a" * 64, rule="leave.records", why="leak")
    return path


def test_a_hash_is_of_all_but_itself() -> None:
    line = {"event": "sent", "before": ""}
    # SHA-256 of {"before":"","event":"sent"}.
    assert hash_of(line).startswith("dd72dbe7fd0a4d45")
    assert hash_of(line) == hash_of({**line, "hash": "x"})
    assert hash_of(line) != hash_of({**line, "more": 1})


def test_a_whole_chain_is_read_again_and_goes_on(path: Path) -> None:
    before = read_chain(path)
    assert (before.broken, before.torn, len(before.lines)) == (0, 0, 4)
    with Ledger(path) as ledger:
        assert ledger.head == before.head
        assert ledger.run_replies("1") == 1
        assert ledger.run_replies("2") == 0
        assert ledger.day_bytes() == 1_500_000
        ledger.write(SENT, run="1", reply="r2")
    assert read_chain(path).lines[:4] == before.lines


@pytest.mark.parametrize("line", range(4))
def test_a_changed_line_is_named(path: Path, line: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"2026", b"2025").replace(b'"event"', b'"Event"')
    path.write_bytes(b"".join(lines))
    assert read_chain(path).broken == line + 1
    with pytest.raises(RunError, match=rf"line {line + 1} was changed"):
        Ledger(path)


def test_a_line_changed_with_its_hash_breaks_the_next_one(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    line = json.loads(lines[1]) | {"bytes": 0}
    lines[1] = json.dumps({**line, "hash": hash_of(line)}) + "\n"
    path.write_text("".join(lines))
    assert read_chain(path).broken == 3


@pytest.mark.parametrize("line", range(3))
def test_a_dropped_line_is_noticed(path: Path, line: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[line]
    path.write_bytes(b"".join(lines))
    assert read_chain(path).broken == line + 1


def test_a_crash_at_any_byte_leaves_a_ledger_that_goes_on(path: Path) -> None:
    data = path.read_bytes()
    start = data[:-1].rfind(b"\n") + 1
    for end in range(start, len(data)):
        path.write_bytes(data[:end])
        torn = end - start
        assert read_chain(path).torn == torn
        with Ledger(path) as ledger:
            ledger.write(SENT, run="1", reply="r")
        chain = read_chain(path)
        assert not chain.broken
        cut = [line["bytes"] for line in chain.lines if line["event"] == TORN]
        assert cut == ([torn] if torn else [])


@pytest.mark.parametrize("how", ["half a line is written", "none is flushed"])
def test_after_a_line_that_failed_the_chain_goes_on(
    path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that an app may not make is noted by a thread, whose error ends no relay."""
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def no_disk(_: int) -> None:
        raise OSError(5, "Input/output error")

    with Ledger(path) as ledger:
        with monkeypatch.context() as patch, pytest.raises(RunError, match="cannot write"):
            if how == "none is flushed":
                patch.setattr(os, "fsync", no_disk)
            else:
                resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, hard))
            try:
                ledger.write(REFUSED, run="1", rule="leave.records")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        ledger.write(SENT, run="1", reply="r")
    chain = read_chain(path)
    assert (chain.broken, chain.torn, len(chain.lines)) == (0, 0, 5)


def test_lines_of_several_threads_make_one_chain(path: Path) -> None:
    with Ledger(path) as ledger, ThreadPoolExecutor(8) as threads:
        for number in range(200):
            threads.submit(ledger.write, REFUSED, run="1", rule=f"r{number}")
    chain = read_chain(path)
    assert not chain.broken
    assert len(chain.lines) == 204


def test_two_relays_of_one_node_are_refused(path: Path) -> None:
    with Ledger(path), pytest.raises(RunError, match="in use"):
        Ledger(path)


def test_an_audit_says_what_left_to_whom(path: Path, tmp_path: Path) -> None:
    result = audit("hospital-a", read_chain(path))
    assert result.verdict.startswith("The chain of hashes is whole")
    assert result.facts["to"] == "fl.example.org:8443"
    assert result.facts["megabytes of arrays"] == "1.500"
    assert result.facts["refused"] == "1"
    reply, refused = result.lines
    assert reply[1:4] == ["arrays (1 array)", "1.500", "loss = 0.5, num-examples = 9"]
    assert refused[1:4] == ["nothing: refused", "0", "leave.records: leak"]
    result.write_page(tmp_path / "page.html")
    assert "What left hospital-a" in (tmp_path / "page.html").read_text()
    assert result.csv().startswith("time (UTC),what left,MB")


def test_an_audit_may_be_of_a_day_or_a_run(path: Path) -> None:
    chain = read_chain(path)
    assert not audit("a", chain, since="2999-01-01").lines
    assert len(audit("a", chain, run="1").lines) == 2
    assert not audit("a", chain, run="2").lines


def test_an_audit_shows_a_broken_chain_and_what_was_perhaps_not_sent(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    assert audit("a", read_chain(path)).facts["noted, and perhaps not sent"] == "1"
    path.write_bytes(b"".join([*lines[:2], lines[3]]))
    assert audit("a", read_chain(path)).verdict.startswith("Line 3 was changed")


def test_an_audit_adds_up_what_noise_spends(path: Path) -> None:
    with Ledger(path) as ledger:
        for number in range(2):
            ledger.write(REPLY, run="9", reply=f"n{number}", **{"noise-multiplier": 2.0})
    spent = audit("a", read_chain(path), run="9").facts["epsilon of the arrays"]
    # Two mechanisms of multiplier 2 are one of multiplier sqrt(2).
    assert spent.startswith("2.9"), spent
    mixed = audit("a", read_chain(path)).facts["epsilon of the arrays"]
    assert mixed.startswith("not told")


def test_a_head_that_was_handed_over_is_there_or_the_ledger_is_another(path: Path) -> None:
    handed = read_chain(path).head
    with Ledger(path) as ledger:
        ledger.write(SENT, run="1", reply="later")
    chain = read_chain(path)
    assert held(chain, f" {handed.upper()}\n").endswith("those of then; 1 came later")
    assert held(chain, handed[:16]).startswith(f"line {len(chain.lines) - 1} of 20")
    assert held(chain, chain.head).endswith("0 came later")
    with pytest.raises(ConfigError, match="16 of its digits"):
        held(chain, handed[:15])
    # Whole, but written anew.
    other = path.with_name("other.jsonl")
    with Ledger(other) as ledger:
        for line in chain.lines[:-1]:
            ledger.write(str(line["event"]), run="1")
    with pytest.raises(RunError, match="no line has the hash"):
        held(read_chain(other), handed)
    # Behind a break a line's own hash proves nothing.
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))
    with pytest.raises(RunError, match="broken before it"):
        held(read_chain(path), handed)
