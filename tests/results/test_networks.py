"""Accuracy by network, and the table of it."""

from fedsuite.results.networks import NetworkAccuracy, accuracy_by_network
from fedsuite.results.reader import load_run
from fedsuite.results.summary import render_networks, tell_summary, write_summary
from tests.results.made_runs import make_run

MANIFEST = {
    "networks": ["linear", "nobodys", "mlp:hidden-width=3"],
    "network_parameters": [650, 1, 12345],
    "client_networks": [2, 0, 2, 2],
}
ACCURACIES = ((0.1, 0.2, 0.3, 0.4), (0.5, 0.9, 0.25, 0.75))


def test_means_over_the_clients_of_each_network(tmp_path) -> None:
    make_run(tmp_path / "run", accuracies=ACCURACIES, **MANIFEST)
    run = load_run(tmp_path / "run")
    assert accuracy_by_network(run) == (
        NetworkAccuracy("linear", 650, 1, 0.9),
        NetworkAccuracy("mlp:hidden-width=3", 12345, 3, 0.5),
    )
    first = accuracy_by_network(run, 1)
    assert [round(found.accuracy, 9) for found in first] == [0.2, round(0.8 / 3, 9)]


def test_who_did_not_answer_or_claims_too_much_does_not_count(tmp_path) -> None:
    make_run(tmp_path / "run", accuracies=((7.0, 0.5, 0.25),), **MANIFEST)
    found = accuracy_by_network(load_run(tmp_path / "run"))
    assert [(n.num_clients, n.accuracy) for n in found] == [(1, 0.5), (1, 0.25)]


def test_a_run_with_one_network_has_none(tmp_path) -> None:
    make_run(tmp_path / "run", accuracies=ACCURACIES)
    assert accuracy_by_network(load_run(tmp_path / "run")) == ()


def test_summary_has_a_line_for_each_network(tmp_path) -> None:
    lines: list[str] = []
    manifest = {**MANIFEST, "networks": ["linear", "nobodys", "[b]mlp"]}
    write_summary(make_run(tmp_path / "a", accuracies=ACCURACIES, **manifest))
    tell_summary(tmp_path / "a", lines.append)
    told = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert ["linear", "650", "1", "90.00"] in told
    assert ["[b]mlp", "12,345", "3", "50.00"] in told
    summary = load_run(tmp_path / "a").summary
    assert summary is not None
    assert summary["accuracy_in_per_cent_by_network"] == {"linear": 90.0, "[b]mlp": 50.0}
    lines.clear()
    write_summary(make_run(tmp_path / "b", accuracies=ACCURACIES))
    tell_summary(tmp_path / "b", lines.append)
    assert lines and not any("network" in line for line in lines)
    assert "accuracy_in_per_cent_by_network" not in (load_run(tmp_path / "b").summary or {})


def test_accuracy_on_the_whole_test_part_has_a_column_of_its_own() -> None:
    own = [NetworkAccuracy("linear", 650, 1, 0.9), NetworkAccuracy("mlp", 7, 2, 0.5)]
    text = render_networks(own, [NetworkAccuracy("mlp", 7, 2, 0.25)])
    told = [[c.strip() for c in line.split("│")[1:-1]] for line in text.splitlines()]
    assert ["linear", "650", "1", "90.00", ""] in told
    assert ["mlp", "7", "2", "50.00", "25.00"] in told
    assert "whole test" in text and "whole test" not in render_networks(own)
