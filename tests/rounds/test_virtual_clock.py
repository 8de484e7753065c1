"""The clock of a rehearsed world: its forecast by hand, and what a round waits for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedsuite
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.keys import Value
from fedsuite.devices.world import World
from fedsuite.experiment.experiment import Experiment
from fedsuite.results.layout import MODEL
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.virtual_clock import VirtualClock
from fedsuite.strategies import FedAvg
from tests.faults.runs import EXPERIMENTS
from tests.helpers import Trace, final_bits, play

NUMBERS = 64 * 10
"""Weights of the linear network on digits."""

SPEED, RATE, LATENCY, SERVER = 1e5, 1e3, 0.25, 3.0
"""Multiplications and bytes a second of the devices here, and seconds."""

PHONE: Mapping[str, Any] = {
    "multiplications-per-second": SPEED,
    "up-mbit": 8 * RATE / 1e6,
    "down-mbit": 16 * RATE / 1e6,
    "latency-seconds": LATENCY,
}


def slow(client: int, times: float = 10) -> dict[str, Any]:
    """Return the profiles of a world in which one client computes slowly."""
    speed = {"multiplications-per-second": SPEED / times, "clients": [client]}
    return {"phone": PHONE, "slow": {**PHONE, **speed}}


def world(**told: Any) -> str:
    return json.dumps({"server-seconds": SERVER, "profiles": {"phone": PHONE}, **told})


def away(client: int, *spans: tuple[float, float]) -> str:
    """Return a world in which one client is there in these spans alone."""
    table = {"kind": "table", "spans": [[client, *span] for span in spans]}
    phone = {**PHONE, "availability": "log"}
    return world(profiles={"phone": phone}, availability={"log": table})


def one_step(**changes: Value) -> Trace:
    """Run the linear network on digits, each client one step over all of its rows."""
    return play(**{"batch_size": 0, "local_steps": 1, "num_rounds": 2, **changes})


def forecast(rows: float, speed: float = SPEED) -> float:
    """Return the seconds of one client's round: forward and the gradient of the weights."""
    size = 4 * (NUMBERS + 10)
    return size / (2 * RATE) + size / RATE + 2 * LATENCY + 2 * rows * NUMBERS / speed


def clients_of(trace: Trace, server_round: int = 1) -> list[object]:
    train = trace.reports[server_round - 1].train
    assert train is not None
    return [row["client"] for row in train.rows]


def seconds_of(trace: Trace) -> list[float]:
    return [float(report.metrics["virtual_seconds"]) for report in trace.reports]


def rejected(trace: Trace, server_round: int = 1) -> dict[int | None, Kind]:
    train = trace.reports[server_round - 1].train
    assert train is not None
    return {rejection.client_id: rejection.kind for rejection in train.rejections}


def test_the_forecast_by_hand() -> None:
    trace = one_step(devices=world())
    train = trace.reports[0].train
    assert train is not None
    for row in train.rows:
        rows = float(row["num_examples"])
        assert row["multiplications"] == 2 * rows * NUMBERS
        assert row["virtual_seconds"] == pytest.approx(forecast(rows))
    longest = max(forecast(float(row["num_examples"])) for row in train.rows)
    assert seconds_of(trace) == pytest.approx([longest + SERVER, 2 * (longest + SERVER)])


def test_each_exchange_of_a_round_takes_its_time() -> None:
    """FedEBA+ asks for losses and gradients before it trains."""
    plain = one_step(devices=world(), num_rounds=1)
    more = one_step(devices=world(), num_rounds=1, method="fedeba-plus")
    assert seconds_of(more)[0] > 1.5 * (seconds_of(plain)[0] - SERVER) + SERVER


