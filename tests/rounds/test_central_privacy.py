"""Noise at the server: arithmetic, what one client can move, the account, and refusals."""

import json
import math

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsuite
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.registry import METHODS
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import ARRAYS
from fedsuite.rounds import central_privacy
from fedsuite.rounds.central_privacy import CentralPrivacy
from fedsuite.rounds.checkpoint import Checkpoint
from fedsuite.rounds.declaration import UNARGUED, Release
from fedsuite.rounds.exchange import Exchange
from fedsuite.rounds.noised_mean import (
    adapted_clip,
    capped_shares,
    clip_scale,
    multiplier_beside_count,
    system_gaussian,
)
from fedsuite.rounds.release_ledger import ReleaseLedger
from fedsuite.rounds.round_settings import RoundSettings
from fedsuite.rounds.strategy import FederatedStrategy
from fedsuite.rounds.validation import ClientReply, Expected, spec_of
from fedsuite.strategies import load_strategy
from fedsuite.strategies.averaging.cyclic import Cyclic
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.fedprox import FedProx
from fedsuite.strategies.fair.fedeba import FedEBA
from fedsuite.strategies.personal.partial import PartialAverage
from fedsuite.workarounds.identity import flower_identity
from tests.helpers import TamperingGrid, matrix_app, run, zeros

QUIET = 1e-9
"""A noise multiplier whose noise no float32 shows."""


@pytest.fixture
def still(monkeypatch):
    """Take the noise off, and leave the account as it is."""
    monkeypatch.setattr(central_privacy, "system_gaussian", np.zeros)


# ------------------------------------------------------------------------------ arithmetic


def test_noise_is_standard_normal_and_never_repeats():
    noise = system_gaussian((100, 2000))
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(1.0, abs=0.02)
    assert np.mean(np.abs(noise) > 2) == pytest.approx(0.0455, abs=0.005)
    assert not np.array_equal(system_gaussian((5,)), system_gaussian((5,)))


@pytest.mark.parametrize(
    ("norm", "scale"), [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (4.0, 0.5), (math.inf, 0.0)]
)
def test_clipping_bounds_the_norm_and_takes_a_zero_update(norm, scale):
    assert clip_scale(norm, 2.0) == scale


def test_adaptive_clipping_goes_the_right_way():
    assert adapted_clip(0.1, 0.0, 0.5, 0.2) == pytest.approx(0.110517, abs=1e-6)
    assert adapted_clip(1.0, 1.0, 0.5, 0.2) == pytest.approx(0.904837, abs=1e-6)


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_adaptive_clipping_finds_the_median_norm(start):
    """Flower 1.41 ends at 0.0002 and at 4034 here."""
    norms, clip = np.linspace(0.5, 1.5, 101), start
    for _ in range(60):
        clip = adapted_clip(clip, float(np.mean(norms <= clip)), 0.5, 0.2)
    assert clip == pytest.approx(1.0, abs=0.15)


def test_a_counts_noise_is_paid_for():
    assert multiplier_beside_count(1.0, 5.0) == pytest.approx(1.005038, abs=1e-6)
    assert multiplier_beside_count(1.0, 1.0) == pytest.approx(1.154701, abs=1e-6)
    with pytest.raises(ValueError, match="dp_count_noise"):
        multiplier_beside_count(1.0, 0.5)


def test_a_cap_fills_up_what_it_takes():
    logarithms = np.log([5.0, 3.0, 1.0, 1.0])
    expected = [0.4, 0.36, 0.12, 0.12]
    np.testing.assert_allclose(capped_shares(logarithms, 0.4), expected, rtol=1e-12)
    np.testing.assert_allclose(capped_shares(logarithms, 1.0), [0.5, 0.3, 0.1, 0.1])
    np.testing.assert_array_equal(capped_shares(logarithms, 0.2), np.full(4, 0.2))


logs = st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(others=logs, one=st.floats(-1e4, 1e4), cap=st.floats(0.01, 1.0))
def test_one_client_moves_weights_by_twice_the_cap_at_most(others, one, cap):
    """Few or many clients, below the cap's reach or above it."""
    without = capped_shares(np.array(others), cap)
    beside = capped_shares(np.array([*others, one]), cap)
    assert np.abs(without - beside[:-1]).sum() + beside[-1] <= 2 * cap * (1 + 1e-9)
    assert beside.max() <= cap * (1 + 1e-12)


