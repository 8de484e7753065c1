"""The analysis of covariate shift: its numbers are those of the partitions."""

import csv

import pytest

from fedsuite.analyses.covariate_shift import (
    COLUMNS,
    GENERATORS,
    covariate_shift_figure,
    measure,
)
from fedsuite.data import load_federated_data

from .test_commands import written

VALUES = {"num-clients": 4, "shift-dimensions": 6, "client-test-fraction": 0.2}


def test_cases_are_the_clients_of_each_partition():
    cases = measure(VALUES, 3, (0.0, 5.0))
    assert [(c.generator, c.asked, c.client) for c in cases] == [
        (name, asked, client)
        for name in GENERATORS
        for asked in (0.0, 5.0)
        for client in range(4)
    ]
    partitioner = {"partitioner": "covariate-shift-printed", "squared-shift": 5.0}
    partition = load_federated_data({**VALUES, **partitioner}, 3).partition
    chosen = [c for c in cases if (c.generator, c.asked) == (GENERATORS[1], 5.0)]
    assert [case.shift for case in chosen] == list(partition.shifts)
    assert [case.rows for case in chosen] == [len(rows) for rows in partition.train]
    # The sort knows no C.
    sorted_ = [case.shift for case in cases if case.generator == "first-component"]
    assert sorted_[:4] == sorted_[4:]


def test_figure_shows_each_client_and_the_means():
    cases = measure(VALUES, 0, (0.0, 5.0))
    figure = covariate_shift_figure(cases)
    shift = figure.axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in shift.get_lines()}
    assert drawn["as asked"] == [0, 5]
    for name in GENERATORS:
        for index, asked in enumerate((0.0, 5.0)):
            reached = [
                c.shift.squared_shift
                for c in cases
                if (c.generator, c.asked) == (name, asked)
            ]
            assert drawn[name][index] == pytest.approx(sum(reached) / 4)
    assert sum(len(dots.get_offsets()) for dots in shift.collections) == len(cases)
    dots = figure.axes[5].collections
    assert [len(group.get_offsets()) for group in dots] == [4, 4]
    divergences = [c.shift.divergence for c in cases if c.generator == GENERATORS[0]]
    assert [y for group in dots for _, y in group.get_offsets()] == pytest.approx(
        divergences
    )


def test_command(analyse, experiment_file, tmp_path):
    experiment_file(partitioner="covariate-shift")
    given = ("--set", "shift-dimensions=6", "--squared-shifts", "0,5")
    assert analyse("covariate-shift", "experiment.toml", *given)[0] == 0
    rows = written("covariate_shift")
    assert tuple(rows[0]) == COLUMNS
    assert [(row["partitioner"], float(row["C"])) for row in rows] == [
        (name, asked) for name in GENERATORS for asked in (0.0, 5.0)
    ]
    with open("analysis/covariate_shift_clients.csv", newline="") as file:
        clients = list(csv.DictReader(file))
    assert len(clients) == 24
    for row in rows:
        mine = [
            client
            for client in clients
            if (client["partitioner"], client["C"]) == (row["partitioner"], row["C"])
        ]
        reached = [float(client["squared shift"]) for client in mine]
        assert float(row["shift"]) == pytest.approx(sum(reached) / 4)
        assert (float(row["least"]), float(row["most"])) == (min(reached), max(reached))
        ess = [float(client["effective size"]) for client in mine]
        assert float(row["least ESS"]) == min(ess)
        share = [int(client["distinct"]) / int(client["rows"]) for client in mine]
        assert float(row["distinct %"]) == pytest.approx(100 * sum(share) / 4)
    by_name = {(row["partitioner"], float(row["C"])): row for row in rows}
    assert float(by_name["covariate-shift", 5.0]["shift"]) > 2
    assert float(by_name["covariate-shift", 0.0]["shift"]) < 0.3


def test_a_shift_that_is_no_number(analyse, experiment_file):
    experiment_file()
    code, _, err = analyse("covariate-shift", "experiment.toml", "--squared-shifts", "2,x")
    assert code == 1
    assert "key squared-shift = 'x'" in err
