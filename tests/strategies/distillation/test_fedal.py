"""FedAL through its real strategy and clients: its example, identities, what travels."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch.nn import functional

from fedsuite.clients.distillation.fedal import FedALClient
from fedsuite.clients.distillation.fedmd import FedMDClient
from fedsuite.data.public_batches import public_batch
from fedsuite.messages.records import (
    ADVERSARIAL_GRADIENT,
    LOGITS,
    MEAN_OUTPUTS,
    TRANSFER,
    client_record,
    records_of,
)
from fedsuite.strategies.distillation.fedal import FedAL, parse_widths
from fedsuite.strategies.distillation.fedmd import FedMD, FedMDLF
from tests.strategies.distillation.fixed_pair import F1, F2, golden, moved
from tests.strategies.distillation.public import (
    ADAM,
    MIXED,
    NO_TRAINING,
    PUBLIC,
    Federation,
    assert_same_models,
    differ,
    small,
    strategy_of,
    wide,
)

ADVERSARIAL = ((0.130471, -0.109501, -0.020970), (-0.086346, 0.081980, 0.004367))
TOTAL = ((0.785343, -0.568308, -0.217035), (-0.741218, 0.540786, 0.200432))


class GoldenFedAL(FedAL):
    """With the linear discriminator of the specification's example, which stays."""

    def __init__(self, **options: Any) -> None:
        fixed = {"discriminator_widths": "", "discriminator_learning_rate": 0.0}
        super().__init__(**{"adversarial_weight": 1.0, **fixed, **options})

    def begin_transfer(self) -> None:
        super().begin_transfer()
        layer = self.discriminator.network[0]
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]]))
            layer.bias.copy_(torch.tensor([0.1, -0.1]))


@pytest.mark.parametrize("weight", [0.0, 1.0, 10.0])
def test_the_adversarial_term_has_a_weight(weight: float) -> None:
    federation = golden(GoldenFedAL, FedALClient, adversarial_weight=weight)
    rest = np.array(TOTAL) - np.array(ADVERSARIAL)
    expected = rest + weight * np.array(ADVERSARIAL)
    np.testing.assert_allclose(moved(federation), expected, atol=2e-5)


def test_the_worked_example_through_strategy_and_clients() -> None:
    federation = golden(GoldenFedAL, FedALClient)
    np.testing.assert_allclose(moved(federation), TOTAL, atol=2e-6)
    (mean, other) = federation.grid.arrays(TRANSFER, sent=True)
    for client_id, message in enumerate((mean, other)):
        found = message[MEAN_OUTPUTS][LOGITS]
        np.testing.assert_allclose(found, np.tile([1, 0.5, -1], (6, 1)), atol=1e-7)
        name = client_record(client_id, ADVERSARIAL_GRADIENT)
        np.testing.assert_allclose(
            message[name][LOGITS], np.tile(ADVERSARIAL[client_id], (6, 1)), atol=1e-6
        )


@pytest.mark.parametrize("build", [small, wide])
def test_the_chain_rule_through_the_wire_is_that_of_one_graph(build: Any) -> None:
    # A single client: nobody to imitate, and no less-forgetting at the first exchange.
    federation = Federation(FedALClient, [build], training=NO_TRAINING)
    strategy = strategy_of(FedAL, 1, transfer_steps=1, discriminator_learning_rate=0.0)
    # Between two labels there is something to tell apart.
    strategy.restore({}, {"labels": [0, 1]})
    client = federation._client(None, 0)
    before = [p.detach().clone() for p in client.model.parameters()]
    batch = PUBLIC[public_batch(len(PUBLIC), 6, 0, 1, 0)]
    federation.run(strategy, 1)
    for parameter, start in zip(client.model.parameters(), before, strict=True):
        after = parameter.detach().clone()
        with torch.no_grad():
            parameter.copy_(start)
        start.copy_(after)
    client.model.zero_grad()
    p = functional.softmax(client.model(batch) / 2.0, dim=1)
    found = strategy.discriminator.network(p)
    (-functional.cross_entropy(found, torch.zeros(6, dtype=torch.int64))).backward()
    for parameter, after in zip(client.model.parameters(), before, strict=True):
        assert parameter.grad is not None and parameter.grad.abs().max() > 0
        expected = strategy.adversarial_weight * parameter.grad
        torch.testing.assert_close(
            parameter.detach() - after, expected, rtol=1e-4, atol=1e-6
        )


KINDS = {
    "fedmd": (FedMD, FedMDClient),
    "fedmd-lf": (FedMDLF, FedMDClient),
    "fedal": (FedAL, FedALClient),
}


