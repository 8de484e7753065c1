"""A run is shown by its task's main score, with its unit and its direction."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedsuite.core.tasks import SCORES, TASKS
from fedsuite.deploy.status import read_runs
from fedsuite.results.compare import Comparison, compare, table_lines, to_markdown
from fedsuite.results.paired import paired_differences
from fedsuite.results.reader import load_run
from fedsuite.results.report import report_html
from fedsuite.results.report.sections import page
from fedsuite.results.score import main_score, score_of
from fedsuite.results.summary import tell_summary, write_summary
from fedsuite.results.verdict import verdict
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import score_metrics

Values = Sequence[float | None]

MAE = (0.02, 0.04, 0.09)


def make(
    path: Path, task: str, rounds: Sequence[Mapping[str, Values]], **keys: Any
) -> Path:
    """Make a run whose clients have the scores of each round; None is no score."""
    values: dict[str, Any] = {"method": "fedavg", "seed": 0, "dataset": "rows:mine"}
    values["task"] = task
    values["num-clients"] = len(next(iter(rounds[0].values())))
    values |= {name.replace("_", "-"): value for name, value in keys.items()}
    folder = RunFolder.create(
        path, values, {"seed": values["seed"], "data_fingerprint": "f"}
    )
    for server_round, scores in enumerate(rounds, start=1):
        columns = {SCORES[name].column: numbers for name, numbers in scores.items()}
        rows: list[dict[str, Any]] = [
            {"round": server_round, "phase": "evaluate", "client": k, "num_examples": 9}
            | {column: numbers[k] for column, numbers in columns.items()}
            for k in range(len(next(iter(columns.values()))))
        ]
        folder.append("clients", rows)
        means: dict[str, float] = {}
        for name, numbers in scores.items():
            known = [number for number in numbers if number is not None]
            means |= score_metrics(known, len(numbers), SCORES[name])
        losses = {"train_loss": 1.0, "evaluate_loss": 1.0}
        folder.append("rounds", [{"round": server_round, **losses, **means}])
    write_summary(folder)
    folder.finish("finished")
    return path


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_report_has_no_word_of_a_score_that_the_task_has_not(
    task: Any, tmp_path: Path
) -> None:
    main = task.main_of("auto")
    path = make(tmp_path / "run", task.name, [{main.name: (0.5, 0.25)}] * 2)
    shown, _, _ = report_html([load_run(path)]).partition('<script type="text/plain"')
    # What the keys mean is told for all tasks.
    told = re.sub(r"<details>.*?</details>", "", shown, flags=re.DOTALL)
    assert f"Mean {main.title} over clients" in told
    assert f"mean {main.title}" in told
    assert ("ccuracy" in told) is (main.name == "accuracy")


def test_panels_of_an_error_have_its_unit_and_its_worst_clients(tmp_path: Path) -> None:
    path = make(tmp_path / "run", "regression", [{"mae": MAE, "r2": (0.5, -3.0, 0.1)}])
    shown = page([load_run(path)])
    assert list(shown.views) == ["mae", "r2"]
    by_title = {(f.score, f.title): f for f in shown.figures}
    worst = by_title["mae", "MAE of the worst tenth, at least one client"]
    assert (worst.data[0]["y"], worst.y) == ([0.09], "MAE")
    bars = by_title["mae", "Clients, from the worst to the best"]
    assert bars.data[0]["y"] == [0.09, 0.04, 0.02]
    r2 = by_title["r2", "R2 of the worst tenth, at least one client"]
    assert (r2.data[0]["y"], r2.y) == ([-300], "R2 (%)")
    tiles = shown.views["mae"].tiles
    assert tiles["mean MAE"] == "0.05000" and tiles["worst client"] == "0.09000"
    assert shown.views["r2"].tiles["worst client"] == "-300.00 %"


def test_a_reader_can_choose_among_scores_and_one_is_shown_at_first(tmp_path: Path) -> None:
    scores = {"auroc": (0.5, 0.7), "accuracy": (0.9, 0.8)}
    path = make(tmp_path / "run", "binary", [scores])
    html = report_html([load_run(path)])
    assert re.findall(r'<option value="(\w+)">', html) == ["auroc", "accuracy"]
    assert re.findall(r'<h1 data-score="(\w+)"( hidden)?>', html) == [
        ("auroc", ""),
        ("accuracy", " hidden"),
    ]
    alone = make(tmp_path / "alone", "classification", [{"accuracy": (0.5, 0.7)}])
    assert 'id="score"' not in report_html([load_run(alone)])


@pytest.mark.parametrize(
    ("task", "scores", "column"),
    [
        ("binary", "auto", "auroc"),
        ("binary", "sensitivity", "sensitivity"),
        ("classification", "auto", "accuracy"),
        ("multi-label", "auto", "auroc"),
        ("regression", "rmse", "rmse"),
        ("regression", "of another fedsuite", "mae"),
        ("survival", "auto", "concordance"),
        ("of another fedsuite", "auto", "accuracy"),
    ],
)
def test_the_main_score_of_a_run(task: str, scores: str, column: str) -> None:
    assert main_score({"task": task, "scores": scores}).column == column


def test_the_data_set_knows_its_task() -> None:
    assert main_score({"dataset": "tcga-brca"}).column == "concordance"


def test_a_summary_a_status_and_a_run_in_short(tmp_path: Path) -> None:
    path = make(tmp_path / "runs" / "one", "regression", [{"mae": MAE}])
    lines: list[str] = []
    tell_summary(path, lines.append)
    assert lines[0].strip() == "MAE over 3 clients, less is better"
    text = " ".join("\n".join(lines).replace("│", " ").split())
    assert "mean MAE 0.05000" in text and "worst client 0.09000" in text
    assert "%²" not in text and "nan" not in text and "Gini" not in text
    run = load_run(path)
    assert run.summary is not None
    assert run.summary["main_score"] == "mae"
    assert "accuracy_in_per_cent" not in run.summary
    assert "MAE: mean 0.05, worst client 0.09" in repr(run)
    (status,) = read_runs(tmp_path / "runs")
    assert status.score == "MAE 0.05"


def test_a_comparison_is_of_the_main_score_and_small_numbers_have_digits(
    tmp_path: Path,
) -> None:
    paths = [
        make(tmp_path / "a", "regression", [{"mae": MAE, "rmse": MAE}]),
        make(tmp_path / "b", "regression", [{"mae": (0.01,) * 3}], method="fedprox"),
    ]
    comparison = compare(paths)
    assert comparison.score == score_of("mae")
    assert table_lines(comparison)[1][3] == "0.05000"
    assert "MAE over clients, less is better" in to_markdown(comparison)
    assert verdict(comparison).headline.startswith(
        "fedprox is ahead of fedavg by 0.04000 of mean MAE (lower is better)"
    )


@pytest.mark.parametrize(("value", "digits"), [(43.1, 2), (4.31, 3), (0.0431, 5), (0.0, 2)])
def test_digits_of_a_score_without_a_unit(value: float, digits: int) -> None:
    assert score_of("mae").digits(value) == digits
    assert score_of("accuracy").digits(value) == 2


# Means over fewer clients


def runs_of(
    tmp_path: Path, *by_method: Values, column: str = "accuracy"
) -> tuple[list[Path], Comparison]:
    methods = ("fedavg", "fedprox", "scaffold")
    paths = [
        make(tmp_path / m, "classification", [{column: of}], method=m)
        for m, of in zip(methods, by_method, strict=False)
    ]
    return paths, compare(paths)


FULL = (0.4, 0.5, 0.6, 0.7)
DIVERGED = (0.9, None, None, 0.9)


def test_a_diverged_run_is_ranked_last_and_never_called_ahead(tmp_path: Path) -> None:
    paths, comparison = runs_of(tmp_path, FULL, DIVERGED, (0.45, 0.55, 0.65, 0.75))
    assert [row.label for row in comparison.rows] == ["fedavg", "scaffold", "fedprox"]
    assert [group.label for group in comparison.groups] == ["fedavg", "scaffold", "fedprox"]
    assert comparison.baseline == "fedavg"
    answer = verdict(comparison)
    assert answer.headline.startswith("scaffold is ahead of fedavg by 5.00 points")
    assert "Ranked last: fedprox, whose mean is over 2 of 4 clients." in answer.sentences
    by_label = {d.label: d.metrics["mean"] for d in paired_differences(comparison)}
    assert by_label["fedprox"] is None and by_label["scaffold"] is not None
    html = report_html([load_run(path) for path in paths])
    assert "Not drawn, for their means are over fewer clients: fedprox." in html
    assert re.search(r"<td[^>]*>2 of 4</td>", html)
    assert re.search(r'<td class="number">90.00</td>', html), "it has no place in a sorting"


@pytest.mark.parametrize(
    ("baseline", "other", "named"),
    [
        (FULL, DIVERGED, "fedprox is over 2 of 4"),
        (DIVERGED, FULL, "fedavg is over 2 of 4"),
        ((0.1, 0.1, 0.1, None), (None, None, None, 0.9), "fedprox is over 1 of 4"),
    ],
)
def test_two_runs_of_unlike_clients_are_not_compared(
    baseline: Values, other: Values, named: str, tmp_path: Path
) -> None:
    _, comparison = runs_of(tmp_path, baseline, other)
    headline = verdict(comparison).headline
    assert "ahead" not in headline
    assert headline.startswith("fedprox and fedavg are not compared by mean accuracy")
    assert headline.endswith(f": that of {named} clients")


def test_a_placebo_over_other_clients_is_no_measure_of_chance(tmp_path: Path) -> None:
    """Its mean is far from the baseline's, for two of its clients diverged."""
    paths = [
        make(
            tmp_path / f"{method}-{seed}",
            "classification",
            [{"accuracy": [None if x is None else x + 0.001 * seed for x in of]}],
            method=method,
            seed=seed,
        )
        for method, of in (
            ("fedavg", FULL),
            ("fedprox", (0.6, 0.7, 0.8, 0.9)),
            ("fedsgd", DIVERGED),
        )
        for seed in range(3)
    ]
    answer = verdict(compare(paths, placebos=["fedsgd"]))
    assert answer.placebo_spread is None
    assert answer.headline.startswith("fedprox is ahead of fedavg by 20.00 points")
    assert "The placebo has no pair with the baseline over its clients" in " ".join(
        answer.sentences
    )


