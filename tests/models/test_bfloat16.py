"""A network with bfloat16 arrays: they travel as they are, in two bytes a number."""

import numpy as np
import pytest
import torch

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.messages.array_records import RecordError, to_arrays, to_record
from fedsuite.messages.compression import HalfModel, to_bfloat16
from fedsuite.messages.records import ARRAYS
from fedsuite.models.arrays import bfloat16_names, load_arrays, model_arrays
from fedsuite.rounds.kinds import Kind
from tests.helpers import digits_experiment, play, run_digits
from tests.models.odd_networks import Halved
from tests.small_runs import SMALL

NETWORK = "tests.models.odd_networks:Halved"
BYTES = 2 * (64 * 16 + 16) + 4 * (16 * 10 + 10)


def network(*_):
    return Halved((64,), 10)


def test_arrays_of_a_network_and_back_keep_their_values():
    model, other = network(), network()
    arrays = model_arrays(model)
    assert arrays["hidden.weight"].dtype == np.float32
    load_arrays(other, arrays)
    assert torch.equal(other.hidden.weight, model.hidden.weight)
    assert bfloat16_names(model) == {"hidden.weight", "hidden.bias"}
    coding = HalfModel(bfloat16_names(model))
    coded = coding.coded(arrays)
    assert sum(array.nbytes for array in coded.values()) == BYTES
    bits = model.hidden.weight.detach().view(torch.uint16).numpy()
    assert np.array_equal(coded["hidden.weight"], bits)
    for name, array in coding.decoded(coded).items():
        assert np.array_equal(array, arrays[name])
    with pytest.raises(RecordError, match="expected bfloat16"):
        coding.decoded(arrays)
    assert to_bfloat16(np.array([np.nan], np.float32).view(np.float32)) == [0x7FC0]


@pytest.mark.parametrize(
    "keys",
    [{}, {"method": "scaffold"}, {"method": "fedper"}, {"method": "fedbuff"}],
    ids=str,
)
def test_two_bytes_travel_both_ways_and_the_model_has_no_other_values(keys):
    trace = play(model=NETWORK, **keys)
    last = trace.arrays[-1]["hidden.weight"]
    assert last.dtype == np.float32
    assert not (last.view(np.uint32) & 0xFFFF).any()
    assert not any(report.train.rejections for report in trace.reports)
    if not keys:
        trains = [report.train for report in trace.reports]
        assert {t.bytes_up for t in trains} == {t.bytes_down for t in trains} == {4 * BYTES}
        losses = [train.rows[0]["loss"] for train in trains]
        assert losses[-1] < losses[0]


def test_a_run_can_be_used_and_gone_on_with(tmp_path):
    given = {**SMALL, "model": NETWORK, "output-dir": str(tmp_path), "num-rounds": 2}
    given |= {"checkpoint-every": 1}
    whole = fedsuite.run({**given, "run-name": "whole"})
    fedsuite.run({**given, "run-name": "parts", "num-rounds": 1})
    parts = fedsuite.run({**given, "run-name": "parts", "resume": True})
    files = [(run.path / "model.safetensors").read_bytes() for run in (whole, parts)]
    assert files[0] == files[1]
    models = [whole.model(), whole.client_model(1)]
    assert torch.equal(models[0].hidden.weight, models[1].hidden.weight)
    assert models[0].hidden.weight.dtype == torch.bfloat16


def test_what_says_that_it_is_bfloat16_and_is_not_is_dropped():
    def lie(replies):
        for reply in replies:
            for name, record in reply.content.items():
                if name == f"client-1.{ARRAYS}":
                    arrays = to_arrays(record)
                    arrays["hidden.bias"] = arrays["hidden.bias"].astype(np.float32)
                    reply.content[name] = to_record(arrays)
        return replies

    trace = run_digits(digits_experiment(model=NETWORK), tamper=lie)
    (rejection,) = trace.reports[0].train.rejections
    assert rejection.kind is Kind.WRONG_ARRAYS and "hidden.bias" in rejection.reason


def test_changes_of_it_are_not_coded_once_more():
    with pytest.raises(ConfigError, match="16 bits already"):
        play(model=NETWORK, compress_up="signs")
