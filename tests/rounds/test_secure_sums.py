"""Secure sums: right or void, whoever is lost, tampers, or is curious."""

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.common.serde import recorddict_to_proto

from fedsuite.core.errors import ConfigError
from fedsuite.core.registry import METHODS
from fedsuite.deploy.certificates import make_node_key
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import NODE_KEY_VARIABLE, TRAIN, Arrays, client_record
from fedsuite.messages.secrets_shared import (
    KEY_SHARE_BYTES,
    PUBLIC_KEY_BYTES,
    TOKEN_BYTES,
    new_key_pair,
)
from fedsuite.messages.secure_sums import (
    ACTIVE,
    GONE,
    KEYS,
    RECORD,
    SHARES,
    STAGES,
    UNMASK,
    as_rows,
)
from fedsuite.rounds.secure_rules import why_not_summed
from fedsuite.rounds.secure_sums import SecureSums
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.training.secure_client import Partners
from tests.rounds import secure_federation
from tests.rounds.secure_federation import (
    NUM_CLIENTS,
    Faulty,
    Outcome,
    bare_sum,
    check,
    flipped,
    model,
    plain_mean,
    run,
    same_model,
    same_words,
)

ALL = range(NUM_CLIENTS)

SUMMED = {
    *("FedAvg", "PartialAverage", "LGFedAvg", "FedBABU", "FedPara", "FedMPR", "FedEBA"),
    *("TERM", "QFFL", "Scaffold", "FedNova", "FedDyn", "FedDC"),
}
"""Classes that say that their step follows from sums, each read."""


def test_the_sum_is_the_bare_one_and_near_fedavg() -> None:
    outcome = run()
    assert outcome.total is not None
    terms = outcome.sums.terms
    assert terms is not None
    assert same_words(outcome.total, bare_sum(model(), ALL, terms))
    mean, told = plain_mean(model(), ALL), dict(outcome.strategy.round_metrics)
    error = told.pop("sum_error")
    # Mostly that of float32 near 3.
    assert 1.2e-7 < error < 1.5e-7
    assert np.abs(outcome.arrays["bias"] - mean["bias"]).max() <= 3e-8
    assert np.abs(outcome.arrays["weight"] - mean["weight"]).max() <= error
    assert outcome.arrays["scalar"].shape == ()
    assert outcome.arrays["counter"] == round(float(mean["counter"]))
    expected = {"summed_clients": 5.0, "summed_examples": 1323.0, "scaled_clients": 0.0}
    assert told == expected


@pytest.mark.parametrize("bits", [16, 32])
def test_masks_change_no_word(bits: int) -> None:
    lost = {(KEYS, 1): "request"}
    masked, again = (run(lost, quantisation_bits=bits) for _ in range(2))
    bare = run(
        {(TRAIN, 1): "request"}, quantisation_bits=bits, secure_aggregation="unmasked"
    )
    assert same_model(masked.arrays, bare.arrays)
    assert same_model(masked.arrays, again.arrays)
    # Five greetings, and one message to each client that gets it.
    assert len(bare.grid.seen) == 9
    # The check words rest on the session's number, all others on the seed alone.
    assert masked.total is not None
    assert bare.total is not None
    assert np.array_equal(masked.total.body, bare.total.body)
    assert np.array_equal(masked.total.head[:3], bare.total.head[:3])


def test_all_clients_may_have_the_most_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_federation, "COUNTS", (1000,) * NUM_CLIENTS)
    assert run().total is not None


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("how", ["request", "reply"])
def test_every_subset_may_drop_out_at_each_message(kind: str, how: str) -> None:
    for count in range(5):
        for group in itertools.combinations(range(4), count):
            right = check({(kind, k): how for k in group}, 4, reconstruction_threshold=3)
            assert right is (True if 4 - count >= 3 else None), group


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("how", ["request", "reply"])
def test_any_two_of_eight_may_drop_out_at_each_message(kind: str, how: str) -> None:
    """Above two thirds of eight clients are six."""
    for count in range(4):
        for group in itertools.combinations(range(8), count):
            right = check({(kind, k): how for k in group}, 8, reconstruction_threshold=0)
            assert right is (True if 8 - count >= 6 else None), group


