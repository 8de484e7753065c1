"""The picture of a comparison."""

from collections.abc import Sequence
from pathlib import Path

from measuring.tables import ArmRun, by_arm


def plot_speed(runs: Sequence[ArmRun], title: str, path: Path) -> None:
    """Write bars of wall and processor seconds a round, all repeats as dots.

    Parameters
    ----------
    runs
        All runs of all arms.
    title
        Above the picture.
    path
        PNG to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    grouped = by_arm(runs)
    names = list(grouped)[::-1]
    figure, axes = pyplot.subplots(
        1, 3, figsize=(11, 1.2 + 0.4 * len(names)), sharey=True, layout="constrained"
    )
    panels = (
        ("seconds", "wall seconds a round"),
        ("cpu", "processor seconds a round"),
        ("peak_mib", "peak memory, MiB"),
    )
    for axis, (key, label) in zip(axes, panels, strict=True):
        for place, name in enumerate(names):
            values = [getattr(run, key) for run in grouped[name]]
            axis.barh(place, min(values), color="C0", alpha=0.6)
            axis.plot(values, [place] * len(values), ".", color="black", markersize=4)
        axis.set_xlabel(label)
        axis.set_yticks(range(len(names)), names)
        axis.grid(axis="x", alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
