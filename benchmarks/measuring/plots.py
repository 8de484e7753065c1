"""The picture of all cases and peers."""

from collections.abc import Mapping
from pathlib import Path

MARKERS = "o^sDvP*X"


def plot_glance(ratios: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Write a row of marks for each case: an arm's seconds of a round over the floor's.

    Parameters
    ----------
    ratios
        Case to arm to ratio.
    path
        PNG to write.
    """
    from matplotlib.figure import Figure

    cases = list(ratios)[::-1]
    arms = list(dict.fromkeys(arm for by_arm in ratios.values() for arm in by_arm))
    figure = Figure(figsize=(9, 1.6 + 0.5 * len(cases)), layout="constrained")
    axes = figure.subplots()
    for index, arm in enumerate(arms):
        places = [place for place, case in enumerate(cases) if arm in ratios[case]]
        ours = arm.startswith(("local", "ray"))
        axes.plot(
            [ratios[cases[place]][arm] for place in places],
            places,
            MARKERS[index % len(MARKERS)],
            label=f"fedsuite, {arm}" if ours else arm,
            color=f"C{index}",
            markersize=10 if ours else 7,
            markerfacecolor=f"C{index}" if ours else "none",
        )
    axes.axvline(1.0, color="0.3", linewidth=1)
    axes.set_xscale("log")
    ticks = (0.5, 1, 2, 5, 10, 20)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(cases)), [case.upper() for case in cases])
    axes.set_ylim(-0.6, len(cases) - 0.4)
    axes.set_xlabel("time of a round over that of a bare PyTorch loop (left is faster)")
    axes.grid(axis="x", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=130)
