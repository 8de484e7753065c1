"""The rules of keys that only experiments have, beside those of the rounds.

In the form of :mod:`fedsuite.rounds.rules`, whose table holds here too. Metrics that choose
a model or the end of a run are of validation rows where there are some: a choice by test
rows makes the result on the same rows look better than it is.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from fedsuite.clients import load_client
from fedsuite.core.keys import AUTO, Unless, With
from fedsuite.core.registry import METHODS
from fedsuite.core.rules import Rule, Values
from fedsuite.core.tasks import BALANCED, SCORES, TASKS, Score, Task, score_of_metric
from fedsuite.data.catalog import DATASETS, PARTITIONERS
from fedsuite.data.data_settings import DataSettings
from fedsuite.messages.compression import DOWN, UP
from fedsuite.messages.records import NEW
from fedsuite.strategies import load_strategy

if TYPE_CHECKING:
    from fedsuite.rounds.strategy import FederatedStrategy

CHOICES = ("best-model-metric", "early-stop-metric")
"""Keys that name a metric of ``rounds.jsonl`` to choose by."""

_FRACTION = "client-validation-fraction"
_SCORES = (
    *(f"{score.column}_" for score in SCORES.values()),
    "evaluate_",
    "train_trained_",
    "pooled_",
)
_VALIDATION = "validation_"
_ON_TRAINING_ROWS = ("evaluate_received_training_loss", "evaluate_training_examples")


def main_score(values: Values) -> Score:
    """Return the score of an experiment that models are chosen by."""
    task = TASKS[DataSettings.of(values).task_name]
    try:
        return task.main_of(str(values.get("scores", AUTO)))
    except ValueError:
        return task.main  # refused by another rule


def chosen_metric(values: Values, key: str) -> str:
    """Return the metric that a key of :data:`CHOICES` names; empty for none.

    ``auto`` is the mean over clients of the task's main score, on validation rows where
    there are some.
    """
    metric = str(values[key])
    if metric != AUTO:
        return metric
    rows = _VALIDATION if values[_FRACTION] else ""
    return f"{rows}{main_score(values).column}_mean"


def reads_test_rows(metric: str) -> bool:
    """Return whether a metric of ``rounds.jsonl`` is measured on test rows."""
    if reads_validation_rows(metric) or metric in _ON_TRAINING_ROWS:
        return False
    return metric.startswith(_SCORES)


def reads_validation_rows(metric: str) -> bool:
    """Return whether a metric of ``rounds.jsonl`` is of clients' validation rows."""
    return metric.startswith((_VALIDATION, *_SCORES)) and _VALIDATION in metric


def experiment_rules(method: "type[FederatedStrategy]") -> tuple[Rule, ...]:
    """Return the rules of a method's experiment that its constructor does not know."""
    from fedsuite.training.attack_plan import AttackPlan
    from fedsuite.training.fault_plan import FaultPlan

    return (*FaultPlan.RULES, *AttackPlan.RULES, *_of_method(method), *_TABLE)


def _on_validation_rows(metric: str, values: Values) -> str:
    """Return the metric of validation rows to choose by in place of one of test rows."""
    phase = "evaluate_" if metric.startswith("evaluate_") else ""
    column = metric.removeprefix(phase)
    score = score_of_metric(metric)
    # Of other models, such as the global one, the rows are named behind the model.
    is_plain = score is not None and column.startswith(score.column)
    is_known = is_plain or column == "loss" or column.endswith("_variance")
    if is_known and not metric.startswith(("train_", "pooled_")):
        return f"{phase}{_VALIDATION}{column}"
    return f"{_VALIDATION}{main_score(values).column}_mean"


def _reads(rows: Callable[[str], bool], key: str, values: Values) -> bool:
    return rows(chosen_metric(values, key))


def _instead(key: str, values: Values) -> str:
    return f"set {_on_validation_rows(chosen_metric(values, key), values)!r}"


