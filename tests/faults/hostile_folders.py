"""Folders of runs as a stranger, an editor or a bad disk may leave them: made by a seed.

A case is one to three wounds of a whole run's folder. :func:`wounded` makes the folder of a
case's number, always the same.
"""

import json
import os
import random
import shutil
import socket
import stat
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedsuite.core.files import safetensors_arrays, safetensors_bytes

ESCAPES = "\x1b]0;owned\x07\x1b[2J"
FORMULA = "=cmd|' /C calc'!A0"
MARKDOWN = "x |\n\n# owned\n\n![i](http://evil.invalid/i.png) <script>alert(1)</script>"

DEEP = 100_000
"""Brackets that a parser would have to go down."""

RAW = ("1e400", "NaN", "-Infinity", "1" + "0" * 400, "9" * 5000, "[" * DEEP + "]" * DEEP)
"""Values that ``json.dumps`` does not write."""

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 10**12, 2**63, 2**70, 1e308, -1e308, 0.5, "", "1", "one"),
    *([], {}, [[]], [1, "a"], [[1], [2, 3]], {"a": {"b": 1}}, ["x"] * 50),
    *(ESCAPES, FORMULA, MARKDOWN, "../../outside", "/dev/zero", "\u202e\u2028", "\ud800"),
    "long" * 30_000,
)
"""Values in place of others."""

NAMES = (
    "accuracy",
    "round",
    "phase",
    "loss",
    FORMULA,
    MARKDOWN,
    ESCAPES,
    "",
    "update_norm",
)


def wounded(whole: Path, folder: Path, outside: Path, number: int) -> list[str]:
    """Make the folder of a case out of a whole run's, and return what was done to it.

    Parameters
    ----------
    whole
        Folder of a run that ended well.
    folder
        Folder to make.
    outside
        Folder with files that no command may touch, for links.
    number
        Number of the case.
    """
    chance = random.Random(f"hostile folder {number}")
    shutil.copytree(whole, folder, symlinks=True)
    done = []
    wanted = chance.choice((1, 1, 1, 2, 3))
    while len(done) < wanted:
        wound = chance.choice(_WOUNDS)
        path = chance.choice(_paths(folder))
        if not _is_small(path):
            # What an earlier wound made is neither read nor written through here.
            wound = chance.choice((missing, beside))
        with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            wound(path, chance, outside)
            done.append(f"{wound.__name__} {path.relative_to(folder)}")
    return done


def _paths(folder: Path) -> list[Path]:
    """Return files and folders to wound, those that are read most often more than once."""
    found = sorted(folder.rglob("*"))
    read = [path for path in found if path.suffix in (".json", ".jsonl", ".toml")]
    return found + read * 2


