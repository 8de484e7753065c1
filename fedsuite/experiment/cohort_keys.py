"""Refusal of the key ``cohort`` where clients cannot train together."""

from collections.abc import Mapping

from fedsuite.clients import load_client
from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, Value
from fedsuite.core.registry import METHODS

ALONE = 1
"""Value of the key that trains each client alone."""

_ONE_BY_ONE: Mapping[str, Value] = {
    "crop-and-flip": False,
    "torchvision-augmentation": "none",
    "lsr-gamma": 0.0,
    "decorrelation-weight": 0.0,
    "logit-calibration": 0.0,
}
"""Keys of training, and their values, which clients in a cohort need."""


def check_cohort(values: Mapping[str, Value]) -> None:
    """Refuse cohorts with an engine, method or option that has none.

    Raises
    ------
    ConfigError
        Naming the keys, and what to do.
    """
    if values["cohort"] == ALONE:
        return
    if values["engine"] != AUTO:
        refuse_engine(values, str(values["engine"]))
    start = f"key cohort = {values['cohort']!r}"
    # Imports torch, which a server without cohorts does not need.
    if not vars(load_client(METHODS[str(values["method"])])).get("BATCHED"):
        raise ConfigError(
            f"{start} with method = {values['method']!r}: its clients do more than plain "
            "steps on the labels' loss, and train one by one; set cohort = 1"
        )
    for key, needed in _ONE_BY_ONE.items():
        if values[key] != needed:
            raise ConfigError(
                f"{start} with {key} = {values[key]!r}: each client does that by itself; "
                f"set {key} = {needed!r}, or cohort = 1"
            )


def refuse_engine(values: Mapping[str, Value], engine: str) -> None:
    """Refuse cohorts in an engine whose clients may be in many places.

    Raises
    ------
    ConfigError
        Naming the key, and what to do.
    """
    if values["cohort"] != ALONE and engine != "local":
        raise ConfigError(
            f"key cohort = {values['cohort']!r} with engine = {engine!r}: clients train "
            "together in the local engine alone; set engine = 'local', or cohort = 1"
        )


def refuse_auto(values: Mapping[str, Value]) -> None:
    """Refuse a size by calibration in a sweep, whose runs are to be alike.

    Raises
    ------
    ConfigError
        Naming the key, and what to do.
    """
    if values["cohort"] == AUTO:
        raise ConfigError(
            "key cohort = 'auto': each run of a sweep might choose another size; set the "
            "number that one run by itself has in its manifest"
        )
