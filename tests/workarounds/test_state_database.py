"""The SuperLink's database: one file after a stop, and one that is too new is named."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.workarounds.state_database import fold, refuse_newer


def made(place: Path, revision: str) -> Path:
    """Return a database as a SuperLink leaves it: its table stands in the log alone."""
    place.mkdir()
    with closing(sqlite3.connect(place / "open.db")) as line:
        line.execute("pragma journal_mode = wal")
        line.execute("create table alembic_version (version_num varchar(32))")
        line.execute("insert into alembic_version values (?)", (revision,))
        line.commit()
        for path in place.glob("open.db*"):
            path.with_name(path.name.replace("open", "state")).write_bytes(
                path.read_bytes()
            )
    (place / "state.db-shm").unlink()
    return place / "state.db"


def revisions(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as line:
        rows = line.execute("select version_num from alembic_version").fetchall()
    return [revision for (revision,) in rows]


def test_after_a_stop_one_file_is_all(tmp_path: Path) -> None:
    database = made(tmp_path / "made", "a")
    alone = tmp_path / "alone.db"
    alone.write_bytes(database.read_bytes())
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        revisions(alone)
    fold(database)
    assert [path.name for path in database.parent.glob("state.db*")] == ["state.db"]
    assert revisions(database) == ["a"]
    fold(tmp_path / "nowhere.db")
    assert not (tmp_path / "nowhere.db").exists()
    alone.write_text("no database, " * 100)
    fold(alone)


def test_a_database_that_another_has_open_stays_whole(tmp_path: Path) -> None:
    database = made(tmp_path / "made", "a")
    with closing(sqlite3.connect(database)) as line:
        line.execute("begin immediate")
        line.execute("insert into alembic_version values ('b')")
        fold(database)
        line.commit()
    assert revisions(database) == ["a", "b"]


def test_a_database_of_a_newer_flower_is_named(tmp_path: Path) -> None:
    from flwr.supercore import state

    newer = made(tmp_path / "newer", "ffff00000000")
    with pytest.raises(ConfigError, match=r"of a newer Flower than .*: install the newer"):
        refuse_newer(newer)
    known = next(
        line.split('"')[1]
        for path in state.__path__
        for file in Path(path, "alembic", "versions").glob("rev*.py")
        for line in file.read_text().splitlines()
        if line.startswith("revision")
    )
    refuse_newer(made(tmp_path / "known", known))
    refuse_newer(tmp_path / "nowhere.db")
    (tmp_path / "broken.db").write_text("no database, " * 100)
    refuse_newer(tmp_path / "broken.db")
