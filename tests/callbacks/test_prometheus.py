"""Numbers of a run as Prometheus text: what is counted, and that it starts and stops."""

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from prometheus_client import generate_latest

from fedsuite.callbacks.prometheus import Prometheus
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.engines.local import LocalGrid
from fedsuite.rounds.events import Callback, RoundReport, RunState
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.kinds import Kind
from tests.callbacks.reports import a_report, a_state
from tests.helpers import matrix_app, run, strategy_for


def get(url: str, path: str = "") -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=5.0)
    try:
        connection.request("GET", path or parts.path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@pytest.fixture
def served() -> Iterator[Prometheus]:
    callback = Prometheus("127.0.0.1", 0)
    state = a_state()
    callback.on_start(state)
    yield callback
    callback.on_end(state, None)


def test_a_round_by_hand() -> None:
    served = Prometheus("127.0.0.1", 0)
    served.on_round_end(a_state(), a_report(1, accuracies=(0.5, 0.75)))
    served.on_round_end(a_state(), a_report(2, accuracies=()))
    found = values(generate_latest(served).decode())
    rejected = {name: count for name, count in found.items() if "rejected" in name}
    assert rejected.pop('fedsuite_replies_rejected_total{reason="not-finite"}') == 2
    assert set(rejected.values()) == {0.0}
    # A reply that was bounded, or is suspected later, was used.
    assert len(rejected) + 1 == len(set(Kind) - {Kind.BOUNDED, Kind.SUSPECTED})
    assert {name: v for name, v in found.items() if "rejected" not in name} == {
        "fedsuite_rounds_total": 2,
        "fedsuite_clients_trained_total": 4,
        'fedsuite_bytes_total{direction="down"}': 128,
        'fedsuite_bytes_total{direction="up"}': 64,
        "fedsuite_round_seconds_total": 0.5,
        "fedsuite_round": 2,
        "fedsuite_rounds_planned": 9,
        "fedsuite_last_round_seconds": 0.25,
        "fedsuite_accuracy_mean": 0.625,
        "fedsuite_accuracy_median": 0.625,
        "fedsuite_accuracy_worst10": 0.5,
    }


def test_each_score_has_its_gauges() -> None:
    served = Prometheus("127.0.0.1", 0)
    report = a_report(1, accuracies=())
    assert report.evaluate is not None
    report.evaluate.rows = [
        {"client": k, "num_examples": 1, "mae": value} for k, value in enumerate((2.0, 4.0))
    ]
    served.on_round_end(a_state(), report)
    text = generate_latest(served).decode()
    assert "Mean over the worst tenth of clients of MAE" in text
    of_clients = {n: v for n, v in values(text).items() if "_mae_" in n or "accuracy" in n}
    assert of_clients == {
        "fedsuite_mae_mean": 3,
        "fedsuite_mae_median": 3,
        "fedsuite_mae_worst10": 4,
    }


def test_an_evaluation_without_a_score_leaves_no_earlier_accuracy() -> None:
    served = Prometheus("127.0.0.1", 0)
    served.on_round_end(a_state(), a_report(1, accuracies=(0.5, 0.75)))
    asked = a_report(2, accuracies=())
    assert asked.evaluate is not None
    asked.evaluate.num_asked = 2
    served.on_round_end(a_state(), asked)
    found = values(generate_latest(served).decode())
    accuracies = {name: value for name, value in found.items() if "accuracy" in name}
    assert accuracies == {
        "fedsuite_accuracy_clients": 0,
        "fedsuite_accuracy_clients_asked": 2,
    }


def test_the_format_is_prometheus_own(served: Prometheus) -> None:
    served.on_round_end(a_state(), a_report())
    lines = get(served.url)[1].splitlines()
    name = r"fedsuite_[a-z_0-9]+"
    kinds = [line.split() for line in lines if line.startswith("# TYPE")]
    assert len({kind[2] for kind in kinds}) == len(kinds), "a metric is declared once"
    for line in lines:
        comment = re.fullmatch(rf"# (HELP {name} .+|TYPE {name} (counter|gauge))", line)
        value = re.fullmatch(rf'{name}(\{{[a-z]+="[a-z-]+"\}})? -?[0-9.e+-]+', line)
        assert comment or value, line


def test_it_is_served_from_the_start_and_after_each_round(served: Prometheus) -> None:
    status, text = get(served.url)
    assert (status, values(text)["fedsuite_rounds_total"]) == (200, 0)
    served.on_round_end(a_state(), a_report(3))
    assert values(get(served.url)[1])["fedsuite_round"] == 3


def test_no_client_is_named(served: Prometheus) -> None:
    served.on_round_end(a_state(), a_report())
    assert "north" not in get(served.url)[1]


def test_it_stops_and_gives_the_port_back() -> None:
    before = threading.active_count()
    callback = Prometheus("127.0.0.1", 0)
    callback.on_start(a_state())
    url = callback.url
    get(url)
    server = callback._server
    assert server is not None
    callback.on_end(a_state(), RunError("the run failed"))
    assert server.fileno() == -1, "its socket is closed, not left to the collector"
    assert callback.url == ""
    with pytest.raises(ConnectionRefusedError):
        get(url)
    assert threading.active_count() == before
    again = Prometheus("127.0.0.1", int(urlsplit(url).port or 0))
    again.on_start(a_state())
    again.on_end(a_state(), None)
    again.on_end(a_state(), None)


def test_an_idle_visitor_does_not_hold_up_the_end() -> None:
    callback = Prometheus("127.0.0.1", 0)
    callback.on_start(a_state())
    parts = urlsplit(callback.url)
    with socket.create_connection((parts.hostname, parts.port)):
        ended = threading.Thread(target=callback.on_end, args=(a_state(), None))
        ended.start()
        ended.join(timeout=30)
        assert not ended.is_alive()


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        callback = Prometheus("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(RunError, match=r"metrics-port = \d+: cannot listen on 127"):
            callback.on_start(a_state())
        callback.on_end(a_state(), None)


def test_an_empty_address_is_not_all_addresses() -> None:
    with pytest.raises(ConfigError, match="key metrics-host is empty"):
        Prometheus("", 9100)


def test_rejections_of_both_phases_count() -> None:
    report = a_report()
    report.evaluate.rejections.append(Rejection(1, 0, Kind.LATE, ""))
    served = Prometheus("127.0.0.1", 0)
    served.on_round_end(a_state(), report)
    found = values(generate_latest(served).decode())
    reasons = [name for name, count in found.items() if "rejected" in name and count == 1]
    assert [re.findall('"(.+)"', name) for name in reasons] == [["late"], ["not-finite"]]


class Watcher(Callback):
    """Asks for the metrics in the middle of a run."""

    def __init__(self, served: Prometheus) -> None:
        self.served = served
        self.seen: list[float] = []

    def on_round_end(self, state: RunState, report: RoundReport) -> None:
        self.seen.append(values(get(self.served.url)[1])["fedsuite_rounds_total"])


def test_it_can_be_watched_while_a_run_goes_on() -> None:
    served = Prometheus("127.0.0.1", 0)
    watcher = Watcher(served)
    run(strategy_for("hosted"), LocalGrid(matrix_app(), 3), 3, callbacks=[served, watcher])
    assert watcher.seen == [1, 2, 3]
    assert served.url == ""
