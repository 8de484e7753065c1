"""The commands of papers' figures in an empty folder."""

import runpy
import sys

import pytest
import tomli_w

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
def simulate(monkeypatch, capfd, tmp_path):
    """Run ``python -m simulations.NAME`` here; return exit code, output, error output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(name, *arguments):
        module = f"simulations.{name}"
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        # runpy warns of a module that a test has imported already.
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(SystemExit) as caught:
            runpy.run_module(module, run_name="__main__")
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
