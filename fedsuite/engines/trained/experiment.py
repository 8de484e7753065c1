"""The experiment of a run's folder."""

from pathlib import Path

from fedsuite.experiment.experiment import Experiment, naming
from fedsuite.results.layout import EXPERIMENT, read_experiment


def experiment_of(folder: Path) -> Experiment:
    """Return the experiment of a run's folder; ConfigError if it cannot be run."""
    values = read_experiment(folder)
    with naming(folder / EXPERIMENT, ()):
        return Experiment.from_values(values)
