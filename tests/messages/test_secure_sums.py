"""Words of secure sums: quantised numbers, check words, and masks."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from fedsuite.core.errors import NotFiniteError, RunError
from fedsuite.messages import secrets_shared as secrets
from fedsuite.messages.secure_sums import (
    HEAD_SIZE,
    Part,
    Terms,
    decoded,
    dequantised,
    has_weight,
    is_whole,
    least_threshold,
    mask,
    neighbourhood,
    num_summed,
    quantised,
    refusal,
    ring_of,
    sum_errors,
    usual_neighbours,
    usual_threshold,
    words_of,
)

SENT = {
    "weight": np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4),
    "scalar": np.array(0.25),
    "running_var": np.ones(2, np.float32),
    "counter": np.array(7),
}
TERMS = Terms(5, 3, 1.0, 100, 3, num_words=16, statistics=("running_var",))


class Halves:
    """A stream whose every draw is one half."""

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, 0.5)


def stream(client_id: int) -> np.random.Generator:
    return np.random.default_rng(client_id)


def test_numbers_become_words_as_by_hand() -> None:
    # Of 10 steps -1, -0.5, 0, 0.3, 1 lie at 0, 2.5, 5, 6.5, 10; half a step is added.
    values = np.array([-1.0, -0.5, 0.0, 0.3, 1.0])
    words = quantised(values, 10, Halves())  # type: ignore[arg-type]
    assert words.tolist() == [0, 3, 5, 7, 10]
    assert dequantised(words, 1, 10).tolist() == pytest.approx([-1, -0.4, 0, 0.4, 1])
    # Two clients: 3 and 7 of 10 steps are -0.4 and 0.4, and add up to 0.
    assert dequantised(np.array([10]), 2, 10).tolist() == [0.0]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=20),
    st.integers(2, 2**32 - 1),
    st.integers(0, 1000),
)
def test_words_are_in_range_and_near_their_numbers(
    numbers: list[float], steps: int, seed: int
) -> None:
    values = np.array(numbers)
    words = quantised(values, steps, np.random.default_rng(seed))
    assert words.min() >= 0
    assert words.max() <= steps
    off = np.abs(dequantised(words, 1, steps) - values)
    assert (off < 2 / steps + 1e-15).all()


def test_rounding_is_right_in_the_mean() -> None:
    values = np.full(200_000, 0.123)
    mean = dequantised(quantised(values, 10, stream(0)), 1, 10).mean()
    # Four standard deviations of a mean of so many draws.
    assert abs(mean - 0.123) < 4 * 0.1 / np.sqrt(200_000)


def _trained(change: float) -> dict[str, np.ndarray]:
    return {
        "weight": SENT["weight"] + np.float32(change),
        "scalar": SENT["scalar"] - change / 2,
        "running_var": SENT["running_var"] + np.float32(100 * change),
        "counter": SENT["counter"] + 8,
    }


@pytest.mark.parametrize("bits", [16, 32])
def test_a_sum_is_the_mean_by_examples(bits: int) -> None:
    terms = replace(TERMS, bits=bits)
    parts = [
        words_of(SENT, _trained(change), {"num-examples": examples}, terms, stream(k))
        for k, (change, examples) in enumerate(((0.1, 10), (0.5, 20), (-0.2, 70)))
    ]
    total = parts[0].plus(parts[1]).plus(parts[2])
    assert total.head[:3].tolist() == [3, 100, 0]
    assert is_whole(total, terms)
    mean = (0.1 * 10 + 0.5 * 20 - 0.2 * 70) / 100
    new = decoded(SENT, total, terms)
    errors = sum_errors(SENT, new, total, terms)
    assert list(errors) == ["weight", "scalar"]
    # The clients' own float32 is not in the bound.
    off = np.abs(new["weight"] - np.asarray(SENT["weight"], float) - mean).max()
    assert off <= errors["weight"] + 3e-7
    assert abs(float(new["scalar"]) - (0.25 - mean / 2)) <= errors["scalar"]
    assert new["scalar"].shape == ()
    assert {n: a.dtype for n, a in new.items()} == {n: a.dtype for n, a in SENT.items()}
    if bits == 32:
        assert new["counter"] == 15
        assert np.allclose(new["running_var"], 1 + 100 * mean, atol=1e-4)


def test_a_change_beyond_the_range_keeps_its_direction() -> None:
    trained = {**_trained(4.0), "running_var": np.array([3000.0, 1], np.float32)}
    part = words_of(SENT, trained, {"num-examples": 100}, TERMS, stream(0))
    assert part.head[:3].tolist() == [1, 100, 1]
    new = decoded(SENT, part, TERMS)
    assert np.allclose(new["weight"] - SENT["weight"], 1.0, atol=1e-5)
    assert float(new["scalar"]) == pytest.approx(0.25 - 0.5, abs=1e-6)
    assert new["running_var"].tolist() == pytest.approx([1025, 1], rel=1e-5)


def test_what_cannot_be_summed_is_refused() -> None:
    with pytest.raises(NotFiniteError, match="weight holds NaN"):
        words_of(SENT, _trained(np.nan), {"num-examples": 1}, TERMS, stream(0))
    for count in (101, 1.5):
        with pytest.raises(RunError, match="most-examples = 100"):
            words_of(SENT, _trained(0.1), {"num-examples": count}, TERMS, stream(0))
    with pytest.raises(RunError, match="16 numbers, and the message asks for 15"):
        words_of(
            SENT,
            _trained(0.1),
            {"num-examples": 1},
            replace(TERMS, num_words=15),
            stream(0),
        )


@pytest.mark.parametrize("bits", [16, 32])
def test_any_changed_word_is_seen(bits: int) -> None:
    terms = replace(TERMS, bits=bits)
    part = words_of(SENT, _trained(0.1), {"num-examples": 10}, terms, stream(0))
    assert is_whole(part, terms)
    for place in range(16):
        for bit in range(bits):
            body = part.body.copy()
            body[place] ^= np.asarray(1 << bit, body.dtype)
            assert not is_whole(Part(part.head, body), terms)
    for place in range(HEAD_SIZE):
        for bit in range(64):
            head = part.head.copy()
            head[place] ^= np.uint64(1 << bit)
            assert not is_whole(Part(head, part.body), terms)


def test_a_mask_is_aes_256_in_counter_mode() -> None:
    # AES-256 of a block of zeros under a key of zeros: NIST's known answer.
    known = bytes.fromhex("dc95c078a2408989ad48a21492842087")
    made = mask(bytes(32), TERMS)
    assert made.head[:2].tobytes() == known
    assert not np.array_equal(mask(bytes([1] * 32), TERMS).body, made.body)


def test_a_mask_added_and_taken_away_leaves_the_words() -> None:
    part = words_of(SENT, _trained(0.1), {"num-examples": 10}, TERMS, stream(0))
    key = mask(bytes(range(32)), TERMS)
    again = part.plus(key).minus(key)
    assert np.array_equal(again.head, part.head)
    assert np.array_equal(again.body, part.body)


def test_a_token_opens_for_its_sender_and_its_receiver_alone() -> None:
    private, _ = secrets.new_key_pair()
    key = secrets.agreed_key(private, secrets.new_key_pair()[1])
    shares = (b"s" * secrets.SEED_SHARE_BYTES, b"k" * secrets.KEY_SHARE_BYTES)
    token = secrets.sealed(key, 1, 2, shares)
    assert secrets.unsealed(key, 1, 2, token) == shares
    for sender, receiver in ((2, 1), (1, 3), (3, 2)):
        assert secrets.unsealed(key, sender, receiver, token) is None


def test_terms_travel_and_bad_ones_are_refused() -> None:
    assert Terms.read(TERMS.config()) == TERMS
    with pytest.raises(RunError, match="no int secure-threshold"):
        Terms.read({**TERMS.config(), "secure-threshold": 3.0})
    for wrong in (
        {"num_clients": 2, "threshold": 2},
        {"threshold": 2},
        {"threshold": 4},
        {"bits": 24},
        {"clipping_range": np.inf},
        {"clipping_range": 0.0},
        {"most_examples": 2**31},
        {"most_examples": 0},
    ):
        assert refusal(replace(TERMS, **wrong)), wrong
        with pytest.raises(RunError, match="refused"):
            Terms.read(replace(TERMS, **wrong).config())


def test_thresholds_leave_no_two_groups_of_half() -> None:
    for count in range(3, 200):
        assert 2 * least_threshold(count) > count + 1
        assert 2 * (least_threshold(count) - 1) <= count + 1
        assert least_threshold(count) <= usual_threshold(count) <= count


# --------------------------------------------------------------------------- the neighbours


def test_neighbours_are_mutual_and_drawn_by_the_terms() -> None:
    ids = list(range(3, 300, 3))
    terms = replace(TERMS, num_clients=99, neighbours=42, threshold=29, ring=5)
    ring = ring_of(ids, terms)
    assert sorted(ring) == ids
    assert ring_of(ids[::-1], terms) == ring != ring_of(ids, replace(terms, ring=6))
    near = {k: neighbourhood(ring, k, terms) for k in ids}
    for k, others in near.items():
        assert others == sorted(set(others))
        assert len(others) == terms.holders == 43
        assert all(k in near[other] for other in others)
    # Whoever is lost before, all are neighbours where few are left.
    assert neighbourhood(ring[:40], ring[0], terms) == sorted(ring[:40])


@pytest.mark.parametrize("num_clients", [32, 44, 64, 100, 200, 512, 513, 1000])
def test_neighbourhoods_fail_and_fall_as_seldom_as_they_say(num_clients: int) -> None:
    neighbours = usual_neighbours(num_clients)
    threshold = usual_threshold(neighbours + 1)
    assert neighbours % 2 == 0
    assert neighbours < num_clients - 1
    others = num_clients - 1
    # One tenth is lost: a client's own share helps it, where it is not lost itself.
    lost = math.ceil(num_clients / 10)
    stays = hypergeom.cdf(threshold - 2, others, others - lost, neighbours)
    goes = hypergeom.cdf(threshold - 1, others, num_clients - lost, neighbours)
    assert (num_clients - lost) * stays + lost * goes < 1e-4
    # A quarter helps a server that keeps to the protocol.
    liars = num_clients // 4
    opened = hypergeom.sf(threshold - 1, others, liars, neighbours)
    assert (num_clients - liars) * opened < 2.0**-31


def test_few_clients_are_all_neighbours_and_no_server_takes_fewer() -> None:
    assert [usual_neighbours(n) for n in (3, 30, 31, 32, 100, 1000)] == [
        0,
        0,
        0,
        30,
        42,
        60,
    ]
    terms = replace(TERMS, num_clients=100, threshold=29, neighbours=42)
    assert not refusal(terms)
    assert "2 neighbours of 100 clients: expected 42" in refusal(
        replace(terms, neighbours=2, threshold=3)
    )
    assert "a threshold of 22 of 43 clients" in refusal(replace(terms, threshold=22))


# ---------------------------------------------------------------- what a client counts with

CLIENT_NUMBERS: Sequence[dict[str, float]] = (
    {"num-examples": 10, "num-steps": 3, "loss": 0.2, "learning-rate": 0.1},
    {"num-examples": 20, "num-steps": 5, "loss": 1.5, "learning-rate": 0.1},
    {"num-examples": 70, "num-steps": 1, "loss": 0.7, "learning-rate": 0.1},
    {"num-examples": 0, "num-steps": 0},
)
CHANGES = (0.1, 0.5, -0.2, 0.0)


def summed(terms: Terms) -> Part:
    total = Part.zero(terms)
    for k, (change, numbers) in enumerate(zip(CHANGES, CLIENT_NUMBERS, strict=True)):
        total = total.plus(words_of(SENT, _trained(change), numbers, terms, stream(k)))
    assert is_whole(total, terms)
    return total


def means(weights: Sequence[float], more: float = 0.0) -> float:
    return float(np.dot(weights, CHANGES[:3])) / (sum(weights) + more)


def test_the_mean_has_the_weights_that_the_terms_say() -> None:
    four = replace(TERMS, num_clients=4, loss="loss", most_loss=2.0)
    n, steps, losses = (
        np.array([10, 20, 70]),
        np.array([3, 5, 1]),
        np.array([0.2, 1.5, 0.7]),
    )
    tilted = replace(four, form="tilted", rate=3.0)
    lengths = np.array([12 * c**2 + (c / 2) ** 2 for c in CHANGES[:3]])
    raised = losses**2.0
    sent = float((2.0 * raised * lengths / (losses * 0.1)).sum())
    by_step = means(n / steps) * (n / steps).sum() * (n * steps).sum() / n.sum() ** 2
    for terms, mean in (
        (replace(four, weight="clients"), means([1, 1, 1])),
        (replace(four, form="per-step"), by_step),
        (tilted, means(n * np.exp(3 * losses))),
        (replace(tilted, rate=-3.0), means(n * np.exp(-3 * losses))),
        (replace(tilted, weight="clients"), means(np.exp(3 * losses))),
        (replace(four, weight="clients", form="raised", rate=2.0), means(raised, sent)),
    ):
        total = summed(terms)
        assert total.head[:3].tolist() == [4, 100, 0]
        new = decoded(SENT, total, terms)
        error = sum_errors(SENT, new, total, terms)["scalar"]
        off = float(new["scalar"]) - (0.25 - mean / 2)
        assert abs(off) <= error < 1e-5, terms
        assert has_weight(total, terms)
    alike = replace(four, weight="clients")
    assert num_summed(summed(alike), alike) == 3


def test_what_was_measured_counts_by_examples_where_steps_divide_the_rest() -> None:
    terms = replace(TERMS, num_clients=4, form="per-step")
    new = decoded(SENT, summed(terms), terms)
    mean = (0.1 * 10 + 0.5 * 20 - 0.2 * 70) / 100
    assert np.allclose(new["running_var"], 1 + 100 * mean, atol=1e-4)


def test_a_loss_beyond_the_bound_counts_as_the_bound_and_is_told() -> None:
    terms = replace(TERMS, form="tilted", rate=1.0, loss="loss", most_loss=2.0)
    numbers = {"num-examples": 10, "loss": 9.0}
    part = words_of(SENT, _trained(0.1), numbers, terms, stream(0))
    assert part.head[2] == 1
    two = words_of(SENT, _trained(0.1), {**numbers, "loss": 2.0}, terms, stream(0))
    assert two.head[2] == 0
    assert np.array_equal(part.body, two.body)
    with pytest.raises(RunError, match="needs loss, a number >= 0, and it is None"):
        words_of(SENT, _trained(0.1), {"num-examples": 10}, terms, stream(0))


def test_nobody_with_a_weight_is_no_mean() -> None:
    nobody = words_of(SENT, SENT, {"num-examples": 0}, TERMS, stream(0))
    assert not has_weight(nobody, TERMS)


def test_a_change_that_a_client_keeps_is_not_scaled() -> None:
    terms = replace(TERMS, exact=True)
    with pytest.raises(RunError, match="set clipping-range = 1 higher"):
        words_of(SENT, _trained(1.5), {"num-examples": 1}, terms, stream(0))
    control = {"control-change/w": np.full(2, 65.0)}
    terms = replace(TERMS, records=("control-change",))
    zeros = {name: np.zeros(2) for name in control}
    with pytest.raises(RunError, match="control-change/w is beyond the range"):
        words_of(
            {**SENT, **zeros},
            {**_trained(0.1), **control},
            {"num-examples": 1},
            terms,
            stream(0),
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"form": "guess"}, "no such is known"),
        ({"weight": "losses"}, "no such is known"),
        ({"form": "tilted", "rate": 21.0}, "differ by more than exp"),
        ({"rate": math.nan}, "a rate of nan"),
        ({"form": "raised", "rate": -1.0}, "a power of -1"),
    ],
)
def test_weights_that_no_client_takes_are_refused(changes: Any, words: str) -> None:
    assert words in refusal(replace(TERMS, **changes))
