"""Mini-batches of public data, the same on clients and server without a message."""

from typing import TYPE_CHECKING

from fedsuite.core.rng import numpy_stream

if TYPE_CHECKING:
    from torch import Tensor


def public_batch(
    num_rows: int, batch_size: int, seed: int, server_round: int, step: int
) -> "Tensor":
    """Return the rows of one public mini-batch, a pure function of its arguments.

    Parameters
    ----------
    num_rows
        Number of public rows, at least 1.
    batch_size
        Rows to draw; 0, or ``num_rows`` or more, takes all rows in a new order.
    seed
        The experiment's seed, not a client's seed.
    server_round, step
        Each pair has a draw of its own.

    Returns
    -------
    Tensor
        int64 numbers of rows, each at most once.
    """
    import torch

    if num_rows < 1 or batch_size < 0:
        raise ValueError(
            f"num_rows = {num_rows}, batch_size = {batch_size}: expected at least 1 row, "
            "and a size of at least 0"
        )
    order = numpy_stream(seed, f"public-batch/{step}", server_round).permutation(num_rows)
    return torch.from_numpy(order[: batch_size or num_rows])
