"""Values of single clients: read, refused in one line, and heeded by that client alone."""

import pytest

from fedsuite.core.errors import ConfigError, Refused
from fedsuite.experiment.client_settings import settings_by_entry, settings_of_clients
from fedsuite.experiment.experiment import Experiment
from tests.helpers import digits_experiment, play

TEXT = "3: drop-out=0.5; hospital-b: learning-rate=0.01, local-epochs=2"


def test_what_the_line_says() -> None:
    assert settings_by_entry(TEXT) == {
        "3": {"drop-out": 0.5},
        "hospital-b": {"learning-rate": 0.01, "local-epochs": 2},
    }
    assert settings_of_clients(TEXT, {1: "hospital-b"}, 4) == {
        3: {"drop_out": 0.5},
        1: {"learning_rate": 0.01, "local_epochs": 2},
    }
    assert settings_by_entry(" ") == {}
    assert settings_by_entry("Saint: Anne: batch-size=8") == {
        "Saint: Anne": {"batch-size": 8}
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3", "is no client and its values"),
        ("3:", "is no client and its values"),
        ("3: learning-rate", "learning-rate = ''"),
        ("3: learning-rat=1", "did you mean 'learning-rate'"),
        ("3: seed=1", "no client has 'seed' alone"),
        ("3: learning-rate=-1", "expected a number > 0"),
        ("3: local-epochs=1.5", "expected a whole number"),
        ("3: drop-out=0.1; 3: drop-out=0.2", "names client '3' twice"),
        ("3: drop-out=0.1, drop-out=0.2", "has drop-out twice"),
        ("3: drop-out=0.6, straggler=0.6", "their sum is a probability"),
        ("3: local-epochs=0", "clients would not train"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment.from_values({"client-settings": text})
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_no_client_and_one_named_twice_are_refused() -> None:
    with pytest.raises(Refused, match="no client '9': clients are 0 to 3, or ward"):
        settings_of_clients("9: drop-out=1.0", {0: "ward"}, 4)
    with pytest.raises(Refused, match="names client '0' twice"):
        settings_of_clients("ward: drop-out=1.0; 0: straggler=1.0", {0: "ward"}, 4)
    with pytest.raises(Refused, match="no client '9'"):
        play(client_settings="9: drop-out=1.0")


def rows(**changes: str) -> dict[object, dict[str, object]]:
    trace = play(num_rounds=1, **changes)
    assert trace.reports[0].train is not None
    return {row["client"]: dict(row) for row in trace.reports[0].train.rows}


def test_a_client_alone_has_its_values() -> None:
    usual = rows()
    own = rows(client_settings="1: local-epochs=2; 2: drop-out=1.0; 3: batch-size=0")
    assert own[0]["loss"] == usual[0]["loss"]
    assert own[1]["num_steps"] == 2 * float(str(usual[1]["num_steps"]))
    assert 2 not in own
    assert own[3]["num_steps"] == 1


def test_values_for_all_given_to_each_are_the_same_run() -> None:
    each = "; ".join(f"{client}: learning-rate=0.05" for client in range(4))
    alone = play(client_settings=each).arrays[-1]
    together = play(learning_rate=0.05, optimizer="sgd").arrays[-1]
    assert all((alone[name] == together[name]).all() for name in alone)


def test_values_of_clients_decide_what_is_computed() -> None:
    plain, own = digits_experiment(), digits_experiment(client_settings="1: drop-out=0.5")
    assert plain.fingerprint != own.fingerprint
