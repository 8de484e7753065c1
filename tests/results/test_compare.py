"""Grouping and comparing runs, with numbers worked out by hand."""

import io
import json
import re

import pytest
from rich.console import Console

from fedsuite.core.errors import RunError
from fedsuite.experiment.key_catalog import local_keys
from fedsuite.results.compare import (
    by_seed_csv,
    compare,
    tables,
    to_latex,
    to_markdown,
    write_comparison,
)
from fedsuite.results.groups import group_runs
from fedsuite.results.likeness import seeds_text
from fedsuite.results.reader import Scores, load_run
from fedsuite.results.summary import render_report
from tests.results.made_runs import make_run


@pytest.fixture
def make(tmp_path):
    """Make numbered runs and return their folders."""
    made = []

    def make_one(accuracies=((0.5, 0.7),), status="finished", fingerprint="f00d", **keys):
        path = tmp_path / f"run{len(made)}"
        made.append(path)
        experiment = {key.replace("_", "-"): value for key, value in keys.items()}
        make_run(
            path,
            experiment=experiment,
            accuracies=accuracies,
            status=status,
            data_fingerprint=fingerprint,
        )
        return path

    return make_one


def labels(paths):
    return [group.label for group in group_runs([load_run(path) for path in paths])]


def test_runs_that_differ_in_seed_and_folders_are_one_group(make):
    paths = [make(seed=0), make(seed=1), make(seed=2, data_dir="elsewhere")]
    (group,) = group_runs([load_run(path) for path in paths])
    assert group.label == "fedavg"
    assert [run.path for run in group.runs] == paths


def test_where_and_how_long_a_run_works_tells_nothing_apart(make):
    local = {
        "engine": "ray",
        "workers": 2,
        "resume": True,
        "output_dir": "elsewhere",
        "run_name": "other",
        "state_dir": "elsewhere",
        "client_memory": 64,
        "data_dir": "elsewhere",
        "num_rounds": 11,
        "preset": "paper",
        "checkpoint_every": 3,
        "connect_timeout": 1.0,
        "round_timeout": 1.0,
        "report": False,
        "trackers": "tensorboard",
        "site_dirs": "elsewhere",
        "only_statistics": True,
        "metrics_port": 9400,
        "metrics_host": "elsewhere",
    }
    assert {name.replace("_", "-") for name in local} == local_keys() - {"public-dir"}
    assert labels([make(seed=0), make(seed=1, **local)]) == ["fedavg"]
    assert len(labels([make(seed=0), make(seed=1, threads=2)])) == 2


def test_more_rounds_of_one_experiment_and_seed_are_told(make):
    short, long = make([[0.5]], num_rounds=1), make([[0.5]] * 3, num_rounds=3)
    assert compare([short, long]).warnings == (
        f"{long} repeats the experiment and seed of {short}: left out",
        "runs end at different rounds, 1 to 3",
    )


def test_labels_are_the_keys_that_differ(make):
    paths = [
        make(learning_rate=0.1),
        make(learning_rate=0.01),
        make(seed=5, learning_rate=0.1),
        make(method="fedprox", learning_rate=0.01, drop_last=True),
        make(method="fedprox", learning_rate=0.01, drop_last=False),
    ]
    assert labels(paths) == [
        "fedavg, learning-rate=0.1",
        "fedavg, learning-rate=0.01",
        "fedprox, drop-last=true, learning-rate=0.01",
        "fedprox, drop-last=false, learning-rate=0.01",
    ]


def test_a_key_of_one_method_is_left_out_unless_it_is_needed(make):
    plain, proximal = make(), make(method="fedprox", mu=0.1)
    assert labels([plain, proximal]) == ["fedavg", "fedprox"]
    assert labels([plain, proximal, make(method="fedprox", mu=1.0)]) == [
        "fedavg",
        "fedprox, mu=0.1",
        "fedprox, mu=1.0",
    ]
    assert labels([plain, make(mu=0.1)]) == ["fedavg", "fedavg, mu=0.1"]


