"""CFD's coding of soft labels to a coarse grid, and the cost of the codes.

F. Sattler, A. Marban, R. Rischke, W. Samek, "Communication-Efficient Federated
Distillation", arXiv:2012.00632. The grid of b bits holds the vectors of multiples of
1 / (2^b - 1) that sum to 1: with b = 1 the one-hot ones. Clients send only the change of a
sample's code since the last round, at H(Y_t | Y_{t-1}) bits per sample.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_BITS = 24
"""Most bits that float32 can resolve."""

_UNTOLD = -1.0
"""Stands for a code not sent yet."""


def quantise(probabilities: NDArray[Any], bits: int) -> NDArray[np.float64]:
    """Return the nearest grid point, in L1, of each row.

    Entries are rounded down. The missing units go to the largest remainders, and among
    equal remainders to the lowest index.

    Parameters
    ----------
    probabilities
        Rows of probabilities, ``[rows, classes]``, each with sum 1 but for rounding.
    bits
        b, 1 to 24.

    Raises
    ------
    ValueError
        If b is out of range, or a row is not a distribution.
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
    """Return the bits of an ideal coder of a round's codes, given the last round's codes.

    The number is rows * H(code | last code of the row), with the frequencies found; in a
    first round, rows * H(code).

    Parameters
    ----------
    codes, previous
        Rows of :func:`quantise`, ``[rows, classes]``, of the same samples.

    Raises
    ------
    ValueError
        If the numbers of rows differ.
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
    """Ledger of an ideal coder's bits for the clients' codes, given each row's last code.

    A client's codes of a round are coded together, with the frequencies found. Rows with an
    earlier code cost H(code | last code). The other rows cost H(code).

    Parameters
    ----------
    num_rows
        Number of public rows.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._last: dict[int, NDArray[np.float32]] = {}
        self._uploads: dict[int, list[tuple[NDArray[Any], NDArray[Any]]]] = {}

    def begin_round(self) -> None:
        """Count from 0 again; the last codes stay known."""
        self._uploads = {}

    def add(self, client_id: int, rows: NDArray[Any], codes: NDArray[Any]) -> None:
        """Add a client's codes of some public rows, each row at most once.

        Parameters
        ----------
        client_id
            Client that sends the codes.
        rows
            Numbers of the rows.
        codes
            Codes of :func:`quantise`, ``[rows, classes]``.
        """
        fresh = np.full((self._num_rows, codes.shape[1]), _UNTOLD, np.float32)
        last = self._last.setdefault(client_id, fresh)
        self._uploads.setdefault(client_id, []).append((last[rows], codes))
        last[rows] = codes

    def bits(self) -> float:
        """Return the bits of all clients in the round so far."""
        total = 0.0
        for uploads in self._uploads.values():
            before, codes = (np.concatenate(parts) for parts in zip(*uploads, strict=True))
            known = before[:, 0] != _UNTOLD
            total += delta_code_bits(codes[known], before[known])
            total += delta_code_bits(codes[~known])
        return total

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the last codes of each client."""
        return {str(client_id): codes for client_id, codes in self._last.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the last codes of each client."""
        self._last = {int(name): codes.copy() for name, codes in state.items()}


def _entropy_bits(rows: NDArray[Any]) -> float:
    """Return the number of rows times the entropy of the rows' distribution."""
    if not len(rows):
        return 0.0
    _, counts = np.unique(rows, axis=0, return_counts=True)
    return float((counts * np.log2(len(rows) / counts)).sum())
