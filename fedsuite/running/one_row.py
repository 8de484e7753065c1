"""A check before the start for mini-batches of one row, which some networks refuse.

A last mini-batch of one row joins the one before it, in the training itself.
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np
from torch import nn

from fedsuite.core.errors import ConfigError
from fedsuite.data import FederatedData
from fedsuite.data.rows import Rows
from fedsuite.experiment.experiment import Experiment
from fedsuite.models.assignment import experiment_networks
from fedsuite.models.one_row import example_rows, one_row_failure

_ADVICE = "choose a model without batch normalisation"
_LISTED = 5
"""Clients that a warning names."""

logger = logging.getLogger(__name__)


def refuse_one_row(
    experiment: Experiment,
    data: FederatedData,
    networks: Callable[[], Sequence[nn.Module]],
) -> None:
    """Refuse mini-batches that a network cannot train on; warn of clients with one row.

    Parameters
    ----------
    experiment, data
        The experiment and its data. Sites know alone how many rows they have.
    networks
        Makes the clients' distinct networks, if they are wanted.

    Raises
    ------
    ConfigError
        If all mini-batches have one row, or all clients.
    """
    sizes = Rows.of(data.partition.train).sizes
    one = _keys_of_one(experiment, data)
    if not one and not (sizes == 1).any():
        return
    rows = example_rows(data.input_shape, data.holds_words)
    reasons = [one_row_failure(network, rows) for network in networks()]
    reason = next(filter(None, reasons), "")
    if not reason:
        return
    if one:
        raise ConfigError(
            f"key {one[0]} = {experiment[one[0]]} makes mini-batches of one row, on which "
            f"the network cannot train ({reason}): give 2 or more, or {_ADVICE}"
        )
    of_client = experiment_networks(experiment.values).of_client
    idle = [k for k in np.flatnonzero(sizes == 1).tolist() if reasons[of_client[k]]]
    if not idle:
        return
    what = f"have one training row, on which their network cannot train ({reason})"
    if len(idle) == np.count_nonzero(sizes):
        raise ConfigError(f"all clients {what}: give them more, or {_ADVICE}")
    more = f" and {len(idle) - _LISTED} more" if len(idle) > _LISTED else ""
    logger.warning(
        "clients %s%s %s: they take no step; give them more, or %s",
        ", ".join(map(str, idle[:_LISTED])),
        more,
        what,
        _ADVICE,
    )


def _keys_of_one(experiment: Experiment, data: FederatedData) -> list[str]:
    """Return the keys by which all mini-batches of a kind have one row."""
    strategy, keys = experiment.strategy, []
    if experiment["batch-size"] == 1 and "batch-size" not in strategy.UNUSED:
        keys.append("batch-size")
    if strategy.takes("public_rows"):
        rows = len(data.public_set())
        if rows == 1:
            keys.append("public-size")
        elif experiment.values.get("public-batch-size") == 1:
            keys.append("public-batch-size")
    return keys
