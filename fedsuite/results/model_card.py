"""The card of a run's model, for who gets the model in a file."""

from pathlib import Path

from fedsuite.results import layout
from fedsuite.results.model_facts import ModelFacts
from fedsuite.results.reader import Run
from fedsuite.results.score import main_score
from fedsuite.results.tables import markdown_table, markdown_text

_MOST_CLIENTS = 100
"""Clients whose scores the card lists."""

_TEXTS = (0, 1)
"""Columns of text in the tables."""

_MOST_NAMES = 200
"""Columns or classes that the card lists."""


def card(run: Run) -> str:
    """Return a run's model card as Markdown."""
    facts = ModelFacts.read(run.path)
    parts = (
        f"# Model of the run {markdown_text(run.path.name)}\n",
        markdown_table([["", ""], *_origin(run)], _TEXTS),
        "## What it takes and gives\n",
        markdown_table([["", ""], *_interface(facts)], _TEXTS),
        "## How well it does\n",
        _scores(run),
        "## How to use it\n",
        _use(run.path),
    )
    return "\n".join(parts)


def _origin(run: Run) -> list[list[str]]:
    manifest, data = run.manifest, run.manifest.get("data") or {}
    rows = [
        ["method", str(run.experiment.get("method"))],
        ["data set", str(run.experiment.get("dataset"))],
        ["clients", str(run.experiment.get("sites") or manifest.get("num_clients"))],
        [
            "network",
            str(run.experiment.get("client-models") or run.experiment.get("model")),
        ],
        ["rounds", str(run.last_round)],
        ["seed", str(run.experiment.get("seed"))],
        ["fedsuite", str(manifest.get("fedsuite"))],
        ["held out at each client", _held_out(run)],
        ["privacy", str((run.summary or {}).get("privacy") or "no noise was added")],
    ]
    names = ("train-rows", "test-rows")
    rows += [[n.replace("-", " "), str(data[n])] for n in names if n in data]
    if initial := manifest.get(layout.INITIAL_MODEL):
        rows.append(["started from the model with SHA-256", str(initial)])
    return rows


def _held_out(run: Run) -> str:
    """Return which rows were not trained on."""
    keys = run.experiment
    named = [
        f"{keys[name]} ({name})"
        for name in (
            *("test-fraction", "client-test-fraction"),
            *("client-validation-fraction", "server-validation-fraction"),
        )
        if keys.get(name)
    ]
    if keys.get("sites"):
        named.append("or the files test-* where a site has some")
    return ", ".join(named) or "a published test part"


def _interface(facts: ModelFacts) -> list[list[str]]:
    kind = "numbers of words (int64)" if facts.words else "float32"
    rows = [["inputs", f"{kind}, rows of shape {list(facts.input_shape)}"]]
    if facts.columns:
        rows.append(["columns, in this order", _some(facts.columns)])
    elif facts.columns_hash:
        rows.append(["columns", f"known to the sites alone, hash {facts.columns_hash}"])
    if facts.is_image:
        steps = f"divided by {facts.max_value}, minus {list(facts.mean)}"
        rows.append(["scaling", f"{steps}, divided by {list(facts.std)}, by channel"])
    else:
        rows.append(["scaling", "none beyond what the data set's files hold"])
    return [*rows, ["classes, in the order of the outputs", _some(facts.classes)]]


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _scores(run: Run) -> str:
    score = main_score(run.experiment)
    evaluations = run.scores(score.column)
    if not evaluations or not evaluations[-1].of:
        return "No client has a score.\n"
    last = evaluations[-1]
    rows = [[str(client), score.shown(number)] for client, number in last.of.items()]
    heading = ["client", f"{score.title} on its test rows"]
    table = markdown_table([heading, *rows[:_MOST_CLIENTS]])
    more = len(rows) - _MOST_CLIENTS
    rest = f"\nAnd {more} more in `clients.jsonl`.\n" if more > 0 else ""
    about = f"Round {last.server_round}, the model that each client was given.\n"
    return f"{about}\n{table}{rest}"


def _use(path: Path) -> str:
    return (
        "```python\nimport fedsuite\n\n"
        f'run = fedsuite.load_run("{markdown_text(path.name)}")  # the folder\n'
        "network = run.model()  # or run.client_model(NAME)\n"
        "run.predict(data, client=None)\n```\n"
    )
