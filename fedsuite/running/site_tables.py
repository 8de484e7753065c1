"""Sites' tables before the first round: their statistics, and the means that scale them."""

import json
from pathlib import Path

from flwr.serverapp import Grid

from fedsuite.core import reading
from fedsuite.core.column_scaling import ColumnScaling
from fedsuite.core.errors import DataError, RunError
from fedsuite.core.files import atomic_write, make_folder
from fedsuite.core.logs import write_line
from fedsuite.data import DataSettings
from fedsuite.data.site import Site
from fedsuite.data.site_statistics import (
    federated_spec,
    parsed,
    site_statistics,
    statistics_lines,
)
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.plug_ins import fingerprint
from fedsuite.rounds.membership import Directory
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.training.app import source_hash

SCALING_FILE = "column-scaling.json"
STATISTICS = "statistics"
STATISTICS_FILE = "-statistics.json"
"""End of the file's name, beside the folder that a run of the name will make."""


def keep(scaling: ColumnScaling, folder: Path) -> None:
    """Keep what the server told of the columns, for the messages of this run."""
    make_folder(folder)
    atomic_write(folder / SCALING_FILE, json.dumps(scaling.to_dict()).encode())


def told_before(folder: Path) -> ColumnScaling | None:
    """Return what the server told of the columns in this run; None if nothing.

    Raises
    ------
    DataError
        If the file was changed.
    """
    path = folder / SCALING_FILE
    try:
        return ColumnScaling.from_dict(reading.parsed(reading.read_bytes(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: cannot be read ({error}): start the run again") from None


def told_statistics(experiment: Experiment, site: Site) -> dict[str, str]:
    """Return what a site tells of its table in place of training."""
    settings = experiment.group(DataSettings)
    spec = federated_spec(experiment.values)
    return {STATISTICS: json.dumps(site_statistics(site, spec, settings.test_fraction))}


def ask_for_statistics(experiment: Experiment, grid: Grid, folder: Path) -> None:
    """Ask all sites for statistics of their tables; print them, write them beside a folder.

    The folder is that of the run, which is not made: training is yet to come.

    Raises
    ------
    RunError
        If a site does not answer, or not with statistics.
    """
    names = experiment.group(DataSettings).site_names
    directory = Directory(
        "registered",
        len(names),
        experiment.group(RoundSettings).connect_timeout,
        source_hash(),
        None,
        names,
        fingerprint(experiment.values),
    )
    directory.wait(grid, len(names))
    by_site = {}
    for client_id, name in enumerate(names):
        facts = directory.facts.get(client_id, {})
        try:
            by_site[name] = parsed(str(facts.get(STATISTICS, "")))
        except DataError as error:
            raise RunError(f"site {name}: {error}: run the same version on all") from None
    for line in statistics_lines(by_site):
        write_line(line)
    file = folder.with_name(f"{folder.name}{STATISTICS_FILE}")
    make_folder(file.parent)
    atomic_write(file, json.dumps(by_site, indent=1).encode())
    write_line(f"written to {file}")