def test_numbers_by_hand(make):
    # Ten clients; the worst 10 % is one client.
    # Mean 75, variance (45^2 + 9 * 5^2) / 10 = 225.
    first = [[0.5] * 10, [0.3] + [0.8] * 9]
    # Mean 86, variance (36^2 + 9 * 4^2) / 10 = 144.
    second = [[0.6] * 10, [0.5] + [0.9] * 9]
    comparison = compare([make(first, seed=0), make(second, seed=1)])
    (row,) = comparison.rows
    assert (row.label, row.num_seeds, row.num_rounds) == ("fedavg", 2, (2, 2))
    means = {name: spread.mean for name, spread in row.metrics.items()}
    assert means == pytest.approx(
        {
            "mean": 80.5,
            "worst_5": 40,
            "worst_10": 40,
            "best_5": 85,
            "variance": 184.5,
            "last": 67.75,
        }
    )
    # The sample standard deviation of two values is their distance over the root of 2.
    deviations = {name: spread.std * 2**0.5 for name, spread in row.metrics.items()}
    assert deviations == pytest.approx(
        {
            "mean": 11,
            "worst_5": 20,
            "worst_10": 20,
            "best_5": 10,
            "variance": 81,
            "last": 10.5,
        }
    )
    assert comparison.warnings == ()


def test_only_the_last_ten_evaluations_enter_their_mean(make):
    accuracies = [[0.0]] * 5 + [[0.6]] * 5 + [[0.8]] * 5
    (row,) = compare([make(accuracies)]).rows
    assert row.metrics["last"].mean == pytest.approx(70)
    assert row.metrics["mean"].mean == pytest.approx(80)


def test_metrics_are_means_of_as_many_evaluations_as_asked_for(make):
    # Variances 100, 25 and 0: the mean of the last two is 12.5.
    run = make([[0.4, 0.6], [0.6, 0.7], [0.8, 0.8]])
    (row,) = compare([run], evaluations=2).rows
    assert row.metrics["mean"].mean == pytest.approx(72.5)
    assert row.metrics["variance"].mean == pytest.approx(12.5)
    assert row.metrics["best_5"].mean == pytest.approx(75)
    assert "means of the last 2 evaluations" in compare([run], evaluations=2).legend
    (all_of_them,) = compare([run], evaluations=9).rows
    assert all_of_them.metrics["variance"].mean == pytest.approx(125 / 3)


def test_one_seed_has_no_spread(make):
    (row,) = compare([make()]).rows
    assert str(row.metrics["mean"]) == "60.00"
    assert row.metrics["mean"].std is None


def test_a_run_without_accuracies_has_dashes(make):
    comparison = compare([make(), make((), method="fedsgd")])
    assert set(comparison.rows[1].metrics.values()) == {None}
    assert "| fedsgd | 0 | 0 | – | – | – | – | – |" in to_markdown(comparison)


def test_a_repeated_seed_counts_once(make):
    first, again = make([[0.5]]), make([[0.9]])
    comparison = compare([first, again, make([[0.7]], seed=1)])
    (row,) = comparison.rows
    assert row.num_seeds == 2
    assert row.metrics["mean"].mean == pytest.approx(60)
    assert comparison.warnings == (
        f"{again} repeats the experiment and seed of {first}: left out",
    )


def test_different_partitions_of_one_seed_are_told(make):
    comparison = compare(
        [
            make(seed=0, fingerprint="a"),
            make(seed=1, fingerprint="b"),
            make(seed=0, fingerprint="a", method="fedprox"),
            make(seed=1, fingerprint="c", method="fedprox"),
        ]
    )
    some, seed = comparison.warnings
    assert some == (
        "only some seeds and partitions of fedavg are those of fedprox: compare their "
        "paired differences, not their means"
    )
    assert "with seed 1 have different data fingerprints" in seed


