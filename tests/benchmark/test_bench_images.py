"""Which images a pipeline's row of ``sdort bench`` is judged by, and what it says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.measure import _check, _Ready
from sdort.benchmark.rows import Row, refuse_failed
from sdort.errors import ParityError, UsageError
from sdort.generation.pictures.images import Generated
from sdort.providers import CPU
from sdort.verification.checks import Precision
from sdort.verification.references import Reference, generate_images
from sdort.workload.cases import SEED, Case


class Painter:
    """An engine that draws a picture of each seed, and another than it should where ``wrong`` says so."""

    name, path, provider = "onnxruntime", Path("painter"), CPU

    def __init__(self, wrong: Callable[[int], bool]) -> None:
        self.wrong = wrong
        self.seeds: list[int] = []

    def components(self) -> list[str]:
        return ["pipeline"]

    def prepare(self, case: Case, steps: int, scheduler: str | None) -> Painted:
        assert (steps, scheduler) == (7, "euler")
        self.seeds.append(case.seed)
        return Painted([self.paint(case.seed + index) for index in range(case.batch)])

    def paint(self, seed: int) -> Generated:
        noise = np.random.default_rng([seed, self.wrong(seed)])
        return Generated(seed, noise.integers(0, 256, (16, 16, 3), np.uint8), None)


class Painted:
    def __init__(self, images: list[Generated]) -> None:
        self.images = images

    def __call__(self) -> None:
        pass

    def result(self) -> list[Generated]:
        return self.images


def row(batch: int = 1, **values: Any) -> Row:
    return Row("painter", "onnxruntime", "cpu", "a CPU", "pipeline", batch, 16, 16, 7, "float16", "", **values)


def painted(engine: Painter, case: Case) -> _Ready:
    runner = engine.prepare(case, 7, "euler")
    return _Ready(cast("Any", engine), runner, row(case.batch), runner.result(), Precision("float16"))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("beside", ["reference", "baseline"])
def test_where_one_image_parts_more_are_drawn_and_decide(batch: int, beside: str) -> None:
    case, options = Case("pipeline", batch, 16, 16), BenchOptions(steps=7, scheduler="euler")
    right = Painter(lambda seed: False)
    reference = None
    if beside == "reference":
        images = right.prepare(case, 7, "euler").result()
        reference = Reference("it", {case: images}, lambda more: generate_images(cast("Any", right), more, 7, "euler"))
    first = [painted(right, case)] if beside == "baseline" else []
    # Those of the first call, and the first of the further ones: then five of eight or nine.
    for wrong, problem in ((batch, None), (5, f"({8 if batch == 1 else 9} images)")):
        engine = Painter(range(SEED, SEED + wrong).__contains__)
        each = painted(engine, case)
        _check([*first, each], case, reference, options)
        assert engine.seeds == list(range(SEED, SEED + 8, batch))
        assert each.row.status == "ok" if problem is None else problem in each.row.status
    assert each.row.lowest_psnr_db is not None
    assert each.row.lowest_psnr_db < 20


def test_what_is_alike_needs_no_more_images_and_what_cannot_draw_them_stays_as_it_is() -> None:
    case, options = Case("pipeline", 1, 16, 16), BenchOptions(steps=7, scheduler="euler")
    right = Painter(lambda seed: False)
    images = right.prepare(case, 7, "euler").result()

    def gone(more: Sequence[Case]) -> list[Generated]:
        raise UsageError("it is gone")

    reference = Reference("it", {case: images}, gone)
    same, other = painted(right, case), painted(Painter(lambda seed: True), case)
    _check([same, other], case, reference, options)
    assert (same.row.status, same.row.similarity()) == ("ok", "equal")
    assert "is not like it: PSNR" in other.row.status


def test_what_is_unlike_its_reference_is_sent_to_verify_and_what_does_not_run_is_not() -> None:
    unlike, broken = row(psnr_db=25.0, lowest_psnr_db=20.0), row()
    unlike.fail("is not like it: PSNR 25.0 dB, at least 40 wanted")
    broken.fail("cpu cannot run it")
    for rows, hint in (([unlike, broken], "sdort verify PIPELINE --bisect tells where and why."), ([broken], None)):
        with pytest.raises(ParityError) as caught:
            refuse_failed(rows)
        assert caught.value.hint == hint


def test_the_median_is_shown_with_the_lowest() -> None:
    assert row(psnr_db=61.6, lowest_psnr_db=41.2).similarity() == "61.6 dB (lowest 41.2)"
    assert row(psnr_db=math.inf, lowest_psnr_db=41.2).similarity() == "equal (lowest 41.2)"
    assert row(psnr_db=61.6, lowest_psnr_db=61.6).similarity() == "61.6 dB"
