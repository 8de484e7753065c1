"""Variance of the aggregate when a round is repeated (figure 2b of the paper).

W. Chen, Q. Qiu, arXiv:2503.08652, section 7.1. From one global state the training of a
round is repeated N times, and the N aggregated filters have the population variance

    Var = 1/N sum_i || theta_i - mean ||^2.

Filters are the weights of a dense network, or coefficients times atoms of a factored one.
Repeat 0 is the run itself, with the bits of ``fedsuite run``. The other repeats are rounds
of the same strategy and clients, restored from a checkpoint, with another seed.

The paper does not say whether a repeat also samples its clients anew, so both are measured.
The variance is also given relative to ||mean||^2 and to ||mean - start||^2, because the two
networks have filters of different size. For a factored network the clients' own filters are
averaged too, sum_k (n_k / n) A_k x D_k. The ratio of the two variances is the effect of
averaging factors apart.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from flwr.app import ArrayRecord, ConfigRecord
from matplotlib.figure import Figure

from fedsuite.cli import main
from fedsuite.core.errors import RunError
from fedsuite.core.output import print_line
from fedsuite.core.rng import stream_seed
from fedsuite.core.vectors import Vector
from fedsuite.experiment.command_options import (
    FileArgument,
    OutputOption,
    OverwriteOption,
    SetOption,
    overrides,
)
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import (
    ARRAYS,
    NUM_EXAMPLES,
    TRAIN,
    Arrays,
    Reply,
    Request,
)
from fedsuite.results.analysis_files import Table
from fedsuite.results.plots import LINE_STYLES, PALETTE, dress
from fedsuite.rounds.aggregation import WeightedMean
from fedsuite.rounds.checkpoint import Checkpoint
from fedsuite.rounds.events import Callback, RoundReport, RunState
from simulations.decomposition.federation import Federation
from simulations.decomposition.filters import DenseSpace, Spread
from simulations.decomposition.variants import Models, ModelsOption, variant
from simulations.figures import DrawnOutput, legend_below, panels, whole_rounds


class Clients(StrEnum):
    """Choice of a repeat's clients."""

    BOTH = "both"
    SAME = "same"
    RESAMPLED = "resampled"


class Row(NamedTuple):
    """Measures of one round; see the module's docstring."""

    server_round: int
    model: str
    clients: str
    variance: float
    relative_to_mean: float
    relative_to_update: float
    products_variance: float | None
    ratio: float | None


COLUMNS = (
    *("round", "model", "clients", "variance", "variance / mean^2"),
    *("variance / update^2", "variance of averaged products", "ratio"),
)


@dataclass
class Repeats:
    """Filters of a repeated round: before it, aggregates, and clients' own averages.

    Dense networks have no ``products``.
    """

    start: Vector
    aggregates: Spread
    products: Spread | None

    def row(self, server_round: int, model: str, clients: str) -> Row:
        """Return the numbers of the table."""
        mean, variance = self.aggregates.mean, self.aggregates.variance
        update = mean - self.start
        relative = variance / float(mean @ mean), variance / float(update @ update)
        other = None if self.products is None else self.products.variance
        ratio = None if other is None else variance / other
        return Row(server_round, model, clients, variance, *relative, other, ratio)


class ProductAverage:
    """Average of clients' filters, weighted by examples."""

    def __init__(self, space: DenseSpace) -> None:
        self._space = space
        self._mean = WeightedMean()
        self._start: Arrays = {}

    def begin(self, start: Arrays) -> None:
        """Start anew, with ``start`` for arrays that clients do not send."""
        self._mean, self._start = WeightedMean(), start

    def watch(self, request: Request, reply: Reply) -> None:
        """Add a client's reply."""
        if request.message_type != TRAIN or ARRAYS not in reply.arrays:
            return
        trained = {**self._start, **reply.arrays[ARRAYS]}
        weight = reply.metrics[NUM_EXAMPLES]
        assert isinstance(weight, int | float)
        self._mean.add({"filters": self._space.filters(trained)}, weight)

    def result(self) -> Vector:
        """Return the average."""
        mean = self._mean.result()
        if mean is None:
            raise RunError("no client came back with a model: the round has no average")
        return mean["filters"]


