"""FD: the specification's numbers through a federation, identities and runs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch.nn import functional

from fedsuite.clients import load_client
from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.clients.distillation.fd import FDClient
from fedsuite.core.registry import METHODS
from fedsuite.data import Split
from fedsuite.engines.api import resume, run
from fedsuite.messages.records import (
    CLASS_TABLE,
    CLASSES,
    COUNTS,
    ROWS,
    TRAIN,
    client_record,
    records_of,
)
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.standalone import Standalone
from fedsuite.strategies.distillation.fd import FD
from fedsuite.training.loop import TrainingOptions
from tests.small_runs import SMALL, client_states
from tests.strategies.distillation.class_means import (
    G_LOGIT,
    LABELS,
    M_LOGIT,
    PHI,
    L,
    table,
)
from tests.strategies.distillation.public import (
    ADAM,
    MIXED,
    STANDING,
    Federation,
    Table,
    assert_same_models,
    differ,
    equal,
    normalised,
    numbered,
    rows,
    small,
    tables_of,
    wide,
)

CE = (0.817667, 1.455552, 0.537927)
M_PROB = {
    (0, 0): (0.539377, 0.346714, 0.113909),
    (1, 1): (0.438591, 0.333074, 0.228335),
    (2, 2): (0.043644, 0.079737, 0.876619),
}


def golden(**options: Any) -> tuple[Federation, Any]:
    """Run two rounds of the example's clients, whose weights stand still."""
    training = options.pop("training", STANDING)
    builds = [lambda logits=logits: Table(logits, torch.float64) for logits in L]
    federation = Federation(
        FDClient, builds, training=training, data=lambda k: numbered(*LABELS[k])
    )
    return federation, federation.run(tables_of(FD, **options), 2)


def losses(trace: Any) -> list[list[float]]:
    return [[row["loss"] for row in report.train.rows] for report in trace.reports]


def sent_down(federation: Federation, client_id: int) -> list[dict[int, list[float]]]:
    """Return the rows that a client received in each training message, by class."""
    name = client_record(client_id, CLASS_TABLE)
    found = []
    for message in federation.grid.arrays(TRAIN, sent=True):
        if name in message:
            held = message[name]
            pairs = zip(held[CLASSES].tolist(), held[ROWS].tolist(), strict=True)
            found.append(dict(pairs))
    return found


def sent_up(federation: Federation, client_id: int) -> list[dict[str, np.ndarray]]:
    name = client_record(client_id, CLASS_TABLE)
    replies = federation.grid.arrays(TRAIN, sent=False)
    return [reply[name] for reply in replies if name in reply]


@pytest.mark.parametrize("when", ["online", "end"])
@pytest.mark.parametrize(("space", "kind"), PHI)
def test_the_worked_example(space: str, kind: str, when: str) -> None:
    federation, trace = golden(fd_space=space, fd_loss=kind, fd_pass=when)
    first, second = losses(trace)
    assert first == pytest.approx(CE, abs=1e-6)
    expected = [ce + phi for ce, phi in zip(CE, PHI[space, kind], strict=True)]
    assert second == pytest.approx(expected, abs=2e-6)
    assert trace.reports[0].method_metrics["classes_covered"] == 3
    for client_id in range(3):
        (down,) = sent_down(federation, client_id)
        assert set(down) == set(G_LOGIT[client_id])
        up = sent_up(federation, client_id)[0]
        assert up[COUNTS].tolist() == [label in LABELS[client_id] for label in range(3)]
        if space == "logit":
            np.testing.assert_allclose(up[ROWS], table(M_LOGIT[client_id])[0], atol=1e-6)
            for label, row in G_LOGIT[client_id].items():
                assert down[label] == pytest.approx(row, abs=1e-6)
    if space == "prob":
        for (client_id, label), row in M_PROB.items():
            found = sent_up(federation, client_id)[0][ROWS][label]
            np.testing.assert_allclose(found, row, atol=1e-6)


def test_the_weight_scales_the_regulariser() -> None:
    _, trace = golden(fd_weight=3.0, fd_space="logit")
    assert losses(trace)[1][0] == pytest.approx(CE[0] + 3 * 1.282333, abs=5e-6)