def test_seeds_without_a_partner_are_told(make):
    comparison = compare(
        [
            make(seed=0, fingerprint="a"),
            make(seed=3, fingerprint="b", learning_rate=0.05),
            make(seed=3, fingerprint="b", learning_rate=0.02),
        ]
    )
    (warning,) = comparison.warnings
    assert warning == (
        "no seed and partition of fedavg, learning-rate=0.1 is one of "
        "fedavg, learning-rate=0.05; fedavg, learning-rate=0.02: what differs may be the "
        "data"
    )


def test_each_key_that_differs_is_listed_with_its_values(make):
    comparison = compare(
        [
            make(seed=0, note="a"),
            make(seed=1, note="a"),
            make(seed=0, note="b", method="fedprox", proximal_mu=0.1),
            make(seed=1, note="b", method="fedprox", proximal_mu=0.1),
        ]
    )
    assert comparison.keys == {
        "method": ("fedavg", "fedprox"),
        "note": ("a", "b"),
        "proximal-mu": ("–", "0.1"),
    }
    assert comparison.warnings == ()
    lines = to_markdown(comparison).splitlines()
    assert "| key that differs | fedavg, note=a | fedprox, note=b |" in lines
    assert lines[-1] == "| proximal-mu | – | 0.1 |"
    console = Console(width=160, file=io.StringIO())
    console.print(tables(comparison)[1])
    assert "– | 0.1" in console.file.getvalue()


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ([0], "0"),
        ([1, 0], "0, 1"),
        ([0, 1, 2, 5, 7, 8], "0-2, 5, 7, 8"),
        ([0, None], "0, None"),
    ],
)
def test_seeds_in_words(seeds, text):
    assert seeds_text(seeds) == text


def test_different_rounds_and_unfinished_runs_are_told(make):
    killed = make([[0.5]], seed=1, status="running")
    comparison = compare([make([[0.5]] * 3, seed=0), killed])
    assert comparison.rows[0].num_rounds == (1, 3)
    assert comparison.warnings == (
        f"{killed} is not finished: its status is running",
        "runs end at different rounds, 1 to 3",
    )


def test_nothing_and_no_run_are_refused(make, tmp_path):
    with pytest.raises(RunError, match="nothing to compare"):
        compare([])
    with pytest.raises(RunError, match="none is not a folder"):
        compare([make(), tmp_path / "none"])


@pytest.fixture
def comparison(make):
    return compare(
        [
            make([[0.5, 0.7]], seed=0, note="[red]a|b"),
            make([[0.5, 0.9]], seed=1, note="[red]a|b"),
            make([[0.2, 0.4]], note="c"),
        ]
    )


def test_markdown(comparison):
    lines = to_markdown(comparison).splitlines()
    assert lines[0].split(" | ")[3:6] == ["accuracy", "worst client", "best client"]
    assert lines[1] == "| --- " + "| ---: " * 7 + "|"
    assert lines[2].startswith(
        r"| fedavg, note=[red]a\|b | 0, 1 | 1 | 65.00 ± 7.07 | 50.00 ± 0"
    )
    assert lines[3] == (
        "| fedavg, note=c | 0 | 1 | 30.00 | 20.00 | 40.00 | 100.00 | 30.00 |"
    )
    assert lines[4] == ""


def test_table_shows_brackets_as_they_are(comparison):
    console = Console(width=160, file=io.StringIO())
    console.print(tables(comparison)[0])
    text = console.file.getvalue()
    assert "note=[red]a|b" in text
    assert "65.00 ± 7.07" in text


def test_a_narrow_table_does_not_cut_labels_off(comparison):
    console = Console(width=60, file=io.StringIO())
    console.print(tables(comparison)[0])
    assert "…" not in console.file.getvalue()