class RoundRepeater(Callback):
    """Callback that repeats the rounds 1, 1 + every, ... of a run.

    Parameters
    ----------
    products
        Average of the run's own clients.
    repeats
        Number of repeats N, the run's own round among them as repeat 0.
    clients
        ``same``, ``resampled``, or both.
    model
        Name of the network in the rows.
    """

    def __init__(
        self,
        federation: Federation,
        products: ProductAverage,
        *,
        repeats: int,
        every: int,
        clients: Sequence[str],
        model: str,
    ) -> None:
        self.rows: list[Row] = []
        self._federation = federation
        self._space = DenseSpace(federation.model)
        self._every, self._clients, self._model = every, clients, model
        self._products = products
        self._open: dict[str, Repeats] = {}
        seed = federation.experiment.seed
        self._repeats = [
            _Repeat(federation, self._space, stream_seed(seed, f"repeat-{index}"))
            for index in range(1, repeats)
        ]

    def on_start(self, state: RunState) -> None:
        """Repeat the first round."""
        self._repeat_next(state)

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Add the run's own round to its repeats, and repeat the next one."""
        aggregate = self._space.filters(to_arrays(state.arrays))
        for clients, repeats in self._open.items():
            repeats.aggregates.add(aggregate)
            if repeats.products is not None:
                repeats.products.add(self._products.result())
            self.rows.append(repeats.row(report.server_round, self._model, clients))
        if self._open:
            print_line(f"{self._model}: round {report.server_round} measured")
        self._open = {}
        if state.server_round < state.num_rounds:
            self._repeat_next(state)

    def _repeat_next(self, state: RunState) -> None:
        if state.server_round % self._every:
            return
        checkpoint = Checkpoint.capture(state, "", {})
        start = self._space.filters(checkpoint.arrays)
        for clients in self._clients:
            products = Spread() if self._space.is_factored else None
            self._open[clients] = Repeats(start, Spread(), products)
            for repeat in self._repeats:
                # The run stores the same clients' states next.
                repeat.run(checkpoint, state.num_rounds, clients, self._open[clients])
        self._products.begin(checkpoint.arrays)


class _Repeat:
    """One of the repeats beside the run, with its own seed and clients."""

    def __init__(self, federation: Federation, space: DenseSpace, seed: int) -> None:
        self._federation, self._space, self._seed = federation, space, seed
        self._products = ProductAverage(space)
        self._grid = federation.grid(self._products.watch, client_seed=seed)

    def run(
        self, checkpoint: Checkpoint, num_rounds: int, clients: str, into: Repeats
    ) -> None:
        """Train and aggregate the round after a checkpoint."""
        seed = self._seed if clients == Clients.RESAMPLED else None
        strategy = self._federation.strategy(seed)
        state = RunState(strategy, self._grid, num_rounds, ArrayRecord())
        # A strategy may change restored state in place.
        copy.deepcopy(checkpoint).restore(state)
        strategy.num_rounds = num_rounds
        self._products.begin(checkpoint.arrays)
        server_round = checkpoint.server_round + 1
        messages = strategy.configure_train(
            server_round, state.arrays, ConfigRecord(), self._grid
        )
        replies = self._grid.send_and_receive(messages)
        arrays, _ = strategy.aggregate_train(server_round, replies)
        if arrays is None:
            raise RunError(f"a repeat of round {server_round} made no new model")
        into.aggregates.add(self._space.filters(to_arrays(arrays)))
        if into.products is not None:
            into.products.add(self._products.result())


