"""Sessions of one model on several devices: a thread for each further device has all that happens there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")


class OtherDevice(Generic[S]):
    """A session on a further device.

    CUDA and HIP have a current device for each thread, which allocations set and replays of graphs do not. So one
    thread opens the session, runs it and copies its memory.

    Args:
        number: of the device.
        opening: opens the session.
    """

    def __init__(self, number: int, opening: Callable[[], S]) -> None:
        self._thread = ThreadPoolExecutor(1, f"sdort-device-{number}")
        self._opened = self._thread.submit(opening)

    @property
    def session(self) -> S:
        """The session, once it is open; errors are those of opening."""
        return self._opened.result()

    def begin(self, call: Callable[[S], T]) -> Future[T]:
        """Call a function with the session, in the device's thread."""
        return self._thread.submit(lambda: call(self.session))

    def call(self, call: Callable[[S], T]) -> T:
        """:meth:`begin`, and its result."""
        return self.begin(call).result()


def shares(total: int, unit: int, devices: int) -> list[slice]:
    """Parts of ``total`` samples, one a device, as equal as they can be and the larger ones first; none is empty.

    Args:
        unit: samples that stay together; a divisor of ``total``.
    """
    each, more = divmod(total // unit, devices)
    sizes = [unit * (each + (number < more)) for number in range(devices)]
    return [slice(sum(sizes[:number]), sum(sizes[: number + 1])) for number, size in enumerate(sizes) if size]


def side_by_side(
    here: Callable[[T], U], elsewhere: Sequence[Callable[[T], Future[U]]], parts: Iterable[T]
) -> Iterator[U]:
    """The results of parts in their order: as many at a time as there are devices.

    Args:
        here: computes one on the first device.
        elsewhere: begin one on a further device each.

    Raises:
        Exception: as ``here`` and what it raises elsewhere, when nothing runs any more.
    """
    left = iter(parts)
    while group := list(islice(left, 1 + len(elsewhere))):
        begun = [begin(part) for begin, part in zip(elsewhere, group[1:], strict=False)]
        try:
            yield here(group[0])
            for future in begun:
                yield future.result()
        finally:
            wait(begun)
