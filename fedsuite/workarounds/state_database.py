"""Flower's database of a SuperLink, a file of SQLite with its newest pages in another.

A SuperLink leaves the other file behind, ``state.db-wal``, also where it ends as it should.
Of a new federation ``state.db`` alone then has no table. And a Flower that finds the
database of a newer one ends with a traceback on a revision.

Seen in flwr 1.41 and 1.42. To delete when a SuperLink closes its database, and says which
version wrote it.
"""

import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from fedsuite.core.errors import ConfigError, one_line
from fedsuite.workarounds.flower_release import flower_release

_UNREADABLE = (sqlite3.Error, UnicodeError)
"""What SQLite says of a damaged file; the second where its words are of the file, too."""

_REVISIONS = Path("supercore", "state", "alembic", "versions")


def fold(database: Path) -> None:
    """Write the pages of the other file into the database, so that one file is all.

    Nothing is done where a program has the database open, or the disk is full.
    """
    if not database.is_file():
        return
    try:
        with closing(_opened(database)) as line:
            line.execute("pragma wal_checkpoint(truncate)")
    except _UNREADABLE:
        return


def refuse_newer(database: Path) -> None:
    """Raise :class:`ConfigError` where a newer Flower than the installed one wrote it."""
    package = find_spec("flwr")
    places = (package.submodule_search_locations if package else None) or ()
    files = [path for place in places for path in Path(place, _REVISIONS).glob("*.py")]
    if not files or not database.is_file():
        return
    try:
        with closing(_opened(database)) as line:
            rows = line.execute("select version_num from alembic_version").fetchmany(9)
    except _UNREADABLE:
        # Flower says what is wrong with it.
        return
    known = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    if unknown := [revision for (revision,) in rows if f'"{revision}"' not in known]:
        revision = one_line(unknown[0], 40)
        raise ConfigError(
            f"{database} is of a newer Flower than {flower_release()}, of revision "
            f"{revision}: install the newer one again, or put back the copy from before "
            "the upgrade"
        )


def _opened(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.resolve().as_uri()}?mode=rw", timeout=5.0, uri=True)
