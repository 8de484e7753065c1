"""The numbers that are printed are those of the report, and say of how many clients."""

import html
import re

import pytest
from typer.testing import CliRunner

from fedsuite.cli.command import app
from fedsuite.results.compare import compare, table_lines, to_markdown
from fedsuite.results.reader import load_run
from fedsuite.results.report import report_html
from fedsuite.results.summary import tell_summary, write_summary
from fedsuite.results.writer import RunFolder
from tests.results.made_runs import EXPERIMENT, make_run

CURVES = {
    "fedavg": [(0.2, 0.4), (0.9, 0.7), (0.5, 0.52)],
    "fedprox": [(0.3, 0.45), (0.4, 0.6), (0.56, 0.58)],
}
"""At the last round FedProx is ahead, over the last two FedAvg."""


def made(path, method, seed):
    """Make a run whose accuracy on the whole test part is the complement of its own."""
    folder = RunFolder.create(
        path,
        EXPERIMENT | {"method": method, "seed": seed},
        {"seed": seed, "data_fingerprint": "f00d"},
    )
    for server_round, values in enumerate(CURVES[method], start=1):
        shifted = [value + seed / 100 for value in values]
        folder.append(
            "clients",
            [
                {
                    "round": server_round,
                    "phase": "evaluate",
                    "client": client,
                    "num_examples": 20,
                    "accuracy": value,
                    "whole_test_accuracy": 1 - value,
                    "whole_test_examples": 100,
                }
                for client, value in enumerate(shifted)
            ],
        )
        mean = sum(shifted) / 2
        row = {
            "round": server_round,
            "accuracy_mean": mean,
            "accuracy_worst10": min(values),
        }
        folder.append("rounds", [row])
    folder.finish("finished")
    return path


@pytest.fixture
def runs(tmp_path):
    return [made(tmp_path / f"{m}-{seed}", m, seed) for m in CURVES for seed in (0, 1)]


def cells(page, section="compare"):
    """Return the rows of a section's tables."""
    (part,) = re.findall(rf'<section id="{section}">(.*?)</section>', page, re.DOTALL)
    lines = re.findall(r"<tr>(.*?)</tr>", part, re.DOTALL)
    found = [re.findall(r"<td[^>]*>(.*?)</td>", line, re.DOTALL) for line in lines]
    return [[html.unescape(cell) for cell in line] for line in found if line]


