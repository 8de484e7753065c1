"""Which of a network's arrays leave a client: the key ``travels``.

What does not travel is held at home: server and clients build it alike, nobody trains it,
and no message or state of a client holds it. The whole model, as a run writes it, has it.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from torch import nn

from fedsuite.core.errors import Refused

ALL, TRAINABLE = "all", "trainable"

_AT_HOME = "names_held_at_home"


def hold_at_home(model: nn.Module, travels: str) -> nn.Module:
    """Freeze what does not travel, and return the network.

    Parameters
    ----------
    model
        The network, with its initial arrays.
    travels
        ``trainable``, the parameters that require a gradient, with the buffers of
        the modules that hold one; or comma-separated names, in which ``*`` is any text.

    Raises
    ------
    Refused
        If nothing that is trained would travel, or a pattern names nothing.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = list(model.state_dict())
    if travels == TRAINABLE:
        trained = {name for name, p in parameters.items() if p.requires_grad}
        holders = {name.rpartition(".")[0] for name in trained}
        buffers = {n for n in names if n not in parameters}
        going = trained | {n for n in buffers if n.rpartition(".")[0] in holders}
    else:
        patterns = [pattern.strip() for pattern in travels.split(",")]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise Refused(
                    {"travels": travels},
                    f"the network has no array {pattern!r}: its first are "
                    f"{', '.join(names[:3])}",
                    "name what travels",
                )
        going = {n for n in names if any(fnmatchcase(n, p) for p in patterns)}
        # One parameter under two names travels under both.
        shared = {id(parameters[n]) for n in going if n in parameters}
        going |= {n for n, p in parameters.items() if id(p) in shared}
    if not any(parameters[n].requires_grad for n in going if n in parameters):
        raise Refused(
            {"travels": travels}, "no parameter that is trained would travel", "name one"
        )
    at_home = frozenset(names) - going
    for name, parameter in parameters.items():
        if name in at_home:
            parameter.requires_grad_(False)
    for prefix, module in model.named_modules():
        own = [n for n, _ in module.named_buffers(prefix, recurse=False) if n in names]
        if own and at_home.issuperset(own):
            # No statistic of it moves in training.
            module.eval()
            vars(module)["train"] = partial(_stays_as_it_is, module)
    vars(model)[_AT_HOME] = at_home
    return model


def names_at_home(model: nn.Module) -> frozenset[str]:
    """Return the names of the arrays that do not travel."""
    names: frozenset[str] = vars(model).get(_AT_HOME, frozenset())
    return names


def without(arrays: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return named arrays but for some."""
    return {name: array for name, array in arrays.items() if name not in names}


def _stays_as_it_is(module: nn.Module, mode: bool = True) -> nn.Module:
    """Stand for ``train`` of a module whose mode is settled."""
    return module