@settings(max_examples=300, deadline=None)
@given(
    others=logs, one=st.floats(-1e4, 1e4), two=st.floats(-1e4, 1e4), cap=st.floats(0.01, 1)
)
def test_replacing_a_client_does_no_more(others, one, two, cap):
    before = capped_shares(np.array([*others, one]), cap)
    after = capped_shares(np.array([*others, two]), cap)
    moved = np.abs(before[:-1] - after[:-1]).sum() + before[-1] + after[-1]
    assert moved <= 2 * cap * (1 + 1e-9)


# --------------------------------------------------------------------------------- a round


def replies_of(values, sizes=None):
    """Return replies whose two-parameter models moved to these points."""
    sizes = sizes or [1] * len(values)
    return [
        ClientReply(
            client_id=k,
            num_examples=float(size),
            arrays={ARRAYS: {"w": np.array(value, np.float32), "n": np.array(3)}},
            metrics={},
        )
        for k, (value, size) in enumerate(zip(values, sizes, strict=True))
    ]


SENT = {"w": np.array([1.0, 1.0], np.float32), "n": np.array(1)}
EXCHANGE = Exchange(
    "train", [0], shared={ARRAYS: SENT}, expected=Expected({ARRAYS: spec_of(SENT)})
)


def opened(weighted=False, clients=10, per_round=4, **keys):
    weights = (lambda taken: np.zeros(len(taken))) if weighted else None
    privacy = CentralPrivacy(
        RoundSettings(**{"dp_noise_multiplier": 1.0} | keys), 0, weights
    )
    privacy.open_account(range(clients), per_round, 5)
    privacy.ask(EXCHANGE)
    return privacy


def take(privacy, replies):
    privacy.open(EXCHANGE)
    for reply in replies:
        privacy.take(reply)


def moved(privacy, replies, rate=1.0):
    take(privacy, replies)
    return privacy.release(SENT, 1, rate)["w"]


def test_the_sum_is_clipped_and_divided_by_a_fixed_number(still):
    """Changes (3, 4), of norm 5, and (0.3, 0.4): clipped at 1 the sum is (0.9, 1.2)."""
    privacy = opened(dp_clipping_norm=1.0)
    replies = replies_of([(4.0, 5.0), (1.3, 1.4)], sizes=[1, 1000])
    np.testing.assert_allclose(
        moved(privacy, replies), [1 + 0.9 / 4, 1 + 1.2 / 4], rtol=1e-6
    )
    assert privacy.metrics["clipped_share"] == 0.5


def test_counters_are_not_released(still):
    privacy = opened()
    take(privacy, replies_of([(1.0, 2.0)]))
    assert privacy.release(SENT, 1, 1.0)["n"] == 1


def test_noise_is_that_of_the_clip_over_the_fixed_number(monkeypatch):
    monkeypatch.setattr(central_privacy, "system_gaussian", np.ones)
    privacy = opened(dp_noise_multiplier=3.0, dp_clipping_norm=0.5)
    np.testing.assert_allclose(moved(privacy, []), np.full(2, 1 + 3 * 0.5 / 4), rtol=1e-6)


def test_noise_of_capped_weights_is_twice_the_cap(monkeypatch):
    monkeypatch.setattr(central_privacy, "system_gaussian", np.ones)
    privacy = opened(weighted=True, dp_noise_multiplier=3.0, dp_max_weight=0.3)
    np.testing.assert_allclose(moved(privacy, []), np.full(2, 1 + 2 * 0.3 * 3), rtol=1e-6)


def test_adaptive_noise_is_of_the_norm_that_clipped(monkeypatch):
    """Flower 1.41 draws it for the norm of the next round."""
    monkeypatch.setattr(central_privacy, "system_gaussian", np.ones)
    keys = {"dp_adaptive_clipping": True, "dp_count_noise": 5.0, "dp_clipping_norm": 0.5}
    privacy = opened(**keys)
    noise = multiplier_beside_count(1.0, 5.0) * 0.5 / 4
    np.testing.assert_allclose(moved(privacy, []), np.full(2, 1 + noise), rtol=1e-6)
    # The share of an empty round is a half, and here a noise of 5 over 4 clients.
    assert privacy.clip == pytest.approx(0.5 * math.exp(-0.2 * 5 / 4))


@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_one_client_more_moves_a_round_within_the_noises_bound(weighted, data):
    points = st.tuples(*[st.floats(-1e3, 1e3)] * 2)
    values = data.draw(st.lists(points, min_size=1, max_size=6))
    logarithms = np.array(data.draw(st.lists(st.floats(-50, 50), min_size=6, max_size=6)))
    privacy = opened(weighted, dp_max_weight=0.4 if weighted else 0.0, dp_clipping_norm=2.0)
    totals = []
    for taken in (values, values[:-1]):
        take(privacy, replies_of(taken))
        privacy._add_weighed(lambda held: logarithms[: len(held)])
        totals.append(privacy._total["w"])
    bound = 2 * 0.4 * 2.0 if weighted else 2.0
    assert np.linalg.norm(totals[0] - totals[1]) <= bound * (1 + 1e-6)