def test_the_step_is_that_of_the_whole_loss() -> None:
    moving = TrainingOptions(local_steps=1, batch_size=0, learning_rate=1.0)
    builds = [lambda logits=logits: Table(logits, torch.float64) for logits in L]
    federation = Federation(
        FDClient, builds, training=moving, data=lambda k: numbered(*LABELS[k])
    )
    strategy = tables_of(FD, fd_space="logit", fd_weight=2.0)
    for client_id, rows_of in enumerate(M_LOGIT):
        found, present = table(rows_of)
        strategy.tables[client_id], strategy.present[client_id] = found, present
    federation.run(strategy, 1)
    logits = torch.tensor(L[0], dtype=torch.float64)
    labels = list(LABELS[0])
    p = functional.softmax(logits, dim=1)
    targets = functional.softmax(torch.tensor(table(G_LOGIT[0])[0])[labels], dim=1)
    wanted = torch.eye(3, dtype=torch.float64)[labels]
    step = (p - wanted + 2 * (p - targets)) / 3
    np.testing.assert_allclose(federation.models()[0][0], logits - step, atol=1e-6)


def test_averages_are_taken_while_the_weights_move_and_anew_each_round() -> None:
    moving = TrainingOptions(local_steps=2, batch_size=0, learning_rate=0.5)
    options = {"fd_space": "logit", "fd_weight": 0.0, "training": moving}
    federation, _ = golden(**options)
    logits = torch.tensor(L[0], dtype=torch.float64)
    labels = torch.tensor(LABELS[0])
    for told in sent_up(federation, 0):
        seen = []
        for _ in range(2):
            seen.append(logits)
            p = functional.softmax(logits, dim=1)
            logits = logits - 0.5 * (p - torch.eye(3)[labels]) / 3
        online = torch.stack(seen).mean(dim=0)
        expected = [online[:2].mean(dim=0), online[2], torch.zeros(3)]
        np.testing.assert_allclose(told[ROWS], torch.stack(expected), atol=1e-6)
    end, _ = golden(**options, fd_pass="end")
    np.testing.assert_allclose(sent_up(end, 0)[1][ROWS][1], logits[2], atol=1e-6)


def test_two_clients_get_each_other_s_tables() -> None:
    federation = Federation(FDClient, [small, wide])
    federation.run(tables_of(FD, 2), 2)
    for one, other in ((0, 1), (1, 0)):
        (down,) = sent_down(federation, one)
        told = sent_up(federation, other)[0]
        assert sorted(down) == np.flatnonzero(told[COUNTS]).tolist()
        for label, row in down.items():
            np.testing.assert_array_equal(np.float32(row), told[ROWS][label])


def test_a_single_client_trains_alone() -> None:
    alone, plain = Federation(FDClient, [wide]), Federation(FDClient, [wide])
    alone.run(tables_of(FD, 1), 3)
    plain.run(tables_of(FD, 1, fd_weight=0.0), 3)
    assert_same_models(alone, plain)
    assert sent_down(alone, 0) == []


SGD = TrainingOptions(local_steps=3, batch_size=8, learning_rate=0.1)


@pytest.mark.parametrize("training", [SGD, ADAM])
def test_without_weight_it_is_standalone(training: TrainingOptions) -> None:
    """With the same lifetime of the optimiser: made anew, or without memory."""
    fd = Federation(FDClient, MIXED, training=training)
    fd.run(tables_of(FD, fd_weight=0.0, reset_optimizer=True), 3)
    alone = Federation(StandaloneClient, MIXED, training=training)
    alone.run(Standalone(identity="partition", num_clients=3), 3)
    assert_same_models(fd, alone)
    other = Federation(FDClient, MIXED, training=training)
    other.run(tables_of(FD, reset_optimizer=True), 3)
    assert differ(fd, other)
    kept = Federation(FDClient, MIXED, training=training)
    kept.run(tables_of(FD, fd_weight=0.0), 3)
    assert differ(fd, kept) == (training is ADAM)


def test_every_loss_option_trains_otherwise() -> None:
    choices = [
        {"fd_space": space, "fd_loss": kind, "fd_pass": when}
        for space in ("prob", "logit")
        for kind in ("ce", "mse")
        for when in ("online", "end")
    ]
    federations = [Federation(FDClient, [wide, small]) for _ in choices]
    for federation, options in zip(federations, choices, strict=True):
        federation.run(tables_of(FD, 2, **options), 2)
    for index, one in enumerate(federations):
        assert all(differ(one, other) for other in federations[:index])


def test_nothing_but_tables_travels() -> None:
    federation = Federation(FDClient)
    trace = federation.run(tables_of(FD), 2)
    for message in federation.grid.replies:
        for held in records_of(message.content, ArrayRecord).values():
            shapes = {name: tuple(array.shape) for name, array in held.items()}
            assert shapes == {ROWS: (3, 3), COUNTS: (3,)}
    first, second = trace.reports
    assert first.metrics["bytes_down"] == 0
    # Three clients of three classes: nine floats and their three labels.
    assert second.metrics["bytes_down"] == 3 * (9 * 4 + 3 * 8)
    assert first.metrics["bytes_up"] == 3 * (9 * 4 + 3 * 4)


