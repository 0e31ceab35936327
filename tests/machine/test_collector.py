"""The garbage collector around a block that makes much."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from sdort.machine.process_settings import rare_collections


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def collections_of(count: int) -> int:
    """How often the collector looks while so many objects are made that stay."""
    gc.collect()
    before = [int(generation["collections"]) for generation in gc.get_stats()]
    kept = [[number] for number in range(count)]
    after = [int(generation["collections"]) for generation in gc.get_stats()]
    assert len(kept) == count
    return sum(after) - sum(before)


def test_the_collector_looks_less_often_in_the_block_alone() -> None:
    gc.set_threshold(700, 10, 10)
    outside = collections_of(50_000)
    with rare_collections():
        inside = collections_of(50_000)
    assert inside == 0
    assert outside > 20
    assert gc.get_threshold() == (700, 10, 10)


def test_an_error_ends_the_block_too() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), rare_collections():
        raise ZeroDivisionError
    assert gc.get_threshold() == before


@pytest.mark.parametrize("set_by_the_caller", [(0, 10, 10), (1_000_000, 5, 5)])
def test_what_a_program_has_chosen_is_not_made_more_frequent(set_by_the_caller: tuple[int, int, int]) -> None:
    gc.set_threshold(*set_by_the_caller)
    with rare_collections():
        assert gc.get_threshold() == set_by_the_caller
