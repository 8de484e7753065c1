"""Names and formats of the files in a run's folder.

===================== ==============================================================
file                  contents
===================== ==============================================================
``experiment.toml``   the full resolved experiment, flat, kebab-case
``manifest.json``     format, versions, fingerprints, times, status and error
``partition.json``    who holds what: ``{"train": counts, "test": counts}``, counts of
                      shape (clients, classes), and ``"shift"`` where a partitioner
                      shifts inputs: one object per client; optional
``model.json``        what the model takes and gives: names of columns and classes, scaling,
                      shape; see :mod:`fedsuite.results.model_facts`
``rounds.jsonl``      one object per round
``clients.jsonl``     one object per client, phase and round
``events.jsonl``      rejected replies and warnings
``privacy.ledger``    one object per noised release, written before it, with a hash of it
                      and of the line before; with noise at the server
``summary.json``      the final fairness report and totals
``model.safetensors`` the final model, written as the rounds end; none where clients keep
                      theirs
``best-model...``     ``best-model.safetensors``, the model of the round with the best
                      metric, whose text is that round, metric and value; with
                      ``best-model-metric``
``report.html``       all of this as one page; see :mod:`fedsuite.results.report`
``checkpoints/``      what resuming needs
===================== ==============================================================

The manifest has the clients' ``device``, and the ``parameters`` of their network. That of
clients with different networks has three entries in place of the latter: ``networks``
(entries of the key ``client-models``), ``network_parameters``, and ``client_networks`` (the
index of each client's network). Accuracies are fractions. A number that is not finite
stands as ``null``.

A folder may come from anybody. The functions here return the types that fedsuite writes, or
raise one line, so that no reader of theirs looks again. A number beyond 1e100 is read as
none.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fedsuite.core.errors import RunError
from fedsuite.core.files import read_error
from fedsuite.core.keys import Value
from fedsuite.core.reading import bounded, read_bytes, read_lines
from fedsuite.core.text import toml

FORMAT = 1
"""Version of the layout, kept in the manifest."""

APP_ENGINE = "simulate"
"""Engine, in the manifest of what ``fedsuite simulate --report`` wrote of a Flower app."""

FEDERATION = "federation"
"""Entry of the manifest: folder of the SuperLink that a run was started at, if any."""

FEDERATION_VARIABLE = "FEDSUITE_FEDERATION"
"""Environment variable by which a SuperLink's programs tell ServerApps that folder."""

EXPERIMENT = "experiment.toml"
MANIFEST = "manifest.json"
PARTITION = "partition.json"
MODEL_FACTS = "model.json"
SUMMARY = "summary.json"
LEDGER = "privacy.ledger"
MODEL = "model.safetensors"
BEST_MODEL = "best-model.safetensors"

MADE_AT_THE_END = (MODEL, SUMMARY, "report.html")
"""Files that a run's end makes of all of its rounds."""

INITIAL_MODEL = "initial_model"
"""Entry of the manifest: SHA-256 of the model that a run starts from, if of another run."""

ATTEMPT = "attempt"
"""Entry of the manifest: number of the process that writes the run, the last if several."""

RUN_FOLDER = "run folder: "
"""How the line begins that a finished run ends with."""

ROUNDS = "rounds"
CLIENTS = "clients"
EVENTS = "events"

LEFT_OUT = "left-out-metric"
"""Kind of the event of a reply that was used, all but a metric in it."""

_PARSED_TOGETHER = 1000
"""Lines of a JSON-lines file that are parsed at once."""

_LARGEST_ROUND = _LARGEST_ATTEMPT = 2**53
_LARGEST_TOML = 2**20
_NONE = type(None)
_NUMBER = (int, float, bool, _NONE)
CLIENT_NAMES = "client_names"
"""Entry of the manifest: names of the clients in order, where they have some."""

NEW_CLIENTS = "evaluation_only"
"""Entry of the manifest: numbers of the clients that never train, as known at the start."""

_WORDS: Mapping[type, str] = {
    int: "a number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "an object",
    _NONE: "no number that counts",
}

Types = tuple[type, ...]


class Fields(NamedTuple):
    """The types of an object's values: of some names, and of all others.

    A name whose types have none may be missing; ``others`` None is anything.
    """

    of: Mapping[str, Types]
    others: Types | None = None


TABLES: Mapping[str, Fields] = {
    ROUNDS: Fields({"round": (int,)}, _NUMBER),
    CLIENTS: Fields({"round": (int,), "phase": (str,), "client": (int, str)}, _NUMBER),
    EVENTS: Fields(
        {
            "round": (int,),
            "client": (int, str, _NONE),
            **dict.fromkeys(("kind", "phase", "cause", "reason"), (str, _NONE)),
        },
        (*_NUMBER, str),
    ),
}
"""Columns of the JSON-lines files."""

_RELEASE = Fields({"group": (int,), "sentence": (str,)})
_MANIFEST = Fields(
    {
        "format": (int,),
        "status": (str,),
        "data": (dict, _NONE),
        "num_clients": (int, _NONE),
        "data_fingerprint": (str, _NONE),
        ATTEMPT: (int, _NONE),
        CLIENT_NAMES: (list, _NONE),
        NEW_CLIENTS: (list, _NONE),
    }
)
_EXPERIMENT = Fields(
    {
        "num-rounds": (int, _NONE),
        "num-clients": (int, _NONE),
        **dict.fromkeys(("method", "sites", "public-dir"), (str, _NONE)),
    },
    (bool, int, float, str),
)
STATUSES = ("running", "finished", "failed", "stopped")
"""Statuses of a run's manifest."""


