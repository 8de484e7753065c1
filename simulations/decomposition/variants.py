"""An experiment with its network as it is, and with filter decomposition."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import typer

from fedsuite.core.keys import Value
from fedsuite.experiment.key_catalog import known_keys, table_default


class Models(StrEnum):
    """Networks that a figure compares."""

    BOTH = "both"
    DENSE = "dense"
    FACTORED = "factored"

    @property
    def names(self) -> tuple[str, ...]:
        """``dense``, ``factored``, or both."""
        return ("dense", "factored") if self is Models.BOTH else (self.value,)


ModelsOption = Annotated[
    Models, typer.Option(help="The network as it is, with decomposition, or both.")
]


def variant(name: str, set_values: Mapping[str, Value]) -> dict[str, Value]:
    """Return a user's overrides, made ``dense`` or ``factored`` by name."""
    if name == "factored":
        return {**set_values, "decomposition": True}
    # The file's keys of the decomposition do not apply to a dense network.
    owner = "decomposition true"
    idle = [key for key, known in known_keys().items() if known.owners == (owner,)]
    return {
        **set_values,
        "decomposition": False,
        **{key: table_default(key) for key in idle},
    }
