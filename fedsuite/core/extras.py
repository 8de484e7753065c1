"""Optional packages, and the extras of fedsuite that bring them."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from fedsuite.core.errors import RunError

EXTRA_OF = {
    "ray": "simulation",
    "datasets": "data",
    "flwr_datasets": "data",
    "matplotlib": "report",
    "plotly": "report",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
}
"""Extra by package, of packages that a node and a Flower app do without."""


class MissingExtraError(RunError):
    """A package that is not installed; the message names the extra that brings it."""


@contextmanager
def naming_extras(user: str) -> Iterator[None]:
    """Name the extra whose package an import inside the block does not find.

    Parameters
    ----------
    user
        What needs the package, for the message.

    Raises
    ------
    MissingExtraError
        If a package of :data:`EXTRA_OF` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        raise MissingExtraError(
            f"{user} needs {package}: pip install 'fedsuite[{EXTRA_OF[package]}]'"
        ) from None


def require(package: str, user: str) -> None:
    """Raise :class:`MissingExtraError` if a package is not installed; import nothing."""
    with naming_extras(user):
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
