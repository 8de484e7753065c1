"""Completion in the shell: what it offers, and that it needs no torch."""

import subprocess
import sys

from fedsuite.core.registry import METHODS
from fedsuite.data import DATASETS
from fedsuite.experiment.completion import (
    NAMES,
    complete_method,
    complete_methods,
    complete_setting,
)
from fedsuite.experiment.config_table import completion_table


def test_methods_and_their_lists():
    assert complete_method("fedeba") == ["fedeba", "fedeba-plus"]
    assert complete_methods("fedavg,fedeba-") == ["fedavg,fedeba-plus"]
    assert set(complete_method("")) == set(METHODS)


def test_keys_and_their_choices():
    assert "local-epochs=" in dict(complete_setting("local-e"))
    offered = [name for name, _ in complete_setting("dataset=")]
    assert {f"dataset={name}" for name in DATASETS.ours} == set(offered)
    assert [name for name, _ in complete_setting("method=fedeba-")] == [
        "method=fedeba-plus"
    ]
    assert not list(complete_setting("no-key=")) and not list(complete_setting("no-key"))


def test_the_table_is_that_of_the_declared_keys():
    assert NAMES.read_text() == completion_table(), "run `make config`"


def test_the_command_offers_keys_without_importing_torch():
    """As a shell asks it: the last word is what was typed."""
    program = (
        "import os, sys\n"
        "os.environ |= {'_FEDSUITE_COMPLETE': 'complete_bash', 'COMP_CWORD': '4',\n"
        "    'COMP_WORDS': 'fedsuite run a.toml --set local-ep'}\n"
        "from fedsuite.cli import app\n"
        "try:\n    app(prog_name='fedsuite')\n"
        "finally:\n    print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["local-epochs=", "False"], done.stderr
