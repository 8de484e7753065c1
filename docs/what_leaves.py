"""The page that says what leaves a site, written from what the clients' classes declare.

``python docs/what_leaves.py --write``, which `make config` runs, brings the page up to
date after a change of ``SENDS``. With ``--check`` it fails if the page is another.
"""

import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from fedsuite.clients import load_client
from fedsuite.clients.decomposition.filter_decomposition import DecomposedClient
from fedsuite.core.registry import METHODS
from fedsuite.results.tables import markdown_table
from fedsuite.training.sent import OF_ANY_METHOD, may_send

PAGE = Path(__file__).parent / "how-to" / "what_leaves_a_site.md"
BEGIN, END = "<!-- sent: begin -->\n", "<!-- sent: end -->"

_RECORDS: Mapping[str, tuple[str, str]] = {
    "arrays": (
        "the model after training, or the part of it that is shared",
        "what a model betrays of the rows that it was trained on",
    ),
    "models": ("the same of several models", "the same"),
    "head": ("the classifier after training", "the same"),
    "first-step": ("the model after the first step", "the gradient of one mini-batch"),
    "gradient": ("the gradient over all training rows", "as much as a model"),
    "control-change": ("the change of the client's control vector", "as much as a model"),
    "update/kept": ("which entries of the update are the largest", "a part of a model"),
    "update/values": ("these entries", "a part of a model"),
    "statistics": ("running means and variances of normalisation", "means of features"),
    "update/reference": ("how far a projection of the model moved", "a part of a model"),
    "statistics/prototypes": (
        "the mean feature of each class",
        "of a class with one row that row's feature",
    ),
    "statistics/scaled-means": (
        "the mean feature of each class times the class's share",
        "the share of each class, with the one before",
    ),
    "statistics/counts": ("rows of each class", "itself"),
    "curvature/gradient": (
        "the slope of the loss summed over its rows, by parameter",
        "of one row with an event, how its columns differ from those at risk",
    ),
    "curvature/hessian": (
        "the second derivatives of that sum, by pairs of parameters",
        "weighted products of pairs of columns: of few rows, nearly the rows",
    ),
    "class-table/rows": (
        "the mean output or feature of each class",
        "of a class with one row that row's output",
    ),
    "class-table/counts": (
        "1 for each class with a row; with a key of `fedproto` rows of each class",
        "itself",
    ),
    "outputs/logits": ("the model's outputs on public rows", "what the model has learnt"),
    "outputs/probabilities": ("the same, rounded", "the same"),
    "outputs/features": ("the model's features on public rows", "the same"),
    "outputs/similarities": ("how alike features of public rows are", "the same"),
    "losses/losses": (
        "the received model's loss on each of the first mini-batches",
        "how well few rows fit the others' model",
    ),
    "shares/shares": ("how much of the rows each model describes", "whom a site resembles"),
    "ranking/ranking": ("an order of models by their loss", "whom a site resembles"),
}
"""What a record, or an array of one, holds, and what it tells of the rows."""

_METRICS: Mapping[str, str] = {
    "num-examples": "rows trained or tested on",
    "num-steps": "steps of local training",
    "loss": "mean loss of training, or on the site's test rows",
    "accuracy": "accuracy on the site's test rows",
    "scores": "further scores on the site's test rows, where the key `scores` asks for "
    "them; with `confusion-matrix`, rows of each class",
    "one-class": "the class that the model takes all test rows for, where it does",
    "examples": "rows of a score, in names such as `validation-examples`",
    "received-training-loss": "the received model's loss over the training rows, with "
    "`score-training-data`",
    "training-examples": "rows of that loss",
    "stored-state": "that the client keeps something, 1",
    "alignment-loss": "mean loss of drawing features together",
    "apfl-share": "share of the own model in the mixture",
    "cluster": "number of the model that fits best",
    "constant-columns": "classes whose outputs were constant on a public batch",
    "discrepancy": "distance of the shares of classes from uniform",
    "distilled-loss": "mean loss of distillation",
    "feature-variance": "variance of the features",
    "feature-width": "length of the network's features",
    "fisher": "sum of the squared gradients of the mini-batches, or of the rows",
    "forgotten": "rows that models once got right and now get wrong",
    "learning-rate": "rate of local training",
    "local-loss": "mean loss of the local model's training",
    "loss-after": "the trained model's loss over all training rows",
    "loss-before": "the received model's loss over all training rows",
    "most-pruned": "share of the weights that are 0",
    "never-learned": "rows that no model got right",
    "num-batches": "mini-batches whose losses were sent",
    "personal-loss": "mean loss of the personal model's training",
    "pretrain-steps": "steps of pre-training",
    "prototype-accuracy": "accuracy of the nearest prototype",
    "selected": "rows that the local model gets right with confidence",
    "slow-version": "version of the factors that the client holds",
    "transfer-loss": "loss on public rows",
}
"""What a metric holds."""