def measure(
    experiment: Experiment, *, repeats: int, every: int, clients: Clients, model: str
) -> list[Row]:
    """Run an experiment and measure the variance of its rounds; see :class:`RoundRepeater`.

    Where all clients train in each round, sampling changes nothing, and ``both`` is
    ``same``.
    """
    federation = Federation(experiment)
    products = ProductAverage(DenseSpace(federation.model))
    all_train = experiment["clients-per-round"] in (0, experiment["num-clients"])
    both = (Clients.SAME,) if all_train else (Clients.SAME, Clients.RESAMPLED)
    chosen = both if clients is Clients.BOTH else (clients,)
    repeater = RoundRepeater(
        federation,
        products,
        repeats=repeats,
        every=every,
        clients=[choice.value for choice in chosen],
        model=model,
    )
    federation.run(federation.grid(products.watch), [repeater])
    return repeater.rows


def command(
    experiment: FileArgument,
    output: OutputOption = Path("analysis"),
    repeats: Annotated[int, typer.Option(min=2, help="Repeats of a round.")] = 10,
    every: Annotated[int, typer.Option(min=1, help="Rounds between measurements.")] = 5,
    clients: Annotated[
        Clients, typer.Option(help="Clients of a repeat: the run's, sampled anew, or both.")
    ] = Clients.BOTH,
    models: ModelsOption = Models.BOTH,
    settings: SetOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Measure how much the aggregated filters vary when a round is repeated."""
    set_values = overrides(settings)
    loaded = {n: Experiment.load(experiment, variant(n, set_values)) for n in models.names}
    files = DrawnOutput.claim(output, "aggregation_variance", overwrite=overwrite)
    rows = [
        row
        for name, each in loaded.items()
        for row in measure(each, repeats=repeats, every=every, clients=clients, model=name)
    ]
    note = (
        f"Population variance of the filters after aggregation over {repeats} repeats of "
        "a round from one global state; relative to the squared norm of their mean, and of "
        "its distance from the state before. Clients: the same in each repeat, or sampled "
        "anew. Ratio: variance over that of the average of the clients' own filters, "
        "weighted by examples, in the same repeats."
    )
    files.draw(Table(COLUMNS, rows, note), variance_figure(rows))


PANELS = {
    "variance": ("Variance of the aggregated filters", "variance"),
    "relative_to_mean": ("Relative to the filters", "variance / ||mean||²"),
    "relative_to_update": ("Relative to the round's step", "variance / ||mean - start||²"),
    "ratio": ("Averaging factors instead of products", "ratio of variances"),
}


def variance_figure(rows: Sequence[Row]) -> Figure:
    """Draw the measures against rounds, a line per network and choice of clients."""
    models = list(dict.fromkeys(row.model for row in rows))
    choices = list(dict.fromkeys(row.clients for row in rows))
    shown = [p for p in PANELS if any(getattr(row, p) is not None for row in rows)]
    figure, grid = panels(len(shown), 2, 4.8, 3.2, extra=0.5)
    for axes, panel in zip(grid, shown, strict=True):
        for model in models:
            for clients in choices:
                own = [row for row in rows if (row.model, row.clients) == (model, clients)]
                measured = [(row.server_round, getattr(row, panel)) for row in own]
                points = [point for point in measured if point[1] is not None]
                if points:
                    axes.plot(
                        *zip(*points, strict=True),
                        color=PALETTE[models.index(model)],
                        linestyle=LINE_STYLES[choices.index(clients)],
                        marker="o",
                        markersize=3,
                        label=f"{model}, {clients} clients",
                    )
        dress(axes, PANELS[panel][0], "round", PANELS[panel][1])
        whole_rounds(axes)
        if panel == "ratio":
            axes.axhline(1, color="black", linewidth=0.8)
        else:
            axes.set_yscale("log")
    legend_below(figure, grid[0], columns=4)
    return figure


if __name__ == "__main__":
    main(lambda: typer.run(command))
