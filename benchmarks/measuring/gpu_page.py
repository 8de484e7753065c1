"""The page of the GPU kit: tables and pictures from its results."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from measuring.gpu_steps import TABLES, Step
from measuring.tables import markdown

Row = Mapping[str, Any]

COLUMNS = (
    *("s/round", "times as fast", "GPU busy, %", "GPU MiB", "host MiB"),
    *("round 1 after, s", "rounds", "all rounds, min", "accuracy, % (round)"),
)
FAKED = """\
**No number on this page comes from a GPU: the device is a CPU, faked.** Ray was told of a
GPU that is not there, the tests took the processor for it, and there are fewer clients,
rows and rounds. The page shows that all steps run, not how fast a GPU is."""
LEGEND = """\
- **Seconds of a round** are means from the end of round 1 to the end of the last but one.
- **Times as fast** is over the same clients with a whole GPU for each.
- **All rounds** are so many minutes, at that speed.
- **Busy** is the share of those rounds in which a kernel ran, as `nvidia-smi` tells it.
- **Memory** is the peak of the whole run.
- **Rounds** are fewer where a run had had its part of the time.
- **A dash** is what was not measured."""


def number(value: float | None, digits: int) -> str:
    """Return a number as a cell; a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def cells(row: Row, base: Row) -> tuple[str, ...]:
    """Return the cells under :data:`COLUMNS`, speed as over a base."""
    seconds, slower = row.get("seconds"), base.get("seconds")
    reached = row.get("accuracy")
    return (
        number(seconds, 4),
        number(slower / seconds if seconds and slower else None, 2),
        number(row.get("busy"), 0),
        number(row.get("gpu_mib"), 0),
        number(row.get("peak_mib"), 0),
        number(row.get("start"), 1),
        f"{row['rounds']} of {row['of_rounds']}" if seconds else "-",
        number(seconds * row["of_rounds"] / 60 if seconds else None, 1),
        f"{100 * reached[-1][1]:.2f} ({reached[-1][0]})" if reached else "-",
    )


def page(facts: Row, steps: Sequence[Step], rows: Mapping[str, Row], faked: bool) -> str:
    """Return the page.

    Parameters
    ----------
    facts
        Device, versions and data.
    steps
        All steps, done or not.
    rows
        What was found, by the names of steps.
    faked
        Whether the processor stood in for a GPU.
    """
    tests = rows.get("tests", {})
    outcome = tests.get("outcome", "failed" if tests else "not run")
    about = dict(facts)
    for key in ("commit", "date"):
        about[key] = ", ".join(sorted({row[key] for row in rows.values()}))
    parts = [
        f"# GPU kit: {facts['device']}",
        *([FAKED] if faked else []),
        f"`make gpu` writes this page. GPU tests (`tests/test_gpu.py`): {outcome}.",
        "![Seconds of a round by clients per round, F3 and F4](speed.png)",
        "![Accuracy by round](cifar10.png)",
        markdown(("what", "value"), [(key, f"{value}") for key, value in about.items()]),
        LEGEND,
    ]
    for table, (title, first) in TABLES.items():
        lines = [
            (*step.about, *cells(rows[step.name], rows.get(step.base, {})))
            for step in steps
            if step.table == table and step.name in rows
        ]
        parts += [f"## {title}", markdown((*first, *COLUMNS), lines)]
    if wrong := [f"- {n}: {row['error']}" for n, row in rows.items() if "error" in row]:
        parts += ["## What failed", "\n".join(wrong)]
    if missing := [step.name for step in steps if step.name not in rows]:
        parts.append(f"Not run: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def draw(title: str, steps: Sequence[Step], rows: Mapping[str, Row], folder: Path) -> None:
    """Write both pictures into a folder; the title names the device."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    done = [(s, rows[s.name]) for s in steps if "seconds" in rows.get(s.name, {})]
    panels = {"seconds": "s/round", "busy": "GPU busy, %"}
    if all(row.get("busy") is None for _, row in done):
        del panels["busy"]
    figure, grid = pyplot.subplots(
        len(panels),
        2,
        figsize=(9, 0.6 + 3 * len(panels)),
        layout="constrained",
        squeeze=False,
    )
    for axes, (key, label) in zip(grid, panels.items(), strict=True):
        for axis, case in zip(axes, ("f3", "f4"), strict=True):
            of_case = [(step, row.get(key)) for step, row in done if step.table == case]
            draw_case(axis, [(int(s.about[0]), v) for s, v in of_case if v is not None])
            scale = "log" if key == "seconds" else "linear"
            axis.set(title=case.upper(), ylabel=label, yscale=scale)
    figure.suptitle(title)
    figure.savefig(folder / "speed.png", dpi=120)
    figure, axis = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    for step, row in done:
        if step.table == "cifar10" and row["accuracy"]:
            reached = [100 * value for _, value in row["accuracy"]]
            axis.plot([at for at, _ in row["accuracy"]], reached, ".-", label=step.about[0])
    axis.set(xlabel="round", ylabel="accuracy, %")
    if axis.lines:
        axis.legend()
    finish(axis, (line.get_xdata()[place] for line in axis.lines for place in (0, -1)))
    figure.suptitle(f"CIFAR-10 as in the papers. {title}")
    figure.savefig(folder / "cifar10.png", dpi=120)
    pyplot.close("all")


def draw_case(axis: Any, points: Sequence[tuple[int, float]]) -> None:
    """Draw a value of each number of clients."""
    if points:
        axis.plot(*zip(*points, strict=True), "o-")
    axis.set(xlabel="clients per round")
    finish(axis, (clients for clients, _ in points))


def finish(axis: Any, places: Iterable[int]) -> None:
    """Give an axis ticks at some places, and a grid."""
    ticks = sorted(set(places))
    axis.set(xscale="log")
    axis.set_xticks(ticks, [f"{tick}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
