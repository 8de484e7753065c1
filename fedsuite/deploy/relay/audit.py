"""What left a site, from its ledger: a table for a person, a page, and CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedsuite.core.errors import ConfigError, RunError, one_line
from fedsuite.core.files import atomic_write, make_folder
from fedsuite.core.reading import is_number
from fedsuite.deploy.relay.ledger import (
    ERROR,
    HASH,
    REFUSED,
    REPLY,
    REQUEST,
    SENT,
    STARTED,
    TORN,
    Chain,
    of_runs,
)
from fedsuite.results import report
from fedsuite.results.tables import csv_table

HEADINGS = ("time (UTC)", "what left", "MB", "numbers", "asked", "round", "app", "run")
MEGABYTES = HEADINGS.index("MB")

_WORDS = {
    ERROR: "an error, in fixed words",
    REFUSED: "nothing: refused",
    REQUEST: "nothing: a call that apps may not make",
}


@dataclass(frozen=True)
class Audit:
    """A ledger, read for people.

    Parameters
    ----------
    node
        Name of the node.
    verdict
        One sentence on the chain.
    facts
        Numbers of the whole, by name.
    lines
        One row for each message that was answered or call that was refused.
    """

    node: str
    verdict: str
    facts: Mapping[str, str]
    lines: Sequence[Sequence[str]]

    def csv(self) -> str:
        """Return the rows as CSV."""
        return csv_table([HEADINGS, *self.lines])

    def write_page(self, path: Path) -> None:
        """Write the rows as one HTML file that needs no network."""
        folder = Path(report.__file__).parent
        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        text = environment.get_template("audit.html").render(
            audit=self,
            headings=HEADINGS,
            megabytes_column=MEGABYTES + 1,
            style=(folder / "page.css").read_text("utf-8"),
        )
        make_folder(path.parent)
        atomic_write(path, text.encode())


def audit(node: str, chain: Chain, since: str = "", run: str = "") -> Audit:
    """Return a site's audit.

    Parameters
    ----------
    node
        Name of the node.
    chain
        Its ledger.
    since
        First day or time to show, as 2026-11-27; empty shows all.
    run
        Flower's number of the only run to show; empty shows all.
    """
    chosen = [
        line
        for line in of_runs(chain)
        if _text(line, "time") >= since and run in ("", _text(line, "run"))
    ]
    replies = [line for line in chosen if line.get("event") == REPLY]
    sent = {_text(line, "reply") for line in chain.lines if line.get("event") == SENT}
    size = sum(map(_bytes, replies))
    servers = {_text(x, "server") for x in chain.lines if x.get("event") == STARTED}
    unsure = sum(_text(line, "reply") not in sent for line in replies)
    facts = {
        "replies with content": f"{len(replies)}",
        "of them under masks": f"{sum(line.get('masked') is True for line in replies)}",
        "megabytes of arrays": f"{size / 1e6:.3f}",
        "refused": f"{sum(line.get('event') == REFUSED for line in chosen)}",
        "calls that no app may make": f"{sum(x.get('event') == REQUEST for x in chosen)}",
        "runs": f"{len({_text(line, 'run') for line in chosen})}",
        "apps": f"{len({_text(line, 'app') for line in chosen})}",
        "to": ", ".join(sorted(servers)) or "nobody yet",
        "policies": ", ".join(sorted({_text(x, "policy")[:12] for x in chosen})) or "none",
        "head of the chain": chain.head[:16] or "none",
    }
    if unsure:
        facts["noted, and perhaps not sent"] = f"{unsure}"
    if epsilon := _epsilon(replies):
        facts["epsilon of the arrays"] = epsilon
    return Audit(node, _verdict(chain), facts, [_row(line) for line in chosen])


def held(chain: Chain, head: str) -> str:
    """Return what a head proves that was handed over earlier.

    Parameters
    ----------
    chain
        The ledger as it is now.
    head
        The hash of its last line then, or its first 16 digits or more.

    Raises
    ------
    RunError
        If no line has it, or the chain is broken before it.
    """
    wanted = head.strip().lower()
    if len(wanted) < _FEWEST_DIGITS:
        raise ConfigError(f"head {head!r}: give {_FEWEST_DIGITS} of its digits or more")
    for number, line in enumerate(chain.lines, start=1):
        if number == chain.broken:
            break
        if _text(line, HASH).startswith(wanted):
            later = len(chain.lines) - number
            return (
                f"line {number} of {_text(line, 'time')} has this hash: the lines up to it "
                f"are those of then; {later} came later"
            )
    raise RunError(
        f"no line has the hash {wanted[:16]}, or the chain is broken before it: this is "
        "not the ledger whose head that was"
    )


def _verdict(chain: Chain) -> str:
    if chain.broken:
        return (
            f"Line {chain.broken} was changed, dropped or added after it was written: what "
            "follows it proves nothing."
        )
    cut = sum(line.get("event") == TORN for line in chain.lines)
    words = "The chain of hashes is whole: no line was changed, dropped or added"
    ends = f", and {cut} torn by a crash was cut off" if cut else ""
    torn = "; the last line is torn by a crash" if chain.torn else ""
    return f"{words}{ends}{torn}."


def _row(line: Mapping[str, Any]) -> list[str]:
    event, records = str(line.get("event")), line.get("records")
    what, numbers = _WORDS.get(event, ""), ""
    if event == REPLY and isinstance(records, dict):
        arrays = [
            f"{name} ({len(r)} array{'s' * (len(r) != 1)})"
            for name, r in records.items()
            if _is_arrays(r)
        ]
        what = ", ".join(arrays) or "no arrays"
        if line.get("masked"):
            what = f"under masks: {what}"
        values = [r for r in records.values() if isinstance(r, dict) and not _is_arrays(r)]
        numbers = ", ".join(
            f"{name} = {_short(value)}"
            for record in values
            for name, value in record.items()
        )
    elif event == REFUSED:
        numbers = f"{_text(line, 'rule')}: {_text(line, 'why')}"
    elif event == REQUEST:
        numbers = _text(line, "path")
    name = f"{_text(line, 'app-name')} {_text(line, 'app-version')} "
    megabytes = f"{_bytes(line) / 1e6:.3f}" if "bytes" in line else "0"
    time = _text(line, "time").replace("T", " ").removesuffix("Z")
    cells = [time, what, megabytes, numbers, _text(line, "type"), _text(line, "round")]
    cells += [f"{name}{_text(line, 'app')[:12]}", _text(line, "run")]
    return [one_line(cell, 500) for cell in cells]


def _bytes(line: Mapping[str, Any]) -> float:
    """Return the bytes of a line's arrays; 0 where it holds no number."""
    size = line.get("bytes")
    return size if is_number(size) else 0


