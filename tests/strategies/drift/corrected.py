"""Federations for the methods whose clients keep vectors: Q2, and small ones on digits.

Q2 is the quadratic problem of the specification: gradients w - 1 and 2 (w + 1), two steps
of 0.1 from w = 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from hypothesis import strategies as st

from fedsuite.data import Split
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import Arrays
from fedsuite.rounds.membership import sample_clients
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.training.app import make_client_app
from fedsuite.training.base import FederatedClient
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.helpers import Tamper, TamperingGrid, Trace, run
from tests.strategies.fair.quadratic import Curve, Point, quadratic_loss

Q2: Sequence[Curve] = ((0.5, 1.0), (1.0, -1.0))
M4: Sequence[Curve] = (*Q2, (1.5, 2.0), (2.0, -3.0))


FIRST_NODE = 1000
"""Node of client 0: its number for strategies that know clients by their nodes."""


CURVES = st.lists(
    st.tuples(st.floats(0.1, 2.0), st.floats(-3.0, 3.0)), min_size=4, max_size=4
)
"""Four curves, none steeper than steps of 0.1 can follow."""


class ComingAndGoing(TamperingGrid):
    """A grid whose nodes come and go: round to the indices of those connected."""

    present: Mapping[int, Sequence[int]] = {}

    def get_node_ids(self) -> list[int]:
        nodes = super().get_node_ids()
        here = self.present.get(self._exchanges + 1, range(len(nodes)))
        return [nodes[index] for index in here]


class QuadraticLoss:
    """Gives a client the loss of the curve that is its sample."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._plain_loss = quadratic_loss


@dataclass
class Federation:
    """What a run of a strategy on curves left behind."""

    strategy: FederatedStrategy
    store: MemoryStore
    trace: Trace
    grid: TamperingGrid
    models: list[float]

    def kept(self, client: int) -> dict[str, float]:
        """The numbers that a client keeps, by name; none if it was never asked."""
        known = self.strategy.client_versions
        version = known.get(client, known.get(FIRST_NODE + client))
        if version is None:
            return {}
        state = self.store.load(client, version)
        return {name: float(array.reshape(())) for name, array in state.items()}

    def vector(self, name: str, num_clients: int) -> list[float]:
        """One number that the clients keep, 0 where a client keeps none."""
        return [self.kept(k).get(name, 0.0) for k in range(num_clients)]


def run_curves(
    strategy: FederatedStrategy,
    client_class: type[FederatedClient],
    num_rounds: int,
    *,
    curves: Sequence[Curve] = Q2,
    counts: Sequence[int] = (1, 1, 1, 1),
    x: float = 0.0,
    tamper: Tamper | None = None,
    tampered_rounds: Sequence[int] = (1,),
    num_nodes: int | None = None,
    present: Mapping[int, Sequence[int]] | None = None,
    **training: Any,
) -> Federation:
    """Run rounds from x; client k holds ``counts[k]`` samples of its curve.

    The model never goes back to an earlier one: curves that hypothesis draws may explode.
    """
    strategy.recovery.begin = lambda now: None  # type: ignore[method-assign]
    quadratic = type("Quadratic", (QuadraticLoss, client_class), {})
    store = MemoryStore()
    options = {"local_steps": 2, "batch_size": 0, "learning_rate": 0.1, **training}

    def client_fn(context: Context, client_id: int) -> FederatedClient:
        curve = torch.tensor([curves[client_id]] * counts[client_id], dtype=torch.float64)
        data = Split(curve.reshape(-1, 2), torch.zeros(counts[client_id]).long())
        return quadratic(
            Point(),
            data,
            data,
            training=TrainingOptions(**options),
            client_id=client_id,
            store=store,
        )

    app = make_client_app(client_fn, list(client_class.ACTIONS))
    grid = ComingAndGoing(app, num_nodes or len(curves), tamper, tampered_rounds)
    grid.present = present or {}
    trace = run(strategy, grid, num_rounds, to_record({"x": np.array([x])}))
    models = [float(arrays["x"][0]) for arrays in trace.arrays]
    return Federation(strategy, store, trace, grid, models)


def curves_options(num_clients: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Take out of ``changes`` what :func:`run_curves` is told, on the first of ``M4``."""
    names = ("tamper", "tampered_rounds", "counts", "num_nodes")
    told = {name: changes.pop(name) for name in names if name in changes}
    return {"curves": M4[:num_clients], **told}


def options(num_clients: int = 2, **changes: Any) -> dict[str, Any]:
    """Return the keywords of strategies that know clients as 0, 1, ..."""
    return {
        "identity": "partition",
        "num_clients": num_clients,
        "fraction_evaluate": 0.0,
        "connect_timeout": 5.0,
        # Curves may differ by more than honest data do.
        "max_update_norm": "off",
        # A network that is not known keeps arrays from turning negative.
        "buffers": (),
        **changes,
    }


def sent(federation: Federation, record: str) -> list[float]:
    """The number in one record of the training message of each round."""
    by_round: dict[int, float] = {}
    for message in federation.grid.sent:
        if message.metadata.message_type == "train":
            arrays: Arrays = to_arrays(message.content.array_records[record])
            server_round = int(message.content["config"]["server-round"])
            by_round[server_round] = float(arrays["x"][0])
    return [by_round[key] for key in sorted(by_round)]


def drift_reference(
    federation: Federation,
    curves: Sequence[Curve],
    alpha: float,
    *,
    gradient_terms: bool,
    factors: Sequence[float] = (1, 1, 1, 1),
) -> list[float]:
    """FedDC by its equations for one number, with the clients that the run drew.

    ``factors`` are the omega_k. Without the gradient terms it is FedDyn.
    """
    w = total = mean_g = 0.0
    h, g = [0.0] * len(curves), [0.0] * len(curves)
    models = []
    for report in federation.trace.reports:
        assert report.train is not None
        reached, step = [], 0.0
        for k in [int(row["client"]) for row in report.train.rows]:
            (a, c), weight = curves[k], alpha / factors[k]
            seen = mean_g / factors[k] if gradient_terms else 0.0
            y = w
            for _ in range(2):
                y -= 0.1 * (2 * a * (y - c) + weight * (y - (w - h[k])) + seen - g[k])
            reached.append(y)
            h[k] += y - w
            total += y - w
            if gradient_terms:
                new = g[k] - seen - (y - w) / 0.2
                step += factors[k] * (new - g[k])
                g[k] = new
        w = sum(reached) / len(reached) + total / len(curves)
        mean_g += step / len(curves)
        models.append(w)
    return models


def seed_that_draws(wanted: list[int]) -> int:
    """Return a seed with which these two of four clients train in round 1."""
    return next(
        seed
        for seed in range(100)
        if sample_clients(range(4), 2, seed, 1, "sample-train") == wanted
    )
