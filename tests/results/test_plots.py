"""Figures: what they show, asserted on matplotlib's objects, and that files appear."""

import shutil
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

import fedsuite
from fedsuite.core.errors import RunError
from fedsuite.data import ClientShift
from fedsuite.results.likeness import UNLIKE
from fedsuite.results.plots import (
    client_accuracy_figure,
    curves_figure,
    partition_figure,
    plot_curves,
    pooled_figure,
    save_figure,
    shift_figure,
)
from fedsuite.results.reader import load_run
from fedsuite.results.summary import draw_plots
from tests.results.made_runs import learning_curves, make_run
from tests.small_runs import SMALL, final_model


def load(path, **keys):
    return load_run(make_run(path, **keys).path)


def curve(axes, index=0):
    """Return rounds and values of a line that was drawn."""
    line = axes.get_lines()[index]
    return list(line.get_xdata()), list(line.get_ydata())


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
        trained = {
            "trained_accuracy": (0.2, 0.4),
            "trained_whole_test_accuracy": (0.1, 0.3),
        }
        folder.append("clients", client_rows(server_round, "train", **trained))
        after = {"accuracy": (0.4, 0.6), "whole_test_accuracy": (0.3, 0.5)}
        folder.append("clients", client_rows(server_round, "evaluate", **after))
        method = {"output_divergence": 0.07, "log_clients": 1.5}
        loss = {"discriminator_loss": 2.0 / server_round}
        folder.append("rounds", [{"round": server_round, **method, **loss}])
    figure = curves_figure([load_run(folder.path)])
    own, whole, divergence, discriminator = figure.axes
    assert curve(own) == ([1, 2], pytest.approx([30, 30]))
    assert curve(own, 1) == ([1, 2], pytest.approx([50, 50]))
    assert [curve(whole, index)[1][0] for index in (0, 1)] == pytest.approx([20, 40])
    assert curve(divergence)[1] == [0.07, 0.07]
    assert len(divergence.get_lines()) == 1
    assert curve(discriminator)[1] == [2, 1]
    assert curve(discriminator, 1)[1] == [1.5, 1.5]
    dotted = [axes.get_lines()[1].get_linestyle() for axes in (own, whole, discriminator)]
    assert dotted == [":"] * 3


def test_one_model_has_one_accuracy_in_a_figure(tmp_path):
    """Where clients differ in size the mean by examples is another one."""
    folder = make_run(tmp_path / "a", accuracies=(), status="running")
    folder.append("clients", client_rows(1, "train", trained_accuracy=(0.5, 1.0)))
    rows = client_rows(1, "evaluate", accuracy=(0.5, 1.0), loss=(3.0, 1.0))
    folder.append("clients", rows)
    by_examples = {"evaluate_accuracy": 0.95, "train_trained_accuracy": 0.95}
    losses = {"evaluate_loss": 1.2, "evaluate_received_training_loss": 0.7}
    row = {"round": 1, "accuracy_mean": 0.75, **by_examples, **losses}
    folder.append("rounds", [row])
    run = load_run(folder.path)
    figure = curves_figure([run])
    mean, loss, trained = figure.axes
    assert curve(mean)[1] == curve(trained)[1] == curve(trained, 1)[1] == [75]
    assert curve(loss)[1] == [2]
    assert figure.get_suptitle().endswith("\nMeans over clients, each counting once")
    pooled = pooled_figure([run])
    assert curve(pooled.axes[0])[1] == [0.7]
    assert "clients count by how many they have" in pooled.get_suptitle()
    plot_curves([run], tmp_path / "new.png")
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "new.png",
        "new_by_rows.png",
    }


def test_a_single_evaluation_is_seen(tmp_path):
    folder = make_run(tmp_path / "a", accuracies=((0.2, 0.4),), status="running")
    folder.append("clients", client_rows(1, "train", trained_accuracy=(0.5, 1.0)))
    run = load_run(folder.path)
    for axes in curves_figure([run]).axes:
        assert list(axes.get_xticks()) == [1]
        for line in axes.get_lines():
            assert line.get_marker() == "o"
            assert line.get_markersize() >= 6
    _, spread = client_accuracy_figure(run).axes
    assert list(spread.get_xticks()) == [1]
    assert all(band.get_linewidth()[0] > 5 for band in bands(spread))
    (median,) = spread.get_lines()
    assert median.get_markersize() >= 6
    others = [load(tmp_path / str(s), experiment={"seed": s}) for s in (1, 2)]
    (bar,) = curves_figure(others).axes[0].collections
    assert not isinstance(bar, PolyCollection)