def _is_of_new(metric: str) -> bool:
    return metric.startswith(f"{NEW}_")


_OF_CHOICES = tuple(
    rule
    for key in CHOICES
    for rule in (
        Rule(
            (key, _FRACTION),
            (Unless(_FRACTION, 0.0), partial(_reads, reads_test_rows, key)),
            "it looks at test rows, and clients have validation rows to choose by",
            partial(_instead, key),
        ),
        Rule(
            (key, _FRACTION),
            (With(_FRACTION, 0.0), partial(_reads, reads_validation_rows, key)),
            "clients have no validation rows",
            f"set {{{_FRACTION}}} above 0, such as 0.1",
        ),
        Rule(
            (key,),
            (partial(_reads, _is_of_new, key),),
            "clients by whose scores a model is chosen are not new to it",
            "choose by a score of those that train",
        ),
    )
)

_SITES = Unless("sites", "")
_REHEARSED = Unless("site-dirs", "")
_REAL = (_SITES, With("site-dirs", ""))


_WHY_SITES = "sites are SuperNodes of their own"
_REHEARSE = "rehearse with {site-dirs} and {engine} = 'local'"

_OF_SITES = (
    *(
        Rule((key, "sites"), (_SITES, Unless(key, allowed)), why, f"set {allowed!r}")
        for key, allowed, why in (
            ("partitioner", "iid", "each site is a client with the rows that it has"),
            ("client-test-fraction", 0.0, "{test-fraction} is what a site holds out"),
            ("server-validation-fraction", 0.0, "the server has no rows to keep"),
            ("fresh-test-split", False, "a site's test rows are the same for all seeds"),
            ("label-noise", 0.0, "the labels of a site are its own"),
            ("score-whole-test", False, "there is no test part that all sites hold"),
        )
    ),
    Rule(
        ("site-dirs", "sites"),
        (_REHEARSED, With("sites", "")),
        "the sites in it need names",
        'set {sites} = "A, B"',
    ),
    Rule(
        ("dataset", "sites"),
        (_SITES, With("dataset", "reddit")),
        "its rows have no class",
        "choose another data set",
    ),
    Rule(
        ("dataset", "sites"),
        (_SITES, lambda values: bool(DATASETS[values["dataset"]].reader)),
        "its rows alone say its shape, and sites bring rows of their own",
        "set own-table, or a DatasetSpec",
    ),
    Rule(
        ("public-size", "sites", "public-dir"),
        (_SITES, Unless("public-size", 0), With("public-dir", "")),
        "no rows can be held out",
        "set {public-dir} = 'auto', and FEDSUITE_PUBLIC at server and sites",
    ),
    Rule(("engine", "sites"), (_SITES, With("engine", "ray")), _WHY_SITES, _REHEARSE),
    Rule(
        ("engine", "sites", "site-dirs"),
        (_SITES, _REHEARSED, With("engine", "deployment")),
        _WHY_SITES,
        _REHEARSE,
    ),
    Rule(
        ("attack", "sites"),
        (*_REAL, Unless("attack", "none")),
        "its clients are not ours to make lie",
        "rehearse with {site-dirs}, or set 'none'",
    ),
    Rule(
        ("devices", "sites"),
        (*_REAL, Unless("devices", "")),
        "the time of real nodes is their own",
        "rehearse with {site-dirs}, or leave it out",
    ),
    *(
        # A node's operator chooses the folders that the node opens.
        Rule(
            (key, "sites"),
            (*_REAL, *(Unless(key, allowed) for allowed in others)),
            "the sites' operators choose their folders",
            f"set 'auto', and FEDSUITE_{key.partition('-')[0].upper()} at each node",
        )
        for key, others in (("public-dir", ("", AUTO)), ("state-dir", (AUTO,)))
    ),
)
"""What cannot be where sites bring data of their own."""

