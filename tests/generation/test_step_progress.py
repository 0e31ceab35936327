"""The words of the progress bar of a generation."""

from __future__ import annotations

import pytest

from sdort.generation.denoising.step_progress import StepProgress, speed, three_digits


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, the list's last value."""
    times = [0.0]
    monkeypatch.setattr("sdort.generation.denoising.step_progress.time.perf_counter", lambda: times[-1])
    return times


def test_one_image_says_step_time_left_and_speed(now: list[float]) -> None:
    bar = StepProgress(images=1, at_once=4, steps=5, calls=5)
    assert (bar.description(), bar.numbers()) == ("denoising", ["step 0 of 5", "-:--:-- left"])
    now.append(30)
    bar.step(1)
    assert bar.numbers() == ["step 1 of 5", "0:02:00 left", "30.0 s/it"]
    now.append(30.25)  # the first call prepared what the second found
    bar.step(1)
    assert bar.numbers() == ["step 2 of 5", "0:00:01 left", "4.00 it/s"]
    for number in (1, 2):
        bar.tile(number, 2)
        assert (bar.description(), bar.numbers()) == ("decoding", [f"tile {number} of 2"])


def test_several_images_say_which(now: list[float]) -> None:
    bar = StepProgress(images=5, at_once=2, steps=2, calls=3)  # two calls a step but for the last
    seen = []
    for images in (2, 2, 1):
        for _ in range(3):
            now.append(now[-1] + 2)
            bar.step(images)
            seen.append((bar.description(), *bar.numbers()[:2]))
        bar.tile(1, 1)
        assert bar.numbers() == ["decoding"]
        for _ in range(images):
            bar.image_done()
    assert seen[0] == ("images 1 to 2 of 5", "step 1 of 2", "0:00:16 left")
    assert seen[4] == ("images 3 to 4 of 5", "step 2 of 2", "0:00:08 left")
    assert seen[8] == ("image 5 of 5", "step 2 of 2", "0:00:00 left")
    assert bar.done == bar.total == 15


def test_steps_that_are_done_again_are_taken_back(now: list[float]) -> None:
    bar = StepProgress(images=2, at_once=2, steps=4, calls=4)
    bar.step(2)
    bar.step(2)
    bar.step(-4)
    assert (bar.done, bar.numbers()[0]) == (0, "step 0 of 4")


def test_numbers_have_three_digits() -> None:
    assert [three_digits(value) for value in (0.004, 9.99, 9.996, 99.96, 1234.5)] == [
        "0.00", "9.99", "10.0", "100", "1234",
    ]  # fmt: skip
    assert [speed(value) for value in (4.056, 1, 0.25)] == ["4.06 it/s", "1.00 it/s", "4.00 s/it"]