@pytest.mark.parametrize(
    "method",
    [
        *("fedavg", "scaffold", "fedeba-plus"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedakd", "fedal")),
    ],
)
def test_a_clock_changes_no_bit_of_a_run_that_waits_for_all(method: str) -> None:
    public = {"public_size": 40} if method == "fedal" else {}
    values: dict[str, Value] = {"method": method, "num_rounds": 2, "model": "mlp", **public}
    values |= {"hidden_width": 8, "batch_size": 64}
    assert final_bits(**values, devices=world()) == final_bits(**values)


def test_what_travels_coded_takes_the_time_of_its_bytes() -> None:
    """The second round sends a step of signs, a bit and little more for each number."""
    plain, coded = (
        one_step(devices=world(), compress_down=kind, evaluate_every=9)
        for kind in ("none", "signs")
    )
    (first, whole), (same, small) = seconds_of(plain), seconds_of(coded)
    assert same - first == 0
    down = 4 * (NUMBERS + 10) / (2 * RATE)
    assert 0.9 * down < (whole - first) - (small - same) < down


def test_the_first_replies_close_a_round() -> None:
    values: dict[str, Value] = {"clients_per_round": 3, "over_select": 1.3}
    trace = one_step(devices=world(profiles=slow(1)), **values)
    assert clients_of(trace) == [0, 2, 3]
    assert rejected(trace) == {1: Kind.LATE}
    all_four = one_step(devices=world(profiles=slow(1)))
    assert seconds_of(trace)[0] < 0.5 * seconds_of(all_four)[0]
    assert trace.reports[0].metrics["bytes_up"] == all_four.reports[0].metrics["bytes_up"]


def test_a_deadline_leaves_out_who_is_late() -> None:
    longest = forecast(500)
    trace = one_step(devices=world(profiles=slow(1)), round_deadline=longest)
    assert clients_of(trace) == [0, 2, 3]
    assert rejected(trace) == {1: Kind.LATE}
    assert seconds_of(trace)[0] == pytest.approx(longest + SERVER)
    early = one_step(devices=world(), round_deadline=1e6)
    assert seconds_of(early) == seconds_of(one_step(devices=world()))


def test_who_is_away_is_not_asked() -> None:
    trace = one_step(devices=away(2, (8.0, 1e9)))
    train = trace.reports[0].train
    assert train is not None and train.num_asked == 3 and not train.rejections
    assert clients_of(trace, 1) == [0, 1, 3]
    assert clients_of(trace, 2) == [0, 1, 2, 3]


def test_who_leaves_in_mid_round_drops_out() -> None:
    """Nobody waits for its reply longer than it is there."""
    trace = one_step(devices=away(2, (0.0, 1.0)))
    assert rejected(trace) == {2: Kind.NOT_CONNECTED}
    assert clients_of(trace, 2) == [0, 1, 3] and not rejected(trace, 2)


def test_who_leaves_after_the_last_wanted_reply_delays_nobody() -> None:
    """The slow one of four is away before its reply, and after three others' came."""
    values: dict[str, Value] = {"clients_per_round": 3, "over_select": 1.3}
    profiles = slow(1)
    whole = one_step(devices=world(profiles=profiles), num_rounds=1, **values)
    profiles["slow"] = {**profiles["slow"], "availability": "log"}
    log = {"log": {"kind": "table", "spans": [[1, 0.0, 2 * forecast(500)]]}}
    devices = world(profiles=profiles, availability=log)
    trace = one_step(devices=devices, num_rounds=1, **values)
    assert rejected(trace) == {1: Kind.NOT_CONNECTED}
    assert seconds_of(trace) == seconds_of(whole)


def test_a_round_waits_for_a_quorum() -> None:
    spans = [[k, 1000.0 * (k + 1), 1e9] for k in range(4)]
    table = {"log": {"kind": "table", "spans": spans}}
    phones = {"phone": {**PHONE, "availability": "log"}}
    devices = world(profiles=phones, availability=table)
    trace = one_step(devices=devices, quorum=3)
    assert clients_of(trace) == [0, 1, 2]
    assert 3000 < seconds_of(trace)[0] < 3100
    with pytest.raises(
        RunError, match=r"after 0 virtual seconds there are never 4 clients"
    ):
        one_step(devices=away(2, (-2.0, -1.0)), quorum=4)


@pytest.mark.parametrize("method", ["cyclic", "standalone"])
def test_methods_that_ask_in_turn_wait_too(method: str) -> None:
    spans = [[k, 500.0, 1e9] for k in range(4)]
    table = {"log": {"kind": "table", "spans": spans}}
    phones = {"phone": {**PHONE, "availability": "log"}}
    trace = one_step(devices=world(profiles=phones, availability=table), method=method)
    assert clients_of(trace) and seconds_of(trace)[0] > 500


def test_a_device_without_memory_for_the_model_cannot_train() -> None:
    size = 4 * (NUMBERS + 10)
    small = {**PHONE, "clients": [3], "memory-gb": 3.9 * size / 1e9}
    trace = one_step(devices=world(profiles={"phone": PHONE, "small": small}))
    assert rejected(trace) == {3: Kind.CLIENT_FAILED}
    small["memory-gb"] = 4.1 * size / 1e9
    assert not rejected(one_step(devices=world(profiles={"phone": PHONE, "small": small})))


def test_a_run_ends_when_its_time_is_up_and_scores_its_last_model() -> None:
    trace = one_step(
        devices=world(), stop_at_seconds=2 * forecast(300), num_rounds=50, evaluate_every=50
    )
    assert 1 < len(trace.reports) < 10
    assert trace.reports[-1].evaluate is not None and trace.reports[0].evaluate is None


def test_fedbuff_goes_by_the_clock() -> None:
    """Three of four replies close a round, and client 1 comes when its work is done."""
    values: dict[str, Value] = {"method": "fedbuff", "fedbuff_share": 0.75, "num_rounds": 8}
    trace = one_step(devices=world(**{"profiles": slow(1), "server-seconds": 0}), **values)
    assert clients_of(trace) == [0, 2, 3]
    rows = [r for t in trace.reports for r in (t.train.rows if t.train else ())]
    late = [row for row in rows if row["client"] == 1]
    assert len(late) == 1 and float(late[0]["staleness"]) > 1
    assert late[0]["virtual_seconds"] == pytest.approx(
        forecast(float(late[0]["num_examples"]), SPEED / 10)
    )
    came = next(n for n, t in enumerate(trace.reports) if 1 in clients_of(trace, n + 1))
    assert (
        seconds_of(trace)[came - 1] < late[0]["virtual_seconds"] <= seconds_of(trace)[came]
    )
    assert "clock" not in trace.reports[0].metrics


def test_fedbuff_waits_where_nobody_is_there() -> None:
    spans = [[k, 500.0 + k, 1e9] for k in range(4)]
    table = {"log": {"kind": "table", "spans": spans}}
    phones = {"phone": {**PHONE, "availability": "log"}}
    devices = world(profiles=phones, availability=table)
    trace = one_step(devices=devices, method="fedbuff", num_rounds=4)
    assert clients_of(trace) == [0]
    assert all(clients_of(trace, n) for n in (2, 3, 4))


@pytest.mark.parametrize("method", ["fedavg", "fedbuff"])
def test_a_resumed_run_goes_on_with_the_clock(tmp_path: Path, method: str) -> None:
    values = {**EXPERIMENTS["scaffold"], "method": method, "num-rounds": 4}
    values |= {"output-dir": str(tmp_path), "devices": "phones-at-night"}
    if method == "fedavg":
        values |= {"selection": "oort", "clients-per-round": 2}
    whole = fedsuite.run(values, overrides={"run-name": "whole"})
    fedsuite.run(values, overrides={"run-name": "part"})
    later = fedsuite.resume(tmp_path / "part", from_round=3)
    times = [[row["virtual_seconds"] for row in run.rounds] for run in (whole, later)]
    assert times[0] == times[1]
    assert (whole.path / MODEL).read_bytes() == (later.path / MODEL).read_bytes()


def test_the_world_is_part_of_the_fingerprint_and_its_path_is_not(tmp_path: Path) -> None:
    prints = []
    for name, server in (("a", 1), ("b", 1), ("c", 2)):
        file = tmp_path / f"{name}.toml"
        file.write_text(
            f"server-seconds = {server}\n[profiles.phone]\nup-mbit = 1\ndown-mbit = 1\n"
            "multiplications-per-second = 1e9\n"
        )
        values = {**EXPERIMENTS["scaffold"], "num-rounds": 1, "devices": str(file)}
        run = fedsuite.run({**values, "output-dir": str(tmp_path), "run-name": name})
        prints.append(run.manifest["experiment_fingerprint"])
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"devices": "hospitals", "sites": "A, B"}, "the time of real nodes is their own"),
        ({"devices": "hospitals", "straggler": 0.1}, "the devices say who is late"),
        (
            {"devices": "hospitals", "dp-noise-multiplier": 1.0},
            "no sample that an accountant",
        ),
        ({"devices": "hospitals", "secure-aggregation": "unmasked"}, "stays with them"),
        ({"over-select": 2.0}, "set another devices"),
        ({"devices": "hospitals", "over-select": 2.0}, "all are asked"),
        (
            {"devices": "hospitals", "method": "fedbuff", "fedbuff-delays": "real"},
            "these come when they do",
        ),
        (
            {"devices": "hospitals", "method": "fedbuff", "fedbuff-spread": 0.5},
            "how long a training lasts",
        ),
    ],
)
def test_what_cannot_go_together_is_refused_in_one_line(
    values: dict[str, Value], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Experiment.from_values(values)
    assert "\n" not in str(caught.value)


def test_a_file_is_refused_where_only_a_message_came() -> None:
    with pytest.raises(ConfigError, match="a file is read by"):
        play(devices="w.toml")


def test_clients_that_tell_no_work_are_refused() -> None:
    with pytest.raises(ValueError, match="needs fedsuite's own clients"):
        FedAvg(devices="hospitals")


def test_time_never_goes_back() -> None:
    clock = VirtualClock(World(world(), 0, {}, 4))
    clock.move_to(5.0)
    clock.move_to(2.0)
    assert clock.now == 5.0
    clock.restore(clock.state())
    assert clock.now == 5.0
