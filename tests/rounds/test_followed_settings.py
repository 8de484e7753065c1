"""A client that does its part repeats the settings it was told; a run sees who does not.

A method that trains to FedAvg's bits beside an app that knows nothing of it says so.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from fedsuite.clients import load_client
from fedsuite.clients.averaging.fedsgd import FedSGDClient
from fedsuite.clients.drift.fedntd import FedNTDClient
from fedsuite.clients.drift.fedprox import FedProxClient
from fedsuite.clients.fair.propfair import PropFairClient
from fedsuite.clients.personal.fedavg_ft import FedAvgFTClient
from fedsuite.core.errors import FedsuiteError, RunError
from fedsuite.core.registry import METHODS
from fedsuite.core.settings import key
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import EVALUATE, TRAIN, Reply
from fedsuite.rounds.validation import Expected, check_reply
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.averaging.fedsgd import FedSGD
from fedsuite.strategies.drift.fedntd import FedNTD
from fedsuite.strategies.drift.fedprox import FedProx
from fedsuite.strategies.fair.propfair import PropFair
from fedsuite.strategies.personal.fedavg_ft import FedAvgFT
from fedsuite.strategies.personal.per_fedavg import PerFedAvg
from fedsuite.training.attack_plan import AttackPlan
from fedsuite.training.told import told_of
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import (
    MatrixClient,
    MatrixLoss,
    MatrixProxClient,
    TamperingGrid,
    bits,
    matrix_app,
    play,
    run,
    zeros,
)
from tests.rounds.test_client_needs import CountingGrid, over_strangers, parts
from tests.strangers import message_app

Caplog = pytest.LogCaptureFixture
Answer = Callable[[Message, Context], Message]


def warnings_of(caplog: Caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# Every method beside an app that knows nothing of it


@pytest.fixture(scope="module")
def fedavg() -> list[bytes]:
    return bits(to_arrays(over_strangers(FedAvg(min_available_nodes=3)).result.arrays))


@pytest.mark.parametrize("name", METHODS)
def test_no_method_is_fedavg_in_silence(
    name: str, fedavg: list[bytes], caplog: Caplog
) -> None:
    caplog.set_level(logging.WARNING)
    made = load_strategy(METHODS[name])
    strategy = made(**parts().needed_by(made), min_available_nodes=3)  # type: ignore[arg-type]
    try:
        grid = over_strangers(strategy)
    except FedsuiteError as error:
        assert "\n" not in str(error)
        return
    needs = made.NEEDS_OF_CLIENT.client or made._TOLD
    if bits(to_arrays(grid.result.arrays)) != fedavg:
        assert not needs
    elif needs:
        (line,) = warnings_of(caplog)
        assert made.__name__ in line and "\n" not in line


@pytest.mark.parametrize("name", METHODS)
def test_clients_read_all_that_their_strategy_tells(name: str) -> None:
    """Else a reply of the method's own client would not repeat it."""
    told = load_strategy(METHODS[name])._TOLD
    assert told.keys() <= told_of(load_client(METHODS[name])).keys()


# fedsuite's clients


class MatrixNTDClient(MatrixLoss, FedNTDClient):
    pass


class MatrixTunedClient(MatrixLoss, FedAvgFTClient):
    pass


class MatrixFairClient(MatrixLoss, PropFairClient):
    pass


class MatrixSGDClient(MatrixLoss, FedSGDClient):
    pass


PAIRS: list[tuple[Any, Any]] = [
    (FedProx, MatrixProxClient),
    (FedAvgFT, MatrixTunedClient),
    (PropFair, MatrixFairClient),
    (FedSGD, MatrixSGDClient),
]
NODE = {"min_available_nodes": 1}
PARTITION = {"identity": "partition", "num_clients": 3, "connect_timeout": 5.0}


@pytest.mark.parametrize("identity", [NODE, PARTITION], ids=["node", "partition"])
@pytest.mark.parametrize(("strategy", "client"), PAIRS)
def test_fedsuites_own_clients_say_so_in_every_layout(
    strategy: Any, client: Any, identity: dict[str, Any], caplog: Caplog
) -> None:
    caplog.set_level(logging.WARNING)
    trace = run(strategy(**identity), TamperingGrid(matrix_app(client), 3), 2)
    assert [len(report.train.rows) for report in trace.reports] == [3, 3]
    assert not warnings_of(caplog)
    # No setting becomes a column of the clients' rows.
    columns = {
        k for report in trace.reports for p in report.phases for r in p.rows for k in r
    }
    assert not columns & {
        n for name in strategy._TOLD for n in (name, name.replace("-", "_"))
    }