@pytest.mark.parametrize("name", KINDS)
def test_nothing_but_logits_travels(name: str) -> None:
    kind, client = KINDS[name]
    federation = Federation(client)
    trace = federation.run(strategy_of(kind, transfer_steps=3), 2)
    grid = federation.grid
    up, down = 0, 0
    for message in (*grid.sent, *grid.replies):
        for record, held in records_of(message.content, ArrayRecord).items():
            arrays = {n: a.shape for n, a in held.items()}
            assert arrays == {LOGITS: (6, 3)}, (record, arrays)
            is_reply = message in grid.replies
            up, down = up + is_reply, down + (not is_reply)
    # In each of 2 rounds 3 exchanges with 3 clients.
    assert up == 18
    assert {name: len(found) for name, found in (("down", range(down)),)} == {
        "down": 36 if name == "fedal" else 18
    }
    size = 6 * 3 * 4
    per_client = 2 if name == "fedal" else 1
    assert [r.train.bytes_up for r in trace.reports] == [9 * size] * 2
    assert [r.train.bytes_down for r in trace.reports] == [9 * size * per_client] * 2
    assert all(not arrays for arrays in trace.arrays)


def test_no_number_of_a_model_leaves_a_client() -> None:
    federation = Federation(FedALClient)
    federation.run(strategy_of(FedAL), 2)
    held = {
        float(x) for m in federation.models() for a in m if a.size for x in a.flat if x % 1
    }
    for message in (*federation.grid.sent, *federation.grid.replies):
        for record in records_of(message.content, ArrayRecord).values():
            for array in record.values():
                assert not held & {float(x) for x in array.numpy().flat}


def test_without_its_discriminator_fedal_is_fedmd_lf() -> None:
    runs = [Federation(FedALClient), Federation(FedMDClient)]
    runs[0].run(strategy_of(FedAL, adversarial=False))
    runs[1].run(strategy_of(FedMDLF))
    assert_same_models(*runs)


def test_without_both_it_is_fedmd() -> None:
    runs = [Federation(FedALClient), Federation(FedMDClient)]
    runs[0].run(strategy_of(FedAL, adversarial=False, less_forgetting="none"))
    runs[1].run(strategy_of(FedMD))
    assert_same_models(*runs)


class Speechless(FedAL):
    """With a discriminator whose last layer is 0 and stays so."""

    def begin_transfer(self) -> None:
        super().begin_transfer()
        with torch.no_grad():
            for parameter in self.discriminator.network[-1].parameters():
                parameter.zero_()


def test_a_discriminator_without_an_opinion_changes_nothing() -> None:
    runs = [Federation(FedALClient), Federation(FedMDClient), Federation(FedALClient)]
    runs[0].run(strategy_of(Speechless, discriminator_learning_rate=0.0))
    runs[1].run(strategy_of(FedMDLF))
    runs[2].run(strategy_of(FedAL))
    assert_same_models(runs[0], runs[1])
    assert differ(runs[1], runs[2])


def test_temperatures_are_two() -> None:
    # The discriminator's changes its gradient alone; the other leaves that as it is.
    plain, hot, soft = (
        golden(GoldenFedAL, FedALClient, **options)
        for options in (
            {},
            {"discriminator_temperature": 1.0},
            {"distillation_temperature": 4.0},
        )
    )

    def gradient(federation: Federation) -> np.ndarray:
        messages = federation.grid.arrays(TRANSFER, sent=True)
        name = client_record(0, ADVERSARIAL_GRADIENT)
        return messages[0][name][LOGITS][0]

    colder = (0.101952, -0.094086, -0.007866)
    np.testing.assert_allclose(gradient(hot), colder, atol=1e-6)
    np.testing.assert_allclose(
        moved(hot)[0] - moved(plain)[0], np.subtract(colder, ADVERSARIAL[0]), atol=2e-6
    )
    np.testing.assert_array_equal(gradient(soft), gradient(plain))
    own = functional.softmax(torch.tensor(F1) / 4, dim=0)
    others = functional.softmax(torch.tensor(F2) / 4, dim=0)
    np.testing.assert_allclose(
        moved(soft)[0] - ADVERSARIAL[0], (own - others) / 4, atol=2e-6
    )


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="discriminator_widths"):
        strategy_of(FedAL, discriminator_widths="32,x")
    with pytest.raises(ValueError, match="discriminator_temperature"):
        strategy_of(FedAL, discriminator_temperature=0.0)
    with pytest.raises(ValueError, match="distillation_temperature"):
        strategy_of(FedMD, distillation_temperature=math.nan)
    with pytest.raises(ValueError, match="NumPyClient"):
        FedMD(num_classes=3, public_rows=4, wire="numpy")
    with pytest.raises(ValueError, match="public_rows"):
        FedMD(num_classes=3, public_rows=0)
    assert parse_widths(" 32, 265 ") == (32, 265)
    assert parse_widths("") == ()


def test_a_client_without_public_data_says_so() -> None:
    federation = Federation(FedALClient, [small], public=PUBLIC[:0])
    with pytest.raises(Exception, match="no public data"):
        federation.run(strategy_of(FedAL, 1, max_failed_rounds=1), 1)


def test_networks_may_all_differ() -> None:
    federation = Federation(FedALClient, MIXED, training=ADAM)
    trace = federation.run(strategy_of(FedAL, transfer_steps=2), 3)
    assert len(trace.reports[-1].evaluate.rows) == 3
    sizes = [len(model) for model in federation.models()]
    assert len(set(sizes)) == 3
