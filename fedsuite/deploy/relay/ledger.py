"""A site's ledger of what left it: lines of JSON, each with the hash of the one before.

A line is on the disk before what it tells of leaves. A line that a crash has torn is cut
off, and the next line says so. Whoever changes, drops or adds a line breaks the chain.
"""

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from fedsuite.core import reading
from fedsuite.core.errors import RunError
from fedsuite.core.files import read_error, sync_folder, write_error

LEDGER = "ledger.jsonl"

REPLY, SENT, REFUSED, ERROR = "reply", "sent", "refused", "error"
REQUEST, TORN, STARTED = "request", "torn", "started"
"""Events: a reply that may leave, its arrival at the SuperNode, a reply that a rule keeps
here, an error's fixed words, a call that no app may make, a line that was cut off, and the
relay's start."""

_BEFORE, HASH = "before", "hash"
"""Keys of a line: the hash of the one before, and its own."""


@dataclass(frozen=True)
class Chain:
    """A ledger as it was read.

    Parameters
    ----------
    lines
        Its whole lines.
    head
        Hash of the last one; empty of none.
    broken
        Number of the first line, from 1, that does not fit the one before; 0 of none.
    torn
        Bytes after the last whole line.
    """

    lines: tuple[dict[str, Any], ...]
    head: str
    broken: int
    torn: int


def hash_of(line: Mapping[str, Any]) -> str:
    """Return the hash of a line's content, its own hash left out, in hexadecimal digits."""
    content = {name: value for name, value in line.items() if name != HASH}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_chain(path: Path) -> Chain:
    """Read and verify a ledger; a file that is not there has no lines.

    Raises
    ------
    RunError
        If the file cannot be read.
    """
    try:
        data = reading.read_named(path)
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise read_error(path, error) from error
    whole, newline, torn = data.rpartition(b"\n")
    lines: list[dict[str, Any]] = []
    head, broken = "", 0
    for number, text in enumerate(whole.split(b"\n") if newline else (), start=1):
        try:
            line = reading.parsed(text)
            fits = line[_BEFORE] == head and line[HASH] == hash_of(line)
        except (ValueError, LookupError, TypeError, RecursionError):
            line, fits = {}, False
        if not fits and not broken:
            broken = number
        lines.append(line if isinstance(line, dict) else {})
        head = str(lines[-1].get(HASH, head))
    return Chain(tuple(lines), head, broken, len(torn))


class Ledger:
    """A ledger that one process writes.

    Parameters
    ----------
    path
        Its file, which is made if it is not there.

    Raises
    ------
    RunError
        If another process writes it, its chain is broken, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # An app's calls are noted by other threads, in the middle of a line else.
        self._turn = threading.Lock()
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"{path} is in use: another relay of this node runs; stop it first"
            ) from None
        except OSError as error:
            raise write_error(path, error) from error
        chain = read_chain(path)
        if chain.broken:
            self._lock.release()
            raise RunError(
                f"{path}: line {chain.broken} was changed after it was written: keep the "
                "file for whoever looks into it, and move it away to begin another"
            )
        self.head = chain.head
        self._bytes_of_day: dict[str, int] = {}
        self._replies_of_run: dict[str, int] = {}
        for line in chain.lines:
            self._count(line)
        try:
            if chain.torn:
                os.truncate(path, path.stat().st_size - chain.torn)
            # Without a buffer: what could not be written must not come later.
            self._file = path.open("ab", buffering=0)
            sync_folder(path.parent)
        except OSError as error:
            self._lock.release()
            raise write_error(path, error) from error
        if chain.torn:
            self.write(TORN, bytes=chain.torn)

    def write(self, event: str, **content: object) -> None:
        """Append a line, and return when it is on the disk; RunError if it cannot be."""
        with self._turn:
            self._write(event, content)

    def _write(self, event: str, content: Mapping[str, object]) -> None:
        line = {"time": now(), "event": event, **content, _BEFORE: self.head}
        line[HASH] = hash_of(line)
        text = json.dumps(line, sort_keys=True, separators=(",", ":"))
        data, end = text.encode() + b"\n", self._file.tell()
        try:
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # The next line would stand behind half of this one, or break the chain.
            with suppress(OSError):
                self._file.truncate(end)
            self._file.seek(0, os.SEEK_END)
            raise write_error(self.path, error) from error
        self.head = str(line[HASH])
        self._count(line)

    def day_bytes(self) -> int:
        """Return the bytes of arrays that have left today, in UTC."""
        return self._bytes_of_day.get(now()[:10], 0)

    def run_replies(self, run_id: str) -> int:
        """Return how many replies have left in a run."""
        return self._replies_of_run.get(run_id, 0)

    def _count(self, line: Mapping[str, Any]) -> None:
        if line.get("event") != REPLY:
            return
        day, run_id = str(line.get("time"))[:10], str(line.get("run"))
        size = line.get("bytes")
        self._bytes_of_day[day] = self._bytes_of_day.get(day, 0) + (
            size if isinstance(size, int) else 0
        )
        self._replies_of_run[run_id] = self._replies_of_run.get(run_id, 0) + 1

    def close(self) -> None:
        """Close the file, for another process."""
        self._file.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def now() -> str:
    """Return the time in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_runs(chain: Chain) -> Iterator[dict[str, Any]]:
    """Yield the lines that tell of runs: replies, refusals, errors and calls."""
    for line in chain.lines:
        if line.get("event") in (REPLY, REFUSED, ERROR, REQUEST):
            yield line
