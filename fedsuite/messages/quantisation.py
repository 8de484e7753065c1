"""CFD's coding of soft labels: the nearest point of a coarse grid, and what it costs.

F. Sattler, A. Marban, R. Rischke, W. Samek, "Communication-Efficient Federated
Distillation", arXiv:2012.00632. The grid of b bits holds the vectors of multiples of
1 / (2^b - 1) that sum to 1: with b = 1 the one-hot ones. From one round to the next only
the change of a sample's code is told, at H(Y_t | Y_{t-1}) bits a sample.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_BITS = 24
"""What float32 can tell apart."""

_UNTOLD = -1.0
"""In place of a code that was not told yet."""


def quantise(probabilities: NDArray[Any], bits: int) -> NDArray[np.float64]:
    """Return the nearest grid point, in L1, of each row.

    Rounds down, and hands what is missing out by largest remainder, the lowest index
    first among equals.

    Parameters
    ----------
    probabilities
        Rows that are not negative and sum to 1 but for rounding, ``[rows, classes]``.
    bits
        b, 1 to 24.

    Raises
    ------
    ValueError
        If b is out of range, or a row is no distribution.
    """
    if not 1 <= bits <= LARGEST_BITS:
        raise ValueError(f"bits = {bits}: expected 1 to {LARGEST_BITS}")
    values = np.asarray(probabilities, np.float64)
    total = values.sum(axis=1, keepdims=True)
    if not (np.isfinite(total).all() and (values >= 0).all() and (total > 0).all()):
        raise ValueError("rows to quantise: expected probabilities")
    levels = 2**bits - 1
    scaled = values / total * levels
    lower = np.floor(scaled)
    missing = levels - lower.sum(axis=1, keepdims=True)
    order = np.argsort(lower - scaled, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    nearest: NDArray[np.float64] = (lower + (rank < missing)) / levels
    return nearest


def delta_code_bits(codes: NDArray[Any], previous: NDArray[Any] | None = None) -> float:
    """Return what an ideal coder needs for a round's codes when it knows the last one's.

    That is rows * H(code | code of the same row before), with the frequencies found;
    where nothing came before, rows * H(code).

    Parameters
    ----------
    codes, previous
        Rows of :func:`quantise`, ``[rows, classes]``; the same samples in both.

    Raises
    ------
    ValueError
        If they have not the same number of rows.
    """
    if previous is None:
        return _entropy_bits(codes)
    if len(codes) != len(previous):
        raise ValueError(
            f"codes of {len(codes)} samples, and of {len(previous)} before: expected the "
            "same samples"
        )
    return _entropy_bits(np.hstack([previous, codes])) - _entropy_bits(previous)


class DeltaLedger:
    """Counts what clients' codes cost an ideal coder that knows the last of each row.

    What a client tells in a round is coded together: rows that it told of before at
    H(code | code before), the others at H(code), with the frequencies found.

    Parameters
    ----------
    num_rows
        Number of public rows.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._last: dict[int, NDArray[np.float32]] = {}
        self._told: dict[int, list[tuple[NDArray[Any], NDArray[Any]]]] = {}

    def begin_round(self) -> None:
        """Count from 0 again; what was told stays known."""
        self._told = {}

    def add(self, client_id: int, rows: NDArray[Any], codes: NDArray[Any]) -> None:
        """Take in the codes of some public rows, each at most once.

        Parameters
        ----------
        client_id
            Who tells them.
        rows
            Numbers of the rows.
        codes
            As of :func:`quantise`, ``[rows, classes]``.
        """
        fresh = np.full((self._num_rows, codes.shape[1]), _UNTOLD, np.float32)
        last = self._last.setdefault(client_id, fresh)
        self._told.setdefault(client_id, []).append((last[rows], codes))
        last[rows] = codes

    def bits(self) -> float:
        """Return the bits of the round so far, of all clients together."""
        total = 0.0
        for told in self._told.values():
            before, codes = (np.concatenate(parts) for parts in zip(*told, strict=True))
            known = before[:, 0] != _UNTOLD
            total += delta_code_bits(codes[known], before[known])
            total += delta_code_bits(codes[~known])
        return total

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the last codes of each client."""
        return {str(client_id): codes for client_id, codes in self._last.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take them back."""
        self._last = {int(name): codes.copy() for name, codes in state.items()}


def _entropy_bits(rows: NDArray[Any]) -> float:
    """Return the number of rows times the entropy of their distribution."""
    if not len(rows):
        return 0.0
    _, counts = np.unique(rows, axis=0, return_counts=True)
    return float((counts * np.log2(len(rows) / counts)).sum())
