"""The page of the GPU kit: tables and pictures from its results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from measuring.gpu_steps import TABLES, Step
from measuring.tables import markdown

Row = Mapping[str, Any]

COLUMNS = (
    *("s/round", "times as fast", "GPU busy, %", "GPU MiB", "host MiB"),
    *("round 1 after, s", "rounds", "all rounds, h", "accuracy, % (round)"),
)
FAKED = """\
**No number on this page comes from a GPU: the device is a CPU, faked.** Ray was told of a
GPU that is not there, the tests took the processor for it, and there are fewer clients,
rows and rounds. The page shows that all steps run, not how fast a GPU is."""
LEGEND = """\
- **Seconds of a round** are means from the end of round 1 to the end of the last but one.
- **Times as fast** is over the same clients one by one, or with a whole GPU for each.
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
        number(seconds * row["of_rounds"] / 3600 if seconds else None, 2),
        f"{100 * reached[-1][1]:.2f} ({reached[-1][0]})" if reached else "-",
    )


def answer(steps: Sequence[Step], rows: Mapping[str, Row]) -> str:
    """Return in words what the best cohort of each case brings."""
    found = []
    for case in ("f3", "f4"):
        faster = [
            (rows[step.base]["seconds"] / rows[step.name]["seconds"], step.about)
            for step in steps
            if step.table == case
            and all("seconds" in rows.get(name, {}) for name in (step.base, step.name))
        ]
        if faster:
            times, (clients, cohort) = max(faster)
            where = f"{clients} clients per round, cohorts of {cohort}"
            found.append(f"{case.upper()} {times:.1f} times ({where})")
    return f"**The best cohorts, over one by one: {', '.join(found) or 'none ran'}.**"


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
        FAKED if faked else answer(steps, rows),
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
    """Write both pictures into a folder, the device in the titles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    done = [
        (step, rows[step.name]) for step in steps if "seconds" in rows.get(step.name, {})
    ]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, case in zip(axes, ("f3", "f4"), strict=True):
        lines: dict[str, list[tuple[int, float]]] = {}
        for step, row in done:
            if step.table == case:
                clients, cohort = step.about
                name = "all in one cohort" if cohort == clients else f"cohort: {cohort}"
                lines.setdefault(name, []).append((int(clients), row["seconds"]))
        for name, points in lines.items():
            axis.plot(*zip(*points, strict=True), "o-", label=name)
        axis.set(xscale="log", yscale="log", xlabel="clients per round", ylabel="s/round")
        axis.set_title(case.upper())
        if axis.lines:
            axis.legend()
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
    figure.suptitle(f"CIFAR-10 as in the papers. {title}")
    figure.savefig(folder / "cifar10.png", dpi=120)
    pyplot.close("all")
