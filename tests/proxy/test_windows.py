"""Of each tenant's work no more than a window is on its way, and each tenant's order is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.proxy.windows import Windows


def test_what_one_tenant_has_beyond_its_window_keeps_no_other_from_its_own() -> None:
    windows = Windows(100)
    assert [windows.enter("a", number, 60) for number in (1, 2, 3)] == [True, False, False]
    assert windows.enter("b", 4, 60)
    assert (windows.last("a"), windows.last("b")) == (3, None)
    assert windows.leave("a", 60) == [2]
    assert windows.leave("b", 60) == []


def test_what_is_larger_than_a_window_goes_alone() -> None:
    windows = Windows(100)
    assert windows.enter("a", 1, 500) and not windows.enter("a", 2, 10)
    assert windows.leave("a", 500) == [2]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 300)), max_size=40), st.data())
def test_everything_goes_once_and_in_its_tenants_order_whatever_is_done_when(
    jobs: list[tuple[str, int]], data: st.DataObject
) -> None:
    windows = Windows(100)
    on_the_way: list[int] = []
    gone: dict[str, list[int]] = {"a": [], "b": []}

    def hand(numbers: list[int]) -> None:
        for number in numbers:
            tenant = jobs[number][0]
            gone[tenant].append(number)
            on_the_way.append(number)
            mine = [jobs[each][1] for each in on_the_way if jobs[each][0] == tenant]
            assert sum(mine) <= 100 or len(mine) == 1

    def done() -> None:
        number = on_the_way.pop(data.draw(st.integers(0, len(on_the_way) - 1)))
        hand(windows.leave(*jobs[number]))

    for number, (tenant, size) in enumerate(jobs):
        if windows.enter(tenant, number, size):
            hand([number])
        if on_the_way and data.draw(st.booleans()):
            done()
    while on_the_way:
        done()
    assert all(gone[tenant] == [n for n, job in enumerate(jobs) if job[0] == tenant] for tenant in "ab")
    assert windows.open_wide() == []
