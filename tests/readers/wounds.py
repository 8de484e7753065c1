"""Wounds of files by their kind, beside those of :mod:`tests.faults.hostile_folders`."""

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults import hostile_folders as hostile

Wound = Callable[[Path, random.Random, Path], None]

DEEP, LONG = 100_000, 2_000_000
BIG = "0x" + "f" * 9000
"""A number that Python reads, and does not print."""

JSON_TEXTS = (
    *("", "null", "[]", "{}", "3", '"text"', "NaN", "1e999", "9" * 400, "9" * 5000, "{"),
    *("[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP, '{"a": 1, "a": 2}', "\ud800"),
    *('["' + "x" * LONG + '"]', "\ufeff{}", '{"a": 1}\r\n{"a": 2}\r\n', "\0", "{}{}"),
    *('{"\\ud800": "\\udfff"}', "[1, 2", "[" + "0," * 100_000 + "0]"),
)
TOML_TEXTS = (
    *("", "\ufeffa = 1\r\n", "a." * 20_000 + "a = 1", '"a".' * 20_000 + "a = 1"),
    *("[" + "a." * 20_000 + "a]", "x = {" + "a . " * 20_000 + "a = 1}", "\0", "= 3"),
    *("x = " + "[" * DEEP, "x = " + "{a = " * 5000, f"x = {BIG}", "x = " + "9" * 5000),
    *("x = 1979-05-27", "x = nan", "x = inf", "a = 1\na = 2", "[a]\n[a]", "x = '''"),
    *("x = '" + "y" * LONG + "'", '"' + "k" * 5000 + '" = 1', "[[x]]\n" * 2000),
)
TOML_VALUES = (
    *(BIG, f"-{BIG[2:]}", "9" * 400, "nan", "-inf", "1e400", "1979-05-27", "12:30:00"),
    *("1979-05-27T07:32:00Z", "[]", "{}", "[[]]", "[1, 'a']", "{a.b = 1}", "true", "''"),
    *(
        '"\\u0000"',
        '"a\\nb"',
        "'../../etc/passwd'",
        "-1",
        "0",
        "2.5",
        "18446744073709551616",
    ),
    *("['../x', '/']", "'" + "y" * 100_000 + "'", "[" + "'n', " * 1000 + "]"),
)
CELLS = (
    *("", "?", "NaN", "inf", "-inf", "1e999", "-1", "1e308", "0x10", "1_000", "9" * 400),
    *('"', '"a', 'a""', "a\0b", "x" * 200_000, "\ud800", "=cmd()", "1,2", "1;2", "\r", " "),
    *("\u0663", "true", "2024-01-01", "NA", "\x1b[2J", "\ufeff", "1" * 5000),
)
STRANGE = (
    pa.array([[1], [2, 3]]),
    pa.array([{"bytes": b"x", "path": None}, None]),
    pa.array([{"bytes": 3}, {"bytes": 4}]),
    pa.array(["a", "\x1b[2J\n"]),
    pa.array([b"\xff\xfe", b""]),
    pa.array([None, None]),
    pa.array([float("nan"), float("inf")]),
    pa.array([2**63 - 1, -(2**63)]),
    pa.array([2**64 - 1, 0], pa.uint64()),
    pa.array([1e308, -1e308]),
    pa.array([True, False]),
    pa.array([1, 2], pa.timestamp("s")),
    pa.array([0, 1], pa.date32()),
    pa.array(["a", "b"]).dictionary_encode(),
    pa.array([np.float16(1.5), np.float16("nan")], pa.float16()),
    pa.array([1, 2]).cast(pa.decimal128(38, 3)),
    pa.array([[[1.0]], []]),
    pa.array([["a"], ["b"]]),
    pa.array([[1.0, None], [2.0, 3.0]], pa.list_(pa.float32(), 2)),
    pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
)
"""Columns of types that no reader counts on, two rows each."""


def of(path: Path) -> tuple[Wound, ...]:
    """Return the wounds of a file of this kind, each as often as it should be drawn."""
    kinds: dict[str, tuple[Wound, ...]] = {
        ".toml": (odd_toml, whole_text, *(toml_value,) * 6),
        ".json": (whole_text, *(hostile.another_value,) * 6),
        ".jsonl": (whole_text, long_line, *(hostile.another_value,) * 6),
        ".ledger": (long_line, *(hostile.another_value,) * 3),
        ".csv": (long_line, *(cell,) * 6),
        ".safetensors": (header, *(hostile.resealed,) * 4),
        ".parquet": (expanding, *(retyped,) * 6),
        ".npy": (header_of_array,) * 4,
        ".fab": (bundle,) * 6,
        ".png": (picture,) * 4,
        ".pub": (long_line, cell),
        ".crt": (long_line,),
    }
    return kinds.get(path.suffix, (long_line,))


def _put(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def whole_text(path: Path, chance: random.Random, outside: Path) -> None:
    """Put another text in its place."""
    _put(path, chance.choice(TOML_TEXTS if path.suffix == ".toml" else JSON_TEXTS))


def odd_toml(path: Path, chance: random.Random, outside: Path) -> None:
    """Add such a text to it."""
    text = path.read_text()
    more = chance.choice(TOML_TEXTS)
    _put(path, chance.choice((f"{more}\n{text}", f"{text}\n{more}\n")))


def toml_value(path: Path, chance: random.Random, outside: Path) -> None:
    """Change, add or take away a value, or the name of one."""
    lines = path.read_text().splitlines()
    places = [k for k, line in enumerate(lines) if "=" in line and line[0] not in "#'\""]
    place = chance.choice(places)
    name, _, value = lines[place].partition("=")
    way = chance.random()
    if way < 0.15:
        del lines[place]
    elif way < 0.3:
        lines[place] = f"{json.dumps(chance.choice(hostile.NAMES))} = {value}"
    else:
        lines[place] = f"{name} = {chance.choice(TOML_VALUES)}"
    _put(path, "\n".join(lines) + "\n")


def long_line(path: Path, chance: random.Random, outside: Path) -> None:
    """Add a very long line somewhere."""
    lines = path.read_bytes().split(b"\n")
    lines.insert(
        chance.randrange(len(lines) + 1), chance.choice((b"x", b"1,", b"\xff")) * LONG
    )
    path.write_bytes(b"\n".join(lines))


def cell(path: Path, chance: random.Random, outside: Path) -> None:
    """Change, add or take away a cell or a row."""
    lines = path.read_bytes().split(b"\n")
    # The header is one line, and as likely as all others.
    place = chance.choice((0, chance.randrange(len(lines))))
    mark = chance.choice((b",", b",", b";", b" "))
    cells, way = lines[place].split(mark), chance.random()
    at = chance.randrange(len(cells))
    if way < 0.1:
        del cells[at]
    elif way < 0.2:
        cells.insert(at, cells[at])
    elif way < 0.3:
        lines[place : place + 1] = chance.choice(([], [lines[place]] * 3))
        path.write_bytes(b"\n".join(lines))
        return
    else:
        cells[at] = chance.choice(CELLS).encode("utf-8", "surrogatepass")
    lines[place] = mark.join(cells)
    path.write_bytes(b"\n".join(lines))


def _small_table(path: Path) -> pa.Table:
    if pq.read_metadata(path).num_rows > 1000:
        raise ValueError("an earlier wound: it would take what a reader must not take")
    return pq.read_table(path)


def retyped(path: Path, chance: random.Random, outside: Path) -> None:
    """Write a table with a column of another type, or more, fewer or no rows or columns."""
    table = _small_table(path)
    place = chance.randrange(max(1, table.num_columns))
    name, way = table.column_names[place], chance.random()
    if way < 0.6:
        strange = chance.choice(STRANGE)
        rows = np.arange(table.num_rows) % 2
        table = table.set_column(place, name, strange.take(pa.array(rows)))
    elif way < 0.7:
        table = table.remove_column(place)
    elif way < 0.8:
        table = table.append_column(name, table.column(place))
    elif way < 0.9:
        names = list(table.column_names)
        names[place] = chance.choice(("", *hostile.NAMES, "x" * 100_000))
        table = table.rename_columns(names)
    else:
        table = table.slice(0, chance.choice((0, 0, 1)))
    pq.write_table(table, path)


def expanding(path: Path, chance: random.Random, outside: Path) -> None:
    """Make a column that is small in the file and large in memory."""
    table = _small_table(path)
    place = chance.randrange(max(1, table.num_columns))
    name, rows = table.column_names[place], 2**12
    text = pa.array(["x" * 2**18])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), text)
    whole = table.take(pa.array(np.zeros(rows, np.int64))).set_column(place, name, column)
    # Without Arrow's own schema, in which the column stays a dictionary.
    pq.write_table(whole, path, compression="zstd", store_schema=False)


