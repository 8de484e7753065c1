"""The ledger of noised releases, written before what it counts.

A round that is repeated after a crash is a second release. So an entry stays, whatever
became of its round, and nothing is ever taken out. Each line ends with a hash of itself and
of the line before it, so that a damaged entry is named and not counted.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedsuite.core.errors import RunError
from fedsuite.core.files import atomic_write, read_error
from fedsuite.core.reading import parsed, read_bytes

_HASH = ', "hash": "'


class ReleaseLedger:
    """Counts releases by public group, in a file where there is one.

    Parameters
    ----------
    path
        File that keeps the entries, one JSON object a line, read first if it exists;
        None keeps them in memory.

    Raises
    ------
    RunError
        If the file cannot be read, or holds something else.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lines: list[str] = []
        self.counts: Counter[int] = Counter()
        self.last: Mapping[str, Any] = {}
        if path is not None and path.exists():
            self._read(path)

    @property
    def releases(self) -> int:
        """Number of all releases."""
        return self.counts.total()

    @property
    def most_visits(self) -> int:
        """Number of releases of the group that has most."""
        return max(self.counts.values(), default=0)

    def visits(self, group: int) -> int:
        """Return the most that any group has after one more release of this one."""
        return max(self.most_visits, self.counts[group] + 1)

    def add(self, group: int, entry: Mapping[str, Any]) -> None:
        """Write down a release that is about to happen; return when it is on the disk."""
        whole = {"release": self.releases + 1, "group": group, **entry}
        before = self._lines[-1] if self._lines else ""
        self._lines.append(_line(json.dumps(whole), before))
        if self._path is not None:
            atomic_write(self._path, "".join(f"{line}\n" for line in self._lines).encode())
        self.counts[group] += 1
        self.last = whole

    def recall(self, counts: Mapping[int, int]) -> None:
        """Take the counts of a checkpoint; the file has these and perhaps more.

        Raises
        ------
        RunError
            If the file has fewer.
        """
        if self._path is None:
            self.counts = Counter(counts)
        elif any(self.counts[group] < count for group, count in counts.items()):
            raise RunError(
                f"{self._path} has {self.releases} releases, and the checkpoint "
                f"{sum(counts.values())}: put back the ledger that the run wrote, because "
                "without it no epsilon holds"
            )

    def _read(self, path: Path) -> None:
        try:
            self._lines = read_bytes(path).decode().splitlines()
            for before, line in pairwise(["", *self._lines]):
                entry = line.rpartition(_HASH)[0] + "}"
                if line != _line(entry, before):
                    raise ValueError(f"damaged after entry {self.releases}")
                self.last = parsed(line)
                self.counts[int(self.last["group"])] += 1
        except OSError as error:
            raise read_error(path, error) from error
        except (ValueError, TypeError, LookupError) as error:
            raise RunError(
                f"cannot read ledger {path}: {error}: put back the one that the run wrote"
            ) from error


def _line(entry: str, before: str) -> str:
    """Return an entry, a JSON object, with a hash of it and of the line before it."""
    digest = hashlib.sha256(f"{before}{entry}".encode()).hexdigest()
    return f'{entry[:-1]}{_HASH}{digest}"}}'
