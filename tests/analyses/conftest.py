"""The command line in an empty folder."""

import sys

import pytest
import tomli_w

from fedsuite.cli import main

SMALL = {
    "model": "cnn-shallow",
    "num-clients": 4,
    "clients-per-round": 2,
    "num-rounds": 2,
    "local-steps": 1,
    "batch-size": 16,
    "device": "cpu",
}


@pytest.fixture
def analyse(monkeypatch, capfd, tmp_path):
    """Run ``fedsuite analyse`` in this process; return exit code, output, error output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedsuite", "analyse", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capfd.readouterr()
        return caught.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def experiment_file(tmp_path):
    """Write the small experiment with other keys (in snake case) and return the file."""

    def write(**keys):
        changes = {name.replace("_", "-"): value for name, value in keys.items()}
        path = tmp_path / "experiment.toml"
        path.write_text(tomli_w.dumps(SMALL | changes))
        return path

    return write
