"""Flower's own reading of a run config, so that no app sees another one.

Seen in flwr 1.39, 1.41 and 1.42. To delete when a public name of Flower reads them.
"""

from collections.abc import Mapping

import click
from flwr.common.config import flatten_dict, parse_config_args

from fedsuite.core.keys import Value


def flattened(config: Mapping[str, object]) -> dict[str, Value]:
    """Return a nested config as Flower flattens it, ``{"a": {"b": 1}}`` as ``a.b``.

    Raises
    ------
    ValueError
        If a value is of another type than a run config has.
    """
    return dict(flatten_dict(dict(config)))


def parsed_run_config(words: str) -> dict[str, Value]:
    """Return what ``flwr run --run-config`` makes of its argument.

    Raises
    ------
    ValueError
        If the syntax is wrong.
    """
    if not words.strip():
        return {}
    try:
        values: dict[str, Value] = parse_config_args([words])
    except click.ClickException as error:
        raise ValueError(error.message) from error
    if not values:
        raise ValueError(f"{words!r} names no value: write \"name=value other='a b'\"")
    return values
