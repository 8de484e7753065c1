"""The classifier of a model, and names within a model."""

from typing import TYPE_CHECKING

from fedsuite.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


def head_names(model: "nn.Module", head: str | None = None) -> frozenset[str]:
    """Return the names of the arrays of a model's classifier.

    All names are returned that a parameter has, where the classifier shares one with an
    embedding: no part of the model can be trained or kept without the other.

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
    name, module = find_head(model, head)
    names = names_of(module, name)
    known = dict(model.named_parameters(remove_duplicate=False))
    shared = {id(known[each]) for each in names if each in known}
    return names | {each for each, parameter in known.items() if id(parameter) in shared}


def find_head(model: "nn.Module", head: str | None = None) -> "tuple[str, nn.Module]":
    """Return name and module of a model's classifier; see :func:`head_names`."""
    from torch import nn

    modules = dict(model.named_modules(remove_duplicate=False))
    if head is None:
        head = getattr(model, "classifier_name", None)
    if head is None:
        linear = [name for name, m in modules.items() if isinstance(m, nn.Linear)]
        if not linear:
            raise ConfigError("the model has no linear layer: name its head")
        head = linear[-1]
    if head not in modules:
        raise ConfigError(f"the model has no module {head!r}, which is to be its head")
    return head, modules[head]


def names_of(module: "nn.Module", prefix: str) -> frozenset[str]:
    """Return a module's array names within the whole model."""
    return frozenset(joined(prefix, name) for name in module.state_dict())


def joined(prefix: str, name: str) -> str:
    """Return the full name of a part of a module; an empty prefix is the model."""
    return f"{prefix}.{name}" if prefix else name
