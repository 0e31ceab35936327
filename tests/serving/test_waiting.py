"""The queue, with requests that say no more than it asks of them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from sdort.serving.waiting import QueueFull, Waiting


class Asked:
    """A request for images of one setting."""

    def __init__(self, key: str, images: int = 1, *, cold: bool = False) -> None:
        self.keys, self.requests, self.is_cold = [key] * images, list(range(images)), cold
        self.begun, self.unwanted = time.monotonic(), threading.Event()


def waiting(*asked: Asked, batches: Any = (1, 2, 3, 4), places: int = 9, wait: float = 0.0) -> Any:
    """A queue of these requests."""
    queue: Any = Waiting(places, batches, wait)
    for each in asked:
        queue.reserve()
        queue.put(each)
    return queue


def taken(queue: Any, **how: Any) -> list[tuple[Any, int]]:
    batch = queue.take(**how)
    return [] if batch is None else [(piece.drawing, piece.number) for piece in batch.pieces]


def test_the_oldest_is_drawn_first_with_all_that_share_its_calls() -> None:
    a, b, c, d = Asked("x", 2), Asked("y"), Asked("x", 3), Asked("y")
    queue = waiting(a, b, c, d)
    assert taken(queue) == [(a, 0), (a, 1), (c, 0), (c, 1)]
    assert taken(queue) == [(b, 0), (d, 0)]
    assert taken(queue) == [(c, 2)]
    queue.close()
    assert queue.take() is None


def test_a_provider_that_compiles_gets_the_numbers_that_are_warm() -> None:
    a = Asked("x", 7)
    queue = waiting(a, batches=(4, 1))
    assert [len(taken(queue)) for _ in range(4)] == [4, 1, 1, 1]


def test_each_caller_takes_what_it_may_in_its_own_order() -> None:
    cold, warm, more = Asked("x", cold=True), Asked("y"), Asked("z")
    queue, begun = waiting(cold, warm, more), list[Any]()
    behind: dict[str, Any] = {"rank": lambda each: int(each.is_cold), "begin": begun.append}
    assert taken(queue, **behind) == [(warm, 0)]
    assert taken(queue, rank=lambda each: 0 if each.is_cold else None) == [(cold, 0)]
    assert taken(queue, rank=lambda _: None, patience=0.01) == []
    assert taken(queue, **behind) == [(more, 0)]
    assert begun == [warm, more]


def test_images_that_are_put_back_come_first_and_alone() -> None:
    a, b, gone = Asked("x", 3), Asked("x"), Asked("x")
    queue = waiting(a, b, gone, batches=(1, 2, 5))
    pieces = queue.take().pieces
    assert len(pieces) == 5
    gone.unwanted.set()
    queue.put_back([pieces[0], pieces[2], pieces[4]])
    assert [taken(queue), taken(queue)] == [[(a, 0)], [(a, 2)]]
    assert len(queue) == 0


def test_an_image_waits_for_others_no_longer_than_is_said() -> None:
    a = Asked("x")
    queue = waiting(a, wait=0.05)
    assert taken(queue) == [(a, 0)]
    assert time.monotonic() - a.begun >= 0.05
    full = [Asked("x") for _ in range(4)]
    queue = waiting(*full, wait=60.0)
    assert len(taken(queue)) == 4


def test_places_are_bounded_and_given_back() -> None:
    a, b = Asked("x"), Asked("y")
    queue = waiting(a, b, places=3)
    queue.reserve()
    with pytest.raises(QueueFull):
        queue.reserve()
    queue.release()
    queue.remove(a)
    assert (len(queue), queue.ahead()) == (1, {b: 0})
    assert queue.clear() == [b]
    queue.close()
    with pytest.raises(QueueFull):
        queue.reserve()