def test_a_narrow_table_leaves_columns_out_and_breaks_neither_words_nor_numbers(make):
    """Six columns of a number with its spread take 120 columns."""
    paths = [
        make([[0.123] * 6 + [0.9] * 15], seed=seed, method=method)
        for method in ("standalone-adam", "fedavg")
        for seed in (0, 1)
    ]
    texts = {}
    for width in (80, 200):
        console = Console(width=width, file=io.StringIO())
        console.print(tables(compare(paths))[0])
        texts[width] = console.file.getvalue()
    lines = texts[80].splitlines()
    assert all(len(line) <= 80 for line in lines)
    rows = [[cell.strip() for cell in line.split("│")][1:-1] for line in lines]
    (row,) = [row for row in rows if row[:1] == ["standalone-adam"]]
    assert row[1:4] == ["0, 1", "1", "67.80 ± 0.00"]
    note = " ".join(texts[80].split())
    assert "Left out, for lack of width: best 5 %, variance" in note
    assert "Left out" not in texts[200]
    assert "best 5 %" in texts[200]


@pytest.mark.parametrize(
    ("num_clients", "worst"),
    [
        (1, ["worst client"]),
        (10, ["worst client"]),
        (11, ["worst client", "worst 10 %"]),
        (20, ["worst client", "worst 10 %"]),
        (21, ["worst 5 %", "worst 10 %"]),
    ],
)
def test_a_tenth_that_is_one_client_is_called_so_and_no_column_stands_twice(
    tmp_path, num_clients, worst
):
    accuracies = [[0.1 * (k % 10) for k in range(num_clients)]]
    make_run(tmp_path / "a", accuracies=accuracies, num_clients=num_clients)
    run = tmp_path / "a"
    heading = to_markdown(compare([run])).splitlines()[0].split(" | ")
    assert [word for word in heading if word.startswith("worst")] == worst
    text = render_report(Scores(1, dict.fromkeys(range(num_clients), 0.5), num_clients))
    assert re.findall("worst (?:client|5 %|10 %)", text) == worst
    assert by_seed_csv(compare([run])).startswith("label,seed,mean,worst_5,worst_10,")


def test_a_table_for_a_paper(make):
    """A reader's label may hold what LaTeX takes for commands."""
    comparison = compare([make(note="50%_$a\\b"), make([[0.2, 0.4]], note="c")])
    lines = to_latex(comparison).splitlines()
    assert lines[0].startswith("% Accuracy (\\%) over clients")
    assert lines[1] == r"\begin{tabular}{lrrrrrrr}"
    assert lines[4] == r"\midrule"
    assert lines[5].startswith(r"fedavg, note=50\%\_\$a\textbackslash{}b & 0 & 1 & 60.00 &")
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_table_ends_with_the_warnings(make):
    console = Console(width=160, file=io.StringIO())
    console.print(tables(compare([make(status="failed")]))[0])
    text = " ".join(console.file.getvalue().split())
    assert "warning: " in text
    assert "its status is failed" in text


def test_written_files(comparison, tmp_path):
    folder = tmp_path / "comparison"
    folder.mkdir()
    write_comparison(comparison, folder)
    assert (folder / "comparison.md").read_text() == to_markdown(comparison)
    lines = (folder / "by_seed.csv").read_text().splitlines()
    assert lines[1].startswith('"fedavg, note=[red]a|b",0,60.0000,50.0000,')
    assert lines[2].startswith('"fedavg, note=[red]a|b",1,70.0000,50.0000,')
    assert len(lines) == 4


def test_another_accuracy_may_be_compared(make):
    path = make(accuracies=((0.2, 0.4), (0.5, 0.7)))
    lines = (path / "clients.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["whole_test_accuracy"] = row["accuracy"] / 2
    (path / "clients.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    comparison = compare([path], score="whole_test_accuracy")
    (row,) = comparison.rows
    assert row.metrics["mean"].mean == pytest.approx(30)
    assert row.metrics["worst_10"].mean == pytest.approx(25)
    assert row.metrics["last"].mean == pytest.approx(22.5)
    assert comparison.legend.startswith("Whole test accuracy (%) over clients")
    assert comparison.columns["mean"] == "whole test accuracy"
    assert compare([path]).legend.startswith("Accuracy (%) over clients")


def test_an_accuracy_that_no_run_has(make):
    with pytest.raises(RunError, match="no run has whole_test_accuracy"):
        compare([make()], score="whole_test_accuracy")
