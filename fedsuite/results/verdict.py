"""What a comparison shows, in sentences: who is ahead, by how much, and whether it counts.

A difference counts if its 95 % interval leaves out 0, and has no point in common with the
placebos' spread: the largest difference of a placebo from the baseline on one seed, to both
sides of 0. The rule of this repository's own results.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fedsuite.results.compare import Comparison, Row
from fedsuite.results.paired import (
    Difference,
    Paired,
    differences_of,
    paired_differences,
)
from fedsuite.results.reader import Run

MEAN = "mean"
"""Metric that decides: the mean over clients."""


@dataclass(frozen=True)
class Verdict:
    """What a comparison shows.

    Parameters
    ----------
    headline
        Who is ahead of whom, on what data, by how much, or that no difference is shown.
    sentences
        Whether the difference counts, and what else a reader must know.
    differences
        Paired differences of all experiments but the baseline.
    placebo_spread
        Largest difference of a placebo from the baseline on one seed, in what the score is
        counted in; None without a placebo.
    """

    headline: str
    sentences: tuple[str, ...]
    differences: tuple[Difference, ...]
    placebo_spread: float | None

    @property
    def lines(self) -> tuple[str, ...]:
        """The headline and the sentences."""
        return self.headline, *self.sentences


def verdict(comparison: Comparison) -> Verdict:
    """Return what a comparison shows of its main score."""
    differences = paired_differences(comparison)
    spread = placebo_spread(comparison)
    data = on_data([run for group in comparison.groups for run in group.runs])
    score = comparison.score
    ranked = sorted(
        (row for row in comparison.rows if _level(row) is not None),
        key=lambda row: (row.incomplete, -score.gain(_level(row) or 0.0)),
    )
    if len(comparison.rows) == 1 or len(ranked) < 2:
        of = ranked[0] if ranked else comparison.rows[0]
        known = f": mean {score.title} {_shown(of, score.unit)}" if ranked else ""
        headline = f"{of.label}{data}{known}"
        alone = "One experiment: nothing to compare it with."
        none = f"No other experiment has a mean {score.title}: nothing to compare."
        sentence = alone if len(comparison.rows) == 1 else none
        return Verdict(headline, (sentence,), differences, spread)
    others = [row for row in ranked if row.label != comparison.baseline]
    contenders = [row for row in others if row.label not in comparison.placebos] or others
    best = contenders[0]
    by_label = {difference.label: difference for difference in differences}
    difference = by_label[best.label].metrics[MEAN]
    headline, ending, sentences = _answer(comparison, best, difference, spread)
    last = [row for row in ranked if row.incomplete]
    if last:
        sentences += [
            f"Ranked last: {row.label}, whose mean is over {row.short}." for row in last
        ]
    if equal := [row.label for row in contenders[1:] if _level(row) == _level(best)]:
        sentences.append(f"The same mean: {', '.join(equal)}.")
    elif len(contenders) > 1 and not best.incomplete:
        sentences.append(
            f"Of {len(contenders)} experiments this is the one with the best mean; the "
            "interval makes no allowance for that choice."
        )
    return Verdict(f"{headline}{data}{ending}", tuple(sentences), differences, spread)


def placebo_spread(comparison: Comparison) -> float | None:
    """Return the largest difference of a placebo from the baseline on one seed, or None."""
    rows = {row.label: row for row in comparison.rows}
    baseline = rows[comparison.baseline]
    distances = [
        abs(distance)
        for label in comparison.placebos
        for distance in differences_of(rows[label], baseline, MEAN)
    ]
    return max(distances, default=None)


def on_data(runs: Sequence[Run]) -> str:
    """Return what follows an experiment's name: data and number of clients, if known."""
    datasets = [run.experiment.get("dataset") for run in runs]
    names = _several([str(dataset) for dataset in datasets if dataset])
    counts = _several([f"{num_clients(run):,}" for run in runs if num_clients(run)])
    told = f" on {names}" if names else ""
    return f"{told}, {counts} clients" if counts else told


