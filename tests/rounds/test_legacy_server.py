"""A legacy ServerApp, and what is written for it, end with a line of what to write."""

import inspect
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.server import (
    LegacyContext,
    ServerAppComponents,
    ServerConfig,
    SimpleClientManager,
)
from flwr.server import strategy as legacy
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp import strategy as flower

from fedsuite.core.errors import FedsuiteError
from fedsuite.core.registry import METHODS as REGISTRY
from fedsuite.rounds.legacy_server import BY_POSITION, KEYWORDS, METHODS
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.workarounds.identity import flower_identity
from tests.rounds.test_client_needs import CountingGrid, parts
from tests.strangers import message_app

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "flower_apps.md"


def legacy_classes() -> Iterator[type]:
    for name in dir(legacy):
        found = getattr(legacy, name)
        if inspect.isclass(found) and issubclass(found, legacy.Strategy):
            yield found


def legacy_keywords() -> set[str]:
    parameters = (
        parameter
        for kind in legacy_classes()
        for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]
    )
    named = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return {parameter.name for parameter in parameters if parameter.kind in named}


def legacy_methods() -> set[str]:
    return {n for kind in legacy_classes() for n in vars(kind) if not n.startswith("_")}


def test_all_that_flowers_legacy_strategies_have_is_known() -> None:
    known = set(inspect.signature(FedAvg).parameters)
    assert legacy_keywords() <= known | KEYWORDS.keys()
    assert legacy_methods() == METHODS.keys()
    # Nothing that no Flower of ours has: the keywords of 1.39 to 1.42 are the same.
    assert KEYWORDS.keys() <= legacy_keywords()


@pytest.mark.parametrize("name", sorted(legacy_keywords()))
def test_a_legacy_keyword_says_what_to_write(name: str) -> None:
    known = set(inspect.signature(FedEBA).parameters)
    if name in known:
        return
    with pytest.raises(FedsuiteError) as caught:
        FedEBA(**{name: None})
    line, owner = str(caught.value), KEYWORDS[name].removeprefix(f"{name} of ")
    if owner != KEYWORDS[name]:
        assert line == f"FedEBA has no keyword {name}: {owner} has it"
        return
    assert line.startswith(f"FedEBA has no keyword {name}, which is of Flower's legacy")
    assert line.endswith(KEYWORDS[name]) and "\n" not in line


def test_what_is_to_be_written_is_there() -> None:
    """Each keyword that a line names is one of FedAvg's, start's, or of the named class."""
    words = {
        w
        for text in KEYWORDS.values()
        for w in re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+", text)
    }
    there = set(inspect.signature(FedAvg).parameters) | set(
        inspect.signature(FedAvg.start).parameters
    )
    there |= {
        "configure_train",
        "configure_evaluate",
        "qffl_q",
        "proximal_mu",
        "learning_rate",
    }
    assert words <= there


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_says_so(name: str) -> None:
    made = load_strategy(REGISTRY[name])
    needed = parts().needed_by(made)
    with pytest.raises(FedsuiteError, match=r": write fraction_train$"):
        made(**needed, fraction_fit=0.5)  # type: ignore[arg-type]
    with pytest.raises(
        AttributeError, match=rf"^{made.__name__} has no configure_fit, and nei"
    ):
        made(**needed).configure_fit  # type: ignore[arg-type, attr-defined] # noqa: B018


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"fractoin_train": 1.0},
            "FedAvg has no keyword fractoin_train: did you mean fraction_train?",
        ),
        ({"zzz": 1.0}, "FedAvg has no keyword zzz: help(FedAvg) lists them"),
        ({"proximal_mu": 1.0}, "FedAvg has no keyword proximal_mu: FedProx has it"),
    ],
)
def test_a_keyword_that_is_none(given: dict[str, Any], line: str) -> None:
    with pytest.raises(FedsuiteError) as caught:
        FedAvg(**given)
    assert str(caught.value) == line
    # Who catches Python's own error catches this one.
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_keyword_that_a_method_cannot_be_without_is_named(name: str) -> None:
    made = load_strategy(REGISTRY[name])
    needed = parts().needed_by(made)
    if not needed:
        made()
        return
    with pytest.raises(FedsuiteError) as caught:
        made()
    line = str(caught.value)
    # All of them, so that nobody mends one and hears of the next.
    found = re.findall(r"(?:needs the keyword|, and) (\w+): \w", line)
    assert line.startswith(f"{made.__name__} needs the keyword ")
    assert set(found) == set(needed)
    assert isinstance(caught.value, TypeError)


