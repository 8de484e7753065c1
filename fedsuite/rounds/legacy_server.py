"""What Flower's legacy strategies have, and what to write here in its place.

The constructor of a strategy of ``flwr.server.strategy`` is given the first model, the
evaluation and the rounds' settings, and a ``ServerApp(server_fn=...)`` calls its
``configure_fit`` and the like. Here all that belongs to ``start`` and ``configure_train``,
and the server of such an app cannot run a strategy.
"""

import inspect
from collections.abc import Collection, Mapping, Sequence

from fedsuite.core.errors import ConfigError, nearest

_LEAVE = "leave it out: "
_EVALUATE = "start(evaluate_fn=...), which is given the round and an ArrayRecord"
_WRAPPER = "a wrapper of flwr.serverapp.strategy around the strategy, or "

KEYWORDS: Mapping[str, str] = {
    "fraction_fit": "fraction_train",
    "min_fit_clients": "min_train_nodes",
    "min_evaluate_clients": "min_evaluate_nodes",
    "min_available_clients": "min_available_nodes",
    "evaluate_fn": _EVALUATE,
    "evaluate_function": _EVALUATE,
    "on_fit_config_fn": "start(train_config=ConfigRecord(...)); what changes by round is "
    "written into config in an overridden configure_train",
    "on_evaluate_config_fn": "start(evaluate_config=ConfigRecord(...)); what changes by "
    "round is written into config in an overridden configure_evaluate",
    "accept_failures": "quorum, the least number of good replies of a round",
    "min_completion_rate_fit": "quorum, the least number of good replies of a round",
    "min_completion_rate_evaluate": _LEAVE + "an evaluation is of the replies that came",
    "initial_parameters": "start(initial_arrays=ArrayRecord(...))",
    "fit_metrics_aggregation_fn": "train_metrics_aggr_fn(contents, weighted_by_key), "
    "which is given RecordDicts and returns a MetricRecord",
    "evaluate_metrics_aggregation_fn": "evaluate_metrics_aggr_fn(contents, "
    "weighted_by_key), which is given RecordDicts and returns a MetricRecord",
    "inplace": _LEAVE + "replies are added up one at a time",
    "eta": "server_adaptive_rate with server_optimizer='adam', 'yogi' or 'adagrad'",
    "eta_l": _LEAVE + "it is the clients' own learning rate",
    "beta_1": "server_beta1",
    "beta_2": "server_beta2",
    "tau": "server_tau",
    "beta": "aggregator='trimmed-mean' with liars",
    "num_malicious_clients": "liars, with aggregator='multi-krum' or another rule",
    "num_clients_to_keep": _LEAVE + "aggregator='multi-krum' keeps all but the liars",
    "first_aggregation_rule": _LEAVE + "aggregator names one rule",
    "server_momentum": "server_momentum of a strategy that steps from one shared model",
    "server_learning_rate": "server_learning_rate of a strategy that averages",
    "proximal_mu": "proximal_mu of FedProx",
    "q_param": "qffl_q of QFFL",
    "qffl_learning_rate": "learning_rate of QFFL",
    "strategy": "a wrapper of flwr.serverapp.strategy around the strategy",
    "num_sampled_clients": "a wrapper of flwr.serverapp.strategy, or clients_per_round",
    "noise_multiplier": _WRAPPER + "dp_noise_multiplier",
    "clip_norm": _WRAPPER + "dp_clipping_norm",
    "clipping_norm": _WRAPPER + "dp_clipping_norm",
    "init_clip_norm": _WRAPPER + "dp_clipping_norm with dp_adaptive_clipping",
    "initial_clipping_norm": _WRAPPER + "dp_clipping_norm with dp_adaptive_clipping",
    "clip_norm_lr": _WRAPPER + "dp_clipping_rate",
    "clip_norm_target_quantile": _WRAPPER + "dp_clipping_quantile",
    "target_clipped_quantile": _WRAPPER + "dp_clipping_quantile",
    "clip_count_stddev": _WRAPPER + "dp_count_noise",
    "clipped_count_stddev": _WRAPPER + "dp_count_noise",
    "server_side_noising": _WRAPPER + "dp_noise_multiplier, which is noise at the server",
}
"""Keyword of a legacy strategy's constructor to what stands for it."""