def test_a_run_alone_on_its_seed_is_incomplete_by_itself(tmp_path: Path) -> None:
    paths = [
        make(tmp_path / m, "classification", [{"accuracy": of}], method=m, seed=seed)
        for seed, (m, of) in enumerate((("fedprox", DIVERGED), ("fedavg", FULL)))
    ]
    rows = compare(paths).rows
    assert [(row.label, row.incomplete) for row in rows] == [
        ("fedavg", False),
        ("fedprox", True),
    ]


def test_clients_that_no_run_can_score_are_no_reason(tmp_path: Path) -> None:
    """Rows of one class have no AUROC, whatever the model."""
    paths = [
        make(tmp_path / m, "binary", [{"auroc": (score, None, score)}], method=m)
        for m, score in (("fedavg", 0.5), ("fedprox", 0.6))
    ]
    comparison = compare(paths)
    assert [row.incomplete for row in comparison.rows] == [False, False]
    assert verdict(comparison).headline.startswith("fedprox is ahead of fedavg by 10.00")
    assert table_lines(comparison)[1][3] == "2 of 3"


@pytest.mark.parametrize(
    ("num_scored", "worst"), [(10, "worst client"), (11, "worst 10 %")]
)
def test_the_worst_of_a_comparison_are_of_those_with_a_score(
    tmp_path: Path, num_scored: int, worst: str
) -> None:
    accuracies = [0.5] * num_scored + [None] * 20
    run = make(tmp_path / "run", "classification", [{"accuracy": accuracies}])
    assert compare([run]).columns["worst_10"] == worst
