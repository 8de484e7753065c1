"""Losses and scores of the task ``survival``.

A label is a time of follow-up and 1 where the event was seen, 0 where the row is censored.

``cox``: D. Cox, "Regression Models and Life-Tables", JRSS B 34:187-220, 1972. A model has
one output per row, the log hazard ratio s. The loss is the negative log of the partial
likelihood of the mini-batch, divided by its rows, those that are censored among them::

    -(1/n) sum_{i: event} [ s_i - log sum_{j: t_j >= t_i} exp(s_j) ]

Tied events: B. Efron, JASA 72:557-565, 1977. The l-th of d events at one time (l from 0)
takes l/d of these d rows' risks from the sum over those at risk. Breslow's rule takes none.
The rows at risk are those of the mini-batch: a client that trains on all its rows at once
(``batch-size = 0``) minimises its own partial likelihood.

``discrete-time``: M. Gensheimer, B. Narasimhan, "A scalable discrete-time survival model
for neural networks", PeerJ 7:e6257, 2019. A model has one output per interval of time,
the log odds h of the event in it given that it has not come before::

    -(1/n) sum_i [ sum_{k survived by i} log(1 - sigmoid(h_ik))
               + event_i log sigmoid(h_ij) ]

An event counts in the interval j that holds its time. A censored row has survived an
interval if it was seen for half of it. After the last end nothing counts: an event there is
survival of all intervals.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsuite.core.errors import ConfigError
from fedsuite.core.tasks import interval_times
from fedsuite.core.vectors import Vector
from fedsuite.training.losses import LossFunction
from fedsuite.training.survival_scores import (
    Steps,
    concordance,
    cox_survival,
    integrated_brier_score,
)

if TYPE_CHECKING:
    from fedsuite.training.loop import TrainingOptions

Ties = Literal["efron", "breslow"]

Numbers = TypeVar("Numbers", Tensor, Vector)


def cox_loss(risks: Tensor, labels: Tensor, ties: Ties = "efron") -> Tensor:
    """Return the negative log partial likelihood divided by the rows.

    Parameters
    ----------
    risks
        Log hazard ratios ``[rows]``; more than 700 below the largest count as 700 below.
    labels
        Times and events ``[rows, 2]``.
    ties
        Rule for events at one time.
    """
    order = torch.argsort(labels[:, 0], descending=True, stable=True)
    times, events = labels[order, 0], labels[order, 1] > 0
    logs = risks[order].to(torch.float64)
    relative = torch.exp(logs - logs.detach().max()) if len(logs) else logs
    group, sizes = torch.unique_consecutive(times, return_inverse=True, return_counts=True)[
        1:
    ]
    # The last row of a time has all rows of this time, and of later ones, before it.
    at_risk = relative.cumsum(0)[sizes.cumsum(0) - 1][group]
    if ties == "efron" and len(sizes) < len(times):
        seen = torch.where(events, relative, 0.0)
        tied = seen.new_zeros(len(sizes)).index_add(0, group, seen)[group]
        at_risk = at_risk - _before(events, group, sizes) * tied
    least = torch.finfo(torch.float64).tiny
    losses = torch.log(at_risk.clamp_min(least)) - torch.log(relative.clamp_min(least))
    return (torch.where(events, losses, 0.0).sum() / max(len(logs), 1)).to(risks.dtype)


def _before(events: Tensor, group: Tensor, sizes: Tensor) -> Tensor:
    """Return l/d for the l-th of d events at one time, counted from 0."""
    seen = events.to(torch.float64)
    counts = torch.zeros(len(sizes), dtype=torch.float64, device=events.device)
    counts = counts.index_add(0, group, seen)
    earlier = (counts.cumsum(0) - counts)[group]
    place = seen.cumsum(0) - seen - earlier
    return place / counts[group].clamp_min(1)


def discrete_time_loss(log_odds: Tensor, labels: Tensor, ends: Tensor) -> Tensor:
    """Return the negative log likelihood of intervals of time divided by the rows.

    Parameters
    ----------
    log_odds
        Log odds of the event in each interval ``[rows, intervals]``.
    labels
        Times and events ``[rows, 2]``.
    ends
        Ends of the intervals ``[intervals]``, ascending and above 0; the first begins at 0.
        An end belongs to the interval that it ends.
    """
    times, events = labels[:, :1], labels[:, 1:] > 0
    starts = functional.pad(ends[:-1], (1, 0))
    survived = torch.where(events, times > ends, times >= (starts + ends) / 2)
    # A time of 0 is in the first interval, which begins there.
    inside = (times <= ends) & ((times > starts) | (starts == 0))
    losses = functional.softplus(log_odds) * survived
    losses = losses + functional.softplus(-log_odds) * (events & inside)
    return losses.sum() / max(len(labels), 1)


def discrete_survival(log_odds: Vector, ends: Vector) -> Steps:
    """Return each row's survival: it falls at the end of each interval."""
    return Steps(ends, np.exp(-np.logaddexp(0.0, log_odds).cumsum(axis=1)), 1.0)


def loss(name: str, options: "TrainingOptions", labels: Tensor) -> LossFunction:
    """Return one of the task's losses; see :mod:`fedsuite.training.loop`."""
    if name == "discrete-time":
        ends = labels.new_tensor(interval_times(options.interval_ends))

        def discrete(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
            return discrete_time_loss(_outputs(model(features), len(ends)), labels, ends)

        return discrete

    def cox(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        return cox_loss(_outputs(model(features), 1)[:, 0], labels)

    return cox


def scores(
    names: Sequence[str], outputs: Tensor, labels: Tensor, options: "TrainingOptions"
) -> Mapping[str, float]:
    """Return the task's scores; see :mod:`fedsuite.training.loop`.

    A Cox model says nothing of the hazard that all rows share: for ``integrated-brier`` it
    is estimated on the rows that are scored.
    """
    times, events = labels.to(torch.float64).numpy().T
    numbers = outputs.to(torch.float64).numpy()
    if options.loss == "discrete-time":
        ends = np.array(interval_times(options.interval_ends))
        survival = discrete_survival(_outputs(numbers, len(ends)), ends)
        # Minus the time survived, of an event in an interval until its beginning.
        risks = -(survival.values * np.diff(ends, prepend=0.0)).sum(axis=1)
    else:
        risks = _outputs(numbers, 1)[:, 0]
        survival = cox_survival(times, events, risks)
    if not np.isfinite(risks).all():
        return dict.fromkeys(names, float("nan"))
    known = {
        "concordance": lambda: concordance(times, events, risks),
        "integrated-brier": lambda: integrated_brier_score(times, events, survival),
    }
    return {name: known[name]() for name in names}


def _outputs(outputs: Numbers, count: int) -> Numbers:
    if outputs.shape[1:] != (count,):
        raise ConfigError(
            f"a model for this loss has {count} outputs for each row, and this one gives "
            f"{'x'.join(map(str, outputs.shape[1:])) or 'one number'}: choose model = "
            "'linear' or 'mlp', or give it as many outputs as it is asked for"
        )
    return outputs
