"""Lists of seeds: ``7``, ``1,5,10-20``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from sdort.errors import UsageError
from sdort.options.number_ranges import NUM_IMAGES, SEED


def read_seeds(seeds: int | str | Iterable[int]) -> tuple[int, ...]:
    """Seeds in their order.

    Args:
        seeds: one, several, or a text of numbers and ranges with commas between; a range has both its ends.

    Raises:
        UsageError: something else, none, or more than images of a run.
    """
    given = _read_text(seeds) if isinstance(seeds, str) else seeds if isinstance(seeds, Iterable) else [seeds]
    found = list(islice(given, NUM_IMAGES.high + 1))  # an iterable may have no end
    if not found:
        raise UsageError("--seed has no number", hint="Give one, such as 7, or several, such as 1,5,10-20.")
    if len(found) > NUM_IMAGES.high:
        raise UsageError(f"--seed has more than {NUM_IMAGES.high:,} numbers", hint="Give fewer, or run twice.")
    return SEED.check_all(found)


def _read_text(text: str) -> Iterator[object]:
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if not dash or not first:
            yield SEED.parse(part)
            continue
        begin, end = (SEED.check(SEED.parse(number.strip())) for number in (first, last))
        if end < begin or end - begin >= NUM_IMAGES.high:
            raise UsageError(f"--seed {part}: a range goes up, and has at most {NUM_IMAGES.high:,} numbers")
        yield from range(begin, end + 1)
