"""Groups of a model's arrays: head, filter atoms, coefficients, others.

Methods name the parts of a model through :class:`ParameterGroups`. The head is never
guessed from names. Atoms and coefficients belong to layers made by
:func:`fedsuite.models.decompose`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedsuite.core.errors import ConfigError
from fedsuite.models.head import head_names, joined, names_of

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class ParameterGroups:
    """Names of a model's arrays by group, each in ``state_dict`` order.

    Parameters
    ----------
    head
        The classifier: the last linear layer, unless the model or the caller names another;
        with it the other names of its parameters, where the body shares some.
    other
        Arrays in no other group: the body with its buffers.
    atoms, coefficients
        Filter atoms and their coefficients; empty where no layer is decomposed.
    personal
        Second factors of FedPara's layers, which pFedPara's clients keep.
    layers
        All names by layer, from the input up. A layer is a module with a matrix or kernel,
        together with the modules up to the next layer, such as a normalisation.
    normalisation
        Names of the arrays of batch normalisation, which stand in another group too.
    """

    head: tuple[str, ...]
    other: tuple[str, ...]
    atoms: tuple[str, ...] = ()
    coefficients: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()
    layers: tuple[tuple[str, ...], ...] = ()
    normalisation: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) != len(names):
            raise ValueError("a name stands in two groups")

    @property
    def names(self) -> tuple[str, ...]:
        """All names, group by group."""
        return (
            *self.atoms,
            *self.coefficients,
            *self.personal,
            *self.head,
            *self.other,
        )

    @property
    def body(self) -> frozenset[str]:
        """All names except the head's."""
        return frozenset(self.names) - frozenset(self.head)


def parameter_groups(model: "nn.Module", head: str | None = None) -> ParameterGroups:
    """Return the groups of a model's parameters and buffers.

    Parameters
    ----------
    model
        Any network.
    head
        Name of the classifier's module; None takes the model's ``classifier_name``, or else
        the last linear layer.

    Raises
    ------
    ConfigError
        If there is no such module, or no linear layer.
    """
    from fedsuite.models.decomposed import DecomposedConv2d
    from fedsuite.models.fedpara import second_factors

    state = list(model.state_dict())
    normalisation = _normalisation(model)
    in_head = head_names(model, head)
    modules = model.named_modules(remove_duplicate=False)
    factored = [name for name, m in modules if isinstance(m, DecomposedConv2d)]
    atoms = {joined(name, "atoms") for name in factored} - in_head
    coefficients = {joined(name, "coefficients") for name in factored} - in_head
    personal = second_factors(model) - in_head
    named = in_head | atoms | coefficients | personal
    return ParameterGroups(
        head=tuple(name for name in state if name in in_head),
        other=tuple(name for name in state if name not in named),
        atoms=tuple(name for name in state if name in atoms),
        coefficients=tuple(name for name in state if name in coefficients),
        personal=tuple(name for name in state if name in personal),
        layers=_layers(model),
        normalisation=tuple(name for name in state if name in normalisation),
    )


def factored_groups(arrays: Mapping[str, NDArray[Any]]) -> ParameterGroups:
    """Return atoms, coefficients and other arrays, recognised by the arrays' names.

    A decomposed layer ``X`` has arrays ``X.atoms`` (m, height, width) and
    ``X.coefficients`` (channels out, channels in / groups, m). The head is empty here,
    because arrays do not show it.

    Parameters
    ----------
    arrays
        Arrays of the whole model by name, in ``state_dict`` order.
    """
    pairs = []
    for atoms, array in arrays.items():
        layer, _, part = atoms.rpartition(".")
        coefficients = joined(layer, "coefficients")
        if part != "atoms" or coefficients not in arrays:
            continue
        shape = arrays[coefficients].shape
        if array.ndim == len(shape) == 3 and len(array) == shape[-1]:
            pairs.append((atoms, coefficients))
    factors = {name for pair in pairs for name in pair}
    return ParameterGroups(
        head=(),
        other=tuple(name for name in arrays if name not in factors),
        atoms=tuple(atoms for atoms, _ in pairs),
        coefficients=tuple(coefficients for _, coefficients in pairs),
    )


def head_module(model: "nn.Module", groups: ParameterGroups) -> "nn.Module":
    """Return the head's module.

    Raises
    ------
    ConfigError
        If no module holds exactly the head.
    """
    fitting: list[nn.Module] = [
        module
        for name, module in model.named_modules()
        if names_of(module, name) == frozenset(groups.head)
    ]
    if not groups.head or not fitting:
        raise ConfigError("the model's head is no module of its own: name another")
    return fitting[-1]


def _normalisation(model: "nn.Module") -> frozenset[str]:
    """Return the names of the arrays of batch normalisation, known by their modules."""
    from torch import nn

    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    named = model.named_modules(remove_duplicate=False)
    layer_names = (names_of(m, name) for name, m in named if isinstance(m, kinds))
    return frozenset(name for names in layer_names for name in names)


def _layers(model: "nn.Module") -> tuple[tuple[str, ...], ...]:
    """Return the names of a model's arrays by layer; see :class:`ParameterGroups`."""
    own: dict[str, list[str]] = {}
    for name in model.state_dict():
        own.setdefault(name.rpartition(".")[0], []).append(name)
    layers: list[list[str]] = [[]]
    weighted = False
    for path, module in model.named_modules(remove_duplicate=False):
        has_weight = any(p.dim() > 1 for p in module.parameters(recurse=False))
        if has_weight and weighted:
            layers.append([])
        weighted |= has_weight
        layers[-1] += own.get(path, [])
    # An array of two layers is of the upper one, under all its names.
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    named |= model.named_buffers(remove_duplicate=False)
    last = {
        id(named[n]): number for number, ns in enumerate(layers) for n in ns if n in named
    }
    placed: list[list[str]] = [[] for _ in layers]
    for number, names in enumerate(layers):
        for name in names:
            place = last[id(named[name])] if name in named else number
            placed[place].append(name)
    return tuple(tuple(names) for names in placed if names)
