"""Curves: the numbers that the report draws, and the figure for a paper draws too."""

import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.extras import MissingExtraError
from fedsuite.results.compare import compare
from fedsuite.results.groups import group_runs
from fedsuite.results.paper_figure import (
    BAND,
    STYLE,
    check_figure,
    check_table,
    curves_figure,
    write_figure,
)
from fedsuite.results.reader import load_run
from fedsuite.results.report.figures import curve_figures, score_figures
from fedsuite.results.score import score_of
from tests.results.made_runs import make_run


def made(path, **keys):
    return make_run(path, **keys).path


def of_page(*paths):
    """Return rounds and values of each curve of the page, without bands, by title."""
    groups = group_runs([load_run(path) for path in paths])
    figures = [*score_figures(groups, score_of()), *curve_figures(groups)]
    return {
        figure.title: [
            (trace["x"], pytest.approx(trace["y"]))
            for trace in figure.data
            if trace["line"]["width"]
        ]
        for figure in figures
    }


def of_paper(*paths):
    """Return rounds and values of each curve of the figure for a paper, by title."""
    return {
        axes.get_title().partition(";")[0]: [
            (list(line.get_xdata()), list(line.get_ydata()))
            for line in axes.get_lines()
            if len(line.get_xdata())
        ]
        for axes in curves_figure(compare(paths)).axes
    }


def bands(axes):
    return [item for item in axes.collections if isinstance(item, PolyCollection)]


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def client_rows(server_round, phase, weights=(1, 9), **columns):
    """Return rows of clients that have ``weights`` examples, and values of columns."""
    return [
        {"round": server_round, "phase": phase, "client": client, "num_examples": weight}
        | {name: values[client] for name, values in columns.items()}
        for client, weight in enumerate(weights)
    ]


def test_curves_of_two_phases_and_a_discriminator(tmp_path):
    folder = make_run(tmp_path / "a", accuracies=(), status="running")
    for server_round in (1, 2):
        trained = {"trained_accuracy": (0.2, 0.4)}
        folder.append("clients", client_rows(server_round, "train", **trained))
        after = {"accuracy": (0.4, 0.6)}
        folder.append("clients", client_rows(server_round, "evaluate", **after))
        method = {"output_divergence": 0.07, "log_clients": 1.5}
        loss = {"discriminator_loss": 2.0 / server_round}
        folder.append("rounds", [{"round": server_round, **method, **loss}])
    found = of_paper(folder.path)
    assert found == {
        "After local training": [
            ([1, 2], pytest.approx([30, 30])),
            ([1, 2], pytest.approx([50, 50])),
        ],
        "Divergence of clients' outputs": [([1, 2], [0.07, 0.07])],
        "Discriminator's loss": [([1, 2], [2, 1]), ([1, 2], [1.5, 1.5])],
    }
    assert of_page(folder.path) == found
    own, _, discriminator = curves_figure(compare([folder.path])).axes
    dotted = [axes.get_lines()[1].get_linestyle() for axes in (own, discriminator)]
    assert dotted == [":"] * 2


def test_a_client_counts_once_but_where_the_page_says_that_rows_count(tmp_path):
    """Where clients differ in size the mean by examples is another one."""
    folder = make_run(tmp_path / "a", accuracies=(), status="running")
    folder.append("clients", client_rows(1, "train", trained_accuracy=(0.5, 1.0)))
    rows = client_rows(1, "evaluate", accuracy=(0.5, 1.0), loss=(3.0, 1.0))
    folder.append("clients", rows)
    by_examples = {"evaluate_accuracy": 0.95, "train_trained_accuracy": 0.95}
    losses = {"evaluate_loss": 1.2, "evaluate_received_training_loss": 0.7}
    row = {"round": 1, "accuracy_mean": 0.75, **by_examples, **losses}
    folder.append("rounds", [row])
    once = {
        "Mean accuracy over clients": [([1], [75])],
        "Evaluation loss": [([1], [2])],
        "After local training": [([1], [75]), ([1], [75])],
    }
    assert of_paper(folder.path) == once
    pooled = "Received model on all training data"
    assert of_page(folder.path) == {**once, pooled: [([1], [0.7])]}
    groups = group_runs([load_run(folder.path)])
    figures = [*score_figures(groups, score_of()), *curve_figures(groups)]
    notes = {figure.title: figure.note for figure in figures}
    assert notes.pop(pooled) == "Mean over rows: clients count by how many they have."
    assert set(notes.values()) == {"Mean over clients, each counting once."}


def test_curves_of_one_run(tmp_path):
    path = made(tmp_path / "a", accuracies=((0.2, 0.4), (0.6, 0.9)))
    figure = curves_figure(compare([path]))
    assert [(axes.get_title(), axes.get_ylabel()) for axes in figure.axes] == [
        ("Mean accuracy over clients", "accuracy (%)"),
        ("Accuracy of the worst tenth, at least one client", "accuracy (%)"),
        ("Evaluation loss", "loss"),
    ]
    assert {axes.get_xlabel() for axes in figure.axes} == {"round"}
    found = of_paper(path)
    assert found["Mean accuracy over clients"] == [([1, 2], pytest.approx([30, 75]))]
    worst = "Accuracy of the worst tenth, at least one client"
    assert found[worst] == [([1, 2], pytest.approx([20, 60]))]
    assert not figure.legends
    assert not bands(figure.axes[0])


