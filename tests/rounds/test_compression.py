"""Runs whose models travel as coded changes, up and down."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import ARRAYS, Request, client_record
from fedsuite.rounds.kinds import Kind
from fedsuite.strategies import FedAvg, Newton
from fedsuite.training.compressed_client import Compartment
from fedsuite.training.store import MemoryStore
from tests.helpers import digits_experiment, final_bits, play, run_digits
from tests.small_runs import SMALL

KINDS = ("top-k", "random-k", "qsgd", "signs", "low-rank", "float16", "bfloat16")
ENTRIES, CLIENTS = 650, 4
"""Of the linear model on digits."""

BOTH: Mapping[str, Any] = {"compress_up": "top-k", "compress_down": "signs"}


@pytest.mark.parametrize(
    "keys",
    [
        {"compress_up": "top-k", "compress_share": 1.0},
        {"compress_up": "qsgd", "compress_bits": 32},
        {"compress_down": "random-k", "compress_share": 1.0},
    ],
)
def test_what_loses_nothing_is_fedavg_bit_for_bit(keys):
    assert final_bits(**keys) == final_bits()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_learns_and_sends_less(kind):
    share = {"compress_share": 0.3} if kind in ("top-k", "random-k") else {}
    trace = play(compress_up=kind, compress_down=kind, num_rounds=4, **share)
    rounds = [report.train for report in trace.reports]
    assert not any(train.rejections for train in rounds)
    whole = 4 * ENTRIES * CLIENTS
    assert rounds[0].bytes_down == whole and rounds[0].bytes_up < whole
    # A step also says which version it starts from.
    assert {t.bytes_down for t in rounds[1:]} == {rounds[0].bytes_up + 8 * CLIENTS}
    losses = [train.rows[0]["loss"] for train in rounds]
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(
    ("direction", "kind"), [("up", "top-k"), ("up", "signs"), ("down", "top-k")]
)
def test_error_feedback_reaches_what_no_compression_reaches(direction, kind):
    keys = {"num_rounds": 8, "batch_size": 0, "learning_rate": 0.3}
    coded = {f"compress_{direction}": kind}
    fed_back = play(**coded, **keys).arrays[-1]["1.weight"]
    plain = play(**keys).arrays[-1]["1.weight"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedsuite.messages.compression._FED_BACK", frozenset())
        lost = play(**coded, **keys).arrays[-1]["1.weight"]
    assert np.linalg.norm(fed_back - plain) < 0.7 * np.linalg.norm(lost - plain)


def test_a_newcomer_gets_the_whole_model():
    trace = play(compress_down="float16", clients_per_round=2, num_rounds=6, seed=3)
    whole, small = 4 * ENTRIES, 2 * ENTRIES + 8
    held: dict[int, int] = {}
    for number, report in enumerate(trace.reports, 1):
        clients = [row["client"] for row in report.train.rows]
        expected = sum(small if held.get(k) == number - 1 else whole for k in clients)
        assert report.train.bytes_down == expected
        held |= dict.fromkeys(clients, number)
    assert any(r.train.bytes_down < 2 * whole for r in trace.reports)


@pytest.mark.parametrize(("method", "beside"), [("fedavg", 0), ("scaffold", 4 * ENTRIES)])
def test_what_is_sent_is_what_is_counted(method, beside):
    """The model as it is coded, and whole what goes beside it."""
    sent = []

    def note(replies):
        for reply in replies:
            records = reply.content.array_records.values()
            sent.append(sum(a.nbytes for r in records for a in to_arrays(r).values()))
        return replies

    experiment = digits_experiment(method=method, compress_up="top-k", compress_down="qsgd")
    trace = run_digits(experiment, tamper=note)
    assert {size for size in sent if size} == {33 * 8 + beside}
    first, *later = (report.train for report in trace.reports)
    assert first.bytes_up == CLIENTS * (33 * 8 + beside)
    assert first.bytes_down == CLIENTS * (4 * ENTRIES + beside)
    # A step of one byte a number, two scales, and the version that it starts from.
    assert {t.bytes_down for t in later} == {CLIENTS * (ENTRIES + 2 * 4 + 8 + beside)}


HOSTILE = {
    "rising": lambda a: {**a, "coded/places": a["coded/places"][::-1].copy()},
    "NaN": lambda a: {**a, "coded/values": a["coded/values"] * np.float32("nan")},
    "shape": lambda a: {name: array[:-1] for name, array in a.items()},
    "expected a coded change": lambda a: {"1.weight": np.zeros((10, 64), np.float32)},
    "missing, or too many": lambda a: {**a, "rest/x": np.zeros(3, np.float32)},
}


@pytest.mark.parametrize("words", HOSTILE)
def test_a_lying_reply_is_dropped_in_one_line(words):
    def lie(replies):
        name = client_record(1, ARRAYS)
        for reply in replies:
            if name in reply.content:
                arrays = HOSTILE[words](to_arrays(reply.content[name]))
                reply.content[name] = to_record(arrays)
        return replies

    trace = run_digits(digits_experiment(compress_up="top-k"), tamper=lie)
    report = trace.reports[0].train
    assert [r.kind for r in report.rejections] == [Kind.WRONG_ARRAYS]
    assert words in report.rejections[0].reason
    assert "\n" not in report.rejections[0].reason
    assert [row["client"] for row in report.rows] == [0, 2, 3]


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "scaffold"},
        {"method": "fedper", "model": "mlp"},
        {"method": "ditto"},
        {"method": "fedbuff"},
        {"aggregator": "median"},
        {"fedvarp": True, "server_momentum": 0.5},
        {"model": "cnn-fedakd", "local_steps": 1, "num_rounds": 2},
        {"model": "mlp", "lora_rank": 2, "travels": "trainable"},
        {"drop_out": 0.5, "max_failed_rounds": 9},
    ],
    ids=str,
)
def test_it_goes_with_other_methods_and_rules(keys):
    trace = play(**{"num_rounds": 3, "compress_share": 0.2, **BOTH, **keys})
    for report in trace.reports:
        reasons = [r.reason for r in report.train.rejections]
        assert not [reason for reason in reasons if "drop-out" not in reason]
    assert trace.reports[-1].train.bytes_up < trace.reports[0].train.bytes_down


def test_secure_sums_take_coded_steps_down_and_none_up():
    keys = {"secure_aggregation": "unmasked", "num_rounds": 3}
    trace = play(compress_down="float16", **keys)
    assert trace.reports[-1].train.bytes_down < 0.6 * trace.reports[0].train.bytes_down
    assert not any(report.train.rejections for report in trace.reports)
    with pytest.raises(ConfigError, match="quantisation-bits"):
        digits_experiment(compress_up="top-k", **keys)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "fedmd", "public_size": 20, "compress_up": "signs"}, "shared model"),
        ({"method": "heterofl", "compress_down": "signs"}, "one shared model"),
        ({"compress_up": "qsgd", "compress_bits": 20}, "compress-bits"),
        ({"compress_share": 0.5}, "compress-share"),
    ],
)
def test_what_cannot_go_together_is_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        digits_experiment(**keys)


def test_a_method_without_a_model_that_comes_back_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"compress-up = 'signs' .* send no model back"):
        digits_experiment(method="newton", compress_up="signs")
    # One that does not declare it is refused in its first round.
    monkeypatch.setattr(Newton, "WITHOUT_EFFECT", {})
    with pytest.raises(ConfigError, match="do not send back the model"):
        play(method="newton", compress_up="signs")


def test_an_app_without_our_clients_is_refused():
    with pytest.raises(ValueError, match="fedsuite's own clients"):
        FedAvg(compress_up="signs")


@pytest.mark.parametrize(
    "keys", [BOTH, {"compress_up": "low-rank", "compress_down": "qsgd"}]
)
def test_a_resumed_run_has_the_same_bits_and_bytes(keys, tmp_path):
    given = {**SMALL, "output-dir": str(tmp_path), "num-rounds": 3, "checkpoint-every": 1}
    given |= {"method": "scaffold"}
    whole = fedsuite.run({**given, **keys, "run-name": "whole"})
    fedsuite.run({**given, **keys, "run-name": "parts", "num-rounds": 1})
    again = fedsuite.run({**given, **keys, "run-name": "parts", "resume": True})
    read = [(run.path / "model.safetensors").read_bytes() for run in (whole, again)]
    assert read[0] == read[1]
    names = ("bytes_up", "bytes_down_train")
    for name in names:
        assert [row.get(name) for row in whole.rounds] == [
            row.get(name) for row in again.rounds
        ]


def test_what_a_client_saved_is_what_it_had_then():
    """It may go on with its arrays before the other parts are stored beside them."""
    store, held = MemoryStore(), {"w": np.ones(2)}
    compartment = Compartment(store)
    compartment.save(0, "1.1", held, set())
    held["w"][:] = 9.0
    assert compartment.store(Request("train", 0, {}, {}, "", "", "1.1"), {})
    assert compartment.load(0, "1.1")["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_clients_model_is_the_one_that_it_was_scored_with(method, tmp_path, capsys):
    given = {**SMALL, "output-dir": str(tmp_path), "num-rounds": 2, "run-name": "run"}
    coded = {"compress-up": "top-k", "compress-down": "qsgd", "clients-per-round": 4}
    run = fedsuite.run({**given, **coded, "method": method})
    model = run.client_model(1)
    said = capsys.readouterr()
    assert "this model's accuracy" not in said.out + said.err
    own = run.model().state_dict() if method == "fedavg" else None
    for name, tensor in model.state_dict().items():
        assert own is None or np.array_equal(tensor, own[name])


def test_a_client_that_lost_its_state_says_so():
    class Forgetful(MemoryStore):
        def load(self, client_id, version):
            arrays = super().load(client_id, version)
            return {**arrays, "model/model-version": np.array(7)}

    trace = run_digits(digits_experiment(compress_down="float16"), Forgetful())
    assert "held is 7" in trace.reports[1].train.rejections[0].reason