def test_a_class_of_one_client_has_no_target_for_it() -> None:
    def data(client_id: int) -> Split:
        held = rows(client_id)
        labels = held.labels % 2 if client_id else torch.full_like(held.labels, 2)
        return Split(held.features, labels)

    federation = Federation(FDClient, [small, small, small], data=data)
    trace = federation.run(tables_of(FD), 2)
    assert [sorted(sent_down(federation, k)[0]) for k in range(3)] == [
        [0, 1],
        [0, 1, 2],
        [0, 1, 2],
    ]
    assert sent_up(federation, 0)[0][COUNTS].tolist() == [0, 0, 1]
    assert not sent_up(federation, 0)[0][ROWS][:2].any()
    # It trains as if alone: nobody can tell it anything about its class.
    plain = Federation(FDClient, [small, small, small], data=data)
    plain.run(tables_of(FD, fd_weight=0.0), 2)
    np.testing.assert_array_equal(federation.models()[0][0], plain.models()[0][0])
    assert not np.array_equal(federation.models()[1][0], plain.models()[1][0])
    assert trace.reports[1].train.rejections == []


def test_order_of_replies_is_of_no_consequence() -> None:
    runs = [Federation(FDClient), Federation(FDClient, order=lambda r: r[::-1])]
    for federation in runs:
        federation.run(tables_of(FD), 3)
    assert_same_models(*runs)


def test_state_goes_round() -> None:
    strategy, other = tables_of(FD), tables_of(FD)
    Federation(FDClient, MIXED).run(strategy, 1)
    other.restore(*strategy.state())
    for client_id in (0, 1, 2, 9):
        ours = strategy.own_rows([client_id])[client_id]
        theirs = other.own_rows([client_id])[client_id]
        for name in (ROWS, CLASSES):
            np.testing.assert_array_equal(ours[name], theirs[name])


def test_a_pass_at_the_end_leaves_no_trace() -> None:
    """It is in evaluation mode: running statistics stay."""
    runs = []
    for when in ("online", "end"):
        federation = Federation(FDClient, [normalised, normalised])
        federation.run(tables_of(FD, 2, fd_pass=when), 1)
        runs.append(federation)
    assert_same_models(*runs)


def test_clients_start_from_stored_states_alone() -> None:
    shared = small()
    apart = Federation(FDClient, [small, small])
    together = Federation(FDClient, [lambda: shared, lambda: shared])
    for client_id in (0, 1):
        shared.load_state_dict(apart._client(None, client_id).model.state_dict())
        together._client(None, client_id)
    states = []
    for federation in (apart, together):
        strategy = tables_of(FD, 2)
        federation.run(strategy, 2)
        states.append(
            [federation.store.load(k, strategy.client_versions[k]) for k in (0, 1)]
        )
    for one, other in zip(*states, strict=True):
        assert equal(one, other)


def test_bad_settings_are_refused() -> None:
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="fd_weight"):
            tables_of(FD, fd_weight=bad)
    with pytest.raises(ValueError, match="NumPyClient"):
        FD(num_classes=3, wire="numpy")
    with pytest.raises(ValueError, match="num_classes"):
        FD(num_classes=0)


def test_sequences_are_refused() -> None:
    words = Split(torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(Exception, match="one class per row"):
        FDClient(small(), words, words)


def test_noise_on_uploads_is_refused() -> None:
    with pytest.raises(Exception, match="upload-noise-multiplier"):
        run({**SMALL, "method": "fd", "upload-noise-multiplier": 1.0})


def test_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    values = {
        **SMALL,
        "method": "fd",
        "num-clients": 3,
        "clients-per-round": 0,
        "client-models": "linear, mlp:hidden-width=4",
        "device": "cpu",
        "output-dir": str(tmp_path),
    }
    whole = run({**values, "num-rounds": 3, "run-name": "whole"})
    run({**values, "num-rounds": 1, "run-name": "parts"})
    parts = resume(tmp_path / "parts", num_rounds=3)
    assert client_states(whole.path) == client_states(parts.path)
    assert len(client_states(whole.path)) == 3
    assert whole.column("train_loss")[1].tolist() == parts.column("train_loss")[1].tolist()
    assert whole.manifest["status"] == "finished"


def test_it_is_listed() -> None:
    assert load_strategy(METHODS["fd"]) is FD
    assert load_client(METHODS["fd"]) is FDClient