@pytest.mark.parametrize("identity", [NODE, PARTITION], ids=["node", "partition"])
def test_another_methods_client_is_found_out_in_every_layout(
    identity: dict[str, Any],
) -> None:
    grid = TamperingGrid(matrix_app(MatrixClient), 3)
    with pytest.raises(RunError, match=r"^round 1: FedNTD: none of 3 clients says that it"):
        run(FedNTD(**identity), grid)


def test_a_wrong_client_changes_no_bit_and_a_right_one_neither(caplog: Caplog) -> None:
    grid = TamperingGrid(matrix_app(MatrixProxClient), 3)
    repeated = run(FedProx(**NODE, proximal_mu=0.5), grid, 2)
    silent = TamperingGrid(matrix_app(MatrixProxClient), 3, without_followed, (1, 2))
    assert repeated.weights == run(FedProx(**NODE, proximal_mu=0.5), silent, 2).weights
    assert [r.train.bytes_up for r in repeated.reports] == [48, 48]


def without_followed(replies: list[Message]) -> list[Message]:
    for reply in replies:
        del reply.content["followed"]
    return replies


def test_a_decomposed_noised_or_lying_client_still_says_so() -> None:
    reply = Reply({}, {"num-examples": 1}, {"proximal-mu": 0.5})
    plan = AttackPlan(attack="lie-examples", attackers=1.0, num_clients=1, seed=0)
    assert plan.lie(reply, {}, ()).followed == reply.followed
    small: dict[str, Any] = {"method": "fedntd", "num_rounds": 1}
    for more in (
        {"upload_noise_multiplier": 0.1, "upload_clip": 1.0},
        {"attack": "sign-flip", "attackers": 0.2},
        {"model": "cnn-shallow", "decomposition": True, "freeze_atoms": True},
    ):
        assert play(**small, **more).reports[0].train.rows


# Clients of strangers


def repeating(**extra: Any) -> ClientApp:
    """Return the stranger's app, which repeats some settings among its metrics."""
    app = ClientApp()

    def repeat(answer: Answer) -> Answer:
        def answered(message: Message, context: Context) -> Message:
            reply = answer(message, context)
            config = message.content["config"]
            node = context.node_config["partition-id"]
            for name, value in extra.items():
                said = value(config, node) if callable(value) else value
                if said is not None:
                    reply.content["metrics"][name] = said
            return reply

        return answered

    app.train()(repeat(message_app.train))
    app.evaluate()(repeat(message_app.evaluate))
    return app


def echo(name: str, *nodes: int, factor: float = 1.0) -> Any:
    """Return what reads a setting of the message, at some nodes alone."""
    return lambda config, node: (
        factor * config[name] if name in config and (not nodes or node in nodes) else None
    )


def test_a_strangers_client_repeats_the_setting_among_its_metrics(caplog: Caplog) -> None:
    caplog.set_level(logging.WARNING)
    app = repeating(**{"proximal-mu": echo("proximal-mu")})
    grid = over_strangers(FedProx(min_available_nodes=3), app)
    assert not warnings_of(caplog)
    for metrics in grid.result.train_metrics_clientapp.values():
        assert set(metrics) == {"train_loss"}
    tuned = repeating(**{"fine-tune-epochs": echo("fine-tune-epochs")})
    over_strangers(FedAvgFT(min_available_nodes=3), tuned)
    assert not warnings_of(caplog)


def test_all_settings_are_to_come_back() -> None:
    """Of two numbers one is not enough, and the error names the other."""
    app = repeating(**{"fedntd-weight": echo("fedntd-weight")})
    with pytest.raises(RunError) as caught:
        over_strangers(FedNTD(min_available_nodes=3), app)
    assert str(caught.value) == (
        "round 1: FedNTD: none of 3 clients says that it followed fedntd-temperature = "
        "1.0, without which this is another method: train with "
        "fedsuite.clients.FedNTDClient, which distils the received model on the other "
        "classes; a client of your own that does so sends back fedntd-temperature in "
        "the metrics of its replies"
    )
    both = {n: echo(n) for n in ("fedntd-weight", "fedntd-temperature")}
    over_strangers(FedNTD(min_available_nodes=3), repeating(**both))