def num_clients(run: Run) -> int:
    """Return a run's number of clients, 0 where its manifest does not say."""
    count = run.manifest.get("num_clients")
    return count if isinstance(count, int) else 0


def network_words(run: Run) -> str:
    """Return a run's network and its size; the key's value where the size is unknown."""
    networks = run.manifest.get("networks")
    if isinstance(networks, list) and networks:
        return f"{len(set(map(str, networks)))} networks"
    name, size = run.experiment.get("model", ""), run.manifest.get("parameters")
    return f"{name} of {size:,} parameters" if isinstance(size, int) and name else str(name)


def _several(values: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(values))


def _level(row: Row) -> float | None:
    spread = row.metrics[MEAN]
    return None if spread is None else spread.mean


def _least_share(row: Row) -> float:
    return min(one.share() for scores in row.scores.values() for one in scores)


def _shown(row: Row, unit: str) -> str:
    return f"{row.metrics[MEAN]} {unit}".strip()


def _answer(
    comparison: Comparison, best: Row, difference: Paired | None, spread: float | None
) -> tuple[str, str, list[str]]:
    """Return who is ahead, the end of that sentence, and the sentences after it."""
    score, baseline = comparison.score, comparison.baseline
    rows = {row.label: row for row in comparison.rows}
    if best.incomplete or rows[baseline].incomplete:
        # Where both are, the one with fewer clients is named.
        last = min((r for r in (rows[baseline], best) if r.incomplete), key=_least_share)
        return (
            f"{best.label} and {baseline} are not compared by mean {score.title}",
            f": that of {last.label} is over {last.short}",
            ["The clients without a score may be those that are served worst."],
        )
    if difference is None:
        return (
            f"{best.label} and {baseline} have no pair",
            ": nothing is shown",
            ["No seed and partition is in both: what differs may be the data."],
        )
    gain = score.gain(difference.mean)
    first, second = (best.label, baseline) if gain > 0 else (baseline, best.label)
    way = "" if score.higher else " (lower is better)"
    size = f"{abs(difference.mean):.{difference.digits}f} {score.points}".strip()
    headline = f"{first} is ahead of {second} by {size} of mean {score.title}{way}"
    if gain == 0:
        headline = f"{best.label} and {baseline} have the same mean {score.title}"
    pairs = f"{difference.num_pairs} pair{'s' * (difference.num_pairs > 1)}"
    numbers = f"{best.label} minus {baseline}: {difference.intervals}, in {pairs}."
    ending, meaning, is_noise = _whether(comparison, difference, spread)
    if is_noise and gain:
        pair = f"{best.label} and {baseline}"
        headline = f"No difference in mean {score.title} is shown between {pair}"
    return headline, f"; {ending}", [numbers, meaning]


def _whether(
    comparison: Comparison, difference: Paired, spread: float | None
) -> tuple[str, str, bool]:
    """Return where a difference's interval lies, what that means, and if it is noise."""
    half = difference.half
    if half is None:
        return "one pair has no interval", "Nothing is shown: run more seeds.", False
    low, high = difference.mean - half, difference.mean + half
    if low <= 0 <= high:
        return "the 95 % interval holds 0", "These runs show no difference.", True
    outside = "the 95 % interval leaves out 0"
    if spread is None:
        who, missing = "No placebo", "was named"
        if comparison.placebos:
            who, missing = "The placebo", "has no pair with the baseline over its clients"
        way = "`--placebo LABEL` shows what chance can do"
        return outside, f"{who} {missing}: {way}.", False
    words = f"the placebo's spread of {spread:.{difference.digits}f}"
    if low <= spread and high >= -spread:
        ending = f"{outside} and reaches into {words}"
        return ending, "The difference does not count.", True
    return f"{outside} and {words}", "The difference counts.", False