METHODS: Mapping[str, str] = {
    "initialize_parameters": "start(initial_arrays=ArrayRecord(...))",
    "configure_fit": "configure_train(server_round, arrays, config, grid)",
    "aggregate_fit": "aggregate_train(server_round, replies)",
    "configure_evaluate": "configure_evaluate(server_round, arrays, config, grid)",
    "aggregate_evaluate": "aggregate_evaluate(server_round, replies)",
    "evaluate": _EVALUATE,
    "num_fit_clients": "fraction_train and min_train_nodes, or an overridden drawn(phase)",
    "num_evaluation_clients": "fraction_evaluate and min_evaluate_nodes",
    "ndarrays_to_parameters": "ArrayRecord(list_of_ndarrays)",
    "parameters_to_ndarrays": "arrays.to_numpy_ndarrays()",
    "ndarray_to_bytes": "Array(ndarray)",
    "bytes_to_ndarray": "array.numpy()",
}
"""Method of a legacy strategy to what stands for it."""


HELPERS: Mapping[str, str] = {
    "_construct_messages": "in configure_train keep those of "
    "super().configure_train(...) that you want, by message.metadata.dst_node_id, and in "
    "configure_evaluate likewise",
    "_check_and_log_replies": "give the replies to super().aggregate_train or "
    "super().aggregate_evaluate, which check them; a reply has content where "
    "reply.has_error() is false",
}
"""Private method of Flower's FedAvg, which subclasses call, to what stands for it."""

_FUNCTIONS: Mapping[str, tuple[str, str]] = {
    **{
        f"{phase}_metrics_aggr_fn": (
            "(contents, weighted_by_key)",
            "which is given RecordDicts and returns a MetricRecord",
        )
        for phase in ("train", "evaluate")
    },
    "evaluate_fn": (
        "(server_round, arrays)",
        "which is given the round and an ArrayRecord, and returns a MetricRecord",
    ),
    "should_stop": ("(server_round, result)", "which returns whether the run ends"),
}
"""Function of an app's own to its arguments, which are two, and what it does."""

_CALLED: Mapping[str, int] = {
    "configure_train": 4,
    "aggregate_train": 2,
    "configure_evaluate": 4,
    "aggregate_evaluate": 2,
    "take": 1,
    "aggregate": 1,
}
"""Number of arguments that the rounds give an overridden method."""

_APP = (
    "neither a legacy ServerApp(server_fn=...) nor a workflow such as SecAgg+'s can run "
    "it: write @app.main() with "
    "strategy.start(grid, initial_arrays, num_rounds)"
)


class KeywordError(ConfigError, TypeError):
    """A keyword that a strategy's constructor does not have."""


class LegacyMethodError(ConfigError, AttributeError, TypeError):
    """A method of Flower's strategies that is not here, called or overridden."""


class FunctionError(ConfigError, TypeError):
    """A function that a strategy was given and cannot call."""


class LegacyClientError(ConfigError, ValueError):
    """A strategy that legacy NumPyClients cannot serve."""


BY_POSITION = (
    *("fraction_train", "fraction_evaluate"),
    *("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"),
    *("weighted_by_key", "arrayrecord_key", "configrecord_key"),
    *("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"),
)
"""What the arguments of Flower's FedAvg are without their names, in its order."""


def by_position(
    strategy: str, unnamed: Sequence[object], given: Mapping[str, object]
) -> dict[str, object]:
    """Return the keywords, with names for arguments that came without, as in Flower.

    Raises
    ------
    KeywordError
        If there are too many, or one is given twice.
    """
    if len(unnamed) > len(BY_POSITION):
        raise KeywordError(
            f"{strategy} takes {len(BY_POSITION)} arguments without names, those of "
            f"Flower's FedAvg, and got {len(unnamed)}: write the others with their names"
        )
    named = dict(zip(BY_POSITION, unnamed, strict=False))
    if twice := [name for name in named if name in given]:
        raise KeywordError(
            f"{strategy} got {twice[0]} twice, by position and by name: leave out one"
        )
    return {**named, **given}