# ----------------------------------------------------------------------------- who is drawn


def test_public_groups_take_turns_and_everyone_comes_once():
    privacy = opened(clients=7, per_round=3)
    drawn = [privacy.draw(range(7), number) for number in (1, 2, 3, 4)]
    assert sorted(k for part in drawn[:3] for k in part) == list(range(7))
    assert drawn[3] == drawn[0]
    assert max(map(len, drawn)) <= 3


def test_a_checkpoint_holds_what_the_noise_rests_on():
    """The clients of the first round, and a norm that was adapted since."""
    keys = {"dp_noise_multiplier": 1.0, "dp_adaptive_clipping": True, "dp_count_noise": 5.0}
    strategy, other = noised(**keys), noised(**keys)
    strategy.privacy.open_account(range(4), 2, 5)
    strategy.privacy.clip = 0.25
    other.restore_states(strategy.states())
    assert other.privacy.clip == 0.25
    assert other.privacy.state() == strategy.privacy.state()


def test_secret_samples_differ_between_equal_runs():
    pytest.importorskip("dp_accounting")
    for sampling in ("poisson", "fixed"):
        privacy = opened(clients=200, per_round=100, dp_sampling=sampling)
        one, two = (privacy.draw(range(200), 1) for _ in range(2))
        assert one != two
        assert len(one) == 100 or sampling == "poisson"
        assert 60 < len(one) < 140


def test_who_comes_later_takes_no_part():
    privacy = opened(clients=4, per_round=4)
    assert privacy.draw([*range(4), 9], 1) == [0, 1, 2, 3]


# ------------------------------------------------------------------------------ the account


def noised(**options):
    return FedAvg(min_available_nodes=1, connect_timeout=5.0, **options)


def play(rounds=3, **options):
    strategy = noised(dp_noise_multiplier=QUIET, dp_clipping_norm=1e6, **options)
    return run(strategy, TamperingGrid(matrix_app(), 3), rounds), strategy


def test_without_noise_to_see_it_is_the_plain_mean():
    """Clients step to 1, 2 and 4 and count alike: 7 / 3, and 0.25 of the way with eta."""
    trace, _ = play(rounds=1)
    np.testing.assert_allclose(trace.arrays[0]["weight"], 7 / 3, atol=0.02)


def test_each_round_reports_what_is_spent():
    strategy = noised(dp_noise_multiplier=2.0)
    trace = run(strategy, TamperingGrid(matrix_app(), 3), 3)
    spent = [report.metrics["epsilon"] for report in trace.reports]
    assert spent == pytest.approx([1.9931, 2.9432, 3.7086], abs=1e-3)
    assert {report.metrics["delta"] for report in trace.reports} == {1e-5}
    sentence = strategy.privacy.ledger.last["sentence"]
    assert sentence.startswith("privacy: epsilon 3.709 at delta 1e-05 after 3 releases")
    assert "not metrics, logs or client rows" in sentence


def test_a_run_ends_before_the_round_that_would_pass_the_limit():
    strategy = noised(dp_noise_multiplier=2.0, dp_epsilon_max=3.0)
    trace = run(strategy, TamperingGrid(matrix_app(), 3), 9)
    assert [report.server_round for report in trace.reports] == [1, 2]
    assert strategy.privacy.ledger.releases == 2


def test_a_limit_below_one_round_is_an_error():
    strategy = noised(dp_noise_multiplier=2.0, dp_epsilon_max=1.0)
    with pytest.raises(
        RunError, match=r"round 1: one more release would spend epsilon 1\.99"
    ):
        run(strategy, TamperingGrid(matrix_app(), 3), 2)


def test_a_target_is_met_and_not_passed():
    strategy = noised(target_epsilon=2.0)
    trace = run(strategy, TamperingGrid(matrix_app(), 3), 4)
    assert 1.99 < trace.reports[-1].metrics["epsilon"] <= 2.0


def test_a_round_without_a_good_reply_releases_noise_and_is_counted():
    strategy = noised(dp_noise_multiplier=1.0, max_failed_rounds=2)
    grid = TamperingGrid(matrix_app(), 3, lambda replies: [], rounds=(1, 2))
    with pytest.raises(RunError, match="2 rounds in a row had no good reply"):
        run(strategy, grid, 3)
    assert strategy.privacy.ledger.releases == 2


