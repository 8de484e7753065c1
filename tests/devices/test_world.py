"""Worlds: shipped ones, files of one's own, draws, and what is refused."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.devices.shipped import WORLDS
from fedsuite.devices.world import World, content_of, within

PHONE = {"multiplications-per-second": 1e6, "up-mbit": 8, "down-mbit": 16}


def world(num_clients: int = 10, seed: int = 0, **told: object) -> World:
    told = {"profiles": {"phone": PHONE}, **told}
    return World(json.dumps(told), seed, {1: "hospital-b"}, num_clients)


@pytest.mark.parametrize("name", WORLDS)
def test_shipped_worlds_name_their_sources_and_give_each_client_a_device(name: str) -> None:
    assert "#" in WORLDS[name]
    made = World(name, 0, {}, 50)
    profiles = {made.device(client_id).profile for client_id in range(50)}
    assert len(profiles) == WORLDS[name].count("[profiles.")


def test_the_world_of_the_page_serves_the_quickstart(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "devices.md"
    (tmp_path / "world.toml").write_text(
        page.read_text().split("```toml")[1].split("```")[0]
    )
    World(content_of(str(tmp_path / "world.toml")), 0, {}, 10)


def test_seconds_of_an_exchange_by_hand() -> None:
    """8 Mbit/s are 1e6 bytes: 2 s up, 1 s down, half a second of work, 0.1 s each way."""
    phone = world(profiles={"phone": {**PHONE, "latency-seconds": 0.1}}).device(0)
    assert (phone.up, phone.down) == (1e6, 2e6)
    seconds = phone.seconds(work=5e5, bytes_down=2e6, bytes_up=2e6)
    assert seconds == pytest.approx(1 + 2 + 0.5 + 0.2)
    assert phone.memory == math.inf


def test_draws_are_of_the_seed_and_the_client_alone() -> None:
    ranged = {"phone": {**PHONE, "up-mbit": [1, 100]}}

    def rates(seed: int, num_clients: int = 10) -> list[float]:
        made = world(num_clients, seed, profiles=ranged)
        return [made.device(k).up for k in range(num_clients)]

    assert rates(0) == rates(0, 40)[:10]
    assert rates(0) != rates(1)
    assert len(set(rates(0))) == 10


def test_a_changed_range_changes_no_other_amount() -> None:
    ranged = {**PHONE, "up-mbit": [1, 100], "down-mbit": [1, 100]}
    one = world(profiles={"phone": ranged}).device(3)
    other = world(profiles={"phone": {**ranged, "up-mbit": [2, 3]}}).device(3)
    assert one.down == other.down and one.up != other.up


@given(st.floats(0.01, 1e9), st.floats(1, 100), st.floats(0, 1))
def test_a_draw_lies_in_its_range(low: float, times: float, share: float) -> None:
    high = low * times
    found = within([low, high], share)
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)
    assert within([low, high], 0.5) == pytest.approx(math.sqrt(low * high))


def test_shares_are_of_the_clients_that_no_profile_names() -> None:
    profiles = {
        "slow": {**PHONE, "clients": ["hospital-b", 4]},
        "usual": {**PHONE, "share": 3},
        "rare": {**PHONE, "share": 1},
    }
    made = world(400, profiles=profiles)
    names = [made.device(k).profile for k in range(400)]
    assert [k for k, name in enumerate(names) if name == "slow"] == [1, 4]
    assert 0.67 < names.count("usual") / 398 < 0.83


def test_a_file_and_its_table_become_one_line(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("client, from, to\nhospital-b, 0, 60\n3,10,20\n")
    file = tmp_path / "world.toml"
    file.write_text(
        "server-seconds = 2\n[profiles.phone]\nmultiplications-per-second = 1e6\n"
        'up-mbit = 8\ndown-mbit = 16\navailability = "log"\n'
        '[availability.log]\nkind = "table"\nfile = "there.csv"\n'
    )
    text = content_of(str(file))
    assert "\n" not in text and content_of(text) == text
    made = World(text, 0, {1: "hospital-b"}, 5)
    assert made.server_seconds == 2.0
    assert made.device(1).availability.span(5.0) == (0.0, 60.0)
    assert made.device(3).availability.span(20.0) is None
    assert made.device(0).availability.span(1e9) == (-math.inf, math.inf)
    other = tmp_path / "elsewhere"
    other.mkdir()
    for path in (file, tmp_path / "there.csv"):
        (other / path.name).write_text(path.read_text())
    assert content_of(str(other / "world.toml")) == text


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "no-profile": ({"profiles": {}}, "profiles: expected at least one"),
    "unknown": (
        {"profiles": {"phone": {**PHONE, "up-mbits": 1}}},
        "did you mean 'up-mbit'",
    ),
    "missing": ({"profiles": {"phone": {"up-mbit": 8, "down-mbit": 1}}}, "None: expected"),
    "no-speed": (
        {"profiles": {"phone": {**PHONE, "multiplications-per-second": 0}}},
        "0: expected a number above 0",
    ),
    "range": ({"profiles": {"phone": {**PHONE, "up-mbit": [3, 1]}}}, "the range ends"),
    "words": ({"profiles": {"phone": {**PHONE, "up-mbit": "fast"}}}, "'fast': expected"),
    "share": (
        {"profiles": {"phone": {**PHONE, "clients": [1], "share": 2}}},
        "share has no effect",
    ),
    "nobody": ({"profiles": {"phone": {**PHONE, "clients": [77]}}}, "no client '77'"),
    "twice": (
        {
            "profiles": {
                "a": {**PHONE, "clients": [1]},
                "b": {**PHONE, "clients": ["hospital-b"]},
            }
        },
        "two profiles name client",
    ),
    "left": (
        {"profiles": {"phone": {**PHONE, "clients": [0]}}},
        "hospital-b has no profile",
    ),
    "away": (
        {"profiles": {"phone": {**PHONE, "availability": "x"}}},
        "no availability 'x'",
    ),
    "kind": ({"availability": {"n": {"kind": "tides"}}}, "kind = 'tides': expected one of"),
    "hours": (
        {"availability": {"n": {"kind": "daily", "from-hour": 1, "hours": 25}}},
        "25: expected a number above 0 to 24",
    ),
    "span": (
        {"availability": {"n": {"kind": "table", "spans": [[0, 5, 2]]}}},
        "it ends before it begins",
    ),
    "server": ({"server-seconds": -1}, "server-seconds: -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_in_one_line(case: str) -> None:
    told, words = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        world(**told)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_no_file_and_no_table_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'hospitals'.*data-centre"):
        content_of("hospital")
    file = tmp_path / "world.toml"
    file.write_text('[availability.log]\nkind = "table"\nfile = "a.csv"\n')
    (tmp_path / "a.csv").write_text("who,from,to\n")
    with pytest.raises(ConfigError, match="expected the columns client, from, to"):
        content_of(str(file))
    (tmp_path / "a.csv").write_text("client,from,to\n1,soon,later\n")
    with pytest.raises(ConfigError, match="two numbers of seconds"):
        content_of(str(file))
