"""Optional packages, and the extras of fedsuite that bring them."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from fedsuite.core.errors import RunError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "simulation": ("flwr[simulation]",),
    "data": ("flwr-datasets>=0.5",),
    "report": ("plotly>=6",),
    "figures": ("matplotlib>=3.8",),
    "tensorboard": ("tensorboard>=2.15",),
    "mlflow": ("mlflow-skinny>=3",),
    "wandb": ("wandb>=0.31",),
    "prometheus": ("prometheus-client>=0.20",),
    "dp": ("dp-accounting>=0.6,<0.7",),
    "onnx": ("onnx>=1.17", "onnxscript>=0.3"),
}
"""Requirements of each extra, as in ``pyproject.toml``."""

EXTRA_OF = {
    "ray": "simulation",
    "datasets": "data",
    "flwr_datasets": "data",
    "matplotlib": "figures",
    "plotly": "report",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "prometheus_client": "prometheus",
    "dp_accounting": "dp",
    "onnx": "onnx",
    "onnxscript": "onnx",
}
"""Extra by package, of packages that a node and a Flower app do without."""


class MissingExtraError(RunError):
    """A package that is not installed; the message says how to install it."""


def how_to_install(package: str) -> str:
    """Return the command that brings an optional package.

    It names the packages of the extra, because no package index has ``fedsuite[...]``: a
    clone or a wheel has, and this process does not know where that is.
    """
    return f"pip install {shlex.join(EXTRAS[EXTRA_OF[package]])}"


@contextmanager
def naming_extras(user: str) -> Iterator[None]:
    """Name the packages of the extra that an import inside the block does not find.

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
            f"{user} needs {package}: {how_to_install(package)}"
        ) from None


def require(package: str, user: str) -> None:
    """Raise :class:`MissingExtraError` if a package is not installed; import nothing."""
    with naming_extras(user):
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
