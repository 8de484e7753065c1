"""The group of commands that read runs: what each leaves behind, and one-line errors."""

import pytest

from fedsuite.core.errors import RunError
from fedsuite.results.analysis_files import Output, Table
from tests.results.made_runs import make_run

OF_RUNS = ("costs", "suspects")
NAMES = (*OF_RUNS, "privacy")


def test_the_list_is_of_these(analyse):
    code, out, _ = analyse("--help")
    assert code == 0
    commands = [line.split()[1] for line in out.splitlines() if line.startswith("│ ")]
    assert tuple(word for word in commands if not word.startswith("-")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_tells_its_options(analyse, name):
    code, out, _ = analyse(name, "--help")
    assert code == 0
    assert f"fedsuite analyse {name}" in out
    assert "--output" in out
    assert "--overwrite" in out


@pytest.mark.parametrize(
    "arguments",
    [("nothing",), ("suspects", "--nothing"), ("costs", "run", "--target", "x")],
)
def test_usage_errors(analyse, arguments):
    code, _, err = analyse(*arguments)
    assert code == 2
    assert "Traceback" not in err


def test_nothing_is_replaced_silently(tmp_path):
    (tmp_path / "name.md").touch()
    with pytest.raises(
        RunError, match=r"name\.md is there already: .* --overwrite"
    ) as caught:
        Output.claim(tmp_path, "name", overwrite=False)
    assert "\n" not in str(caught.value)
    Output.claim(tmp_path, "name", overwrite=True)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot write"):
        Output.claim(tmp_path / "file" / "folder", "name", overwrite=False)


@pytest.mark.parametrize("name", OF_RUNS)
def test_a_run_that_is_not_there(analyse, name):
    code, _, err = analyse(name, "nowhere")
    assert code == 1
    assert err.startswith("fedsuite: error: nowhere is not a folder")
    assert err.count("\n") == 1


def test_a_metric_that_runs_lack(analyse, tmp_path):
    make_run(tmp_path / "run")
    code, _, err = analyse("costs", tmp_path / "run", "--metric", "nothing")
    assert code == 1
    assert "no column nothing" in err


def test_table_in_full_and_rounded():
    table = Table(("who", "how many"), [("a|b", 1234.5678), ("c", None)], "A note.")
    assert table.to_csv() == "who,how many\na|b,1234.5678\nc,\n"
    assert table.to_markdown() == (
        "| who | how many |\n| --- | ---: |\n| a\\|b | 1235 |\n| c | – |\n\nA note.\n"
    )
