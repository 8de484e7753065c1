"""An experiment's audit: a run with canaries, and runs that each train on half of the rows.

The runs of halves differ by their seeds, which draw another network, another partition and
other halves. An attacker of one of them has the others to learn from.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.files import atomic_write
from fedsuite.core.keys import Value
from fedsuite.core.output import print_line
from fedsuite.core.own_process import typed
from fedsuite.core.progress import Work
from fedsuite.engines.canaries import audit_noise, has_central_noise
from fedsuite.engines.trained.membership import RowScores, row_scores, why_no_membership
from fedsuite.engines.trained.run import Run
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.analysis_files import Output
from fedsuite.results.privacy import Attack, Findings, NoiseAudit, Scores
from fedsuite.results.report.privacy_page import write_privacy_page
from fedsuite.sweeps.points import make_points
from fedsuite.sweeps.sweep import LOGS, base_values, run_points

HALF: Mapping[str, Value] = {
    "client-validation-fraction": 0.5,
    "fresh-test-split": False,
    "engine": "local",
    "report": False,
    "trackers": "",
}
"""Values of the runs that train on half of the rows, which hold out the same test rows."""

FEWEST_RUNS = 4
"""Least runs of halves: each row needs some with it and some without it."""

MODEL, REPLY = "final model", "a site's reply"
"""What is attacked."""


def audit_privacy(
    file: Path,
    overrides: Mapping[str, Value],
    folder: Path,
    *,
    canaries: int,
    shadows: int,
    workers: int,
    overwrite: bool,
) -> None:
    """Audit an experiment, print the findings, and write them as a table and a page.

    Parameters
    ----------
    file, overrides
        The experiment's file, and values that win over it.
    folder
        Folder of the files, and of the runs, which a second call does not make again.
    canaries
        Canaries, at least 2; 0 leaves the audit of the noise out.
    shadows
        Runs of halves, at least :data:`FEWEST_RUNS`; 0 leaves the membership test out.
    workers
        Runs of halves at a time; 0 is one per core.
    overwrite
        Whether table and page of an earlier call may be replaced.

    Raises
    ------
    FedsuiteError
        If there is nothing to audit, the experiment cannot be audited, or a run fails.
    """
    experiment = Experiment.load(file, overrides)
    left_out = list(_left_out(experiment, canaries, shadows))
    if len(left_out) == 2:
        raise ConfigError(f"{file}: nothing is left to audit. {' '.join(left_out)}")
    if canaries == 1 or 0 < shadows < FEWEST_RUNS:
        raise ConfigError(
            f"--canaries {canaries}, --shadows {shadows}: expected 2 canaries and "
            f"{FEWEST_RUNS} shadows at least, or 0"
        )
    files = Output.claim(folder, "privacy", ".csv", ".html", overwrite=overwrite)
    noise: NoiseAudit | None = None
    attacks: dict[tuple[str, str], Attack] = {}
    if canaries and has_central_noise(experiment):
        noise = audit_noise(experiment, canaries, str(folder / "canaries"))
    if shadows and not why_no_membership(experiment):
        runs = shadow_runs(file, overrides, folder / "shadows", shadows, workers)
        with Work("scoring rows", len(runs)) as work:
            attacks = membership(_scored(runs, work))
        if not any(model == REPLY for model, _ in attacks):
            left_out.append("Sites' replies are left out: they are no models of all.")
    findings = Findings(noise, attacks, left_out)
    table, page = files.paths
    atomic_write(table, findings.table().to_csv().encode())
    title = f"Privacy of {experiment['method']} on {experiment['dataset']}"
    size = f"{experiment.num_clients} clients, {experiment['num-rounds']} rounds"
    write_privacy_page(findings, title, size, typed(), page)
    for sentence in findings.sentences():
        print_line(sentence)
    findings.table().show()
    print_line(f"table and page: {table}, {page}")


def _left_out(experiment: Experiment, canaries: int, shadows: int) -> Iterator[str]:
    """Yield why a half of the audit is not made."""
    if not canaries:
        yield "Canaries are left out, as --canaries 0 asks for."
    elif not has_central_noise(experiment):
        yield (
            "Canaries are left out: without noise at the server (dp-noise-multiplier, "
            "target-epsilon) epsilon is infinite."
        )
    if not shadows:
        yield "The membership test is left out, as --shadows 0 asks for."
    elif reason := why_no_membership(experiment):
        yield f"The membership test is left out: {reason}."


def shadow_runs(
    file: Path, overrides: Mapping[str, Value], folder: Path, count: int, workers: int
) -> list[Run]:
    """Return finished runs that each train on half of the rows; make the missing ones.

    Raises
    ------
    RunError
        If one fails.
    """
    base = base_values(file, {**overrides, **HALF})
    first = Experiment.from_values(base).seed
    points = make_points(base, (), range(first, first + count))
    work = Work("runs of halves", count)
    whole = Path(os.path.abspath(folder))
    failures = run_points(
        whole, base, points, workers, work, compared=False, scored=lambda run: ""
    )
    if failures:
        raise RunError(
            f"{len(failures)} of {count} runs failed; the first: {failures[0]}; logs: "
            f"{whole / LOGS}; the same audit again retries them"
        )
    return [Run.read(whole / point.name) for point in points]


def _scored(runs: Sequence[Run], work: Work) -> Iterator[RowScores]:
    for run in runs:
        yield row_scores(run)
        work.advance()


def membership(scored: Iterable[RowScores]) -> dict[tuple[str, str], Attack]:
    """Return attacks on runs by the scores of their rows, by what is attacked and how."""
    runs = list(scored)
    size = 1 + max(int(run.rows.max()) for run in runs)
    members = np.zeros((len(runs), size), dtype=np.bool_)
    of_model, of_reply = np.full((2, len(runs), size), np.nan)
    for place, run in enumerate(runs):
        members[place, run.rows[run.members]] = True
        of_model[place, run.rows] = run.of_model
        of_reply[place, run.rows] = run.of_reply
    attacks: dict[tuple[str, str], Attack] = {}
    for model, values in ((MODEL, of_model), (REPLY, of_reply)):
        if np.isfinite(values).any():
            scores = Scores(values, members)
            attacks[model, "loss threshold"] = scores.threshold()
            attacks[model, "LiRA"] = scores.likelihood_ratio()
    return attacks
