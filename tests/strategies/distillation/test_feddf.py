"""FedDF and FedDF-AL through their real strategies and clients."""

from typing import Any

import numpy as np
import pytest
import torch

from fedsuite.clients.distillation.feddf import FedDFClient
from fedsuite.clients.distillation.fedmd import FedMDClient
from fedsuite.core.errors import ConfigError
from fedsuite.messages.records import ARRAYS, LOCAL_PHASE, TRANSFER, Reply, Request
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.rounds.validation import ClientReply
from fedsuite.strategies.distillation.feddf import FedDF
from fedsuite.strategies.distillation.feddf_al import FedDFAL
from fedsuite.strategies.distillation.fedmd import FedMD

# Rounds
from tests.helpers import bits, digits_experiment, run_digits, take_all
from tests.strategies.distillation.model_exchange import (
    COUNTS,
    TURNS,
    Small,
    sent_models,
)
from tests.strategies.distillation.public import (
    MIXED,
    NO_TRAINING,
    PUBLIC,
    Federation,
    assert_same_models,
    differ,
    normalised,
    rows,
    small,
    wide,
)
from tests.strategies.distillation.public import strategy_of as plain_strategy_of


@pytest.mark.parametrize("kind", [FedDF, FedDFAL])
def test_a_round_ends_with_averages_of_what_the_last_step_left(kind: type[Any]) -> None:
    builds = (normalised, wide)
    played = Small(kind, builds=builds)
    for server_round, arrays in enumerate(played.trace.arrays, start=1):
        models = sent_models(played, TRANSFER, server_round)
        for index, members in ((0, (0, 2)), (1, (1,))):
            weights = [COUNTS[k] for k in members]
            for name in played.networks.initial[index]:
                mean = np.average(
                    [models[k][name] for k in members], axis=0, weights=weights
                )
                found = arrays[f"{index}/{name}"]
                if found.dtype.kind == "i":
                    mean = np.rint(mean)
                np.testing.assert_allclose(found, mean, atol=1e-6)
    counter = played.trace.arrays[-1]["0/1.num_batches_tracked"]
    assert counter.dtype == np.int64 and int(counter) == 2 * (2 + 2)
    for k, model in enumerate(played.federation.models()):
        last = sent_models(played, TRANSFER, 2)[k]
        differing = [
            not np.array_equal(a, b) for a, b in zip(model, last.values(), strict=True)
        ]
        # What was evaluated last is what the server holds.
        assert any(differing) == (k != 1)


def test_what_a_round_records() -> None:
    for row in Small(num_rounds=1).trace.reports[0].train.rows:
        assert {"loss", "num_steps", "transfer_loss"} <= set(row)
        assert row["num_examples"] == COUNTS[int(row["client"])]


def test_a_round_begins_with_the_model_of_one_s_network() -> None:
    played = Small()
    down = played.federation.grid.arrays(LOCAL_PHASE, sent=True)
    starts = [played.initial, played.trace.arrays[0]]
    for server_round, start in enumerate(starts):
        parts = played.networks.split(start)
        for k, index in enumerate((0, 1, 0)):
            message = down[3 * server_round + k]
            assert bits(message[f"client-{k}.{ARRAYS}"]) == bits(parts[index])


def test_less_forgetting_stays_near_the_received_model() -> None:
    class Noting(FedDFClient):
        def before_local_phase(self, request: Request) -> None:
            super().before_local_phase(request)
            assert self._reference is not None
            assert bits(model_arrays(self._reference)) == bits(request.arrays[ARRAYS])
            seen.append(request.server_round)

    seen: list[int] = []
    Small(client_class=Noting, less_forgetting="local")
    assert seen == [1, 1, 1, 2, 2, 2]


# What it is equal to


def test_without_averages_it_is_fedmd() -> None:
    """Where each client has a network of its own, an average is of one."""
    played = Small(builds=MIXED, of_client=(0, 1, 2), num_rounds=3)
    twin = Federation(FedMDClient, MIXED)
    for k in range(3):
        client = twin._client(None, k)  # type: ignore[arg-type]
        client.train_data = client.test_data = rows(k, COUNTS[k])
    twin.run(plain_strategy_of(FedMD), 3)
    assert_same_models(played.federation, twin)
    averaged = Small(builds=(small,), of_client=(0, 0, 0), num_rounds=3)
    lonely = Federation(FedMDClient, (small,) * 3)
    lonely.run(plain_strategy_of(FedMD), 3)
    assert differ(averaged.federation, lonely)