@pytest.mark.parametrize(
    ("kind", "name", "place", "blamed"),
    [
        (UNMASK, "shares", 10, 2),
        (SHARES, "seed", 3, 2),
        (SHARES, "digests", 0, None),
        (TRAIN, "head", 0, None),
        (TRAIN, "body", 17, None),
    ],
)
def test_tampering_gives_no_wrong_sum(
    kind: str, name: str, place: int, blamed: int | None
) -> None:
    def tamper(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == kind and client_id == 2:
            flipped(record, name, place)

    outcome = run(tamper=tamper)
    if outcome.total is None:
        assert same_model(outcome.arrays, model())
    else:
        assert outcome.sums.terms is not None
        active = [k for k in ALL if k in outcome.sums.active]
        assert same_words(outcome.total, bare_sum(model(), active, outcome.sums.terms))
    left_out = outcome.sums.state()["left-out"]
    assert left_out == ([] if blamed is None else [blamed])


def test_a_changed_share_of_a_lost_clients_key_names_who_sent_it() -> None:
    def tamper(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == UNMASK and client_id == 2:
            flipped(record, "shares", 4 * KEY_SHARE_BYTES + 50)

    # Four are left of five, and three shares are too few.
    outcome = run({(TRAIN, 4): "reply"}, tamper)
    assert outcome.total is None
    assert outcome.sums.state()["left-out"] == [2]


def test_bad_keys_and_tokens_cost_their_clients_alone() -> None:
    def twice(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == KEYS and client_id == 3:
            rows = np.array(record["keys"].numpy())
            rows[1] = rows[0]
            record["keys"] = type(record["keys"])(rows)

    def broken(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == KEYS and client_id == 3:
            flipped(record, "keys", 100)

    def token(stage: str, client_id: int, record: ArrayRecord) -> None:
        # The one for client 0, which then complains and takes no part.
        if stage == SHARES and client_id == 3:
            flipped(record, "tokens", 100)

    for tamper, lost in ((twice, 3), (broken, 3), (token, 0)):
        outcome = run(tamper=tamper)
        assert outcome.total is not None, tamper
        assert outcome.sums.terms is not None
        left = [k for k in ALL if k != lost]
        assert same_words(outcome.total, bare_sum(model(), left, outcome.sums.terms))


def test_of_whom_two_complain_is_left_out_next() -> None:
    def tamper(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == SHARES and client_id == 3:
            flipped(record, "tokens", 100)
            flipped(record, "tokens", TOKEN_BYTES + 100)

    outcome = run(tamper=tamper, num_rounds=2)
    assert outcome.sums.state()["left-out"] == [3]
    # Void at first, for two of five are out; then the four others add up.
    assert outcome.total is not None
    assert outcome.total.head[0] == 4


def test_one_liar_voids_few_rounds(caplog: pytest.LogCaptureFixture) -> None:
    def tamper(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == TRAIN and client_id == 1:
            flipped(record, "body", 5, bit=20)

    with caplog.at_level(logging.WARNING):
        outcome = run(tamper=tamper, num_rounds=10, reconstruction_threshold=0)
    said = [r.getMessage() for r in caplog.records]
    voids = [line for line in said if "the model stays as it was" in line]
    assert 1 <= len(voids) <= 4
    assert all("the secure sum is void: the words do not add up" in v for v in voids)
    assert outcome.sums.state()["left-out"] == [1]
    assert outcome.total is not None
    assert outcome.total.head[0] == 4


def test_who_is_left_out_stays_so_after_a_resume() -> None:
    one, other = (run().strategy for _ in range(2))
    one.secure_sums[0].restore({"left-out": [2], "suspects": [1]})
    other.restore_states(one.states())
    assert other.secure_sums[0].state() == {"left-out": [2], "suspects": [1]}


def test_who_is_left_out_is_not_drawn_so_that_others_are() -> None:
    strategy = run(clients_per_round=3, reconstruction_threshold=3).strategy
    strategy.secure_sums[0].restore({"left-out": [2, 4], "suspects": []})
    evaluated: set[int] = set()
    for strategy.server_round in range(1, 20):
        assert strategy.drawn("train") == [0, 1, 3]
        evaluated |= {*strategy.drawn("evaluate")}
    assert evaluated == {*ALL}


def test_a_liar_is_found_where_no_more_are_asked_than_a_sum_needs() -> None:
    def tamper(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == TRAIN and client_id == 1:
            flipped(record, "body", 5, bit=20)

    three = {"clients_per_round": 3, "reconstruction_threshold": 0}
    outcome = run(tamper=tamper, num_rounds=12, **three)
    assert outcome.sums.state()["left-out"] == [1]
    assert outcome.total is not None and outcome.total.head[0] == 3


def test_half_of_the_suspects_rest_and_three_clients_are_left() -> None:
    sums = run().sums
    sums.restore({"left-out": [2], "suspects": [3, 0, 1]})
    assert sums.trusted(ALL) == [0, 1, 4]
    assert sums.trusted([0, 1, 4]) == [0, 1, 4]
    sums.restore({"left-out": [], "suspects": [3, 0, 1]})
    assert sums.trusted(ALL) == [1, 2, 4]
    # Who rests already costs nobody else a place.
    assert sums.trusted([1, 2, 4]) == [1, 2, 4]


# -------------------------------------------------------------------------- some neighbours


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have nine clients mask with four others each; return what runs a round of them."""
    monkeypatch.setattr("fedsuite.messages.secure_sums.MOST_PAIRED", 8)
    monkeypatch.setattr("fedsuite.messages.secure_sums.PER_DOUBLING", 1)
    start = model(20)
    return partial(run, start=start, num_clients=9, reconstruction_threshold=0)


def is_right(outcome: Outcome) -> bool | None:
    """Return whether a sum is that of its clients' words; None of a void round."""
    if outcome.total is None:
        assert same_model(outcome.arrays, model(20))
        return None
    assert outcome.sums.terms is not None
    active = outcome.sums.active
    return same_words(outcome.total, bare_sum(model(20), active, outcome.sums.terms))


def test_neighbours_alone_see_keys_and_shares_and_the_sum_is_that_of_all(
    sparse: Any,
) -> None:
    outcome = sparse()
    assert is_right(outcome)
    terms = outcome.sums.terms
    assert (terms.neighbours, terms.holders, terms.threshold) == (4, 5, 4)
    assert outcome.strategy.round_metrics["sum_neighbours"] == 4
    assert outcome.total.head[0] == 9
    sent = {(kind, k): message for kind, k, message, _ in outcome.grid.seen}
    for k in range(9):
        name = client_record(k, RECORD)
        assert sent[SHARES, k].content[name]["keys"].shape == (5, 2 * PUBLIC_KEY_BYTES)
        tokens = sent[TRAIN, k].content[name]["tokens"].numpy()
        # Its own row is empty.
        assert [bool(row.any()) for row in tokens].count(True) == 4
    # One whose masks with its neighbours must be taken away.
    assert is_right(sparse({(TRAIN, 4): "reply"}))


@pytest.mark.slow
def test_sums_of_neighbours_are_right_or_void_whoever_is_lost(sparse: Any) -> None:
    draws = np.random.default_rng(7)
    results = []
    for kind in STAGES:
        for count in (1, 1, 2, 2, 3):
            gone = draws.permutation(9)[:count]
            how = ("request", "reply")[draws.integers(2)]
            results.append(is_right(sparse({(kind, int(k)): how for k in gone})))
    assert False not in results
    assert results.count(True) >= 8
    assert None in results


def test_a_round_is_void_where_one_neighbourhood_is_too_small(
    sparse: Any, caplog: pytest.LogCaptureFixture
) -> None:
    near = list(sparse().sums._near[0])
    lost = {(TRAIN, k): "reply" for k in near if k}
    outcome = sparse(dict.fromkeys(list(lost)[:2], "reply"))
    # Seven of nine are left, but three of the five that hold one client's shares.
    assert outcome.total is None
    words = "vectors of 3 clients of one neighbourhood, and it needs 4"
    assert any(words in record.getMessage() for record in caplog.records)


def test_who_is_away_from_the_start_is_nobodys_neighbour(sparse: Any) -> None:
    draws = np.random.default_rng(8)
    for count in (2, 5, 6):
        gone = [int(k) for k in draws.permutation(9)[:count]]
        masked = sparse({(KEYS, k): "request" for k in gone})
        lost = {(TRAIN, k): "request" for k in gone}
        bare = sparse(lost, secure_aggregation="unmasked")
        assert is_right(masked) is (None if count == 6 else True)
        assert same_model(masked.arrays, bare.arrays)


def test_a_threshold_that_somebody_chose_is_one_of_all(sparse: Any) -> None:
    outcome = sparse(reconstruction_threshold=6)
    assert outcome.sums.terms.neighbours == 0
    assert outcome.sums.terms.threshold == 6
    assert is_right(outcome)


def test_a_tampered_share_of_a_neighbour_is_found(sparse: Any) -> None:
    def tamper(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == UNMASK and client_id == 2:
            flipped(record, "shares", 10)

    outcome = sparse(tamper=tamper)
    assert is_right(outcome) in (True, None)
    assert outcome.sums.state()["left-out"] == [2]


def test_a_site_counts_its_neighbourhood_alone(sparse: Any) -> None:
    """A server may say that there are many more, whom the site cannot see."""
    outcome = sparse(sites={1: {"secure-fewest": 6}})
    assert any("a sum of 5 clients, and this site wants 6" in r for r in refusals(outcome))
    assert not any(
        "refused" in r for r in refusals(sparse(sites={1: {"secure-fewest": 5}}))
    )


# ------------------------------------------------------------------------ a curious server


class Curious(SecureSums):
    trick = ""

    def _answers(
        self,
        kind: str,
        client_ids: Sequence[int],
        config: Mapping[str, Any] | None = None,
        own: Mapping[int, Arrays] | None = None,
    ) -> dict[int, Arrays]:
        config = dict(config or {})
        if self.trick == "both lists" and kind == UNMASK:
            config[GONE] = config[ACTIVE][:1]
        if self.trick == "fewer" and kind == UNMASK:
            config = {ACTIVE: config[ACTIVE][:3], GONE: config[ACTIVE][3:]}
        if self.trick == "lower threshold" and kind == SHARES:
            assert self.terms is not None
            self.terms = replace(self.terms, threshold=5)
        if self.trick == "own key" and kind == SHARES:
            own = {
                k: {**a, "keys": a["keys"][[0, 0, *range(2, len(a["keys"]))]]}
                for k, a in (own or {}).items()
            }
        if self.trick == "old session" and kind == KEYS:
            assert self.terms is not None
            self.terms = replace(self.terms, session=1)
        replies = super()._answers(kind, client_ids, config, own)
        if self.trick == "twice" and kind == UNMASK:
            replies = super()._answers(kind, client_ids, config, own)
        return replies


class CuriousFedAvg(FedAvg):
    trick: str = "both lists"

    def _secure_sums(self) -> tuple[Any, ...]:
        stage = Curious(self, self.seed, self)
        stage.trick = CuriousFedAvg.trick
        return (stage,)


@pytest.mark.parametrize(
    ("trick", "words"),
    [
        ("both lists", "the lists are not the clients that gave shares, once"),
        ("lower threshold", "out of turn, or on other terms"),
        ("twice", "out of turn"),
        ("own key", "stands there twice"),
    ],
)
def test_clients_refuse_a_curious_server(
    trick: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CuriousFedAvg, "trick", trick)
    monkeypatch.setattr("fedsuite.rounds.rules.rules_of_secure_sums", lambda method: ())
    outcome = run(strategy_class=CuriousFedAvg)
    assert outcome.total is None
    reasons = [r.reason for r in outcome.strategy.reports[TRAIN].rejections]
    assert sum(words in reason for reason in reasons) == NUM_CLIENTS


def test_an_old_session_and_a_smaller_sum_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedsuite.rounds.rules.rules_of_secure_sums", lambda method: ())
    monkeypatch.setattr(CuriousFedAvg, "trick", "old session")
    outcome = run(strategy_class=CuriousFedAvg, num_rounds=2)
    reasons = [r.reason for r in outcome.strategy.reports[TRAIN].rejections]
    assert sum("session 1 is over" in reason for reason in reasons) == NUM_CLIENTS
    monkeypatch.setattr(CuriousFedAvg, "trick", "fewer")
    assert run(strategy_class=CuriousFedAvg).total is None


def _secrets_of(outcome: Outcome) -> list[dict[str, Any]]:
    return [dict(state[name]) for state in outcome.grid._states.values() for name in state]


def test_nothing_is_kept_after_a_round() -> None:
    outcome = run()
    kept = _secrets_of(outcome)
    assert len(kept) == NUM_CLIENTS
    assert all(set(secrets) == {"session", "stage", "terms"} for secrets in kept)
    assert all(secrets["stage"] == -1 for secrets in kept)


def test_an_error_erases_the_secrets() -> None:
    def tamper(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == TRAIN:
            flipped(record, "head", 0)

    class Weighty(Faulty):
        def _answers(self, messages: Any) -> Any:
            for message in messages:
                if message.metadata.message_type == TRAIN:
                    message.content["config"]["secure-threshold"] = 5
                yield from super()._answers([message])

    for outcome in (run(grid_class=Weighty), run(tamper=tamper)):
        assert outcome.total is None
        kept = _secrets_of(outcome)
        assert all(set(secrets) == {"session", "stage", "terms"} for secrets in kept)


@pytest.mark.parametrize("kind", STAGES[1:])
def test_a_client_that_forgets_drops_out(kind: str) -> None:
    class Forgetful(Faulty):
        def _answers(self, messages: Any) -> Any:
            for message in messages:
                there = (message.metadata.message_type, message.metadata.dst_node_id)
                if there == (kind, 1004):
                    self._states.pop(1004)
                yield from super()._answers([message])

    outcome = run(grid_class=Forgetful)
    assert outcome.total is not None
    assert outcome.sums.terms is not None
    left = ALL if kind == UNMASK else ALL[:4]
    assert same_words(outcome.total, bare_sum(model(), left, outcome.sums.terms))


# ------------------------------------------------------------------- with whom one adds up


@pytest.fixture(scope="module")
def node_keys(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("keys")
    for client_id in range(NUM_CLIENTS):
        pair = make_node_key(f"site-{client_id}")
        (folder / f"{client_id}").write_bytes(pair.private)
        (folder / f"{client_id}.pub").write_bytes(pair.public)
    return [folder / f"{client_id}" for client_id in range(NUM_CLIENTS)]


def listed(keys: Sequence[Path]) -> dict[str, Any]:
    lines = (path.with_suffix(".pub").read_text().split()[:2] for path in keys)
    return {"secure-partners": ",".join(map(" ".join, lines))}


def signing(keys: Sequence[Path | None]) -> type[Faulty]:
    """Return a grid at whose nodes these keys are."""

    class Signing(Faulty):
        def _answers(self, messages: Any) -> Any:
            for message in messages:
                key = keys[message.metadata.dst_node_id - 1000]
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv(NODE_KEY_VARIABLE, str(key or ""))
                    replies = list(super()._answers([message]))
                yield from replies

    return Signing


def refusals(outcome: Outcome) -> list[str]:
    return [r.reason for r in outcome.strategy.reports[TRAIN].rejections]


def test_partners_add_up(node_keys: list[Path]) -> None:
    sites = {k: listed(node_keys) for k in ALL}
    outcome = run(sites=sites, grid_class=signing(node_keys))
    assert outcome.total is not None
    assert outcome.total.head[0] == NUM_CLIENTS


def test_a_server_with_nodes_of_its_own_beside_one_victim(node_keys: list[Path]) -> None:
    """It knows what its own nodes send, and the sum would give it the victim's words."""
    for keys in (
        # Nodes without keys, with keys of nobody's partner, and with one partner's key.
        [node_keys[0], None, None, None, None],
        node_keys,
        [node_keys[0], *[node_keys[1]] * 4],
    ):
        outcome = run(sites={0: listed(node_keys[:2])}, grid_class=signing(keys))
        said = [reason for reason in refusals(outcome) if "refused" in reason]
        assert len(said) == 1, said
        assert 0 not in outcome.sums.active


def test_a_signature_holds_for_its_client_and_session_alone(node_keys: list[Path]) -> None:
    kept: dict[int, Any] = {}

    def swapped(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == KEYS and client_id == 2:
            # The keys are the server's, and the signature a partner's.
            record["keys"] = Array(own)

    def replayed(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == KEYS and client_id == 2:
            for name in record:
                record[name] = kept.setdefault(name, record[name])

    own = as_rows([new_key_pair()[1], new_key_pair()[1]], PUBLIC_KEY_BYTES)
    sites = {k: listed(node_keys) for k in ALL}
    grid = signing(node_keys)
    for tamper, rounds in ((swapped, 1), (replayed, 2)):
        outcome = run(sites=sites, grid_class=grid, tamper=tamper, num_rounds=rounds)
        assert outcome.total is None
        words = "the keys of client 2 are signed by none of this site's partners"
        assert sum(words in reason for reason in refusals(outcome)) >= NUM_CLIENTS - 1


def test_a_site_wants_more_partners_than_the_server(node_keys: list[Path]) -> None:
    outcome = run(sites={1: {"secure-fewest": 6}})
    assert any("this site wants 6" in reason for reason in refusals(outcome))
    assert outcome.total is not None
    outcome = run({(TRAIN, 4): "reply"}, sites={k: {"secure-fewest": 5} for k in ALL})
    assert outcome.total is None
    assert any("a sum of 4 clients, and this site" in r for r in refusals(outcome))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"secure-partners": "hospital-b"}, "'hospital-b' is no public key"),
        ({"secure-fewest": "many"}, "expected a number of clients"),
    ],
)
def test_partners_that_cannot_be_read_are_named(config: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Partners.of(config)


# --------------------------------------------------------------------- what the server sees


def _vector(outcome: Outcome, client_id: int) -> tuple[Message, np.ndarray]:
    (reply,) = [m for kind, k, _, m in outcome.grid.seen if (kind, k) == (TRAIN, client_id)]
    record = reply.content[client_record(client_id, RECORD)]
    assert isinstance(record, ArrayRecord)
    return reply, np.array(record["body"].numpy())


def test_one_clients_words_look_like_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(5)
    monkeypatch.setattr(
        "fedsuite.training.secure_client.os.urandom", lambda n: draws.bytes(n)
    )
    start = model(200_000)
    seen = _vector(run(start=start), 0)[1].view(np.uint8)
    counts = np.bincount(seen, minlength=256)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    # 255 degrees of freedom: mean 255, standard deviation 22.6. The keys of pairs are the
    # system's, so the number is another in each run: five deviations.
    assert 142 < chi_square < 368
    bare = _vector(run(start=start, secure_aggregation="unmasked"), 0)[1].view(np.uint8)
    counts = np.bincount(bare, minlength=256)
    assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) > 10_000


def test_no_examples_and_no_metric_leave() -> None:
    reply, _ = _vector(run(), 3)
    metrics = reply.content[client_record(3, "metrics")]
    assert dict(metrics) == {"num-examples": 1}


def test_bytes_are_few_more() -> None:
    start = {"w": np.linspace(-1, 1, 10_000, dtype=np.float32)}

    def up(outcome: Outcome) -> int:
        sizes = [
            recorddict_to_proto(reply.content).ByteSize()
            for _, k, _, reply in outcome.grid.seen
            if k == 0 and reply.has_content()
        ]
        return sum(sizes)

    plain = up(run(start=start, secure_aggregation="off"))
    assert up(run(start=start)) < 1.2 * plain
    assert up(run(start=start, quantisation_bits=16)) < 0.7 * plain


# ----------------------------------------------------------------------------- the methods


def test_methods_that_are_one_mean_are_those_that_were_read() -> None:
    said = set()
    for strategy in map(load_strategy, METHODS.values()):
        if not why_not_summed(strategy):
            says = "PRIVACY" if strategy.summed() is None else "SUMS"
            said.add(next(b.__name__ for b in strategy.__mro__ if says in vars(b)))
    assert said == SUMMED, "is its step one of sums? Then the class belongs in SUMMED"


TILTED = {"method": "term", "max-share-ratio": "off"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"method": "scaffold", "scaffold-mean": "rows"}, "no client tells its examples"),
        ({"method": "feddyn", "size-scaled": True}, "no client tells its examples"),
        ({"method": "feddc", "feddc-gradient-terms": False}, "it is feddyn"),
        ({"method": "fedsgd"}, "what each client reports of itself"),
        ({"method": "fednova"}, "no client tells its weight"),
        (
            {"method": "fedeba", "max-share-ratio": "off"},
            "come of all clients' losses together",
        ),
        ({"most-loss": 3.0}, "no client weighs itself by a loss"),
        ({**TILTED, "term-tilt": 3.0}, "exp.20., for which words have no place"),
        ({**TILTED, "term-tilt": -3.0}, "exp.20., for which words have no place"),
        ({"method": "fedeba-plus"}, "not one mean"),
        ({"method": "fedbuff"}, "not one mean"),
        ({"method": "term"}, "no client tells its weight"),
        ({"aggregator": "median"}, "single updates"),
        ({"fedvarp": True}, "each client's update"),
        ({"max-update-norm": 2.0}, "no update is seen"),
        ({"max-examples": 20.0}, "most-examples"),
        ({"max-client-weight": 0.4}, "no client tells"),
        ({"dp-noise-multiplier": 1.0}, "clip single updates"),
        ({"score-trained": True}, "stays with them"),
        ({"num-clients": 2}, "fewer than 3 clients"),
        ({"clients-per-round": 2}, "fewer than 3 clients"),
        ({"num-clients": 4, "reconstruction-threshold": 2}, "expected 3 to 4"),
        ({"num-clients": 4, "reconstruction-threshold": 5}, "expected 3 to 4"),
        ({"quantisation-bits": 24}, "set 16 or 32"),
        ({"workers": 2}, "one process"),
        ({"workers": 0}, "one process"),
    ],
)
def test_what_needs_single_updates_is_refused(values: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Experiment.from_values({"secure-aggregation": "masked", **values})


def test_clients_without_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="needs clients with numbers"):
        FedAvg(secure_aggregation="masked")


def _lie(
    liar: tuple[int, str], place: int, bit: int, kind: str, client_id: int, record: Any
) -> None:
    if (client_id, kind) == liar:
        flipped(record, list(record)[place % len(record)], place, bit)


@pytest.mark.slow
def test_no_wrong_sum_in_two_thousand_rounds() -> None:
    draws = np.random.default_rng(2026)
    counts = {True: 0, None: 0}
    for _ in range(2000):
        lost = {
            (STAGES[draws.integers(4)], int(k)): ("request", "reply")[draws.integers(2)]
            for k in draws.permutation(NUM_CLIENTS)[: draws.choice([0, 0, 1, 1, 2])]
        }
        liar = int(draws.integers(NUM_CLIENTS)), STAGES[draws.integers(4)]
        place, bit = int(draws.integers(5000)), int(draws.integers(8))
        tamper = partial(_lie, liar, place, bit) if draws.integers(2) else None
        start = model(20)
        outcome = run(lost, tamper, start=start)
        if outcome.total is None:
            assert same_model(outcome.arrays, start)
            counts[None] += 1
            continue
        assert outcome.sums.terms is not None
        bare = bare_sum(start, outcome.sums.active, outcome.sums.terms)
        assert same_words(outcome.total, bare)
        counts[True] += 1
    print(counts)
    assert counts[True] > 500
