"""Training losses of a dense and a factored run, and the runs' paths over the surface.

W. Chen, Q. Qiu, arXiv:2503.08652, figures 3b and 3c; the surface in the style of H. Li et
al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018. The analysis makes the
two runs itself, because a run's folder keeps only its last checkpoints. A factored network
counts as the dense network with the same filters, so that both paths lie in one space. The
plane goes through the mean of all points, along their first two principal directions.
Losses are of the global model, over a fixed sample of all clients' training data. The
curves show the losses of the true points, which lie off the plane.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedsuite.cli import main
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.output import print_line
from fedsuite.core.rng import numpy_stream
from fedsuite.core.vectors import Vector
from fedsuite.data import FederatedData, Split
from fedsuite.experiment.command_options import (
    FileArgument,
    OutputOption,
    OverwriteOption,
    SetOption,
    overrides,
)
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import Arrays
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.decomposed import recompose
from fedsuite.results.analysis_files import Table
from fedsuite.results.plots import PALETTE, dress
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.training.evaluation import mean_loss
from fedsuite.training.loop import resolve_device
from simulations.decomposition.federation import Federation
from simulations.decomposition.filters import DenseSpace, flat
from simulations.decomposition.variants import variant
from simulations.figures import DrawnOutput, panels, whole_rounds

MARGIN = 0.15
"""Margin around the paths, as a share of their extent."""


@dataclass(frozen=True)
class Plane:
    """A plane in a space of P dimensions.

    Parameters
    ----------
    centre
        Point (P,) with coordinates (0, 0).
    directions
        Two orthonormal vectors (2, P).
    explained
        Share of the points' variance along each direction.
    """

    centre: Vector
    directions: Vector
    explained: tuple[float, float]

    def coordinates(self, points: Vector) -> Vector:
        """Return (n, 2) coordinates of the projections of points (n, P)."""
        projected: Vector = (points - self.centre) @ self.directions.T
        return projected

    def point(self, x: float, y: float) -> Vector:
        """Return the point (P,) at coordinates (x, y)."""
        point: Vector = self.centre + np.array([x, y]) @ self.directions
        return point


class Row(NamedTuple):
    """A point of a path: coordinates, loss, and loss of the projection."""

    model: str
    server_round: int
    x: float
    y: float
    loss: float
    plane_loss: float


def principal_plane(points: Vector) -> Plane:
    """Return the plane that fits points (n, P) best; they must not lie on one line.

    The largest entry of each direction is positive, which fixes the sign.
    """
    centre = points.mean(axis=0)
    _, sizes, directions = np.linalg.svd(points - centre, full_matrices=False)
    if len(sizes) < 2 or sizes[1] <= 1e-12 * sizes[0]:
        raise RunError(
            "the paths lie on one line: give more rounds by --set num-rounds=..."
        )
    shares = sizes**2 / (sizes**2).sum()
    two = directions[:2]
    peaks = two[np.arange(2), np.abs(two).argmax(axis=1)]
    explained = float(shares[0]), float(shares[1])
    return Plane(centre, two * np.sign(peaks)[:, None], explained)


class Trajectory(Callback):
    """Callback that keeps the global model's dense parameters ``names`` of each round."""

    def __init__(self, space: DenseSpace, names: list[str]) -> None:
        self.points: list[Vector] = []
        self._space, self._names = space, names

    def on_start(self, state: RunState) -> None:
        """Keep the initial model."""
        dense = self._space.dense(to_arrays(state.arrays))
        self.points.append(flat(dense[name] for name in self._names))

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        """Keep the model after a round."""
        self.on_start(state)


class Surface:
    """The training loss as a function of all parameters of a dense network.

    The parameters of ``model`` are overwritten.
    """

    def __init__(self, model: torch.nn.Module, data: Split) -> None:
        self._model, self._data = model, data
        self._shapes = {name: a.shape for name, a in model_arrays(model).items()}

    @property
    def names(self) -> list[str]:
        """Names of the parameters, in the order of a point."""
        return list(self._shapes)

    def loss(self, point: Vector) -> float:
        """Return the mean loss at a point (P,)."""
        arrays: Arrays = {}
        start = 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            arrays[name] = point[start : start + size].reshape(shape)
            start += size
        load_arrays(self._model, arrays)
        return mean_loss(self._model, self._data)


def training_sample(data: FederatedData, count: int, seed: int) -> Split:
    """Return a random sample of all clients' training data; ``count`` 0 is all."""
    parts = [data.client(client_id).train for client_id in range(data.num_clients)]
    features = torch.cat([part.features for part in parts])
    labels = torch.cat([part.labels for part in parts])
    if 0 < count < len(labels):
        rng = numpy_stream(seed, "loss-plane")
        chosen = np.sort(rng.choice(len(labels), count, replace=False))
        features, labels = features[chosen], labels[chosen]
    return Split(features, labels)


