"""Names and formats of the files in a run's folder.

===================== ==============================================================
file                  contents
===================== ==============================================================
``experiment.toml``   the full resolved experiment, flat, kebab-case
``manifest.json``     format, versions, fingerprints, times, status and error
``partition.json``    who holds what: ``{"train": counts, "test": counts}``, counts of
                      shape (clients, classes), and ``"shift"`` where a partitioner
                      shifts inputs: one object per client; optional
``rounds.jsonl``      one object per round
``clients.jsonl``     one object per client, phase and round
``events.jsonl``      rejected replies and warnings
``privacy.ledger``    one object per noised release, written before it; with noise at the
                      server
``summary.json``      the final fairness report and totals
``model.safetensors`` the final model, written as the rounds end; none where clients keep
                      theirs
``best-model...``     ``best-model.safetensors``, the model of the round with the best
                      metric, whose text is that round, metric and value; with
                      ``best-model-metric``
``report.html``       all of this as one page; see :mod:`fedsuite.results.report`
``checkpoints/``      what resuming needs
===================== ==============================================================

The manifest of clients with different networks has three more entries: ``networks``
(entries of the key ``client-models``), ``network_parameters``, and ``client_networks`` (the
index of each client's network). Accuracies are fractions. A number that is not finite
stands as ``null``.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from fedsuite.core.errors import RunError
from fedsuite.core.files import read_error

FORMAT = 1
"""Version of the layout, kept in the manifest."""

FEDERATION = "federation"
"""Entry of the manifest: folder of the SuperLink that a run was started at, if any."""

FEDERATION_VARIABLE = "FEDSUITE_FEDERATION"
"""Environment variable by which a SuperLink's programs tell ServerApps that folder."""

EXPERIMENT = "experiment.toml"
MANIFEST = "manifest.json"
PARTITION = "partition.json"
SUMMARY = "summary.json"
LEDGER = "privacy.ledger"
MODEL = "model.safetensors"
BEST_MODEL = "best-model.safetensors"

MADE_AT_THE_END = (MODEL, SUMMARY, "report.html")
"""Files that a run's end makes of all of its rounds."""

RUN_FOLDER = "run folder: "
"""How the line begins that a finished run ends with."""

ROUNDS = "rounds"
CLIENTS = "clients"
EVENTS = "events"

LEFT_OUT = "left-out-metric"
"""Kind of the event of a reply that was used, all but a metric in it."""

_PARSED_TOGETHER = 1000
"""Lines of a JSON-lines file that are parsed at once."""


def lines_path(folder: Path, name: str) -> Path:
    """Return the path of a JSON-lines file, such as ``rounds``."""
    return folder / f"{name}.jsonl"


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON-lines file; none without the file.

    A killed process leaves a last line without newline, which is passed over. RunError if
    the file cannot be read, or another line is no JSON object.
    """
    try:
        with open(path, "rb") as file:
            num_read = 0
            while lines := list(islice(file, _PARSED_TOGETHER)):
                yield from _parse_objects(lines, path, num_read)
                num_read += len(lines)
    except FileNotFoundError:
        return
    except OSError as error:
        raise read_error(path, error) from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file, or raise :class:`RunError`."""
    try:
        return _parse_object(path.read_bytes(), str(path))
    except OSError as error:
        raise read_error(path, error) from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's folder; RunError if it is none in a known format."""
    path = folder / MANIFEST
    if not path.is_file():
        problem = "holds no manifest.json" if folder.is_dir() else "is not a folder"
        raise RunError(
            f"{folder} {problem}: give the folder of a run, the one that holds "
            f"{EXPERIMENT} and {MANIFEST}"
        )
    manifest = read_object(path)
    written = manifest.get("format")
    if written != FORMAT:
        raise RunError(f"{path}: format {written!r}: this fedsuite reads format {FORMAT}")
    return manifest


def _parse_objects(lines: list[bytes], path: Path, before: int) -> list[dict[str, Any]]:
    """Return the objects of lines, of which so many stand before them in the file."""
    whole = [line for line in lines if line.endswith(b"\n")]
    rows: list[dict[str, Any]] = []
    with suppress(ValueError):
        rows = json.loads(b"[" + b",".join(whole) + b"]")
    # One parse for all takes half of the time, but does not see lines with two objects.
    if len(rows) == len(whole) and all(type(row) is dict for row in rows):
        return rows
    numbered = enumerate(whole, start=before + 1)
    return [_parse_object(line, f"{path}, line {number}") for number, line in numbered]


def _parse_object(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RunError(f"{where}: expected a JSON object; the file is damaged")
    return value
