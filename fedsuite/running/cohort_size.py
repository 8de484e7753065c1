"""The number that stands for ``cohort = "auto"`` in a run."""

from pathlib import Path

from fedsuite.core.keys import AUTO
from fedsuite.core.logs import write_line
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.layout import EXPERIMENT
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.running.worker import Worker
from fedsuite.training.store import MemoryStore


def with_cohort_size(experiment: Experiment, folder: Path, workers: int) -> Experiment:
    """Return the experiment with a number in place of ``cohort = "auto"``.

    The number is that of the run in the folder, if the experiment resumes it. Else some
    steps are timed.

    Parameters
    ----------
    experiment
        The experiment.
    folder
        The run's folder.
    workers
        Number of processes, each of which is to have a cohort in each round.
    """
    if experiment["cohort"] != AUTO:
        return experiment
    if experiment["resume"] and (folder / EXPERIMENT).exists():
        return experiment.replace(cohort=Experiment.load(folder / EXPERIMENT)["cohort"])
    rounds = experiment.group(RoundSettings)
    asked = rounds.clients_per_round or experiment.num_clients
    seconds = Worker(experiment, MemoryStore()).step_seconds(max(asked // workers, 1))
    size = min(seconds, key=lambda size: seconds[size])
    told = ", ".join(f"{1e6 * time:.0f} at {size}" for size, time in seconds.items())
    write_line(f"cohort = auto: {size} (microseconds of a client's step: {told})")
    return experiment.replace(cohort=size)
