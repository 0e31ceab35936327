"""Images that are written while the next ones are drawn."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.errors import CancelledError, OutputError
from sdort.generation import image_writer
from sdort.generation.image_writer import ImageWriter
from sdort.generation.result import Image


def image(seed: int) -> Image:
    record: Any = SimpleNamespace(safety="off")
    return Image(None, seed, None, "a cat", "", np.zeros((1, 1, 3), np.uint8), record)


class Files:
    """Files that are written when the test lets them; ``bad`` ones cannot be."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.begun: list[int] = []
        self.may = [threading.Event() for _ in range(20)]

    def write(self, number: int) -> Path:
        self.begun.append(number)
        assert self.may[number].wait(10)
        if number in self.bad:
            raise OutputError(f"cannot write {number}")
        return Path(f"{number}.png")


def test_nothing_waits_for_a_file_and_the_order_is_kept() -> None:
    files, done = Files(), list[tuple[int, Path | None]]()
    with ImageWriter(lambda number, found: done.append((number, found.path))) as writer:
        for number in range(3):
            writer.take(number, image(number), partial(files.write, number))
        assert done == []
        for number in (2, 1):
            files.may[number].set()
        writer.take(3, image(3), None)
        assert done == []
        files.may[0].set()
    assert done == [(0, Path("0.png")), (1, Path("1.png")), (2, Path("2.png")), (3, None)]


def test_few_images_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_writer, "MOST_WAITING", 2)
    files, done = Files(), list[int]()
    with ImageWriter(lambda number, _: done.append(number)) as writer:
        for number in range(6):
            files.may[number].set()
            writer.take(number, image(number), partial(files.write, number))
            assert len(done) >= number - 1
    assert done == [*range(6)]


def write_all(files: Files, done: list[int], count: int, error: Exception | None = None) -> None:
    with ImageWriter(lambda number, _: done.append(number)) as writer:
        for number in range(count):
            files.may[number].set()
            writer.take(number, image(number), partial(files.write, number))
        if error:
            raise error


def test_a_file_that_cannot_be_written_ends_it_and_the_others_are_written() -> None:
    files, done = Files(1, 3), list[int]()
    with pytest.raises(OutputError, match="cannot write 1"):
        write_all(files, done, 6)
    assert done == [number for number in sorted(files.begun) if number not in files.bad]


def test_what_ends_the_drawing_does_not_take_the_images_away() -> None:
    files, done = Files(), list[int]()
    with pytest.raises(CancelledError):
        write_all(files, done, 3, CancelledError("stop"))
    assert done == [0, 1, 2]