_CLASSES: Mapping[str, str] = {
    "statistics/counts": "**rows of each class**",
    "statistics/scaled-means": "",
    "class-table/rows": "",
    "class-table/counts": "which classes it has",
    "discrepancy": "how uneven they are, in one number",
}
"""What is told of the rows of each class; empty where another name says as much."""

_PER_CLASS_COUNTS = "fedproto"
"""The method that sends counts if a key says so."""


def described() -> set[str]:
    """Return all names that the page has words for."""
    return {*_RECORDS, *_METRICS}


def declared() -> dict[str, frozenset[str]]:
    """Return what the replies of each method's clients may hold."""
    methods = {name: may_send(load_client(m)) for name, m in METHODS.ours.items()}
    return methods | {"decomposition = true": DecomposedClient.SENDS}


def rendered() -> str:
    """Return the generated part of the page."""
    sent = declared()
    rows: dict[tuple[str, str, str], list[str]] = {}
    for method, names in sent.items():
        cells = (
            _named(names & _RECORDS.keys()),
            _named((names & _METRICS.keys()) - OF_ANY_METHOD - {"stored-state"}),
            _of_classes(method, names),
        )
        rows.setdefault(cells, []).append(f"`{method}`")
    lines = [["method", "records", "numbers beside the usual", "classes of its rows"]]
    lines += [[", ".join(methods), *cells] for cells, methods in rows.items()]
    every = {name for names in sent.values() for name in names}
    records = [["record, or array of one", "holds", "tells"]]
    records += [[f"`{n}`", *words] for n, words in _RECORDS.items() if n in every]
    metrics = [["number", "holds"]]
    metrics += [[f"`{n}`", words] for n, words in _METRICS.items() if n in every]
    return "\n".join(
        [
            "## By method",
            "",
            markdown_table(lines, range(4)),
            "## Records",
            "",
            markdown_table(records, range(3)),
            "## Numbers",
            "",
            markdown_table(metrics, range(2)),
        ]
    )


def with_table(text: str) -> str:
    """Return the page with the generated part between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        missing = (BEGIN, END)[bool(begin)]
        raise SystemExit(f"{PAGE.name} lacks the line {missing!r}: add it")
    return f"{before}{begin}{rendered()}{end}{after}"


def _named(names: Collection[str]) -> str:
    order = [*_RECORDS, *_METRICS]
    return ", ".join(f"`{name}`" for name in order if name in names) or "–"


def _of_classes(method: str, names: Collection[str]) -> str:
    told = [words for name, words in _CLASSES.items() if name in names and words]
    if method == _PER_CLASS_COUNTS:
        told.append('with `proto-aggregation = "count"` **rows of each class**')
    return "; ".join(told) or "–"


def main(arguments: list[str]) -> int:
    """Write the page, or check it; return the exit code."""
    if arguments not in (["--write"], ["--check"]):
        print(__doc__)
        return 2
    text = PAGE.read_text()
    if arguments == ["--write"]:
        PAGE.write_text(with_table(text))
    elif with_table(text) != text:
        print(f"{PAGE.name} is out of date: run `make config`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