def test_seeds_make_a_mean_and_a_band_over_common_rounds(tmp_path):
    paths = [
        made(tmp_path / "a", experiment={"seed": 0}, accuracies=((0.2,), (0.4,), (0.9,))),
        made(tmp_path / "b", experiment={"seed": 1}, accuracies=((0.4,), (0.8,))),
    ]
    mean = of_paper(*paths)["Mean accuracy over clients"]
    assert mean == [([1, 2], pytest.approx([30, 60]))]
    assert of_page(*paths)["Mean accuracy over clients"] == mean
    (band,) = bands(curves_figure(compare(paths)).axes[0])
    low, high = np.array([[30, 60]] * 2) + np.array([[-1], [1]]) * [200**0.5, 800**0.5]
    heights = band.get_paths()[0].vertices[:, 1]
    assert set(np.round(heights, 6)) == set(np.round([*low, *high], 6))
    assert legend_texts(curves_figure(compare(paths))) == [BAND]
    caption = write_figure(compare(paths), tmp_path / "two.svg")
    assert caption.endswith("bands: sample standard deviation over seeds")
    caption = write_figure(compare(paths[:1]), tmp_path / "one.svg")
    assert caption == "means over clients, each counting once"


def test_no_band_of_an_accuracy_leaves_0_to_100(tmp_path):
    """Of 0 and 100 per cent the mean is 50 and the deviation 70.7."""
    paths = [
        made(tmp_path / str(seed), experiment={"seed": seed}, accuracies=((value,),) * 2)
        for seed, value in enumerate((0.0, 1.0))
    ]
    (band,) = bands(curves_figure(compare(paths)).axes[0])
    assert set(band.get_paths()[0].vertices[:, 1]) == {0, 100}
    figure = score_figures(group_runs([load_run(path) for path in paths]), score_of())[0]
    edges = {y for trace in figure.data if not trace["line"]["width"] for y in trace["y"]}
    assert edges == {0, 100}
    loss = next(
        axes for axes in curves_figure(compare(paths)).axes if "loss" in axes.get_ylabel()
    )
    (band,) = bands(loss)
    assert min(band.get_paths()[0].vertices[:, 1]) < 0


def test_the_accuracy_that_is_compared_is_drawn(tmp_path):
    folder = make_run(tmp_path / "a", accuracies=(), status="running")
    scores = {"accuracy": (0.5, 1.0), "whole_test_accuracy": (0.1, 0.3)}
    folder.append("clients", client_rows(1, "evaluate", **scores))
    folder.append("rounds", [{"round": 1, "accuracy_mean": 0.75}])
    figure = curves_figure(compare([folder.path], score="whole_test_accuracy"))
    mean, worst = figure.axes
    assert list(mean.get_lines()[0].get_ydata()) == pytest.approx([20])
    assert list(worst.get_lines()[0].get_ydata()) == pytest.approx([10])
    assert mean.get_ylabel() == "whole test accuracy (%)"


def test_experiments_are_told_apart_in_a_legend_inside_the_figure(tmp_path):
    long = ", ".join(f"network-{k}" for k in range(40))
    paths = [
        made(tmp_path / "a"),
        made(tmp_path / "b", experiment={"client-models": long}),
    ]
    with matplotlib.rc_context(STYLE):
        figure = curves_figure(compare(paths))
        figure.draw_without_rendering()
    assert [text.partition(",")[0] for text in legend_texts(figure)] == ["fedavg"] * 2
    for text in figure.legends[0].get_texts():
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    lines = [line.get_color() for line in figure.axes[0].get_lines()[:2]]
    assert lines == [handle.get_color() for handle in figure.legends[0].legend_handles]
    assert len(set(lines)) == 2


def test_many_experiments_have_lines_of_their_own(tmp_path):
    paths = [
        made(tmp_path / str(i), experiment={"learning-rate": i / 10}) for i in range(1, 16)
    ]
    lines = curves_figure(compare(paths)).axes[0].get_lines()[:15]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 15


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(RunError, match="no curves to draw"):
        curves_figure(compare([made(tmp_path / "a", accuracies=())]))


@pytest.mark.parametrize(("name", "begins"), [("a.pdf", b"%PDF"), ("a.SVG", b"<?xml")])
def test_same_runs_same_bytes_though_names_hold_dollars(tmp_path, name, begins):
    paths = [
        made(tmp_path / method, experiment={"method": method, "dataset": "a$b_{$"})
        for method in ("x$_{$", "y")
    ]
    comparison = compare(paths)
    written = []
    for folder in ("one", "two"):
        write_figure(comparison, tmp_path / folder / name)
        written.append((tmp_path / folder / name).read_bytes())
    assert written[0] == written[1]
    assert written[0].startswith(begins)
    # Journals refuse fonts of Type 3.
    assert b"/Type3" not in written[0]


def test_what_cannot_be_written_is_said_first(monkeypatch, tmp_path):
    with pytest.raises(ConfigError) as caught:
        check_figure(tmp_path / "a.png")
    assert str(caught.value).endswith("a.png: expected a file that ends in .pdf or .svg")
    with pytest.raises(ConfigError, match=r"expected a file that ends in \.tex"):
        check_table(tmp_path / "a.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"needs matplotlib: pip install 'matplo"):
        check_figure(tmp_path / "a.pdf")


def test_a_report_needs_no_matplotlib_and_a_figure_no_pyplot(tmp_path):
    path = made(tmp_path / "a")
    code = f"""
import sys
from pathlib import Path
import fedsuite.results.report
from fedsuite.results.compare import compare
from fedsuite.results.paper_figure import write_figure

assert "matplotlib" not in sys.modules
write_figure(compare([{str(path)!r}]), Path({str(tmp_path / "a.pdf")!r}))
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
