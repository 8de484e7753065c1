"""Federated learning methods for Flower, tested and measured.

``fedsuite.run("experiment.toml")`` runs an experiment, ``fedsuite.simulate("my-app")`` any
Flower app; ``fedsuite.load_run(FOLDER)`` reads a run and gives its model;
``fedsuite.strategies`` and ``fedsuite.clients`` plug into any Flower app.
Nothing heavy is imported before it is used.
"""

from fedsuite.engines.api import load_run, resume, run
from fedsuite.engines.apps.simulate import simulate

__version__ = "0.1.0"

__all__ = ["__version__", "load_run", "resume", "run", "simulate"]