def make_surface(federation: Federation, samples: int) -> Surface:
    """Return the surface of an experiment's training loss."""
    experiment = federation.experiment
    if any(True for _ in federation.model.buffers()):
        raise ConfigError(
            f"model {experiment['model']} keeps running statistics, which have no place on "
            "a plane of parameters: choose one without normalisation, such as cnn"
        )
    data = training_sample(federation.data, samples, experiment.seed)
    device = resolve_device(experiment.group(RunSettings).device)
    on_device = Split(data.features.to(device), data.labels.to(device))
    return Surface(recompose(federation.model).to(device), on_device)


def command(
    experiment: FileArgument,
    output: OutputOption = Path("analysis"),
    resolution: Annotated[
        int, typer.Option(min=2, help="Points of the surface along each side.")
    ] = 21,
    samples: Annotated[
        int, typer.Option(min=0, help="Training samples that losses are over; 0: all.")
    ] = 1000,
    settings: SetOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Run an experiment dense and factored, and draw both paths over the loss surface."""
    set_values = overrides(settings)
    names = ("dense", "factored")
    loaded = {n: Experiment.load(experiment, variant(n, set_values)) for n in names}
    files = DrawnOutput.claim(output, "loss_plane", overwrite=overwrite)
    federations = {name: Federation(each) for name, each in loaded.items()}
    surface = make_surface(federations["dense"], samples)
    points = {}
    for name, federation in federations.items():
        trajectory = Trajectory(DenseSpace(federation.model), surface.names)
        federation.run(federation.grid(), [trajectory])
        points[name] = np.array(trajectory.points)
        print_line(f"{name}: {len(trajectory.points) - 1} rounds")
    plane = principal_plane(np.concatenate(list(points.values())))
    rows = [
        Row(name, index, x, y, surface.loss(point), surface.loss(plane.point(x, y)))
        for name, path in points.items()
        for index, (point, (x, y)) in enumerate(
            zip(path, plane.coordinates(path).tolist(), strict=True)
        )
    ]
    columns = ("model", "round", "x", "y", "loss", "loss on the plane")
    note = (
        "Mean training loss of the global model; round 0 is the start. The plane holds "
        f"{100 * plane.explained[0]:.1f} % and {100 * plane.explained[1]:.1f} % of the "
        "paths' variance along x and y."
    )
    figure = plane_figure(rows, plane, surface, resolution)
    files.draw(Table(columns, rows, note), figure)


def plane_figure(
    rows: list[Row], plane: Plane, surface: Surface, resolution: int
) -> Figure:
    """Draw the losses against rounds, and both paths over the surface."""
    figure, (left, right) = panels(2, 2, 5.5, 4.6)
    corners = np.array([(row.x, row.y) for row in rows])
    room = MARGIN * np.ptp(corners, axis=0)
    low, high = corners.min(axis=0) - room, corners.max(axis=0) + room
    xs, ys = (np.linspace(low[axis], high[axis], resolution) for axis in (0, 1))
    losses = np.array([[surface.loss(plane.point(x, y)) for x in xs] for y in ys])
    _draw_surface(figure, right, xs, ys, losses)
    for index, model in enumerate(dict.fromkeys(row.model for row in rows)):
        path = [row for row in rows if row.model == model]
        style: dict[str, Any] = {"color": PALETTE[index], "marker": "o", "markersize": 3}
        style["label"] = model
        left.plot([row.server_round for row in path], [row.loss for row in path], **style)
        right.plot([row.x for row in path], [row.y for row in path], **style)
        right.plot(path[-1].x, path[-1].y, "*", color=PALETTE[index], markersize=13)
    dress(left, "Training loss of the global model", "round", "loss")
    whole_rounds(left)
    labels = (
        f"direction {axis + 1} ({100 * plane.explained[axis]:.0f} % of variance)"
        for axis in (0, 1)
    )
    dress(right, "Paths over the training loss; stars are the ends", *labels)
    left.legend(frameon=False)
    return figure


def _draw_surface(
    figure: Figure, axes: Axes, xs: Vector, ys: Vector, losses: NDArray[np.float64]
) -> None:
    """Draw contours, evenly spaced in the logarithm of the loss."""
    levels = np.geomspace(max(losses.min(), 1e-6), losses.max(), 16)
    levels[-1] *= 1.001
    filled = axes.contourf(xs, ys, losses, levels=levels, cmap="Greys", alpha=0.6)
    axes.contour(xs, ys, losses, levels=levels, colors="0.4", linewidths=0.5)
    bar = figure.colorbar(filled, ax=axes, label="training loss", format="%.2f")
    bar.minorticks_off()


if __name__ == "__main__":
    main(lambda: typer.run(command))
