"""A bounded memory, against a list that is kept by hand."""

from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.least_recent import LeastRecent


def test_what_was_used_least_recently_goes_first() -> None:
    memory = LeastRecent[str, int](10)
    memory.put("a", 1, 4)
    memory.put("b", 2, 4)
    assert memory.get("a") == 1
    assert "b" in memory
    memory.put("c", 3, 5)
    assert memory.get("b") is None
    assert (memory.held, len(memory)) == (9, 2)
    memory.put("d", 4, 10)
    assert ("a" in memory, "c" in memory, memory.get("d")) == (False, False, 4)


def test_the_last_one_stays_however_large() -> None:
    memory = LeastRecent[str, int](3)
    memory.put("a", 1, 1)
    memory.put("b", 2, 7)
    assert (memory.get("a"), memory.get("b")) == (None, 2)
    memory.put("c", 3, 1)
    assert (memory.get("b"), memory.get("c")) == (None, 3)


def test_an_old_value_of_the_key_weighs_no_more() -> None:
    memory = LeastRecent[str, int](10)
    memory.put("a", 1, 6)
    memory.put("a", 2, 7)
    assert (memory.held, len(memory), memory.get("a")) == (7, 1, 2)
    assert memory.drop("a")
    assert not memory.drop("a")
    assert (memory.held, len(memory)) == (0, 0)


def test_a_surplus_stays_until_it_is_dropped() -> None:
    memory = LeastRecent[str, int](5)
    memory.add("a", 1, 5)
    assert memory.surplus is None
    memory.add("b", 2, 1)
    assert memory.surplus == "a"
    assert memory.get("a") == 1
    assert memory.surplus == "b"


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.sampled_from("pgd"), st.integers(0, 5), st.integers(0, 8))),
)
def test_like_a_list_in_order_of_use(limit: int, steps: list[tuple[str, int, int]]) -> None:
    memory, order = LeastRecent[int, int](limit), list[tuple[int, int]]()
    for step, key, size in steps:
        known = [pair for pair in order if pair[0] == key]
        order = [pair for pair in order if pair[0] != key]
        if step == "g":
            assert memory.get(key) == (known[0][1] if known else None)
            order += known
        elif step == "d":
            assert memory.drop(key) == bool(known)
        else:
            memory.put(key, size, size)
            order.append((key, size))
            while sum(pair[1] for pair in order) > limit and len(order) > 1:
                order.pop(0)
        assert memory.held == sum(pair[1] for pair in order)
        assert [key in memory for key in range(6)] == [
            key in dict(order) for key in range(6)
        ]
