"""Entries of ``client-models``, and which client gets which."""

import contextlib
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.models import MODELS
from fedsuite.models.assignment import (
    Network,
    assign,
    experiment_networks,
    parse_networks,
)

THREE = "mlp:hidden-width=32:hidden-layers=1, mlp:hidden-width=64, cnn-3x3"


def networks_of(**changes: Value):
    values: dict[str, Value] = {
        "model": "mlp",
        "hidden-width": 50,
        "hidden-layers": 2,
        "num-clients": 5,
        "seed": 0,
        "client-models": THREE,
        "client-model-assignment": "round-robin",
    }
    changed = {name.replace("_", "-"): value for name, value in changes.items()}
    return experiment_networks(values | changed)


def test_entries_with_options_and_defaults() -> None:
    assert [(n.name, n.options, n.label) for n in parse_networks(THREE)] == [
        (
            "mlp",
            {"hidden_width": 32, "hidden_layers": 1},
            "mlp:hidden-width=32:hidden-layers=1",
        ),
        ("mlp", {"hidden_width": 64, "hidden_layers": 2}, "mlp:hidden-width=64"),
        ("cnn-3x3", {}, "cnn-3x3"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "mlp:hidden-layers=1:hidden-width=7",
        " mlp : hidden-width = 7 : hidden-layers = 1 ",
        "mlp:hidden-width=007:hidden-layers=1",
    ],
)
def test_one_network_however_it_is_written(text: str) -> None:
    assert parse_networks(text)[0].label == "mlp:hidden-width=7:hidden-layers=1"
    assert parse_networks(text) == parse_networks("mlp:hidden-width=7:hidden-layers=1")


def test_a_default_that_is_written_out_is_no_other_network() -> None:
    assert parse_networks("mlp:hidden-width=200") == parse_networks("mlp")
    assert parse_networks("mlp:hidden-width=200")[0].label == "mlp"


@st.composite
def some_networks(draw):
    name = draw(st.sampled_from(sorted(MODELS)))
    of_type = {int: st.integers(1, 999), str: st.sampled_from(["vit_b_16", "V1", "x-y"])}
    values = tuple((k.name, draw(of_type[k.type])) for k in MODELS[name].settings.KEYS)
    return Network(name, values)


@given(st.lists(some_networks(), min_size=1, max_size=6))
def test_labels_are_read_back(networks: list[Network]) -> None:
    assert parse_networks(",".join(n.label for n in networks)) == tuple(networks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mpl", "entry 'mpl': unknown model 'mpl'.*did you mean 'mlp'"),
        ("mlp,,linear", "entry '': unknown model ''"),
        ("mlp,", "entry '': unknown model ''"),
        ("mlp:hiden-width=3", "mlp has no key 'hiden-width'.*did you mean 'hidden-width'"),
        ("cnn-3x3:hidden-width=3", "cnn-3x3 has no key 'hidden-width': it takes none"),
        ("mlp:hidden-width", "'hidden-width': expected key=value"),
        ("mlp:", "'': expected key=value"),
        ("mlp:hidden-width=x", "key hidden-width = 'x': expected a whole number >= 1"),
        ("mlp:hidden-width=0", "key hidden-width = 0: expected a whole number >= 1"),
        ("mlp:hidden-width=3:hidden-width=3", "key hidden-width stands there twice"),
    ],
)
def test_what_cannot_be_read_is_one_line(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^key client-models: .*{words}") as caught:
        parse_networks(text)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="mlp:=,- 0123hidewt\n", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_networks(text)


def test_in_turns_and_listed() -> None:
    assert assign(3, "round-robin", 7, 0) == (0, 1, 2, 0, 1, 2, 0)
    assert assign(4, "listed", 4, 0) == (0, 1, 2, 3)
    for num_clients in (3, 5):
        words = (
            f"'listed' cannot go with num-clients = {num_clients}: client-models has 4 "
            "entries; list one for each client"
        )
        with pytest.raises(ConfigError, match=re.escape(words)):
            assign(4, "listed", num_clients, 0)


@given(st.integers(1, 5), st.integers(1, 50), st.integers(0, 2**63 - 1))
def test_random_is_seeded_and_in_range(entries: int, clients: int, seed: int) -> None:
    drawn = assign(entries, "random", clients, seed)
    assert drawn == assign(entries, "random", clients, seed)
    assert len(drawn) == clients
    assert all(type(entry) is int and 0 <= entry < entries for entry in drawn)


def test_random_is_even_and_differs_by_seed() -> None:
    drawn = assign(4, "random", 4000, 1)
    assert all(900 < drawn.count(entry) < 1100 for entry in range(4))
    # Independent draws: what follows an entry is even too.
    after = [second for first, second in itertools.pairwise(drawn) if first == 0]
    assert all(after.count(entry) > len(after) / 6 for entry in range(4))
    assert drawn != assign(4, "random", 4000, 2)


def test_no_entries_give_all_clients_the_model_with_its_keys() -> None:
    networks = networks_of(client_models="", client_model_assignment="random")
    assert networks.labels == ("mlp:hidden-width=50",)
    assert networks.of_client == (0,) * 5


def test_keys_of_the_model_do_not_reach_the_entries() -> None:
    networks = networks_of(client_models="mlp, linear")
    assert networks.distinct[0].options == {"hidden_width": 200, "hidden_layers": 2}


def test_equal_entries_are_one_network() -> None:
    """Entries 0, 1, 2 are networks 0, 1, 0: clients 0 to 4 get 0, 1, 0, 0, 1."""
    networks = networks_of(client_models="linear, mlp, linear")
    assert networks.labels == ("linear", "mlp")
    assert networks.of_client == (0, 1, 0, 0, 1)
    assert networks.clients_of(0) == (0, 2, 3)
    assert networks.clients_of(1) == (1, 4)


def test_an_entry_that_stands_there_twice_is_drawn_twice_as_often() -> None:
    networks = networks_of(
        client_models="linear, mlp, linear",
        client_model_assignment="random",
        num_clients=3000,
    )
    assert len(networks.clients_of(0)) == pytest.approx(2000, abs=100)