def test_a_loop_that_begins_again_has_spent_what_it_released():
    """Without noise a strategy begins afresh there; an account never does."""
    strategy = noised(dp_noise_multiplier=1.0)
    grid, arrays = TamperingGrid(matrix_app(), 3), zeros()
    with flower_identity():
        for server_round in (1, 2, 1):
            asked = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
            strategy.aggregate_train(server_round, grid.send_and_receive(asked))
    assert strategy.privacy.ledger.releases == 3


def test_a_ledger_survives_and_counts_a_repeated_round(tmp_path):
    path = tmp_path / "ledger"
    ledger = ReleaseLedger(path)
    ledger.add(0, {"round": 1, "noise_multiplier": 1.0})
    ledger.add(1, {"round": 2, "noise_multiplier": 1.0})
    again = ReleaseLedger(path)
    again.recall({0: 1})
    again.add(1, {"round": 2, "noise_multiplier": 1.0})
    assert (again.releases, again.most_visits, again.visits(0)) == (3, 2, 2)
    with pytest.raises(RunError, match="put back the ledger"):
        ReleaseLedger(tmp_path / "new").recall({0: 1})
    path.write_text("{]\n")
    with pytest.raises(RunError, match="cannot read ledger"):
        ReleaseLedger(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"group": 1', '"group": 0'),
        lambda text: "".join(text.splitlines(keepends=True)[1:]),
        lambda text: text.replace('"noise_multiplier": 1.0', '"noise_multiplier": 9.0'),
    ],
    ids=["entry of another group", "first entry gone", "other noise"],
)
def test_a_ledger_that_was_changed_is_refused(tmp_path, damage):
    """Its account would say that less was released than was."""
    path = tmp_path / "ledger"
    ledger = ReleaseLedger(path)
    for group in (0, 1):
        ledger.add(group, {"round": group + 1, "noise_multiplier": 1.0})
    path.write_text(damage(path.read_text()))
    with pytest.raises(RunError, match="damaged after entry"):
        ReleaseLedger(path)


DIGITS = {
    "dataset": "digits",
    "model": "linear",
    "num-clients": 4,
    "num-rounds": 2,
    "checkpoint-every": 1,
    "report": False,
    "run-name": "run",
    "dp-noise-multiplier": 1.0,
}


def test_a_run_that_died_after_its_release_has_spent_it(tmp_path, monkeypatch):
    """It dies between the ledger's line and the checkpoint of round 2."""
    capture, times = Checkpoint.capture, []

    def dies(*args):
        times.append(1)
        if len(times) == 2:
            raise KeyboardInterrupt
        return capture(*args)

    monkeypatch.setattr(Checkpoint, "capture", dies)
    values = {**DIGITS, "output-dir": str(tmp_path)}
    with pytest.raises(KeyboardInterrupt):
        fedsuite.run(values)
    done = fedsuite.run({**values, "resume": True})
    lines = (done.path / "privacy.ledger").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 2]
    summary = json.loads((done.path / "summary.json").read_text())
    assert "after 3 releases" in summary["privacy"]
    last = json.loads((done.path / "rounds.jsonl").read_text().splitlines()[-1])
    assert last["epsilon"] == pytest.approx(8.3854, abs=1e-3)


# -------------------------------------------------------------------------------- refusals


ARGUED = {
    **dict.fromkeys(("FedAvg", "FedSGD", "FedMPR", "FedPara", "FedBABU"), "mean"),
    **dict.fromkeys(("PartialAverage", "LGFedAvg"), "mean"),
    **dict.fromkeys(("FedEBA", "TERM"), "weighted"),
}
"""Classes for whose rounds somebody has argued; who inherits that needs no line here."""


@pytest.mark.parametrize("method", METHODS)
def test_each_method_says_what_it_releases_or_is_refused(method):
    """Those that take part make one exchange of one shared model, and count all alike."""
    strategy = load_strategy(METHODS[method])
    says = next(base for base in strategy.__mro__ if "PRIVACY" in vars(base))
    assert says.PRIVACY.kind == ARGUED.get(says.__name__, "refused"), (
        f"who has argued for PRIVACY of {says.__name__}? Then the class belongs in ARGUED"
    )
    released = strategy.released()
    assert released in (says.PRIVACY, UNARGUED)
    assert released.why
    values = {"method": method, "num-clients": 4, "dp-noise-multiplier": 1.0}
    if released.kind == "mean":
        assert strategy.trains_one_model()
        Experiment.from_values(values)
        return
    with pytest.raises(ConfigError, match="dp-noise-multiplier") as refused:
        Experiment.from_values(values)
    assert "\n" not in str(refused.value)
    assert "fedavg" in str(refused.value)


