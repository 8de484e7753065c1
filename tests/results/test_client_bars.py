"""Bars of clients, on numbers that were reckoned by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from fedsuite.results.client_bars import columns_of, draw_columns
from fedsuite.results.plots import (
    client_accuracy_figure,
    partition_figure,
    save_figure,
    shift_figure,
)
from fedsuite.results.reader import load_run
from tests.results.made_runs import make_run
from tests.results.test_plots import legend_texts, shifts


def areas(axes):
    return [patch for patch in axes.patches if isinstance(patch, StepPatch)]


def test_neighbours_share_a_column_that_is_their_mean():
    heights = np.array([[1, 3, 5, 7, 9], [0, 2, 4, 4, 8]])
    columns = columns_of(heights, most=3, first=10)
    assert columns.clients_each == 2
    assert columns.edges.tolist() == [9.5, 11.5, 13.5, 14.5]
    assert columns.heights.tolist() == [[2, 6, 9], [1, 4, 8]]
    assert columns.tops.tolist() == [3, 10, 17]
    assert columns.label("client") == "client (a column is the mean of 2 neighbours)"


def test_as_many_columns_as_clients_where_they_fit():
    columns = columns_of(np.array([[4, 5, 6]]), most=3)
    assert columns.edges.tolist() == [-0.5, 0.5, 1.5, 2.5]
    assert columns.heights.tolist() == [[4, 5, 6]]
    assert columns.label("client") == "client"


@given(st.integers(1, 60), st.integers(1, 20))
def test_columns_hold_what_their_clients_hold(num_clients, most):
    heights = np.arange(2 * num_clients).reshape(2, num_clients)
    columns = columns_of(heights, most)
    assert columns.heights.shape[1] <= most
    held = (columns.heights * np.diff(columns.edges)).sum(axis=1)
    assert held == pytest.approx(heights.sum(axis=1))
    assert columns.edges[-1] == num_clients - 0.5


def test_many_clients_are_an_area_a_layer_stacked():
    axes = Figure().subplots()
    heights = np.array([np.arange(121), np.full(121, 2)])
    draw_columns(axes, heights, ["red", "blue"], ["low", "high"])
    low, high = areas(axes)
    assert len(axes.patches) == 2
    assert low.get_data().values.tolist() == list(range(121))
    assert np.all(low.get_data().baseline == 0)
    assert high.get_data().baseline.tolist() == list(range(121))
    assert high.get_data().values.tolist() == list(range(2, 123))
    assert low.get_facecolor() == (1, 0, 0, 1)
    assert axes.get_legend_handles_labels()[1] == ["low", "high"]


@pytest.mark.parametrize(("layers", "bars"), [(25, 3000), (26, 0)])
def test_bars_one_by_one_while_they_are_few(layers, bars):
    axes = Figure().subplots()
    draw_columns(axes, np.ones((layers, 120)), ["red"] * layers)
    assert len(axes.patches) - len(areas(axes)) == bars


def test_partition_of_very_many_clients():
    counts = np.zeros((2500, 10), dtype=np.int64)
    counts[:3, 4] = [6, 0, 3]
    axes = (figure := partition_figure(counts)).axes[0]
    assert len(axes.patches) == 10
    area = areas(axes)[4].get_data()
    assert area.values[:2].tolist() == [3, 0]
    assert area.edges[:2].tolist() == [-0.5, 2.5]
    assert axes.get_xlim() == (-0.6, 2499.6)
    assert axes.get_ylim() == (0, pytest.approx(3.15))
    assert axes.get_xlabel() == "client (a column is the mean of 3 neighbours)"
    assert legend_texts(figure) == [str(label) for label in range(10)][::-1]


def test_shift_of_very_many_clients_is_one_area_a_panel():
    figure = shift_figure(shifts(2000))
    assert [len(axes.patches) for axes in figure.axes] == [1] * 4
    assert areas(figure.axes[0])[0].get_data().values[:2].tolist() == [1, 3]


@pytest.mark.parametrize("num_clients", [1, 21, 2000])
def test_accuracies_of_any_number_of_clients(tmp_path, num_clients):
    accuracies = np.linspace(1, 0, num_clients)
    run = load_run(make_run(tmp_path / "a", accuracies=(tuple(accuracies),)).path)
    save_figure(client_accuracy_figure(run), tmp_path / "clients.png")
    assert (tmp_path / "clients.png").read_bytes().startswith(b"\x89PNG")


def test_the_worst_tenth_of_many_clients_has_a_colour_of_its_own(tmp_path):
    accuracies = tuple(k / 1500 for k in range(1500))
    run = load_run(make_run(tmp_path / "a", accuracies=(accuracies,)).path)
    worst, others = areas(client_accuracy_figure(run).axes[0])
    assert worst.get_data().edges[[0, -1]].tolist() == [-0.5, 149.5]
    assert others.get_data().edges[[0, -1]].tolist() == [149.5, 1499.5]
    assert worst.get_data().values == pytest.approx([k / 15 for k in range(150)])
    assert others.get_data().values[0] == pytest.approx(150.5 / 15)
    assert worst.get_facecolor() != others.get_facecolor()
