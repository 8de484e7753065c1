"""What Flower does wrong, each shown by a script; docs/how-to/flower_defects.md lists them.

A test that fails after an upgrade of Flower says that the defect is gone: then its row on
the page goes, and what stands in for it.
"""

import random
import threading
from collections.abc import Iterator, Sequence

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.quantization import quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAvg,
    FedTrimmedAvg,
)
from flwr.serverapp.strategy.multikrum import compute_distances
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from fedsuite.workarounds.identity import flower_identity

START = ArrayRecord({"w": Array(np.zeros(4, np.float32))})


class Nodes:
    """A Grid that knows nodes and sends nothing."""

    def __init__(self, seen: Sequence[int]) -> None:
        self._seen = list(seen)

    def get_node_ids(self) -> list[int]:
        """Return one node more at each call, as while nodes register."""
        return list(range(self._seen.pop(0) if len(self._seen) > 1 else self._seen[0]))


@pytest.fixture(autouse=True)
def _identity() -> Iterator[None]:
    with flower_identity():
        yield


def replies(updates: Sequence[Sequence[float]], num_examples: float = 1.0) -> list[Message]:
    found = []
    for node, update in enumerate(updates, 2):
        request = Message(RecordDict(), dst_node_id=node, message_type="train")
        content = {
            "arrays": ArrayRecord({"w": Array(np.asarray(update, np.float32))}),
            "metrics": MetricRecord({"num-examples": num_examples}),
        }
        found.append(Message(RecordDict(content), reply_to=request))
    return found


def averaged(strategy: FedAvg, updates: Sequence[Sequence[float]]) -> np.ndarray:
    arrays, _ = strategy.aggregate_train(1, replies(updates))
    return arrays.to_numpy_ndarrays()[0]


def test_fedavg_averages_nan_into_the_model() -> None:
    assert np.isnan(averaged(FedAvg(), [[1.0] * 4, [np.nan] * 4])).all()


def test_fedavg_broadcasts_an_array_of_another_shape() -> None:
    assert averaged(FedAvg(), [[2.0] * 4, [4.0]]).tolist() == [3.0] * 4


def test_fedavg_counts_a_reply_that_comes_twice_twice() -> None:
    once, other = replies([[3.0] * 4, [0.0] * 4])
    arrays, _ = FedAvg().aggregate_train(1, [once, once, other])
    np.testing.assert_allclose(arrays.to_numpy_ndarrays()[0], 2.0)


def test_fedavg_counts_the_nodes_before_it_waits_for_them() -> None:
    strategy = FedAvg(min_available_nodes=10)
    sent = strategy.configure_train(1, START, ConfigRecord(), Nodes([2, 10]))
    assert len(list(sent)) == 2


def test_fedavg_samples_from_a_stream_that_no_seed_of_the_run_reaches() -> None:
    def drawn() -> list[int]:
        strategy = FedAvg(fraction_train=0.1, min_train_nodes=5)
        sent = strategy.configure_train(1, START, ConfigRecord(), Nodes([1000]))
        return sorted(message.metadata.dst_node_id for message in sent)

    random.seed(0)
    first = drawn()
    # Whatever else draws from Python's global stream moves the sample.
    random.seed(0)
    random.random()
    assert drawn() != first


def test_trimming_a_fifth_of_four_clients_trims_nobody() -> None:
    found = averaged(FedTrimmedAvg(beta=0.2), [[0.0] * 4] * 3 + [[1e6] * 4])
    assert found.tolist() == [2.5e5] * 4


def test_krums_squared_distances_are_negative_in_float32() -> None:
    """Whether a model's are is a matter of NumPy's build: about half of them are."""

    def smallest(seed: int) -> float:
        rng = np.random.default_rng(seed)
        model = rng.normal(size=100_000)
        near = [model + rng.normal(scale=1e-6, size=model.size) for _ in range(4)]
        records = [ArrayRecord({"w": Array(vector.astype(np.float32))}) for vector in near]
        return float(compute_distances(records).min())

    assert min(smallest(seed) for seed in range(16)) < 0


def test_adaptive_clipping_moves_its_bound_away_from_the_median() -> None:
    def bound_after(start: float, rounds: int) -> float:
        strategy = DifferentialPrivacyServerSideAdaptiveClipping(
            FedAvg(), 0.0, 4, initial_clipping_norm=start, clipped_count_stddev=0.0
        )
        strategy.current_arrays = START
        for server_round in range(rounds):
            strategy.aggregate_train(server_round, replies([[0.5] * 4] * 4))
        return float(strategy.clipping_norm)

    # All updates have length 1, so that the bound should go to 1 from both sides.
    assert bound_after(0.1, 20) < 0.05
    assert bound_after(10.0, 20) > 20.0


def test_an_update_of_zero_breaks_clipping() -> None:
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.0, 2)
    strategy.current_arrays = START
    with pytest.raises(ZeroDivisionError):
        strategy.aggregate_train(1, replies([[0.0] * 4] * 2))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_one_heartbeat_that_meets_an_error_is_the_last() -> None:
    asked = []

    def beat() -> bool:
        asked.append(1)
        request = httpx.Request("POST", "https://superlink")
        raise httpx.HTTPStatusError("", request=request, response=httpx.Response(500))

    before = set(threading.enumerate())
    sender = HeartbeatSender(beat)
    sender.start()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert asked == [1]
    assert not sender.is_running


def test_a_mask_of_two_clients_has_28_secret_bits() -> None:
    seed = bytes(range(32))
    # Words of four bytes are folded into one, in whatever order they stand.
    other = seed[4:8] + seed[:4] + seed[8:]
    masks = [pseudo_rand_gen(s, 2**24, [(100,)])[0] for s in (seed, other)]
    assert np.array_equal(masks[0], masks[1])
    # A pair's seed is text, so that four bits of such a word are always 0.
    (private, _), (_, public) = generate_key_pairs(), generate_key_pairs()
    assert generate_shared_key(private, public).isascii()


def test_a_changed_share_gives_another_secret_in_silence() -> None:
    secret = bytes([1] * 32)
    shares = create_shares(secret, 3, 5)
    silent = 0
    for place in range(4, len(shares[0])):
        changed = bytearray(shares[0])
        changed[place] ^= 1
        try:
            silent += combine_shares([bytes(changed), *shares[1:3]]) != secret
        except ValueError:
            continue
    assert silent == 32


def test_quantising_makes_scalars_of_arrays_without_axes() -> None:
    (quantised,) = quantize([np.array(1.5)], 8.0, 2**22)
    assert not isinstance(quantised, np.ndarray)


@pytest.mark.filterwarnings("ignore")
def test_quantising_takes_nan_and_moves_the_global_stream() -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[index]
    place = np.random.get_state()[2]  # type: ignore[index]
    (quantised,) = quantize([np.array([np.nan, 100.0])], 8.0, 2**22)
    assert quantised.tolist() == [-(2**31), 2**22]
    now = np.random.get_state()
    same = np.array_equal(now[1], before) and now[2] == place  # type: ignore[index]
    assert not same
