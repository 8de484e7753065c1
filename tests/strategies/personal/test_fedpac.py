"""FedPAC: identities, rounds on the server, refusals."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsuite.core.errors import ConfigError
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import (
    METRICS,
    Arrays,
    client_record,
)
from fedsuite.models.groups import ParameterGroups
from fedsuite.strategies.personal import fedpac
from fedsuite.strategies.personal.fedpac import FedPAC, collaboration_matrix, head_weights
from tests.helpers import Trace, bits, digits_experiment, run_digits
from tests.strategies.personal.own_heads import KEYS, started
from tests.strategies.personal.products import GROUPS


def same_as_fedrep(trace: Trace, **changes: Any) -> bool:
    keys = {**KEYS, **changes, "head_epochs": 1}
    expected = run_digits(digits_experiment(method="fedrep", **keys))
    same = [bits(a) for a in trace.arrays] == [bits(a) for a in expected.arrays]
    losses = [
        [row["loss"] for row in report.evaluate.rows]
        for report in (*trace.reports, *expected.reports)
    ]
    count = len(trace.reports)
    return same and losses[:count] == losses[count:]


def test_alone_in_a_round_and_unaligned_is_fedrep() -> None:
    keys = {"clients_per_round": 1, "num_rounds": 6}
    assert same_as_fedrep(started(alignment=0.0, **keys)[2], **keys)
    assert not same_as_fedrep(started(alignment=1.0, **keys)[2], **keys)


def test_own_heads_and_unaligned_is_fedrep(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not same_as_fedrep(started(alignment=0.0)[2])
    monkeypatch.setattr(fedpac, "head_weights", lambda matrix, k: np.eye(len(matrix))[k])
    assert same_as_fedrep(started(alignment=0.0)[2])
    assert not same_as_fedrep(started(alignment=0.0, head_learning_rate=0.2)[2])
    assert not same_as_fedrep(started(alignment=0.0, head_epochs=2)[2])


def records_of(messages: list[Message], name: str) -> list[Arrays]:
    return [
        to_arrays(record)
        for message in messages
        for key, record in message.content.array_records.items()
        if key == name
    ]


def test_round_on_the_server_is_the_papers() -> None:
    """From the replies themselves: heads, prototypes, and what goes out next."""
    grid, strategy, trace = started(num_rounds=2)
    train = [m for m in grid.replies if m.metadata.message_type == "train"][:4]
    heads = [records_of(train, client_record(k, "head"))[0] for k in range(4)]
    stats = [records_of(train, client_record(k, "statistics"))[0] for k in range(4)]
    variances = np.array(
        [
            m.content.metric_records[client_record(k, METRICS)]["feature-variance"]
            for k, m in enumerate(train)
        ]
    )
    scaled = np.array([s["scaled-means"].reshape(-1) for s in stats], dtype=np.float64)
    sent = [m for m in grid.sent if m.metadata.message_type == "train"]
    first, second = sent[:4], sent[4:]
    assert not records_of(first, "prototypes")
    assert not any(records_of(first, client_record(k, "head")) for k in range(4))
    own_weights = []
    for client in range(4):
        weights = head_weights(collaboration_matrix(scaled, variances, client), client)
        own_weights.append(weights[client])
        [got] = records_of(second, client_record(client, "head"))
        for name, array in got.items():
            expected = sum(w * h[name] for w, h in zip(weights, heads, strict=True))
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-7)
        evaluated = [m for m in grid.sent if m.metadata.message_type == "evaluate"][:4]
        [scored] = records_of(evaluated, client_record(client, "head"))
        assert bits(scored) == bits(got)
    assert 0 < min(own_weights) < 1
    rows = trace.reports[0].train.rows
    assert [row["own_head_weight"] for row in rows] == pytest.approx(own_weights)
    counts = np.array([s["counts"] for s in stats], dtype=np.float64)
    prototypes = records_of(second, "prototypes")
    assert len(prototypes) == 4
    for label in range(10):
        held = counts[:, label].sum()
        assert prototypes[0]["present"][label] == (held > 0)
        if held:
            mean = sum(
                c[label] * s["prototypes"][label]
                for c, s in zip(counts, stats, strict=True)
            )
            np.testing.assert_allclose(
                prototypes[0]["means"][label], mean / held, rtol=1e-5
            )
    assert set(strategy.heads) == set(range(4))


def test_heads_of_absent_clients_stay() -> None:
    _, strategy, trace = started(clients_per_round=2, num_rounds=4, seed=1)
    asked_last = {row["client"] for row in trace.reports[-1].train.rows}
    earlier = {row["client"] for r in trace.reports for row in r.train.rows}
    assert set(strategy.heads) == earlier
    assert earlier - asked_last
    _, shorter, _ = started(clients_per_round=2, num_rounds=3, seed=1)
    for client in earlier - asked_last:
        assert bits(strategy.heads[client]) == bits(shorter.heads[client])


def test_state_goes_round() -> None:
    _, strategy, _ = started(num_rounds=1)
    other = FedPAC(groups=strategy.groups)
    other.heads = {77: {"x": np.zeros(1)}}
    other.restore(*strategy.state())
    assert {k: bits(h) for k, h in other.heads.items()} == {
        k: bits(h) for k, h in strategy.heads.items()
    }
    assert bits(other.prototypes) == bits(strategy.prototypes)


def test_a_round_below_the_quorum_changes_nothing() -> None:
    def lose(replies: list[Message]) -> list[Message]:
        return replies[:2]

    _, strategy, _ = started(lose, (2,), quorum=3, num_rounds=2)
    _, once, _ = started(num_rounds=1)
    assert bits(strategy.prototypes) == bits(once.prototypes)
    assert {k: bits(h) for k, h in strategy.heads.items()} == {
        k: bits(h) for k, h in once.heads.items()
    }


# ---- refusals


@pytest.mark.parametrize(
    "bad",
    [
        {"alignment": -0.1},
        {"alignment": float("nan")},
        {"head_epochs": -1},
        {"head_learning_rate": 0.0},
        {"head_learning_rate": float("inf")},
    ],
)
def test_bad_options(bad: dict[str, Any]) -> None:
    [name] = bad
    with pytest.raises(ValueError, match=f"{name} = "):
        FedPAC(groups=GROUPS, **bad)


def test_a_head_without_a_matrix_is_refused() -> None:
    strategy = FedPAC(groups=ParameterGroups(head=("bias",), other=("body",)))
    with pytest.raises(ConfigError, match="needs a linear layer"):
        strategy.train_exchange({"bias": np.zeros(2), "body": np.zeros(2)}, [0])


def test_noise_on_uploads_is_refused() -> None:
    words = r"upload-noise-multiplier = 0\.1 cannot go with method fedpac: set 0\.0"
    with pytest.raises(ConfigError, match=words):
        digits_experiment(method="fedpac", upload_noise_multiplier=0.1)