def test_an_aggregate_that_wants_the_replies_is_refused() -> None:
    with pytest.raises(
        FedsuiteError, match=r"\(arrays, replies\) .* write aggregate\(arrays"
    ):

        class Mine(FedAvg):
            def aggregate(self, arrays: Any, replies: Any) -> Any:  # type: ignore[override]
                return None


def test_arguments_without_names_are_those_of_flowers_fedavg() -> None:
    theirs = list(inspect.signature(flower.FedAvg).parameters)
    assert list(BY_POSITION) == theirs
    values = (0.5, 0.25, 1, 1, 1, "rows", "model", "settings", None, None)
    made: Any = FedAvg(*values)  # type: ignore[call-arg, misc]
    assert tuple(getattr(made, name) for name in theirs) == values
    with pytest.raises(FedsuiteError, match=r"^FedAvg takes 10 arguments without names"):
        FedAvg(*values, 1)  # type: ignore[call-arg, misc]
    with pytest.raises(FedsuiteError, match=r"^FedAvg got fraction_train twice"):
        FedAvg(0.5, fraction_train=0.5)  # type: ignore[call-arg, misc]


def test_secure_aggregation_by_flowers_workflow_ends_with_a_line() -> None:
    """It calls the strategy's legacy methods."""
    context = LegacyContext(
        context=Context(1, 1, {}, RecordDict(), {}),
        config=ServerConfig(num_rounds=1),
        strategy=FedAvg(),  # type: ignore[arg-type]
        client_manager=SimpleClientManager(),
    )
    workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(3, 2))
    with pytest.raises(FedsuiteError, match=r"^FedAvg has no init.* nor .* SecAgg\+'s can"):
        workflow(NoGrid(), context)  # type: ignore[arg-type]


def test_a_constructor_of_ones_own_may_take_what_it_likes() -> None:
    class Mine(FedAvg):
        def __init__(self, fraction_fit: float, **more: Any) -> None:
            super().__init__(fraction_train=fraction_fit, **more)

    assert Mine(0.5, seed=3).fraction_train == 0.5
    with pytest.raises(
        FedsuiteError, match=r"FedAvg has no keyword min_fit_clients, .*_nodes"
    ):
        Mine(0.5, min_fit_clients=3)


@pytest.mark.parametrize("name", sorted(n for n in KEYWORDS if n.endswith("_fn")))
def test_a_legacy_keyword_set_later_is_refused_as_well(name: str) -> None:
    """Legacy apps do so, and of a strategy of fedsuite's own nobody would read it."""
    strategy: Any = FedAvg()
    with pytest.raises(FedsuiteError) as caught:
        setattr(strategy, name, lambda server_round: {"lr": 0.1})
    assert str(caught.value).startswith(f"FedAvg has no keyword {name}, which is of Fl")
    assert str(caught.value).endswith(KEYWORDS[name])


def test_a_subclass_may_keep_one_and_read_it_itself() -> None:
    class Mine(FedAvg):
        def __init__(self, on_fit_config_fn: Any, **more: Any) -> None:
            super().__init__(**more)
            self.on_fit_config_fn = on_fit_config_fn

    assert Mine(len).on_fit_config_fn is len


# Functions


def legacy_mean(metrics: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    return {}


def legacy_evaluate(server_round: int, parameters: Any, config: Any) -> Any:
    return 0.5, {}


@pytest.mark.parametrize("name", ["train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"])
def test_a_legacy_mean_of_metrics_is_refused(name: str) -> None:
    with pytest.raises(FedsuiteError) as caught:
        FedAvg(**{name: legacy_mean})  # type: ignore[arg-type]
    assert str(caught.value) == (
        f"{name}: legacy_mean(metrics) cannot be called: write {name}(contents, "
        "weighted_by_key), which is given RecordDicts and returns a MetricRecord"
    )


def test_functions_that_can_be_called_are_taken() -> None:
    def own(contents: Any, weighted_by_key: str, more: int = 3) -> MetricRecord:
        return MetricRecord({"a": more})

    for function in (own, partial(own, more=4), lambda *given: MetricRecord(), dict):
        FedAvg(train_metrics_aggr_fn=function)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"evaluate_fn": legacy_evaluate},
            (
                "evaluate_fn: legacy_evaluate(server_round, parameters, config) cannot be "
                "called: write evaluate_fn(server_round, arrays), which is given the round "
                "and an ArrayRecord, and returns a MetricRecord"
            ),
        ),
        (
            {"should_stop": legacy_mean},
            (
                "should_stop: legacy_mean(metrics) cannot be called: write "
                "should_stop(server_round, result), which returns whether the run ends"
            ),
        ),
        (
            {"evaluate_fn": lambda server_round, arrays: (0.5, {"accuracy": 0.5})},
            (
                "evaluate_fn returned tuple, not a MetricRecord: write "
                "MetricRecord({'loss': loss, ...}), or None for no metrics"
            ),
        ),
    ],
)
def test_functions_of_start_are_refused_before_a_round(
    given: dict[str, Any], line: str
) -> None:
    grid = CountingGrid(message_app.app)
    with pytest.raises(FedsuiteError) as caught, flower_identity():
        FedAvg().start(grid, ArrayRecord([np.zeros(2)]), 1, **given)
    assert str(caught.value) == line
    assert grid.exchanges == []


