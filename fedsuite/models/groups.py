"""Which arrays of a model are its head, its filter atoms, its coefficients.

Methods that share a part of a model, or send its parts at different times, name the parts
through :class:`ParameterGroups`; nothing is ever guessed from the arrays' names. Atoms and
coefficients are those of the layers that :func:`fedsuite.models.decompose` made.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsuite.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ParameterGroups:
    """Names of a model's arrays by group, each in ``state_dict`` order.

    Parameters
    ----------
    head
        The classifier: the last linear layer, unless another was named.
    other
        All that is in no other group: the body, and its buffers.
    atoms, coefficients
        Filter atoms and their coefficients; empty where no layer is decomposed.
    """

    head: tuple[str, ...]
    other: tuple[str, ...]
    atoms: tuple[str, ...] = ()
    coefficients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) != len(names):
            raise ValueError("a name stands in two groups")

    @property
    def names(self) -> tuple[str, ...]:
        """All names, group by group."""
        return (*self.atoms, *self.coefficients, *self.head, *self.other)

    @property
    def body(self) -> frozenset[str]:
        """All names but the head's."""
        return frozenset(self.names) - frozenset(self.head)


def parameter_groups(model: "nn.Module", head: str | None = None) -> ParameterGroups:
    """Return the groups of a model's parameters and buffers.

    Parameters
    ----------
    model
        Any network.
    head
        Name of the module that is the classifier; None takes the last linear layer.

    Raises
    ------
    ConfigError
        If there is no such module, or no linear layer.
    """
    from torch import nn

    from fedsuite.models.decomposition import DecomposedConv2d

    modules = dict(model.named_modules(remove_duplicate=False))
    if head is None:
        linear = [name for name, m in modules.items() if isinstance(m, nn.Linear)]
        if not linear:
            raise ConfigError("the model has no linear layer: name its head")
        head = linear[-1]
    if head not in modules:
        raise ConfigError(f"the model has no module {head!r}, which is to be its head")
    state = list(model.state_dict())
    in_head = _names_of(modules[head], head)
    factored = [name for name, m in modules.items() if isinstance(m, DecomposedConv2d)]
    atoms = {_joined(name, "atoms") for name in factored} - in_head
    coefficients = {_joined(name, "coefficients") for name in factored} - in_head
    named = in_head | atoms | coefficients
    return ParameterGroups(
        head=tuple(name for name in state if name in in_head),
        other=tuple(name for name in state if name not in named),
        atoms=tuple(name for name in state if name in atoms),
        coefficients=tuple(name for name in state if name in coefficients),
    )


def _names_of(module: "nn.Module", prefix: str) -> frozenset[str]:
    """Return a module's arrays by the names that they have in the whole model."""
    names: Iterable[str] = module.state_dict()
    return frozenset(_joined(prefix, name) for name in names)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
