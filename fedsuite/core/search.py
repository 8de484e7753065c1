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

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}, logarithmic"


@dataclass(frozen=True)
class HalfDecades:
    """The ladder ..., 0.01, 0.03, 0.1, 0.3, 1, ..., the same rungs for all methods.

    For a learning rate, whose good values depend on the optimiser. Tuning goes up or down
    the ladder while an end of what it tried is best, and then looks around the best rung.
    """

    def rung(self, number: int) -> float:
        """Return the value of a rung: 0 is 1, and two rungs are a factor of ten."""
        return float(f"{10 ** (number / 2):.1g}")

    def nearest(self, value: Number) -> int:
        """Return the number of the rung that is nearest to a value above 0."""
        return round(2 * math.log10(value))

    def draw(self, stream: "np.random.Generator", default: Number) -> Number:
        """Return a number less than half a rung above or below ``default``."""
        exponent = math.log10(default) + stream.uniform(-0.25, 0.25)
        return float(f"{10**exponent:.3g}")

    def __str__(self) -> str:
        return "..., 0.03, 0.1, 0.3, ... around the optimiser's usual one, then between"


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

    def __str__(self) -> str:
        return ", ".join(f"{value:g}" for value in self.values)


Search = Between | HalfDecades | OneOf
"""The values of a key that tuning tries."""