def _short(value: object) -> str:
    return f"{len(value)} members" if isinstance(value, list) else str(value)


def _is_arrays(record: object) -> bool:
    return isinstance(record, dict) and any(
        isinstance(value, list) and len(value) == 3 and isinstance(value[0], str)
        for value in record.values()
    )


def _epsilon(replies: Sequence[Mapping[str, Any]]) -> str:
    """Return what noise has spent: each noised reply is one Gaussian mechanism."""
    from fedsuite.rounds.epsilon import Accounting

    each = [line.get("noise-multiplier") for line in replies]
    noises = {None if noise is None else str(noise) for noise in each}
    if noises == {None} or not noises:
        return ""
    if len(noises) > 1:
        return "not told: some replies had other noise, or none"
    (noise,) = noises
    try:
        accounting = Accounting("cycles", float(str(noise)), 1, 1, _DELTA)
        spent = accounting.epsilon(len(replies))
    except (ConfigError, ValueError, ZeroDivisionError):
        return "not told"
    return (
        f"{spent:.3g} (delta {_DELTA:g}, {len(replies)} replies; numbers are not covered)"
    )


_DELTA = 1e-5
_FEWEST_DIGITS = 16


def _text(line: Mapping[str, Any], name: str) -> str:
    value = line.get(name)
    return "" if value is None else str(value)
