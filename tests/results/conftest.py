"""The command line in an empty folder."""

import sys

import pytest

from fedsuite.cli import main


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
