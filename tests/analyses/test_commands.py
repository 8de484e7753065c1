"""The group of analyses: its list, what each leaves behind, and one-line errors."""

import csv
from pathlib import Path

import pytest

from fedsuite.analyses import ANALYSES
from fedsuite.analyses.options import variant
from fedsuite.analyses.output import Output, Table
from fedsuite.core.errors import RunError
from fedsuite.experiment.command_options import overrides
from fedsuite.experiment.experiment import Experiment
from tests.results.made_runs import make_run

PNG = b"\x89PNG\r\n\x1a\n"


def written(name, folder="analysis"):
    """Return the rows of an analysis' CSV, after checking its other files."""
    stem = Path(folder) / name
    assert stem.with_suffix(".png").read_bytes().startswith(PNG)
    with open(stem.with_suffix(".csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    markdown = stem.with_suffix(".md").read_text()
    assert markdown.startswith(f"| {next(iter(rows[0]))} |")
    return rows


def test_the_list_has_a_line_for_each(analyse):
    code, out, _ = analyse("--help")
    assert code == 0
    for name, line in ANALYSES.items():
        assert name in out
        assert line.split()[0] in out


@pytest.mark.parametrize("name", ANALYSES)
def test_each_tells_its_options(analyse, name):
    code, out, _ = analyse(name, "--help")
    assert code == 0
    assert f"fedsuite analyse {name}" in out
    assert "--output" in out
    assert "--overwrite" in out


@pytest.mark.parametrize(
    "arguments",
    [("nothing",), ("latent-variance", "--nothing"), ("latent-variance", "--clients", 1)],
)
def test_usage_errors(analyse, arguments):
    code, _, err = analyse(*arguments)
    assert code == 2
    assert "Traceback" not in err


def test_nothing_is_replaced_silently(analyse):
    quick = ("latent-variance", "--draws", 100)
    assert analyse(*quick)[0] == 0
    before = written("latent_variance")
    code, _, err = analyse(*quick, "--seed", 1)
    assert code == 1
    assert err.startswith("fedsuite: error: analysis/latent_variance.csv is there already")
    assert err.count("\n") == 1
    assert written("latent_variance") == before
    assert analyse(*quick, "--seed", 1, "--overwrite")[0] == 0
    assert written("latent_variance") != before


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot write"):
        Output.claim(tmp_path / "file" / "folder", "name", overwrite=False)


ERRORS = {
    "no file": (("loss-plane", "nothing.toml"), "cannot read experiment nothing.toml"),
    "no convolution, factored": (
        ("aggregation-variance", "linear.toml", "--models", "factored"),
        "without convolutions",
    ),
    "no convolution, dense": (
        ("aggregation-variance", "linear.toml", "--models", "dense"),
        "has no convolutions",
    ),
    "unknown key": (
        ("participation", "experiment.toml", "--set", "nothing=1"),
        "unknown key 'nothing'",
    ),
    "too many clients": (
        ("participation", "experiment.toml", "--clients", "2,40"),
        "clients-per-round = 40: expected at most num-clients = 4",
    ),
    "no run": (("communication", "nowhere"), "nowhere is not a folder"),
    "running statistics": (
        ("loss-plane", "experiment.toml", "--set", "model=mobilenet-v2"),
        "keeps running statistics",
    ),
}


@pytest.mark.parametrize(("arguments", "words"), ERRORS.values(), ids=ERRORS)
def test_errors_are_one_line(analyse, experiment_file, arguments, words):
    experiment_file(model="linear").rename("linear.toml")
    experiment_file()
    code, _, err = analyse(*arguments)
    assert code == 1
    assert words in err
    assert err.startswith("fedsuite: error: ")
    assert err.count("\n") == 1


def test_a_metric_that_runs_lack(analyse, tmp_path):
    make_run(tmp_path / "run")
    code, _, err = analyse("communication", tmp_path / "run", "--metric", "nothing")
    assert code == 1
    assert "no column nothing" in err


def test_table_in_full_and_rounded():
    table = Table(("who", "how many"), [("a|b", 1234.5678), ("c", None)], "A note.")
    assert table.to_csv() == "who,how many\na|b,1234.5678\nc,\n"
    assert table.to_markdown() == (
        "| who | how many |\n| --- | ---: |\n| a\\|b | 1235 |\n| c | – |\n\nA note.\n"
    )


def test_variants_of_an_experiment(experiment_file):
    path = experiment_file(decomposition=True, atoms=5, coefficient_period=3)
    given = overrides(["seed=4"])
    factored = Experiment.load(path, variant("factored", given))
    assert (factored["decomposition"], factored["atoms"], factored["seed"]) == (True, 5, 4)
    dense = Experiment.load(path, variant("dense", given))
    assert dense["decomposition"] is False
    assert "atoms" not in dense.values
    assert dense["seed"] == 4