def _is_small(path: Path) -> bool:
    """Return whether a path is a folder, or a file that can be read whole."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) or (
        stat.S_ISREG(found.st_mode) and found.st_size < 10**7
    )


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


# ------------------------------------------------------------------- what a path is


def missing(path: Path, chance: random.Random, outside: Path) -> None:
    """Take a file or folder away."""
    _gone(path)


def replaced(path: Path, chance: random.Random, outside: Path) -> None:
    """Put something else in its place: a link, a pipe, a folder, a socket."""
    _gone(path)
    kinds: dict[str, Callable[[], object]] = {
        "pipe": lambda: os.mkfifo(path),
        "zero": lambda: path.symlink_to("/dev/zero"),
        "out": lambda: path.symlink_to(outside / chance.choice(("file", "folder"))),
        "loop": lambda: path.symlink_to(path.name),
        "dangling": lambda: path.symlink_to(outside / "new"),
        "folder": path.mkdir,
        "full": lambda: (path / "a" / "b").mkdir(parents=True),
        "socket": lambda: socket.socket(socket.AF_UNIX).bind(str(path)),
        "file": lambda: path.write_text("here"),
    }
    chance.choice(list(kinds.values()))()


def beside(path: Path, chance: random.Random, outside: Path) -> None:
    """Put a name that commands look for beside it."""
    name = chance.choice(
        (
            *("round-000099.safetensors", "round-99999999999999999999.safetensors"),
            *("more.jsonl", ".x.tmp", "privacy.ledger", "report.html", "state", "events"),
            *("round-000002.safetensors.aside", "best-model.safetensors", "checkpoints"),
        )
    )
    place = path.parent / name
    if not place.exists():
        place.touch()
        replaced(place, chance, outside)


def huge(path: Path, chance: random.Random, outside: Path) -> None:
    """Make it a terabyte of nothing, from a place on."""
    with open(path, "rb+") as file:
        file.truncate(2**40)


# ------------------------------------------------------------------- its bytes


def torn(path: Path, chance: random.Random, outside: Path) -> None:
    """Cut it off."""
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) + 1)])


def flipped(path: Path, chance: random.Random, outside: Path) -> None:
    """Change some bytes."""
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 5, 50))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(bytes(data))


def recoded(path: Path, chance: random.Random, outside: Path) -> None:
    """Save it as an editor of another system does, or with bytes of none."""
    data = path.read_bytes()
    path.write_bytes(
        chance.choice(
            (
                data.decode("latin-1").encode("utf-16"),
                b"\xef\xbb\xbf" + data,
                data.replace(b"\n", b"\r\n"),
                data.replace(b" ", b"\0"),
                data + b"\xff\xfe\n",
                b"\n\n\n",
                b"",
            )
        )
    )


# ------------------------------------------------------------------- its values


def another_value(path: Path, chance: random.Random, outside: Path) -> None:
    """Change, add or take away a value somewhere in JSON, JSON lines or TOML."""
    if path.suffix == ".toml":
        _in_toml(path, chance)
    elif path.suffix in (".jsonl", ".ledger"):
        lines = path.read_text().splitlines() or ["{}"]
        place = chance.randrange(len(lines))
        whole = ("[]", "{}", "3", "null", '{"a": 1}{"b": 2}', "", '"text"', *RAW)
        lines[place] = (
            chance.choice(whole) if chance.random() < 0.2 else _odd(lines[place], chance)
        )
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text(_odd(path.read_text(), chance))


def _odd(text: str, chance: random.Random) -> str:
    """Return JSON with one value replaced, added or taken away."""
    try:
        content = json.loads(text)
    except RecursionError:
        # An earlier wound: it is as odd as it can be.
        return text
    holder: Any = content
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        inner = [
            key for key in keys if isinstance(holder[key], dict | list) and holder[key]
        ]
        if not inner or chance.random() < 0.5:
            break
        holder = holder[chance.choice(inner)]
    way = chance.random()
    if way < 0.15 and keys:
        del holder[chance.choice(keys)]
        return json.dumps(content)
    if way < 0.3 and isinstance(holder, dict):
        key: Any = chance.choice(NAMES)
    else:
        key = chance.choice(keys)
    if chance.random() < 0.3:
        holder[key] = "RAW"
        return json.dumps(content).replace('"RAW"', chance.choice(RAW), 1)
    holder[key] = chance.choice(ODD)
    return json.dumps(content)


def _in_toml(path: Path, chance: random.Random) -> None:
    content = tomllib.loads(path.read_text())
    key = chance.choice([*content, *NAMES])
    way = chance.random()
    if way < 0.15:
        del content[key]
    elif way < 0.35:
        raw = (
            *RAW,
            "inf",
            "nan",
            "1979-05-27",
            "9999-99-99",
            "[[",
            "{a.b = 1}",
            "0x" + "f" * 900,
        )
        line = f"{json.dumps(key)} = {chance.choice(raw)}\n"
        content.pop(key, None)
        path.write_text(line + tomli_w.dumps(content))
        return
    else:
        content[key] = chance.choice([value for value in ODD if value is not None])
    path.write_bytes(tomli_w.dumps(content).encode("utf-8", "surrogatepass"))


# ------------------------------------------------------------------- its arrays


def resealed(path: Path, chance: random.Random, outside: Path) -> None:
    """Write another checkpoint or model, with a right hash."""
    files = [path] if path.suffix == ".safetensors" else _models(path.parent)
    file = chance.choice(files)
    arrays, note = safetensors_arrays(file.read_bytes())
    name = chance.choice(sorted(arrays))
    changes: tuple[Callable[[], object], ...] = (
        lambda: arrays.pop(name),
        lambda: arrays.update({name: np.zeros((3, 1), np.float32)}),
        lambda: arrays.update({name: arrays[name].astype(np.float64)}),
        lambda: arrays.update({name: np.full_like(arrays[name], np.nan)}),
        lambda: arrays.update({f"{name}.more": arrays[name]}),
    )
    if note and chance.random() < 0.6:
        note = _odd(note, chance)
    else:
        chance.choice(changes)()
        if note and chance.random() < 0.5:
            # The list of names agrees with what is there.
            facts = json.loads(note)
            facts["arrays"] = [n[7:] for n in sorted(arrays) if n.startswith("arrays/")]
            note = json.dumps(facts)
    file.write_bytes(safetensors_bytes(arrays, note))


def _models(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.safetensors")) if _is_small(path)]


_WOUNDS = (
    *(missing, replaced, replaced, beside, huge, torn, flipped, recoded),
    *(another_value,) * 9,
    *(resealed,) * 2,
)