# Methods


@pytest.mark.parametrize("name", sorted(legacy_methods()))
def test_an_overridden_legacy_method_is_refused(name: str) -> None:
    theirs = vars(legacy.FedAvg).get(name) or vars(legacy.FedAvgAndroid)[name]
    with pytest.raises(FedsuiteError) as caught:
        type("Mine", (FedAvg,), {name: theirs})
    line = str(caught.value)
    assert line.startswith(f"Mine.{name}") and "\n" not in line
    assert line.endswith(METHODS[name])


def test_a_legacy_method_of_a_mixin_is_refused() -> None:
    class Saving:
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> None:
            """Save the model."""

    with pytest.raises(FedsuiteError, match=r"aggregate_fit .*: write aggregate_train\("):
        type("Mine", (Saving, FedAvg), {})


def test_methods_of_the_message_api_and_helpers_are_not() -> None:
    class Mine(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, *arguments):
            return super().aggregate_train(*arguments)

        def aggregate_evaluate(self, server_round, replies, more=None):
            return super().aggregate_evaluate(server_round, replies)

        def evaluate(self, server_round, arrays):
            """For ``start(evaluate_fn=strategy.evaluate)``."""

    assert Mine().evaluate(1, None) is None


@pytest.mark.parametrize("name", ["configure_train", "aggregate_train"])
def test_an_override_that_the_rounds_cannot_call_is_refused(name: str) -> None:
    with pytest.raises(FedsuiteError, match=rf"^Mine\.{name}\(results\) cannot be called"):
        type("Mine", (FedAvg,), {name: lambda self, results: None})


def test_flowers_own_methods_take_what_the_rounds_give() -> None:
    """The table says what Flower's Message API says."""
    for name in ("configure_evaluate", "aggregate_evaluate"):
        arguments = list(inspect.signature(getattr(flower.Strategy, name)).parameters)[1:]
        assert METHODS[name] == f"{name}({', '.join(arguments)})"
    for old, new in (
        ("configure_fit", "configure_train"),
        ("aggregate_fit", "aggregate_train"),
    ):
        arguments = list(inspect.signature(getattr(flower.Strategy, new)).parameters)[1:]
        assert METHODS[old] == f"{new}({', '.join(arguments)})"


# The legacy server


class NoGrid:
    """As much of a grid as a legacy server looks at before it calls its strategy."""

    run = type("Run", (), {"run_id": 1})()

    def get_node_ids(self) -> list[int]:
        return []


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_legacy_server_ends_with_one_line(wrapped: bool) -> None:
    def server_fn(context: Context) -> ServerAppComponents:
        strategy: Any = FedAvg()
        if wrapped:
            strategy = legacy.DifferentialPrivacyServerSideFixedClipping(
                strategy, 1.0, 1.0, 2
            )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=1))

    app = ServerApp(server_fn=server_fn)
    grid: Any = NoGrid()
    with pytest.raises(FedsuiteError) as caught:
        app(grid, Context(1, 1, {}, RecordDict(), {}))
    assert str(caught.value) == (
        "FedAvg has no initialize_parameters, and neither a legacy "
        "ServerApp(server_fn=...) nor a workflow such as SecAgg+'s can run it: write "
        "@app.main() with strategy.start(grid, initial_arrays, num_rounds)"
    )


def test_what_nobody_has_is_pythons_error() -> None:
    assert not hasattr(FedAvg(), "aggregate_fit") and not hasattr(FedAvg(), "nothing")
    with pytest.raises(AttributeError, match="'FedAvg' object has no attribute 'nothing'"):
        FedAvg().nothing  # type: ignore[attr-defined] # noqa: B018


# The page


def test_the_page_has_the_same_tables() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    assert [(old, new.replace("`", "")) for old, new in rows] == [
        *KEYWORDS.items(),
        *METHODS.items(),
    ]


def test_the_pages_unit_test_runs() -> None:
    [code] = [
        c
        for c in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "def test_mean" in c
    ]
    namespace: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), namespace)
    namespace["test_mean"]()