_OF_NETWORKS = tuple(
    Rule(
        (key, other),
        (With(key, True), Unless(other, usual)),
        "factors are for one model that clients share from the start",
        "choose one",
    )
    for key in ("decomposition", "fedpara")
    for other, usual in (("client-models", ""), ("client-initialisation", "shared"))
)
"""What clients' own networks and parameters cannot go with."""


def _of_method(method: "type[FederatedStrategy]") -> Iterator[Rule]:
    """Yield what depends on the method."""
    if method.PRIVATE_MODELS or method.takes("networks"):
        yield Rule(
            ("travels", "method"),
            (Unless("travels", "all"),),
            "its clients do not all train one shared model and send it back",
            "leave it out, or choose another method",
        )
    if method.takes("validation"):
        yield Rule(
            ("method", "sites"),
            (_SITES,),
            "it validates on rows of the server, which has none",
            "choose another method, or leave {sites} empty",
        )
    if why := method.no_model_for_new():
        yield Rule(
            ("evaluation-only", "method"),
            (Unless("evaluation-only", ""),),
            f"a client that never trained has no model: {why}",
            "leave it out, or choose another method",
        )
    if not method.PAPER:
        yield Rule(
            ("preset", "method"),
            (),
            "no default differs from its paper's",
            "leave it out",
            idle=True,
        )
    if not allows_different_networks(method):
        yield Rule(
            ("client-models", "method"),
            (Unless("client-models", ""),),
            "its clients share one model",
            lambda values: _choose(allows_different_networks),
        )
    if not method.PRIVATE_MODELS:
        yield Rule(
            ("client-initialisation", "method"),
            (With("client-initialisation", "own"),),
            "its clients start from what the server holds",
            lambda values: _choose(lambda strategy: strategy.PRIVATE_MODELS),
        )
    else:
        yield Rule(
            ("best-model-metric", "method"),
            (Unless("best-model-metric", ""),),
            "its clients keep their models, so the server has none to write",
            "leave it empty",
        )


def allows_different_networks(method: "type[FederatedStrategy]") -> bool:
    """Return whether clients of a method may have different networks."""
    one_model = method.takes("groups") or method.takes("validation")
    return (method.PRIVATE_MODELS or method.takes("networks")) and not one_model


def _choose(fits: "Callable[[type[FederatedStrategy]], bool]") -> str:
    names = (name for name, m in METHODS.items() if fits(load_strategy(m)))
    return f"leave it out, or choose one of {', '.join(names)}"


def _task(values: Values) -> Task:
    return TASKS[DataSettings.of(values).task_name]


def _has_other_labels(values: Values) -> bool:
    return not _task(values).has_classes


def _why_not_scored(values: Values) -> str:
    try:
        _task(values).chosen(str(values["scores"]))
    except ValueError as error:
        return str(error)
    return ""


def _weights_are_none(values: Values) -> bool:
    text = str(values["class-weights"])
    try:
        return text not in ("", BALANCED) and min(map(float, text.split(","))) < 0
    except ValueError:
        return True


def _does_not_fit_rows(values: Values) -> bool:
    """Return whether a data set's own rows have other labels than the task."""
    spec, task = DATASETS[values["dataset"]], _task(values)
    if spec.reader or not spec.num_classes or spec.name == "own-table":
        return False
    usual = TASKS[spec.task]
    two = task.name != "binary" or spec.num_classes == 2
    return task.labels != usual.labels or not two


