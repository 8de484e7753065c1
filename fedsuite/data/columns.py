"""Names of tables' columns, which files of a site and sites of a run must share.

Numbers without their names mean something else in each table: columns taken by the order
of their names would put one site's weight where another has its blood pressure.

A name stands for a column of numbers, ``name[3]`` for one of lists of three. Whole
numbers, floats and booleans are one kind here: all are trained on as float32, and a column
with whole numbers at one site has floats at another as soon as one value was missing.
"""

import hashlib
import json
from collections.abc import Sequence

Columns = Sequence[str]
"""Names in the order of the inputs; empty where nobody knows them."""

_NAMED = 5
"""Names that a message lists on each side."""


def fingerprint(columns: Columns) -> str:
    """Return SHA-256 (hex) over names, order and kinds, and nothing of the rows."""
    return hashlib.sha256(json.dumps(list(columns)).encode()).hexdigest()


def difference(columns: Columns, others: Columns) -> str:
    """Return what columns lack and have beside others; empty of the same, or of none."""
    if not columns or not others or list(columns) == list(others):
        return ""
    lacks = [name for name in others if name not in columns]
    more = [name for name in columns if name not in others]
    parts = [f"lacks {_some(lacks)}"] * bool(lacks) + [f"has {_some(more)}"] * bool(more)
    return " and ".join(parts) or f"has them in the order {_some(columns)}"


def _some(names: Columns) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