def printed(text):
    """Return the rows of the tables in a command's output."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


OPTIONS = {
    "none": [],
    "evaluations": ["--evaluations", "2"],
    "more evaluations than there are": ["--evaluations", "9"],
    "baseline": ["--baseline", "fedprox"],
    "score": ["--score", "whole_test_accuracy"],
    "all": [
        "--evaluations",
        "2",
        "--baseline",
        "fedprox",
        "--score",
        "whole_test_accuracy",
    ],
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_report_of_a_comparison_has_its_numbers(runs, tmp_path, options, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    folder, page = tmp_path / "out", tmp_path / "page.html"
    paths = [str(run) for run in runs]
    done = CliRunner().invoke(app, ["compare", *paths, *options, "--output", str(folder)])
    assert done.exit_code == 0
    alone = CliRunner().invoke(app, ["report", *paths, *options, "--output", str(page)])
    assert alone.exit_code == 0
    text = (folder / "comparison.md").read_text()
    differences = (folder / "differences.md").read_text()
    for shown in (folder / "report.html", page):
        found = cells(shown.read_text())
        # Two rows of numbers and one of differences, of each score, and the keys.
        assert len(found) == (7 if "--score" in options else 4)
        for row in found[:3]:
            assert f"| {' | '.join(row)} |" in text + differences
        for row in cells(shown.read_text(), "what")[:2]:
            label, seed, _, _, mean = row[:5]
            by_seed = (folder / "by_seed.csv").read_text()
            (kept,) = re.findall(rf"^{label},{seed},([^,]*)", by_seed, re.MULTILINE)
            assert float(mean) == pytest.approx(float(kept), abs=0.006)
    wide = [row for row in printed(done.stdout) if len(row) == len(found[0])]
    assert [row[:1] for row in wide] == [row[:1] for row in found[:2]]


def test_the_ranking_is_that_of_the_options(runs):
    def means(comparison):
        return [row.metrics["mean"].mean for row in comparison.rows]

    last, two = compare(runs), compare(runs, 2)
    assert means(last)[0] < means(last)[1] and means(two)[0] > means(two)[1]
    loaded = [load_run(run) for run in runs]
    assert cells(report_html(loaded, two)) != cells(report_html(loaded, last))
    assert cells(report_html(loaded)) == cells(report_html(loaded, last))


def test_an_option_of_the_report_of_one_run_has_an_effect(runs, tmp_path):
    page = tmp_path / "page.html"
    CliRunner().invoke(app, ["report", str(runs[0]), "--output", str(page)])
    assert "Comparison" not in page.read_text().partition("<script")[0]
    options = ["--evaluations", "2", "--output", str(page)]
    assert CliRunner().invoke(app, ["report", str(runs[0]), *options]).exit_code == 0
    assert cells(page.read_text())[0][3].startswith("65.50")
    assert "<dd>65.50 %</dd>" in page.read_text()


def test_an_unknown_baseline_is_refused(runs):
    for command in ("compare", "report"):
        done = CliRunner().invoke(app, [command, *map(str, runs), "--baseline", "fedfoo"])
        assert "no experiment 'fedfoo': there are fedavg; fedprox" in str(done.exception)


# Of how many clients


def with_missing(path, last, asked=8, **more):
    """Make a run of two rounds, at the last of which some clients have no accuracy."""
    folder = make_run(
        path, accuracies=[[0.5] * asked, last], status="running", experiment=more
    )
    rounds = path / "rounds.jsonl"
    first, second = rounds.read_text().splitlines()
    counts = f', "accuracy_clients": {len(last)}, "accuracy_clients_asked": {asked}'
    if not last:
        # Its mean of nothing is no JSON.
        second = '{"round": 2'
        counts += "}"
    else:
        second, counts = second.removesuffix("}"), counts + "}"
    rounds.write_text(f"{first}\n{second}{counts}\n")
    write_summary(folder)
    folder.finish("finished")
    return path


def test_all_that_is_made_of_a_run_says_of_how_many_clients(tmp_path):
    path = with_missing(tmp_path / "a", [0.9] * 5)
    run = load_run(path)
    lines = []
    tell_summary(path, lines.append)
    assert lines[0].strip() == "Accuracy over 5 of 8 clients"
    assert run.summary["accuracy_in_per_cent"]["num_asked"] == 8
    comparison = compare([path])
    assert table_lines(comparison)[0][3] == "clients"
    assert table_lines(comparison)[1][3] == "5 of 8"
    (warning,) = comparison.warnings
    assert warning.startswith(
        "fedavg, seed 0: the numbers are of 5 of 8 clients at round 2"
    )
    assert warning in to_markdown(comparison)
    page = report_html([run])
    assert "<dt>with a score</dt><dd>5 of 8 clients</dd>" in page
    assert "Accuracy of 5 of 8 clients at round 2." in page
    assert "That of 3 is from an earlier round" in page


def test_a_run_in_which_all_have_an_accuracy_says_nothing(tmp_path):
    folder = make_run(tmp_path / "a", accuracies=[[0.5] * 8, [0.9] * 8], status="running")
    write_summary(folder)
    folder.finish("finished")
    run = load_run(tmp_path / "a")
    assert "num_asked" not in run.summary["accuracy_in_per_cent"]
    assert compare([run.path]).warnings == ()
    assert "clients" not in table_lines(compare([run.path]))[0]
    assert "with a score" not in report_html([run])
    assert "earlier round" not in report_html([run])


def test_where_nobody_has_one_at_last_no_earlier_number_stands_in(tmp_path):
    path = with_missing(tmp_path / "a", [])
    lines = []
    tell_summary(path, lines.append)
    assert lines == ["No accuracy over clients: 0 of 8 clients have a score"]
    assert load_run(path).summary["accuracy_in_per_cent"] is None
    (row,) = compare([path]).rows
    assert row.metrics["mean"] is None and row.short == "0 of 8 clients"
    assert row.metrics["last"].mean == pytest.approx(50)
    assert "0 of 8 clients" in report_html([load_run(path)])


def test_a_comparison_says_it_of_each_run(tmp_path):
    paths = [
        with_missing(tmp_path / "a", [0.9] * 5),
        with_missing(tmp_path / "b", [0.9] * 8, method="fedprox"),
    ]
    first, second = table_lines(compare(paths))[1:]
    assert (first[:4:3], second[:4:3]) == (["fedprox", "all"], ["fedavg", "5 of 8"])
    assert "5 of 8" in report_html([load_run(path) for path in paths])


def test_an_older_folder_with_per_cent_in_it_is_read(tmp_path):
    folder = make_run(tmp_path / "a", accuracies=[[0.5, 0.6, 95.0, -1.0]])
    run = load_run(folder.path)
    (scores,) = run.scores()
    assert (sorted(scores.of), scores.num_asked) == ([0, 1], 4)
    assert run.client_means(["evaluate_accuracy"])["evaluate_accuracy"][1] == pytest.approx(
        0.55
    )
    assert compare([run.path]).rows[0].short == "2 of 4 clients"
    page = report_html([run])
    assert "9500" not in page and "<dd>55.00 %</dd>" in page