_OF_TASKS = (
    Rule(
        ("task", "dataset"),
        (_does_not_fit_rows,),
        lambda values: f"its rows have {DATASETS[values['dataset']].num_classes} classes",
        "set 'auto', or choose another data set",
    ),
    Rule(
        ("loss", "task"),
        (
            Unless("loss", AUTO),
            lambda values: values["loss"] not in _task(values).losses,
        ),
        lambda values: f"the task's losses are {', '.join(_task(values).losses)}",
        "set one of them, or 'auto'",
    ),
    Rule(
        ("loss",),
        (With("loss", "discrete-time"), With("interval-ends", "")),
        "it needs intervals of time",
        "name {interval-ends}, such as '365, 730, 1095'",
    ),
    Rule(
        ("scores", "task"),
        (lambda values: bool(_why_not_scored(values)),),
        _why_not_scored,
        "set these, or 'auto'",
    ),
    Rule(
        ("scores", "loss"),
        (
            Unless("loss", "quantile"),
            lambda values: "coverage-error" in str(values["scores"]),
        ),
        "only a quantile has a coverage that it should have",
        "leave coverage-error out, or set {loss} = 'quantile'",
    ),
    Rule(
        ("class-weights",),
        (Unless("class-weights", ""), _weights_are_none),
        "it is neither balanced nor numbers from 0",
        "give one for each class, such as '1, 4'",
    ),
    *(
        Rule(
            (key, "task"),
            (Unless(key, usual), _has_other_labels),
            "rows have no class",
            f"set {usual!r}",
        )
        for key, usual in (
            ("class-weights", ""),
            ("logit-calibration", 0.0),
            ("label-noise", 0.0),
        )
    ),
    Rule(
        ("attack", "task"),
        (With("attack", "label-flip"), _has_other_labels),
        "rows have no class to flip",
        "choose another attack",
    ),
    Rule(
        ("partitioner", "task"),
        (
            _has_other_labels,
            With("sites", ""),
            lambda values: PARTITIONERS[values["partitioner"]].BY_CLASS,
        ),
        "it goes by classes, which rows do not have",
        "choose iid or natural-id",
    ),
)
"""What a task cannot go with."""


def _cannot_train(values: Values) -> bool:
    # Clients' code, and torch with it, is loaded only where there is a question.
    return _has_other_labels(values) and not _trains_for(values)


def _trains_for(values: Values) -> bool:
    method = METHODS[str(values["method"])]
    if load_strategy(method).takes("validation") or load_strategy(method).takes(
        "num_classes"
    ):
        return False
    return _task(values).name in load_client(method).TASKS


_TABLE = (
    Rule(
        ("method", "task"),
        (_cannot_train,),
        "it needs classes, and a logit for each; the task's rows have none",
        "choose another method, such as fedavg, fedprox or scaffold",
    ),
    Rule(
        ("straggler", "devices"),
        (Unless("straggler", 0.0), Unless("devices", "")),
        "the devices say who is late",
        "set {round-deadline} in its place",
    ),
    *_OF_TASKS,
    Rule(
        ("evaluation-only", "attack"),
        (Unless("evaluation-only", ""), Unless("attack", "none")),
        "liars are drawn of all clients, and who never trains tells no lie",
        "leave one of them out",
    ),
    Rule(
        ("evaluation-only", "personal-atoms"),
        (Unless("evaluation-only", ""), With("personal-atoms", True)),
        "a client that never trained has no atoms of its own",
        "leave one of them out",
    ),
    Rule(
        ("local-epochs", "local-steps"),
        (With("local-epochs", 0), With("local-steps", 0)),
        "clients would not train",
        "set one of them",
    ),
    Rule(
        ("fedpara", "decomposition"),
        (With("fedpara", True), With("decomposition", True)),
        "each puts factors of its own in place of weights",
        "choose one",
    ),
    *(
        Rule(
            ("lora-rank", other),
            (Unless("lora-rank", 0), Unless(other, False)),
            "each puts layers of its own in place of others",
            "choose one",
        )
        for other in ("fedpara", "decomposition")
    ),
    *(
        Rule(
            (key, "attack"),
            (Unless(key, "none"), lambda values: values["attack"] in ("alie", "ipm")),
            "its liars read the others' models, and no coded changes",
            "choose one",
        )
        for key in (UP, DOWN)
    ),
    *_OF_SITES,
    *_OF_CHOICES,
    *_OF_NETWORKS,
)