def test_text_comes_back_in_a_config_record() -> None:
    names = ("propfair-baseline", "propfair-threshold")
    with pytest.raises(RunError, match=r"propfair-extension in a ConfigRecord 'followed'"):
        over_strangers(
            PropFair(min_available_nodes=3), repeating(**{n: echo(n) for n in names})
        )
    app = ClientApp()
    app.evaluate()(message_app.evaluate)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = message_app.train(message, context)
        config = message.content["config"]
        told = {n: config[n] for n in config if n.startswith("propfair-")}
        reply.content["followed"] = ConfigRecord(told)
        return reply

    over_strangers(PropFair(min_available_nodes=3), app)


def test_some_that_do_not_are_named_once(caplog: Caplog) -> None:
    caplog.set_level(logging.WARNING)
    names = ("fedntd-weight", "fedntd-temperature")
    app = repeating(**{n: echo(n, 0, 2) for n in names})
    over_strangers(FedNTD(min_available_nodes=3), app)
    (line,) = warnings_of(caplog)
    assert line.startswith(
        "round 1: FedNTD: 1 of 3 clients (1001) do not say that they followed "
        "fedntd-weight = 1.0, fedntd-temperature = 1.0, without which"
    )


@pytest.mark.parametrize(("off", "warned"), [(0.99e-6, False), (1.01e-6, True)])
def test_another_value_is_told(off: float, warned: bool, caplog: Caplog) -> None:
    """As sent, but for a client's float32: other values are not the run's."""
    caplog.set_level(logging.WARNING)
    names = ("fedntd-weight", "fedntd-temperature")
    app = repeating(**{n: echo(n, factor=1 + off) for n in names})
    over_strangers(FedNTD(min_available_nodes=3), app)
    lines = warnings_of(caplog)
    assert len(lines) == warned
    assert not warned or "followed fedntd-weight = 1.0" in lines[0]
    assert not warned or "(but fedntd-weight = 1.00000101)" in lines[0]


@pytest.mark.parametrize("said", [float("nan"), 10**400, "much", [0.5], b"x", None, True])
def test_whatever_comes_back_is_no_setting(said: Any) -> None:
    record = ConfigRecord()
    if said is not None:
        record._data["mu"] = said
    content = {"metrics": MetricRecord({"num-examples": 1}), "followed": record}
    reply = check_reply(0, content, Expected(settings={"mu": 0.5}))
    assert set(reply.unfollowed) == {"mu"}


# Legacy NumPyClients


class Legacy(NumPyClient):
    def __init__(self, *names: str) -> None:
        self._names = names

    def fit(self, parameters: Any, config: Any) -> Any:
        return parameters, 1, {n: config[n] for n in self._names}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return 1.0, 1, {}


def test_legacy_clients_repeat_numbers_and_text() -> None:
    names = ("propfair-baseline", "propfair-threshold", "propfair-extension")
    for kept in (names, names[:2]):
        client = Legacy(*kept).to_client()
        app = ClientApp(client_fn=lambda context: client)  # noqa: B023
        strategy = PropFair(wire="numpy", **NODE)
        if kept == names:
            run(strategy, TamperingGrid(app, 2), 1)
            continue
        with pytest.raises(RunError, match=r"followed propfair-extension = tangent, with"):
            run(strategy, TamperingGrid(app, 2), 1)


def test_fedsuites_clients_say_so_by_hand() -> None:
    from tests.helpers import FULL_STEP, Matrix, samples

    data = samples(1.0, 2)
    client = MatrixProxClient(Matrix(), data, data, training=FULL_STEP)
    start = [np.zeros((2, 2), dtype=np.float32)]
    _, _, metrics = client.fit(start, {"proximal-mu": 0.5, "unknown": 3})
    assert metrics["proximal-mu"] == 0.5 and "unknown" not in metrics
    app = ClientApp(client_fn=lambda context: client.to_client())
    strategy = FedProx(wire="numpy", **NODE)
    assert run(strategy, TamperingGrid(app, 2), 1).reports[0].train.rows


# Evaluation, trust, and what stands around a strategy