def test_curves_of_one_run(tmp_path):
    accuracies = ((0.2, 0.4), (0.6, 0.9))
    folder = make_run(tmp_path / "a", accuracies=accuracies, status="running")
    for server_round, loss in ((1, 2), (2, 1)):
        rows = client_rows(server_round, "train", loss=(loss, loss))
        folder.append("clients", rows)
    figure = curves_figure([load_run(folder.path)])
    assert [(axes.get_title(), axes.get_ylabel()) for axes in figure.axes] == [
        ("Mean accuracy over clients", "accuracy (%)"),
        ("Accuracy of the worst 10 % of clients", "accuracy (%)"),
        ("Evaluation loss", "loss"),
        ("Training loss", "loss"),
    ]
    assert {axes.get_xlabel() for axes in figure.axes} == {"round"}
    rounds, values = curve(figure.axes[0])
    assert rounds == [1, 2]
    assert values == pytest.approx([30, 75])
    assert curve(figure.axes[1])[1] == pytest.approx([20, 60])
    assert curve(figure.axes[3])[1] == pytest.approx([2, 1])
    assert figure.get_suptitle() == (
        "fedavg on digits, seed 0\nMeans over clients, each counting once"
    )
    assert not figure.legends
    assert not bands(figure.axes[0])


def test_seeds_make_a_mean_and_a_band_over_common_rounds(tmp_path):
    runs = [
        load(tmp_path / "a", experiment={"seed": 0}, accuracies=((0.2,), (0.4,), (0.9,))),
        load(tmp_path / "b", experiment={"seed": 1}, accuracies=((0.4,), (0.8,))),
    ]
    figure = curves_figure(runs)
    rounds, values = curve(figure.axes[0])
    assert rounds == [1, 2]
    assert values == pytest.approx([30, 60])
    (band,) = bands(figure.axes[0])
    low, high = np.array([[30, 60]] * 2) + np.array([[-1], [1]]) * [200**0.5, 800**0.5]
    heights = band.get_paths()[0].vertices[:, 1]
    assert set(np.round(heights, 6)) == set(np.round([*low, *high], 6))
    title = figure.get_suptitle().splitlines()
    assert title[0] == "fedavg on digits, mean and spread of 2 seeds"


def test_experiments_are_told_apart_in_a_legend_outside(tmp_path):
    runs = [
        load(tmp_path / "a"),
        load(tmp_path / "b", experiment={"method": "fedprox", "seed": 0}),
        load(tmp_path / "c", experiment={"method": "fedprox", "seed": 1}),
    ]
    figure = curves_figure(runs)
    assert legend_texts(figure) == ["fedavg", "fedprox (2 seeds)"]
    assert figure.get_suptitle() == f"Means over clients, each counting once\n{UNLIKE}"
    alike = curves_figure(runs[:2]).get_suptitle()
    assert alike == "Means over clients, each counting once"
    drawn = [line.get_color() for line in figure.axes[0].get_lines()[:2]]
    handles = [handle.get_color() for handle in figure.legends[0].legend_handles]
    assert drawn == handles
    assert len(set(drawn)) == 2


def test_long_labels_stay_inside_the_figure(tmp_path):
    names = [", ".join(f"network-{name}-{k}" for k in range(40)) for name in "ab"]
    runs = [
        load(tmp_path / str(i), experiment={"client-models": n})
        for i, n in enumerate(names)
    ]
    figure = curves_figure(runs)
    figure.savefig(tmp_path / "x.png")
    for text in figure.legends[0].get_texts():
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_many_experiments_have_lines_of_their_own(tmp_path):
    runs = [
        load(tmp_path / str(i), experiment={"learning-rate": i / 10}) for i in range(1, 16)
    ]
    lines = curves_figure(runs).axes[0].get_lines()[:15]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 15


def test_panels_without_data_are_left_out(tmp_path):
    folder = make_run(tmp_path / "a", accuracies=())
    folder.append(
        "clients", [row for r in (1, 2) for row in client_rows(r, "train", loss=(1, 2))]
    )
    figure = curves_figure([load_run(folder.path)])
    assert [axes.get_title() for axes in figure.axes] == ["Training loss"]


def test_nothing_to_draw_is_an_error(tmp_path):
    run = load(tmp_path / "a", accuracies=())
    with pytest.raises(RunError, match="no curves to draw"):
        curves_figure([run])
    with pytest.raises(RunError, match="no accuracies per client"):
        client_accuracy_figure(run)


def test_client_accuracy_sorts_clients_and_marks_the_worst(tmp_path):
    run = load(tmp_path / "a", accuracies=((0.1, 0.1, 0.1), (0.9, 0.3, 0.6)))
    left, right = client_accuracy_figure(run).axes
    assert [bar.get_height() for bar in left.patches] == pytest.approx([30, 60, 90])
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "2", "0"]
    colours = [bar.get_facecolor() for bar in left.patches]
    assert colours[0] != colours[1] == colours[2]
    texts = [text.get_text() for text in left.get_legend().get_texts()]
    assert texts == ["mean 60.0 %", "worst 10 %: 30.0 %"]
    assert left.get_title() == "Each client after round 2"
    assert (left.get_xlabel(), left.get_ylabel()) == (
        "client, sorted by accuracy",
        "accuracy (%)",
    )
    assert (right.get_xlabel(), right.get_ylabel()) == ("round", "accuracy (%)")
    assert curve(right)[1] == pytest.approx([10, 60])
    whole, middle = bands(right)
    assert whole.get_paths()[0].vertices[:, 1].max() == pytest.approx(90)
    assert middle.get_paths()[0].vertices[:, 1].max() == pytest.approx(84)


