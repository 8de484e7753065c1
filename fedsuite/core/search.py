"""Values of a key that tuning tries, declared with the key."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Number = int | float


@dataclass(frozen=True)
class Between:
    """Numbers from ``low`` to ``high``, evenly on a logarithmic scale.

    Parameters
    ----------
    low, high
        Bounds above 0, inclusive.
    """

    low: float
    high: float

    def draw(self, stream: "np.random.Generator", default: Number) -> Number:
        """Return a number with three significant digits."""
        exponent = stream.uniform(math.log(self.low), math.log(self.high))
        drawn = float(f"{math.exp(exponent):.3g}")
        return min(max(drawn, self.low), self.high)

    def holds(self, value: object, default: Number) -> bool:
        """Return whether a value can be drawn."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}, logarithmic"


@dataclass(frozen=True)
class Around:
    """Numbers up to ``factor`` times the default and down to that part of it.

    For a key whose good values depend on the rest of the experiment, as the learning rate
    does on the optimiser.

    Parameters
    ----------
    factor
        Above 1.
    """

    factor: float

    def draw(self, stream: "np.random.Generator", default: Number) -> Number:
        """Return a number with three significant digits."""
        return self._around(default).draw(stream, default)

    def holds(self, value: object, default: Number) -> bool:
        """Return whether a value can be drawn."""
        return self._around(default).holds(value, default)

    def _around(self, default: Number) -> Between:
        return Between(default / self.factor, default * self.factor)

    def __str__(self) -> str:
        return f"the default, up to {self.factor:g} times more or less, logarithmic"


class OneOf:
    """A few values, each as likely.

    Parameters
    ----------
    *values
        The values.
    """

    def __init__(self, *values: Number) -> None:
        self.values = values

    def draw(self, stream: "np.random.Generator", default: Number) -> Number:
        """Return one of the values."""
        return self.values[int(stream.integers(len(self.values)))]

    def holds(self, value: object, default: Number) -> bool:
        """Return whether a value can be drawn."""
        return value in self.values

    def __str__(self) -> str:
        return ", ".join(f"{value:g}" for value in self.values)


Search = Between | Around | OneOf
"""The values of a key that tuning tries."""