def test_an_evaluation_that_does_not_take_place_is_told(caplog: Caplog) -> None:
    caplog.set_level(logging.WARNING)
    untested = ClientApp()
    untested.train()(message_app.train)
    over_strangers(FedAvgFT(fraction_evaluate=0.0, min_available_nodes=3))
    over_strangers(FedAvgFT(min_available_nodes=3), untested)
    lines = [line for line in warnings_of(caplog) if "not used" not in line]
    told = (
        "round 1: FedAvgFT: no client evaluates, so that fine-tune-epochs = 1 has no "
        "effect there: let clients evaluate, or train with FedAvg"
    )
    assert lines == [told, told]


def test_who_adapts_in_training_alone_is_found_out_at_the_evaluation() -> None:
    app = ClientApp()
    app.train()(repeating_train)
    app.evaluate()(message_app.evaluate)
    grid = CountingGrid(app)
    with pytest.raises(RunError, match=r"PerFedAvg: none of 3 .* adaptation-rate = 0\.01"):
        over_strangers(PerFedAvg(min_available_nodes=3), grid=grid)
    assert grid.exchanges == [TRAIN, EVALUATE]


def repeating_train(message: Message, context: Context) -> Message:
    reply = message_app.train(message, context)
    reply.content["followed"] = message.content["config"]
    return reply


def test_fedprox_trusts_the_app_after_one_line(caplog: Caplog) -> None:
    caplog.set_level(logging.WARNING)
    over_strangers(FedProx(min_available_nodes=3))
    told = (
        "round 1: FedProx: none of 3 clients says that it followed proximal-mu = 0.01, "
        "without which this is another method: train with fedsuite.clients.FedProxClient, "
        "which pulls its steps towards the model that it got; a client of your own that "
        "does so sends back proximal-mu in the metrics of its replies"
    )
    assert warnings_of(caplog) == [told]


def test_a_setting_of_ones_own_strategy_counts_too() -> None:
    class Mine(FedAvg):
        """FedAvg with a setting that clients are told."""

        push: float = key(default=0.5, help="a number", told=TRAIN)

    with pytest.raises(
        RunError, match=r"Mine: none of 3 clients .* push = 0\.5, .*: a cli"
    ):
        over_strangers(Mine(min_available_nodes=3))
    over_strangers(Mine(min_available_nodes=3), repeating(push=echo("push")))


WRAPPERS: list[Any] = [
    (DifferentialPrivacyServerSideFixedClipping, None),
    (DifferentialPrivacyClientSideFixedClipping, [fixedclipping_mod]),
]


@pytest.mark.parametrize(("wrapper", "mods"), WRAPPERS)
def test_inside_flowers_wrappers(wrapper: Any, mods: Any, caplog: Caplog) -> None:
    caplog.set_level(logging.WARNING)
    for client in (MatrixProxClient, MatrixClient):
        strategy = wrapper(FedProx(fraction_evaluate=0.0), 0.0, 1e9, 3)
        with flower_identity():
            strategy.start(TamperingGrid(matrix_app(client, mods=mods), 3), zeros(), 1)
        found = [
            line for line in warnings_of(caplog) if "do not say" in line or "none" in line
        ]
        assert len(found) == (client is MatrixClient)


# FedSGD tells nothing: its reply says that it was one step


@pytest.mark.parametrize(("steps", "refused"), [(0, False), (1, False), (2, True)])
def test_fedsgd_is_one_step(steps: int, refused: bool) -> None:
    app = repeating(**{"num-steps": steps})
    strategy = FedSGD(min_available_nodes=3)
    if not refused:
        over_strangers(strategy, app)
        return
    with pytest.raises(RunError) as caught:
        over_strangers(strategy, app)
    assert str(caught.value) == (
        "round 1: FedSGD: num-steps is 2, and a round of FedSGD is one step: train with "
        "fedsuite.clients.FedSGDClient, which takes one step over all its rows"
    )


def test_proximal_client_of_the_wrong_name_is_no_fedprox_client() -> None:
    assert told_of(FedProxClient) == {"proximal-mu": float}
    reply = RecordDict({"metrics": MetricRecord({"num-examples": 1, "proximal_mu": 0.5})})
    checked = check_reply(0, reply, Expected(settings={"proximal-mu": 0.5}))
    assert checked.unfollowed == {"proximal-mu": None}
