"""Which Flower is installed, of its releases and of its nightly builds.

A nightly build, ``flwr-nightly``, brings the same modules under another name of the
distribution, and no public name of Flower says its version.

Seen in flwr 1.39 to 1.43.0.dev. To delete when ``flwr.__version__`` is there.
"""

from importlib import metadata

DISTRIBUTIONS = ("flwr", "flwr-nightly")

SUPPORTED_FROM = (1, 39)
SUPPORTED_BELOW = (1, 44)

REQUIREMENT = "flwr>={}.{},<{}.{}".format(*SUPPORTED_FROM, *SUPPORTED_BELOW)
"""What ``pip install`` is told to bring a Flower that fedsuite works with."""


def flower_release() -> str:
    """Return the version of the installed Flower, ``""`` where there is none."""
    for distribution in DISTRIBUTIONS:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return ""
