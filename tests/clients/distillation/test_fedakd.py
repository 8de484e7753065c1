"""FedAKD's client: who teaches whom, on which samples, and what stays at home."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedsuite.clients.averaging.standalone import StandaloneClient
from fedsuite.data import Split
from fedsuite.messages.records import ARRAYS, SELECTED, Arrays, Request
from fedsuite.models.arrays import model_arrays
from fedsuite.training.loop import TrainingOptions
from fedsuite.training.store import MemoryStore
from tests.clients.distillation.teaching import (
    ADAM,
    ONE_STEP,
    client,
    data,
    hits,
    kept,
    normalised,
    plain,
    received,
    seeded,
    train,
)
from tests.helpers import NEARLY_0, bits


def test_teachers_are_frozen_to_the_last_bit() -> None:
    who, shared = client(), received()
    train(who, shared)
    (first, first_after), (second, second_after) = who.teachers
    assert bits(first) == bits(first_after) == bits(shared)
    assert bits(second) == bits(second_after) == bits(kept(who))
    # Both students moved, statistics included.
    assert kept(who)["1.1.num_batches_tracked"] > 0
    for name in ("0.weight", "1.1.running_mean", "4.bias"):
        assert not np.array_equal(kept(who)[name], model_arrays(normalised())[name])


def test_local_model_starts_initial_and_the_global_copy_as_received() -> None:
    who, shared = client(), received()
    train(who, shared)
    assert bits(who.starts[0]) == bits(model_arrays(seeded(normalised, 0)))
    assert bits(who.starts[1]) == bits(shared)


def test_next_round_goes_on_from_the_stored_local_model() -> None:
    who = client()
    reply = train(who, received())
    train(who, dict(reply.arrays[ARRAYS]), 2, start="1.1")
    assert bits(who.starts[2]) == bits(kept(who))
    assert bits(who.starts[3]) == bits(dict(reply.arrays[ARRAYS]))


def test_selection_is_by_the_local_model_after_its_training_in_every_round() -> None:
    who, split = client(training=ADAM), data()
    before = hits(normalised, model_arrays(who.model), split)
    first = train(who, received())
    one = hits(normalised, kept(who), split)
    second = train(who, dict(first.arrays[ARRAYS]), 2, start="1.1")
    two = hits(normalised, kept(who, "2.1"), split)
    assert who.rows == [None, one, None, two]
    assert [first.metrics[SELECTED], second.metrics[SELECTED]] == [len(one), len(two)]
    # Otherwise this test could not tell which model selected.
    assert len({tuple(before), tuple(one), tuple(two)}) == 3
    assert 0 < len(one) < len(split)


def test_a_threshold_selects_fewer() -> None:
    found = [
        train(client(), received(), confidence_threshold=least).metrics[SELECTED]
        for least in (0.0, 0.4, 0.45, 1.0)
    ]
    assert found[0] > found[1] > found[2] > found[3] == 0  # type: ignore[operator]


def always_wrong() -> Split:
    """Return samples of a class that a network with these biases never names."""
    split = data()
    return Split(split.features, torch.full_like(split.labels, 2))


def biased() -> nn.Module:
    model = plain()
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([50.0, 0.0, -50.0]))  # type: ignore[union-attr, operator]
    return model


def test_empty_selection_sends_the_received_model_back() -> None:
    who, shared = client(biased, split=always_wrong()), received()
    shared = model_arrays(seeded(biased, 1))
    reply = train(who, shared)
    assert reply.metrics[SELECTED] == 0
    assert reply.metrics["num-examples"] == len(always_wrong())
    assert bits(dict(reply.arrays[ARRAYS])) == bits(shared)
    assert "distilled-loss" not in reply.metrics
    assert who.rows == [None]
    # The local model learnt all the same, and is kept.
    assert bits(kept(who)) != bits(model_arrays(seeded(biased, 0)))


def test_no_samples_at_all() -> None:
    empty = Split(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    reply = train(client(split=empty), received())
    assert (reply.metrics["num-examples"], reply.metrics[SELECTED]) == (0, 0)
    assert bits(dict(reply.arrays[ARRAYS])) == bits(received())


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_each_step_follows_its_equation(temperature: float) -> None:
    """One full-batch step each, by autograd alone: (2), (3), then (5), (6) from w_g."""
    alpha, beta, split = 0.7, 1.6, data()
    who, shared = client(plain, training=ONE_STEP), received(plain)
    reply = train(
        who,
        shared,
        global_to_local_weight=alpha,
        local_to_global_weight=beta,
        distillation_temperature=temperature,
    )
    start = model_arrays(seeded(plain, 0))
    whole = list(range(len(split)))
    local = one_step(start, shared, whole, alpha, temperature)
    sent = one_step(shared, kept(who), hits(plain, kept(who), split), beta, temperature)
    for name in start:
        np.testing.assert_allclose(kept(who)[name], local[name], atol=1e-6)
        np.testing.assert_allclose(reply.arrays[ARRAYS][name], sent[name], atol=1e-6)


def test_the_focal_loss_takes_the_place_of_cross_entropy_in_both_steps() -> None:
    split, focal = data(), replace(ONE_STEP, loss="focal", focal_gamma=2.0)
    who, shared = client(plain, training=focal), received(plain)
    reply = train(who, shared)
    start = model_arrays(seeded(plain, 0))
    whole = list(range(len(split)))
    local = one_step(start, shared, whole, 1.0, 1.0, gamma=2.0)
    right = hits(plain, kept(who), split)
    sent = one_step(shared, kept(who), right, 1.0, 1.0, gamma=2.0)
    for name in start:
        np.testing.assert_allclose(kept(who)[name], local[name], atol=1e-6)
        np.testing.assert_allclose(reply.arrays[ARRAYS][name], sent[name], atol=1e-6)


def one_step(
    student: Arrays,
    teacher: Arrays,
    rows: list[int],
    weight: float,
    temperature: float,
    gamma: float = 0.0,
) -> Arrays:
    """Return w - 0.5 grad of focal loss + weight T^2 KL(teacher || student), written out.

    At gamma 0 the focal loss is the cross-entropy.
    """
    x, y = data().features[rows], data().labels[rows]
    w = torch.tensor(student["0.weight"], requires_grad=True)
    b = torch.tensor(student["0.bias"], requires_grad=True)
    logits = x @ w.T + b
    told = x @ torch.tensor(teacher["0.weight"]).T + torch.tensor(teacher["0.bias"])
    p = (told / temperature).softmax(dim=1)
    q = (logits / temperature).log_softmax(dim=1)
    divergence = (p * (p.log() - q)).sum(dim=1).mean()
    right = logits.log_softmax(dim=1)[range(len(y)), y]
    of_labels = (-((1 - right.exp()) ** gamma) * right).mean()
    loss = of_labels + weight * temperature**2 * divergence
    steps = torch.autograd.grad(loss, (w, b))
    new = (part - 0.5 * step for part, step in zip((w, b), steps, strict=True))
    return dict(zip(("0.weight", "0.bias"), (t.detach().numpy() for t in new), strict=True))


def test_without_a_teacher_the_local_model_is_standalones_whatever_comes() -> None:
    alone, taught = client(client_class=StandaloneClient), client()
    other = client()
    train(other, received())
    for server_round in (1, 2, 3):
        start = f"{server_round - 1}.1" if server_round > 1 else ""
        shared = model_arrays(seeded(normalised, 10 + server_round))
        train(taught, shared, server_round, start, global_to_local_weight=0.0)
        train(alone, {}, server_round, start)
        version = f"{server_round}.1"
        assert bits(kept(taught, version)) == bits(kept(alone, version))
        if server_round == 1:
            assert bits(kept(taught)) != bits(kept(other))


def test_a_teacher_without_weight_is_not_asked() -> None:
    both, neither = client(), client()
    selected = train(both, received()).metrics[SELECTED]
    train(neither, received(), global_to_local_weight=0.0, local_to_global_weight=0.0)
    assert isinstance(selected, int)
    # Five mini-batches of all samples, then those of the selected ones.
    assert (both.questions, neither.questions) == (5 + -(-selected // 8), 0)


def test_rate_0_moves_statistics_alone() -> None:
    who = client(training=TrainingOptions(batch_size=8, learning_rate=NEARLY_0))
    reply = train(who, received())
    found, shared = reply.arrays[ARRAYS], received()
    trained = {name for name, _ in normalised().named_parameters()}
    same = {name for name in found if np.array_equal(found[name], shared[name])}
    assert same == trained
    plain_reply = train(
        client(plain, training=TrainingOptions(learning_rate=NEARLY_0)), received(plain)
    )
    assert bits(dict(plain_reply.arrays[ARRAYS])) == bits(received(plain))


def test_what_is_sent_is_the_trained_copy_and_never_the_local_model() -> None:
    who = client()
    reply = train(who, received())
    assert set(reply.arrays) == {ARRAYS}
    sent, own = reply.arrays[ARRAYS], kept(who)
    assert bits(model_arrays(who.model)) == bits(dict(sent))
    assert set(sent) == set(own)
    for name, array in sent.items():
        if array.dtype.kind == "f":
            assert not np.array_equal(array, own[name]), name
    assert not {name for name in reply.metrics if "accuracy" in name}


def test_scores_are_of_the_stored_model_and_beside_it_of_the_received_one() -> None:
    who, shared = client(), received()
    train(who, shared)
    own = len(hits(normalised, kept(who), data())) / len(data())
    other = len(hits(normalised, shared, data())) / len(data())
    assert own != other
    for start, expected in (("1.1", own), ("", None)):
        request = Request("evaluate", 0, {ARRAYS: shared}, {}, start)
        metrics = who.answer(request).metrics
        initial = len(hits(normalised, who._initial, data())) / len(data())
        assert metrics["accuracy"] == pytest.approx(expected or initial)
        assert metrics["global-accuracy"] == pytest.approx(other)
        assert bits(model_arrays(who.model)) == bits(shared)


def test_losses_are_told_apart() -> None:
    metrics = train(client(), received()).metrics
    steps = metrics["num-steps"]
    selected = metrics[SELECTED]
    assert isinstance(selected, int)
    assert steps == 5 + -(-selected // 8)
    parts = [(metrics["local-loss"], 5), (metrics["distilled-loss"], steps - 5)]
    assert metrics["loss"] == pytest.approx(sum(a * b for a, b in parts) / steps)


def test_a_message_without_settings_says_so() -> None:
    with pytest.raises(Exception, match="no text fedakd-order: use the"):
        client().answer(Request("train", 0, {ARRAYS: received()}, {}))


def test_a_store_is_used_as_versions() -> None:
    """A repeated message gives the same reply, from the version that it names."""
    who = client()
    assert isinstance(who.store, MemoryStore)
    first = train(who, received())
    again = train(who, received())
    assert bits(dict(first.arrays[ARRAYS])) == bits(dict(again.arrays[ARRAYS]))
    assert first.metrics == again.metrics