def check_keywords(strategy: str, known: Collection[str], given: Collection[str]) -> None:
    """Refuse what a strategy's constructor does not know.

    Raises
    ------
    KeywordError
        Naming what to write instead.
    """
    for name in given:
        if name in known:
            continue
        if KEYWORDS.get(name, "").startswith(f"{name} of "):
            owner = KEYWORDS[name].removeprefix(f"{name} of ")
            raise KeywordError(f"{strategy} has no keyword {name}: {owner} has it")
        if name in KEYWORDS:
            raise KeywordError(
                f"{strategy} has no keyword {name}, which is of Flower's legacy "
                f"strategies: {_written(KEYWORDS[name])}"
            )
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"help({strategy}) lists them"
        raise KeywordError(f"{strategy} has no keyword {name}: {hint}")


def check_needed(strategy: str, needed: Mapping[str, str], given: Collection[str]) -> None:
    """Refuse to make a strategy without what it cannot be without.

    Raises
    ------
    KeywordError
        Naming the keywords that are not there, and what each is.
    """
    if lacking := [f"{k}: {words}" for k, words in needed.items() if k not in given]:
        raise KeywordError(f"{strategy} needs the keyword {', and '.join(lacking)}")


def check_functions(**given: object) -> None:
    """Refuse a function of the app's own that nobody could call, by the keyword's name.

    Raises
    ------
    FunctionError
        Naming its arguments as they have to be.
    """
    for name, function in given.items():
        if function is None or takes(function, 2):
            continue
        own = getattr(function, "__name__", type(function).__name__)
        arguments, purpose = _FUNCTIONS[name]
        raise FunctionError(
            f"{name}: {own}{arguments_of(function)} cannot be called: write "
            f"{name}{arguments}, {purpose}"
        )


def check_methods(strategy: type) -> None:
    """Refuse a class whose methods nobody would call, or would call in vain.

    Raises
    ------
    LegacyMethodError
        Naming what to write instead.
    """
    for name, instead in METHODS.items():
        method = getattr(strategy, name, None)
        if name not in _CALLED and method is not None and _is_legacy(name, method):
            raise LegacyMethodError(
                f"{strategy.__name__}.{name} is of Flower's legacy strategies, and nobody "
                f"calls it here: {_written(instead)}"
            )
    for name, count in _CALLED.items():
        method = getattr(strategy, name, None)
        if callable(method) and not takes(method, count + 1):
            raise LegacyMethodError(
                f"{strategy.__name__}.{name}{arguments_of(method)} cannot be called by the "
                f"rounds: write {_SIGNATURES[name]}"
            )


def missing(strategy: str, name: str) -> AttributeError:
    """Return the error of an attribute that a strategy does not have."""
    if name in METHODS:
        return LegacyMethodError(f"{strategy} has no {name}, and {_APP}")
    if name in HELPERS:
        return LegacyMethodError(
            f"{strategy} has no {name}, a helper of Flower's strategies: {HELPERS[name]}"
        )
    return AttributeError(f"{strategy!r} object has no attribute {name!r}")


_SIGNATURES: Mapping[str, str] = {
    "configure_train": METHODS["configure_fit"],
    "aggregate_train": METHODS["aggregate_fit"],
    "configure_evaluate": METHODS["configure_evaluate"],
    "aggregate_evaluate": METHODS["aggregate_evaluate"],
    "take": "take(reply), which is given one reply at a time",
    "aggregate": "aggregate(arrays), which is called when all replies were taken",
}


def _written(instead: str) -> str:
    return instead if instead.startswith(_LEAVE) else f"write {instead}"


def _is_legacy(name: str, method: object) -> bool:
    """Return whether it is a legacy method, not one's own helper of a common name."""
    return name != "evaluate" or "parameters" in arguments_of(method)


def arguments_of(method: object) -> str:
    """Return the names of a method's arguments, in brackets."""
    if not callable(method):
        return "()"
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    return f"({', '.join(names)})"


def takes(method: object, count: int) -> bool:
    """Return whether something can be called with so many arguments by position."""
    if not callable(method):
        return False
    try:
        signature = inspect.signature(method)
    except ValueError:  # such as of a function in C: nobody knows
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True