def header(path: Path, chance: random.Random, outside: Path) -> None:
    """Change a shape, type or place in the header of safetensors."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + size])
    name = chance.choice([entry for entry in entries if entry != "__metadata__"])
    key, value = chance.choice(
        (
            ("shape", [2**40]),
            ("shape", [-1]),
            ("shape", [2**32, 2**32]),
            ("shape", []),
            ("dtype", "F64"),
            ("dtype", "Q8"),
            ("dtype", None),
            ("data_offsets", [0, 2**50]),
            ("data_offsets", [0, 2**70]),
            ("data_offsets", [8, 0]),
            ("data_offsets", [0, 4]),
            ("data_offsets", "01"),
            ("more", 1),
        )
    )
    entries[name][key] = value
    text = json.dumps(entries).encode()
    length = chance.choice((len(text), len(text), 2**63, 2**64 - 1, 100_000_000))
    path.write_bytes(length.to_bytes(8, "little") + text + data[8 + size :])


def header_of_array(path: Path, chance: random.Random, outside: Path) -> None:
    """Change what the header of an array of NumPy says, or put an archive in its place."""
    if chance.random() < 0.15:
        file = io.BytesIO()
        np.savez_compressed(file, a=np.zeros(3), b=np.zeros((1000, 1000)))
        path.write_bytes(file.getvalue()[: chance.choice((None, 100))])
        return
    shapes = (
        "(1099511627776,)",
        "(-1,)",
        "(2, 1000000000, 1000000000)",
        "()",
        "3",
        "(0, 9)",
    )
    kinds = ("'<f4'", "'|O'", "'<U9999999'", "[('a', '<f4')]", "'<M8[s]'", "3", "'|V0'")
    shape = chance.choice((*shapes, f"({'9' * 5000},)", "(" * 4000, f"({BIG},)"))
    words = (
        f"{{'descr': {chance.choice(kinds)}, 'fortran_order': False, 'shape': {shape}}}\n"
    )
    body = path.read_bytes()[128:]
    size = struct.pack("<H", len(words) % 2**16)
    path.write_bytes(b"\x93NUMPY\x01\x00" + size + words.encode() + body)


def bundle(path: Path, chance: random.Random, outside: Path) -> None:
    """Write another archive: entries that swell, many, odd names, odd methods."""
    with zipfile.ZipFile(path) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    way = chance.choice(("swells", "many", "odd", "names", "project"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in entries.items():
            text = chance.choice(TOML_TEXTS).encode() if way == "project" else content
            new.writestr(name, text)
        if way == "swells":
            new.writestr("big", bytes(10**7))
        if way == "many":
            for number in range(10_001):
                new.writestr(f"f{number}", b"")
        if way == "names":
            for name in (
                "../out",
                "/abs",
                "a",
                "a/b",
                "x" * 300,
                "pyproject.toml/x",
                "\x01",
            ):
                new.writestr(name, b"x")
    if way == "swells":
        # Each says that it is larger than it is: to write so much takes a while.
        data = path.read_bytes()
        size = struct.pack("<I", 10**7)
        path.write_bytes(
            data.replace(size, struct.pack("<I", chance.choice((3 * 10**8, 99))))
        )
    if way == "odd":
        data = bytearray(path.read_bytes())
        # Flags and method of a member, in its own header and in the directory.
        for mark, places in (
            (b"PK\x03\x04", (6, 8, 18, 22)),
            (b"PK\x01\x02", (8, 10, 20, 24)),
        ):
            place = data.find(mark) + chance.choice(places)
            data[place : place + 2] = chance.choice((b"\x01\x00", b"\x63\x00", b"\xff\xff"))
        path.write_bytes(bytes(data))


@cache
def _long_text() -> bytes:
    return zlib.compress(bytes(10**8), 9)


def picture(path: Path, chance: random.Random, outside: Path) -> None:
    """Write a picture that says it is large, or holds what is."""
    width, height = chance.choice(((60_000, 60_000), (2**31 - 1, 1), (8192, 8192), (0, 0)))
    kind = chance.choice(((8, 2), (16, 0), (8, 6), (1, 3), (99, 99)))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, *kind, 0, 0, 0))]
    if chance.random() < 0.5:
        chunks.append((b"zTXt", b"k\0\0" + _long_text()))
    chunks += [(b"IDAT", zlib.compress(bytes(10**6), 9)), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in chunks:
        sum_of = struct.pack(">I", zlib.crc32(name + content))
        data += struct.pack(">I", len(content)) + name + content + sum_of
    path.write_bytes(data)
