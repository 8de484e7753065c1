"""Tables of a run: keys, versions, fingerprints, machine, and how to repeat it."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Key, Value, toml_text
from fedsuite.experiment.key_catalog import (
    SELECTORS,
    keys_of,
    known_keys,
    local_keys,
    shared_keys,
)
from fedsuite.experiment.own_defaults import own_defaults
from fedsuite.results import layout
from fedsuite.results.compare import Comparison
from fedsuite.results.groups import SEED
from fedsuite.results.reader import Run
from fedsuite.results.report.values import (
    Table,
    amount,
    cell,
    duration,
    pairs,
    table,
    words,
)
from fedsuite.results.summary import totals
from fedsuite.results.verdict import network_words

_KINDS = {
    "rejected-reply": "not used",
    "bounded-reply": "used, shortened",
    layout.LEFT_OUT: "used, but not this metric",
}

MOST_REASONS = 5
"""A cause with more different reasons is one line of the table."""


def declared_keys(values: Mapping[str, Any]) -> dict[str, tuple[Key, Value]]:
    """Return the keys that an experiment of this method and data has, with defaults.

    Empty for a method or data set that this fedsuite does not know.
    """
    try:
        own = own_defaults(str(values["method"]), {}, shared_keys())
        keys = list(shared_keys().values())
        for selector in SELECTORS:
            keys += keys_of(selector, str(values[selector]).lower())
    except (KeyError, ConfigError):
        return {}
    return {k.name: (k, own.get(k.name, k.default)) for k in keys}


def key_tables(run: Run) -> list[Table]:
    """Return the tables of the keys that differ from the defaults, and of the others."""
    declared = declared_keys(run.experiment)
    differing: list[tuple[object, ...]] = []
    others: list[tuple[object, ...]] = []
    for name, value in sorted(
        run.experiment.items(), key=lambda item: (item[0] in local_keys(), item[0])
    ):
        known, default = declared.get(name) or (_known(name), None)
        meaning = known.help if known else "not known to this fedsuite"
        usual = None if default is None else toml_text(default)
        row = (name, toml_text(value), usual, meaning)
        (others if value == default else differing).append(row)
    head = ("key", "value", "default", "meaning")
    tables = [table("Keys that differ from the method's defaults", head, differing)]
    if not declared:
        tables[0] = table("Keys; this fedsuite knows no defaults of them", head, differing)
    return [*tables, table("Keys at their defaults", head, others)]


def _known(name: str) -> Key | None:
    """Return a key of another method or data set; to load them all takes a while."""
    known = known_keys().get(name)
    return known.declarations[0] if known else None


def about_table(run: Run) -> Table:
    """Return the table of the run's status, times, machine and data."""
    manifest = run.manifest
    machine = manifest.get("machine")
    rows = {
        "status": status(run),
        "error": manifest.get("error"),
        "rounds": run.rounds_done,
        "folder": str(run.path),
        "started": manifest.get("started"),
        "finished": manifest.get("finished"),
        "engine": manifest.get("engine"),
        "device": manifest.get("device"),
        "network": network_words(run) or None,
        **(machine if isinstance(machine, dict) else {}),
        "data fingerprint": manifest.get("data_fingerprint"),
        "experiment fingerprint": manifest.get("experiment_fingerprint"),
        "Flower's run": manifest.get("flwr_run_id"),
    }
    return pairs("The run", {name: v for name, v in rows.items() if v is not None})


def version_table(run: Run) -> Table:
    """Return the table of the versions that the run used."""
    versions = run.manifest.get("versions")
    own_version = {"fedsuite": run.manifest.get("fedsuite")}
    return pairs(
        "Versions",
        own_version | (versions if isinstance(versions, dict) else {}),
        ("package", ""),
    )


def data_table(run: Run) -> Table:
    """Return the table of the manifest's description of the data."""
    data = run.manifest.get("data")
    return pairs("Data", data if isinstance(data, dict) else {})


def status(run: Run) -> str:
    """Return the run's status; a process that was killed has left it at ``running``."""
    stored = str(run.manifest.get("status"))
    return "running, or killed" if stored == "running" else stored