def lines_path(folder: Path, name: str) -> Path:
    """Return the path of a JSON-lines file, such as ``rounds``."""
    return folder / f"{name}.jsonl"


def read_table(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON-lines file, such as ``rounds``; none without the file.

    A killed process leaves a last line without newline, which is passed over. RunError if
    the file cannot be read, or another line is no row of that table.
    """
    yield from _read_rows(lines_path(folder, name), TABLES[name])


def read_releases(folder: Path) -> list[dict[str, Any]]:
    """Return the noised releases that a run's ledger has; none without the ledger."""
    return list(_read_rows(folder / LEDGER, _RELEASE))


def _read_rows(path: Path, fields: Fields) -> Iterator[dict[str, Any]]:
    try:
        lines, num_read = read_lines(path), 0
        while batch := list(islice(lines, _PARSED_TOGETHER)):
            rows = _parse_objects(batch, path, num_read)
            for number, row in enumerate(rows, start=num_read + 1):
                _check(row, fields, path, number)
            yield from rows
            num_read += len(batch)
    except FileNotFoundError:
        return
    except OSError as error:
        raise read_error(path, error) from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file, or raise :class:`RunError`."""
    content = read_optional(path)
    if content is None:
        raise RunError(f"cannot read {path}: {os.strerror(errno.ENOENT)}")
    return content


def read_optional(path: Path) -> dict[str, Any] | None:
    """Return the object of a JSON file, None without the file, or raise RunError."""
    try:
        return _parse_object(read_bytes(path), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise read_error(path, error) from error


def read_experiment(folder: Path) -> dict[str, Value]:
    """Return the experiment of a run's folder, or raise :class:`RunError`."""
    path = folder / EXPERIMENT
    try:
        values: dict[str, Value] = toml(read_bytes(path, _LARGEST_TOML))
    except OSError as error:
        raise read_error(path, error) from error
    except ValueError as error:
        raise RunError(f"{path}: not valid TOML: {error}") from error
    _check(values, _EXPERIMENT, path)
    return values


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's folder; RunError if it is none in a known format."""
    path = folder / MANIFEST
    if not path.exists() and not path.is_symlink():
        problem = "holds no manifest.json" if folder.is_dir() else "is not a folder"
        raise RunError(
            f"{folder} {problem}: give the folder of a run, the one that holds "
            f"{EXPERIMENT} and {MANIFEST}"
        )
    manifest = read_object(path)
    written = manifest.get("format")
    if written != FORMAT:
        by = manifest.get("fedsuite")
        wrote = f"fedsuite {by}" if isinstance(by, str) else "the fedsuite"
        raise RunError(
            f"{path}: format {written!r:.20}: this fedsuite reads format {FORMAT}: read it "
            f"with {wrote} that wrote it"
        )
    _check(manifest, _MANIFEST, path)
    if manifest["status"] not in STATUSES:
        raise _damaged(path, f"status is none of {', '.join(STATUSES)}")
    if not 0 <= (manifest.get(ATTEMPT) or 0) < _LARGEST_ATTEMPT:
        raise _damaged(path, f"{ATTEMPT} is no number of an attempt")
    _check_networks(manifest, path)
    return manifest


def _check_networks(manifest: Mapping[str, Any], path: Path) -> None:
    """Refuse entries about the clients' networks that do not belong together."""
    labels, sizes, of_client = (
        manifest.get(name, [])
        for name in ("networks", "network_parameters", "client_networks")
    )
    try:
        fits = len(labels) == len(sizes) and all(0 <= k < len(labels) for k in of_client)
        kinds = {*map(type, sizes), *map(type, of_client)} <= {int}
    except TypeError:
        fits = kinds = False
    if not (fits and kinds and all(isinstance(label, str) for label in labels)):
        raise _damaged(path, "networks do not fit network_parameters and client_networks")


def _check(row: Mapping[str, Any], fields: Fields, path: Path, line: int = 0) -> None:
    """Refuse an object with a value of another type."""
    where = f"{path}, line {line}" if line else str(path)
    for name, types in fields.of.items():
        if type(row.get(name)) not in types:
            raise _damaged(where, f"{name} is {_said(row, name)}")
    if "round" in fields.of and not 0 <= row["round"] <= _LARGEST_ROUND:
        raise _damaged(where, "round is no round")
    if fields.others is None or set(map(type, row.values())) <= set(fields.others):
        return
    for name, value in row.items():
        if name not in fields.of and type(value) not in fields.others:
            raise _damaged(where, f"{name!a:.60} is {_said(row, name)}")


def _said(row: Mapping[str, Any], name: str) -> str:
    return _WORDS.get(type(row[name]), "of a wrong type") if name in row else "missing"


def _damaged(where: Path | str, what: str) -> RunError:
    return RunError(f"{where}: {what}; the file is damaged")


def _parse_objects(lines: list[bytes], path: Path, before: int) -> list[dict[str, Any]]:
    """Return the objects of lines, of which so many stand before them in the file."""
    rows: list[dict[str, Any]] = []
    with suppress(ValueError):
        rows = bounded(b"[" + b",".join(lines) + b"]")
    # One parse for all takes half of the time, but does not see lines with two objects.
    if len(rows) == len(lines) and all(type(row) is dict for row in rows):
        return rows
    numbered = enumerate(lines, start=before + 1)
    return [_parse_object(line, f"{path}, line {number}") for number, line in numbered]


def _parse_object(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = bounded(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RunError(f"{where}: expected a JSON object; the file is damaged")
    return value