def test_without_its_discriminator_feddf_al_is_feddf() -> None:
    options: dict[str, Any] = {"builds": (normalised, wide), "transfer_steps": 3}
    plain = Small(**options)
    assert Small(FedDFAL, adversarial=False, **options).final == plain.final
    assert Small(FedDFAL, **options).final != plain.final


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_server_that_takes_no_step_is_fedavg(optimizer: str) -> None:
    common: dict[str, Any] = {
        **TURNS,
        "client_models": "",
        "client_model_assignment": "random",
        "model": "mlp",
        "optimizer": optimizer,
        "learning_rate": 0.01,
        "batch_size": 16,
    }
    plain = run_digits(digits_experiment(method="fedavg", **common))
    options = {"feddf_mode": "server-kd", "feddf_server_steps": 0}
    found = run_digits(digits_experiment(method="feddf", **common, **options))
    wanted = {f"0/{name}": a for name, a in bits(plain.arrays[-1]).items()}
    assert bits(found.arrays[-1]) == wanted
    for mine, theirs in zip(found.reports, plain.reports, strict=True):
        assert mine.train.means() == theirs.train.means()
        assert mine.evaluate.means() == theirs.evaluate.means()


@pytest.mark.parametrize("mode", ["client-kd", "server-kd"])
def test_equal_clients_have_nothing_to_distil(mode: str) -> None:
    """But with normalisation layers, whose students and teachers differ by their mode."""
    still = {"federation": {"training": NO_TRAINING}, "num_rounds": 1}
    losses = {}
    for build in (wide, normalised):
        options = {"builds": (build,), "of_client": (0, 0, 0), "feddf_mode": mode}
        if mode == "server-kd":
            options["feddf_server_learning_rate"] = 1e-12
        played = Small(**options, **still)
        report = played.trace.reports[0]
        losses[build] = (
            report.method_metrics["ensemble_loss"]
            if mode == "server-kd"
            else max(report.train.column("transfer_loss"))
        )
    assert losses[wide] == pytest.approx(0.0, abs=1e-6)
    assert losses[normalised] > 1e-3


# The server distils


@pytest.mark.parametrize("average", ["size", "uniform"])
@pytest.mark.parametrize("ensemble", ["avg-logits", "avg-probs"])
def test_students_start_from_averages_and_hear_the_received_models(
    average: str, ensemble: str
) -> None:
    played = Small(
        builds=(normalised, wide),
        feddf_mode="server-kd",
        feddf_average=average,
        feddf_ensemble=ensemble,
        feddf_server_steps=7,
        feddf_server_learning_rate=0.02,
    )
    losses = []
    for server_round, arrays in enumerate(played.trace.arrays, start=1):
        models = sent_models(played, LOCAL_PHASE, server_round)
        said = []
        for k, index in enumerate((0, 1, 0)):
            teacher = played.networks.build(index).eval()
            load_arrays(teacher, models[k])
            with torch.no_grad():
                said.append(teacher(PUBLIC))
        replies = [
            ClientReply(k, {ARRAYS: model}, {}, COUNTS[k]) for k, model in models.items()
        ]
        take_all(played.strategy, arrays, replies)
        averages = played.strategy.averages()
        losses = []
        for index in (0, 1):
            student, loss = played.strategy._distillation.distil(
                index, averages[index], torch.stack(said), server_round
            )
            losses.append(loss)
            for name, array in student.items():
                np.testing.assert_array_equal(arrays[f"{index}/{name}"], array)
            assert bits(student) != bits(averages[index])
    found = played.trace.reports[-1].method_metrics["ensemble_loss"]
    assert found == pytest.approx(np.mean(losses))


def test_each_setting_of_the_server_counts() -> None:
    base: dict[str, Any] = {"feddf_mode": "server-kd", "feddf_server_steps": 5}
    runs = [Small(feddf_mode="client-kd").final]
    runs += [
        Small(**base | changes).final
        for changes in (
            {},
            {"feddf_server_steps": 6},
            {"feddf_server_learning_rate": 0.1},
            {"feddf_ensemble": "avg-probs"},
            {"feddf_average": "uniform"},
            {"public_batch_size": 7},
        )
    ]
    for number, one in enumerate(runs):
        assert all(one != other for other in runs[:number])


def test_a_network_that_nobody_answered_for_stays_as_it_was() -> None:
    class Absent(FedDFClient):
        def on_local_phase(self, request: Request) -> Reply:
            if self.client_id == 1 and request.server_round == 2:
                raise ConfigError("not today")
            return super().on_local_phase(request)

    for mode in ("client-kd", "server-kd"):
        before, after = Small(client_class=Absent, feddf_mode=mode).trace.arrays
        for name, array in after.items():
            assert np.array_equal(array, before[name]) == name.startswith("1/")


# What is refused


@pytest.mark.parametrize("method", ["feddf", "feddf-al"])
def test_what_does_not_go_together_is_refused(method: str) -> None:
    with pytest.raises(ConfigError, match="noise is measured from"):
        digits_experiment(method=method, public_size=40, upload_noise_multiplier=0.1)
    with pytest.raises(ConfigError, match="start from what the server holds"):
        digits_experiment(method=method, public_size=40, client_initialisation="own")
    with pytest.raises(ConfigError, match="needs public data"):
        run_digits(digits_experiment(method=method, public_size=0))