def runs_table(runs: Sequence[Run], labels: Sequence[str], comparison: Comparison) -> Table:
    """Return the table of the runs: their numbers of the comparison, and what they cost."""
    compared = {
        run.path: row.by_seed[run.experiment.get(SEED)]
        for group, row in zip(comparison.groups, comparison.rows, strict=True)
        for run in group.runs
    }
    digits = comparison.rows[0].digits
    lines = []
    for run, name in zip(runs, labels, strict=True):
        cost = totals(run)
        numbers = compared.get(run.path, {})
        mean, worst = (numbers.get(name) for name in ("mean", "worst_10"))
        lines.append(
            (
                name,
                run.experiment.get("seed"),
                status(run),
                run.last_round,
                cell(mean, digits),
                cell(worst, digits),
                cell((cost["total_bytes_down"] + cost["total_bytes_up"]) / 1e6, 2),
                cell(cost["total_seconds"], 2),
                cost["total_replies_rejected"],
                str(run.path),
            )
        )
    unit = f" ({comparison.score.unit})" if comparison.score.unit else ""
    numbered = f"mean {comparison.score.label}", f"{comparison.columns['worst_10']}{unit}"
    head = "experiment", "seed", "status", "rounds", *numbered
    costs = "traffic (MB)", "seconds", "replies not used", "folder"
    return table("Runs", (*head, *costs), lines, comparison.legend)


def cost_tables(run: Run) -> list[Table]:
    """Return the tables of the sums of traffic and of time."""
    cost = totals(run)
    down, up = cost["total_bytes_down"], cost["total_bytes_up"]
    rounds = max(len(run.rounds), 1)
    traffic = {
        "down, to clients": amount(down),
        "up, to the server": amount(up),
        "together": amount(down + up),
        "per round": amount((down + up) / rounds),
    }
    time = {
        "wall clock": duration(cost["total_seconds"]),
        "per round": duration(cost["total_seconds"] / rounds),
        "processor of the server's process, training": duration(cost["total_cpu_seconds"]),
        "processor of the server's process, evaluation": duration(
            cost["total_evaluation_cpu_seconds"]
        ),
    }
    return [pairs("Traffic", traffic), pairs("Time", time)]


def reasons_table(runs: Sequence[Run]) -> Table:
    """Return the table of the reasons why replies were not used, with clients and rounds.

    A cause with very many different reasons is one line, shown by its first.
    """
    events: dict[tuple[str, str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for event in (event for run in runs for event in run.events()):
        kind, phase, cause = (str(event.get(n, "")) for n in ("kind", "phase", "cause"))
        by_reason = events.setdefault((kind, phase, cause), {})
        by_reason.setdefault(words(event.get("reason", "")), []).append(event)
    lines = []
    for (kind, phase, cause), by_reason in events.items():
        if len(by_reason) > MOST_REASONS:
            first = f"{next(iter(by_reason))} (and {len(by_reason) - 1} other reasons)"
            by_reason = {first: [event for same in by_reason.values() for event in same]}
        for reason, same in by_reason.items():
            clients = Counter(str(event.get("client")) for event in same)
            most = ", ".join(f"{c} ({n})" for c, n in clients.most_common(5))
            more = len(clients) - 5
            whom = most + (f" and {more} more" if more > 0 else "")
            rounds = [event["round"] for event in same]
            kind_words = _KINDS.get(kind, kind)
            ends = min(rounds), max(rounds)
            lines.append((len(same), kind_words, phase, cause, reason, whom, *ends))
    lines.sort(key=lambda line: -line[0])
    head = ("times", "reply", "phase", "cause", "reason", "clients (times)")
    return table("Reasons", (*head, "first round", "last round"), lines)


def commands(run: Run) -> dict[str, str]:
    """Return the shell command that repeats a run, and the one that goes on with it."""
    if run.manifest.get("engine") == layout.APP_ENGINE:
        return {"Repeat it, with the folder of the app for APP": _simulation(run)}
    file = str(run.path.absolute() / layout.EXPERIMENT)
    again = ["fedsuite", "run", file, "--set", "run-name=auto"]
    by_purpose = {"Repeat it, in a new folder": shlex.join(again)}
    if run.manifest.get("status") != "finished":
        goes_on = ["fedsuite", "resume", str(run.path.absolute())]
        by_purpose["Go on from its last checkpoint"] = shlex.join(goes_on)
    return by_purpose


def _simulation(run: Run) -> str:
    """Return the command that runs a Flower app again as it was reported."""
    values, start = run.experiment, "run-config."
    command = f"fedsuite simulate APP --num-supernodes {values.get('num-clients')}".split()
    if SEED in values:
        command += ["--seed", str(values[SEED])]
    for key in ("drop-out", "straggler"):
        if values.get(key):
            command += [f"--{key}", str(values[key])]
    overrides = " ".join(
        f"{key.removeprefix(start)}={toml_text(value)}"
        for key, value in values.items()
        if key.startswith(start)
    )
    return shlex.join([*command, *(["--run-config", overrides] if overrides else [])])
