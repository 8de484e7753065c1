"""Import of torchvision, the extra ``vision``.

torchvision does not work with every build of torch, so nothing on the default path may need
it.
"""

from importlib import import_module
from typing import Any

from fedsuite.core.errors import ConfigError
from fedsuite.core.extras import how_to_install


def import_torchvision(part: str, user: str) -> Any:
    """Return a module of torchvision.

    Parameters
    ----------
    part
        Name of the module within torchvision, such as ``models``.
    user
        User of the module, for the error.

    Raises
    ------
    ConfigError
        If torchvision is not installed, or cannot be imported beside this torch.
    """
    try:
        import_module("torchvision")
        return import_module(f"torchvision.{part}")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise _broken(user, error) from error
        raise ConfigError(
            f"{user} needs torchvision: {how_to_install('torchvision')}"
        ) from None
    except (ImportError, RuntimeError, OSError) as error:
        # Registering operators fails with a torch that torchvision was not built for.
        raise _broken(user, error) from error


def _broken(user: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{user}: torchvision is installed but cannot be imported ({first_line(error)}): "
        "install builds of torch and torchvision that belong together"
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or else the error's name."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
