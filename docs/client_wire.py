"""The page that says what each method sends to a client, and what must come back.

The table is of the exchanges that strategies make in two rounds, and of what they check
replies by. ``python docs/client_wire.py --write`` brings the page up to date; with
``--check`` it fails if the page is another. Either runs every method, which takes minutes.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from method_costs import SETTINGS
from method_pages import Page, pages_by_family

import fedsuite
from fedsuite.messages.records import ARRAYS, SERVER_ROUND, STORED_STATE, TRAIN
from fedsuite.results.tables import markdown_table
from fedsuite.rounds.declaration import ClientNeeds
from fedsuite.rounds.exchange import Exchange, build_messages

PAGE = Path(__file__).parent / "how-to" / "own_clients.md"
BEGIN, END = "<!-- wire: begin -->\n", "<!-- wire: end -->"

_SOONER = {"rank-core-fed": {"rank-every": 2}}
"""Keys of methods with which two rounds have all kinds of messages."""

_OTHER_NETWORK = "`arrays` (of factored layers)"

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Wire:
    """One kind of message of a method, by its cells in the table.

    Parameters
    ----------
    message
        Message type.
    settings
        The method's settings in the message's config.
    down, up
        Records and their arrays, to a client and back.
    numbers
        Metrics that must come back beside the number of examples.
    """

    message: str
    settings: tuple[str, ...]
    down: str
    up: str
    numbers: str

    @property
    def is_plain(self) -> bool:
        """Whether a client that only trains what it gets answers this."""
        models = {"`arrays`", _OTHER_NETWORK, "–"}
        return {self.down, self.up} <= models and not self.settings and self.numbers == "–"


def exchanges_of(page: Page) -> list[Exchange]:
    """Return the exchanges of a run of two rounds, in order."""
    seen: list[Exchange] = []

    def noted(exchange: Exchange, *given: Any, **named: Any) -> Any:
        seen.append(exchange)
        return build_messages(exchange, *given, **named)

    with (
        TemporaryDirectory() as folder,
        patch("fedsuite.rounds.round.build_messages", noted),
        redirect_stdout(StringIO()),
    ):
        place = {"output-dir": folder, "run-name": "run"}
        values = {**SETTINGS, **page.values, **_SOONER.get(page.name, {}), **place}
        fedsuite.run(values, engine="local")
    return seen


@cache
def model_arrays(network: str) -> dict[str, tuple[int, ...]]:
    """Return name and shape of the arrays of a network."""
    average = next(p for p in pages_by_family()["averaging"] if p.name == "fedavg")
    of_network = replace(average, values={**average.values, "model": network})
    return _shapes(exchanges_of(of_network)[0].shared[ARRAYS])


def wires_of(page: Page) -> list[Wire]:
    """Return a method's kinds of messages, each as in the last round that has it."""
    kinds = {exchange.message_type: exchange for exchange in exchanges_of(page)}
    needs = getattr(page.strategy, "NEEDS_OF_CLIENT", None)
    model = model_arrays(str(page.values.get("model", SETTINGS["model"])))
    return [_wire(exchange, needs, model) for exchange in kinds.values()]


def _wire(exchange: Exchange, needs: ClientNeeds | None, model: Shapes) -> Wire:
    client_id = exchange.client_ids[0]
    down = {**exchange.shared, **exchange.own.get(client_id, {})}
    expected = exchange.expected_of.get(client_id, exchange.expected)
    back = {
        record: {name: shape for name, (shape, _) in spec.items()}
        for record, spec in expected.arrays.items()
    }
    told = [name for name in exchange.config if name != SERVER_ROUND]
    numbers = [f"`{n}`" for n in (*expected.metrics, *expected.bounds)]
    if needs and needs.stores and exchange.message_type == TRAIN:
        numbers.append(f"**`{STORED_STATE}`**")
    settings = (f"**`{n}`**" if n in expected.settings else f"`{n}`" for n in told)
    return Wire(
        exchange.message_type,
        tuple(settings),
        _records({record: _shapes(arrays) for record, arrays in down.items()}, model),
        _records(back, model, " or " if expected.one_of else ", "),
        ", ".join(numbers) or "–",
    )


def _shapes(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}


def _records(records: Mapping[str, Shapes], model: Shapes, between: str = ", ") -> str:
    named = (_record(record, arrays, model) for record, arrays in records.items())
    return between.join(named) or "–"


def _record(record: str, arrays: Shapes, model: Shapes) -> str:
    """Return a record's name, and its arrays where they are not the model's."""
    if arrays == model:
        return f"`{record}`"
    if arrays.items() <= model.items():
        return f"`{record}` (a part)" if arrays else f"`{record}` (empty)"
    if record == ARRAYS:
        return _OTHER_NETWORK
    named = ", ".join(f"`{name}` {list(shape)}" for name, shape in arrays.items())
    return f"`{record}` ({named})"


def rows_of(pages: Sequence[Page]) -> list[list[str]]:
    """Return the table's rows; methods with the same wire and needs share them."""
    methods: dict[tuple[str, tuple[Wire, ...]], list[str]] = {}
    for page in pages:
        every = tuple(wires_of(page))
        wires = tuple(wire for wire in every if not wire.is_plain)
        needs = getattr(page.strategy, "NEEDS_OF_CLIENT", None)
        does = needs.does if needs else "trains factored layers"
        if wires or does:
            methods.setdefault((does, wires or every[:1]), []).append(f"`{page.name}`")
    rows = []
    for (does, wires), names in methods.items():
        before: tuple[str, ...] = ()
        for place, wire in enumerate(wires):
            first = [", ".join(names), does] if place == 0 else ["", ""]
            cells = [wire.down, wire.up, wire.numbers, _settings(wire.settings, before)]
            rows.append([*first, f"`{wire.message}`", *cells])
            before = wire.settings
    return rows


def _settings(told: tuple[str, ...], before: tuple[str, ...]) -> str:
    """Return the cell of settings; those of the row before are not named again."""
    if before and told[: len(before)] == before:
        return ", ".join(("the same", *told[len(before) :]))
    return ", ".join(told) or "–"


HEAD = [
    *("method", "a client that", "message", "to the client", "from the client", "numbers"),
    "settings",
]


def rendered() -> str:
    """Return the generated part of the page."""
    pages = [page for family in pages_by_family().values() for page in family]
    return markdown_table([HEAD, *rows_of(pages)], range(len(HEAD)))


def with_table(text: str, table: str) -> str:
    """Return the page with a table between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        missing = (BEGIN, END)[bool(begin)]
        raise SystemExit(f"{PAGE.name} lacks the line {missing!r}: add it")
    return f"{before}{begin}{table}{end}{after}"


def main(arguments: list[str]) -> int:
    """Write the page, or check it; return the exit code."""
    if arguments not in (["--write"], ["--check"]):
        print(__doc__)
        return 2
    text = PAGE.read_text()
    new = with_table(text, rendered())
    if arguments == ["--write"]:
        PAGE.write_text(new)
    elif new != text:
        print(f"{PAGE.name} is out of date: run `python docs/client_wire.py --write`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