class OtherDefault(FedProx):
    """What a client does cannot make its parent's statement false."""

    proximal_mu: float = 1.0


class OtherStep(FedProx):
    """Releases what its parent says nothing of."""

    def finish_round(self):
        """Keep something for the next round."""


class Keeping(FederatedStrategy):
    """A class beside FedAvg, whose method comes before the base class's."""

    def finish_round(self):
        """Keep something for the next round."""


class KeepingAverage(FedAvg, Keeping):
    """Has no method of its own."""


class OtherPart(PartialAverage):
    """Fills in what its parent leaves open."""

    def shares(self, groups):
        """Return all."""
        return frozenset(groups.names)


class StatedStep(OtherStep):
    """Says what it releases."""

    PRIVACY = Release("mean", "because")


class RefusedStep(Cyclic):
    """Overrides a method of a class that is refused."""

    def finish_round(self):
        """Keep something for the next round."""


@pytest.mark.parametrize(
    ("made", "release"),
    [
        (OtherDefault, FedAvg.PRIVACY),
        (OtherStep, UNARGUED),
        (KeepingAverage, UNARGUED),
        (OtherPart, PartialAverage.PRIVACY),
        (StatedStep, StatedStep.PRIVACY),
        (RefusedStep, Cyclic.PRIVACY),
    ],
)
def test_a_statement_is_inherited_as_long_as_the_round_is_the_same(made, release):
    assert made.released() is release


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fedvarp": True}, "fedvarp"),
        ({"quorum": 2}, "quorum"),
        ({"target-epsilon": 3.0}, "leave dp-noise-multiplier out"),
        ({"early-stop-metric": "auto"}, "scores"),
        ({"best-model-metric": "auto"}, "scores"),
        ({"decomposition": True}, "decomposition"),
        ({"dp-max-weight": 0.5}, "no effect"),
        ({"dp-sampling": "poisson"}, "clients-per-round"),
        ({"method": "fedeba", "dp-max-weight": 0.5}, "set effective-clients = 0"),
    ],
)
def test_what_breaks_the_promise_is_refused_in_one_line(changes, words):
    with pytest.raises(ConfigError, match=words) as refused:
        Experiment.from_values({"dp-noise-multiplier": 1.0, **changes})
    assert "\n" not in str(refused.value)


def test_a_delta_that_shows_a_client_is_refused():
    with pytest.raises(ConfigError, match="dp-delta"):
        opened(clients=20, dp_delta=0.05)


def test_a_subclass_says_for_itself():
    class Mine(FedAvg):
        """A method of somebody's own, whose server does something else."""

        def aggregate(self, arrays):
            return super().aggregate(arrays)

    with pytest.raises(ValueError, match="its class does not say"):
        Mine(dp_noise_multiplier=1.0)


def test_capped_weights_by_losses_take_part():
    keys = {"dp_noise_multiplier": QUIET, "dp_max_weight": 0.5, "dp_clipping_norm": 1e6}
    strategy = FedEBA(
        effective_clients=0.0,
        loss_key="loss",
        min_available_nodes=1,
        connect_timeout=5.0,
        **keys,
    )
    trace = run(strategy, TamperingGrid(matrix_app(), 3))
    # The two of largest loss step to 2 and 4; each weighs the cap.
    np.testing.assert_allclose(trace.arrays[0]["weight"], 3.0, atol=0.02)


# ---- a membership test


def test_noise_hides_whether_an_overfitted_client_took_part():
    """The whole update of a client is in the model without noise, and drowns in it."""
    found = {}
    rng = np.random.default_rng(0)
    for noise in (1e-6, 8.0):
        hits = 0
        for trial in range(60):
            # What the client memorised: a direction that only it has.
            secret = rng.normal(size=2)
            secret /= np.linalg.norm(secret)
            member = trial % 2
            privacy = opened(dp_noise_multiplier=noise, dp_clipping_norm=1.0)
            model = moved(privacy, replies_of([1 + 5 * secret] * member))
            guess = float((model - 1) @ secret) > 0.5 / 4
            hits += guess == bool(member)
        found[noise] = hits / 60
    assert found[1e-6] == 1.0
    # An advantage of 2 Phi(1 / 16) - 1 = 0.05: 0.525 right, and 60 trials say 0.3 to 0.75.
    assert 0.25 < found[8.0] < 0.8