def test_partition_stacks_the_classes_of_each_client():
    counts = np.array([[1, 2, 3], [4, 0, 6]])
    figure = partition_figure(counts, "test")
    axes = figure.axes[0]
    tops = [bar.get_y() + bar.get_height() for bar in axes.patches]
    assert tops == [1, 4, 3, 4, 6, 10]
    assert axes.get_title() == "Who holds what: test samples of 2 clients, 3 classes"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("client", "samples")
    assert legend_texts(figure) == ["2", "1", "0"]
    # Bars of class 0 come first, the legend names it last.
    keys = [patch.get_facecolor() for patch in figure.legends[0].get_patches()]
    assert keys == [bar.get_facecolor() for bar in axes.patches[::2]][::-1]
    assert len(set(keys)) == 3


def test_partition_of_many_classes_has_a_scale_instead_of_a_legend():
    figure = partition_figure(np.ones((5, 40), dtype=np.int64))
    assert not figure.legends
    assert figure.axes[1].get_ylabel() == "class"
    assert len({bar.get_facecolor() for bar in figure.axes[0].patches}) == 40


@pytest.mark.parametrize("num_clients", [1, 130])
def test_partition_of_few_and_of_many_clients(tmp_path, num_clients):
    path = tmp_path / "partition.png"
    save_figure(partition_figure(np.ones((num_clients, 10), dtype=np.int64)), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def shifts(count):
    return [
        ClientShift(k + 0.5, None, 1.0, 9.0 * k, 7 * k, 0.1 * k, 3.0) for k in range(count)
    ]


def test_shift_has_a_bar_for_each_client():
    figure = shift_figure(shifts(4))
    heights = [[bar.get_height() for bar in axes.patches] for axes in figure.axes]
    assert heights[0] == [0.5, 1.5, 2.5, 3.5]
    assert heights[1] == [0, 9, 18, 27]
    assert heights[2] == [0, 7, 14, 21]
    assert heights[3] == pytest.approx([0, 0.1, 0.2, 0.3])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[1:] == ["Effective sample size", "Different rows", "Label drift"]


def test_dollar_signs_are_no_mathematics(tmp_path):
    runs = [
        load(tmp_path / name, experiment={"method": name, "dataset": "a$b_{$"})
        for name in ("x$_{$", "y")
    ]
    plot_curves(runs, tmp_path / "curves.png")
    plot_curves(runs[:1], tmp_path / "one.png")
    save_figure(client_accuracy_figure(runs[0]), tmp_path / "clients.png")


def drawn(folder):
    """Draw a run's plots anew; return the files by name."""
    shutil.rmtree(folder.path / "plots", ignore_errors=True)
    draw_plots(folder.path, pytest.fail)
    return {path.name: path.read_bytes() for path in (folder.path / "plots").iterdir()}


def test_a_run_is_drawn_from_what_there_is(tmp_path):
    folder = make_run(tmp_path / "a", accuracies=learning_curves(40, 30))
    curves = {"curves.png", "client_accuracy.png"}
    assert drawn(folder).keys() == curves
    folder.write_json("partition.json", {"train": [[3, 4]], "test": [[1, 0]]})
    figures = drawn(folder)
    assert figures.keys() == curves | {"partition_train.png", "partition_test.png"}
    assert all(content.startswith(b"\x89PNG") for content in figures.values())
    assert len(set(figures.values())) == 4
    folder.write_json("partition.json", {"shift": [asdict(shift) for shift in shifts(2)]})
    assert drawn(folder).keys() == curves | {"partition_shift.png"}


def test_a_run_without_plots_differs_in_nothing_else(tmp_path):
    common = SMALL | {"output-dir": str(tmp_path)}
    for plots in (True, False):
        fedsuite.run({**common, "plots": plots, "run-name": f"plots-{plots}"})
    drawn, bare = tmp_path / "plots-True", tmp_path / "plots-False"
    assert {path.name for path in (drawn / "plots").iterdir()} == {
        *("curves.png", "client_accuracy.png"),
        *("partition_train.png", "partition_test.png"),
    }
    names = {path.name for path in drawn.iterdir()}
    assert {path.name for path in bare.iterdir()} == names - {"plots", "report.html"}
    assert final_model(bare) == final_model(drawn)


def test_same_run_same_picture(tmp_path):
    run = load(tmp_path / "a", accuracies=learning_curves(12, 10))
    plot_curves([run], tmp_path / "one.png")
    plot_curves([run], tmp_path / "two.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_pyplot_is_not_imported():
    code = (
        "import sys, fedsuite.results.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
