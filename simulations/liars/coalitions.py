"""Liars who act together, and lies that a climb finds late.

Each case is run under the mean and under each robust rule that can count its liars:

- two of five whose updates are just below the guard's limit;
- one operator with two keys, whose two clients are one;
- a backdoor, boosted and not;
- replies of an earlier round sent again;
- a client that costs a way back in every round.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from fedsuite.core.keys import Value
from fedsuite.rounds.guard import BELIEVED
from fedsuite.rounds.round_settings import Aggregator
from simulations.liars.lies import Lie
from simulations.liars.runs import SETTINGS, RefusedError, Setting, absent, play

FIVE = SETTINGS[0]
TWO_OF_FIVE = replace(FIVE, name="two of five", liars=2)
BELOW = 0.99 * BELIEVED

COLUMNS = (
    "case",
    "aggregator",
    "share",
    "size_share",
    "lost",
    "backdoor",
    "failed",
    "ended",
    "named",
)


@dataclass(frozen=True)
class Case:
    """Liars, what they do, and whether they send the same."""

    setting: Setting
    lie: str
    together: bool = False


CASES: Mapping[str, Case] = {
    "two of five below the limit": Case(
        TWO_OF_FIVE, f"train record arrays: length {-BELOW:g} every"
    ),
    "two of five below the limit, in the last round": Case(
        TWO_OF_FIVE, f"train record arrays: length {-BELOW:g} last"
    ),
    "one operator with two keys": Case(TWO_OF_FIVE, "probe", together=True),
    "backdoor": Case(FIVE, "data trigger"),
    "backdoor, five times as long": Case(
        FIVE, "train record arrays: length 5 every; data trigger"
    ),
    "backdoor, just below the limit, in the last round": Case(
        FIVE, f"train record arrays: length {BELOW:g} last; data trigger"
    ),
    "an earlier round's reply": Case(FIVE, "train reply: stale later"),
    "an earlier round's model": Case(FIVE, "train record arrays: stale later"),
    "a way back every round": Case(FIVE, f"train record arrays: length {-BELOW:g} every"),
}


def rows() -> Iterator[dict[str, object]]:
    """Run each case under each rule; yield its row."""
    for name, case in CASES.items():
        for aggregator in get_args(Aggregator):
            yield {"case": name, "aggregator": aggregator, **_row(case, aggregator)}


def _row(case: Case, aggregator: str) -> dict[str, object]:
    """Return what a case does under a rule."""
    changes: dict[str, Value] = {}
    if aggregator != "mean":
        changes = {"aggregator": aggregator}
        if aggregator != "median":
            # Multi-Krum of five can count one liar, whoever there is.
            count = 1 if aggregator == "multi-krum" else case.setting.liars
            changes["liars"] = float(count)
    lie = Lie.parse(case.lie)
    try:
        outcome = play("fedavg", case.setting, lie, changes=changes, together=case.together)
    except RefusedError as error:
        return {"ended": str(error)}
    # Liars who act together are one: what they own together is their share.
    owned = outcome.shares or outcome.weights
    share = sum(owned.get(k, 0.0) for k in outcome.liars)
    return {
        "share": f"{share:.3f}",
        "size_share": f"{sum(outcome.sizes[k] for k in outcome.liars):.3f}",
        "lost": f"{absent('fedavg', case.setting).accuracy - outcome.accuracy:.1f}",
        "backdoor": "" if outcome.backdoor is None else f"{outcome.backdoor:.2f}",
        "failed": outcome.failed,
        "ended": outcome.ended,
        "named": ", ".join(sorted({kind for _, kind in outcome.named})),
    }


def run(path: Path) -> None:
    """Write the CSV."""
    path.parent.mkdir(exist_ok=True, parents=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows():
            writer.writerow(row)
            print(" | ".join(str(row.get(name, "")) for name in COLUMNS), flush=True)
