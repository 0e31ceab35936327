"""The measurements of ``sdort verify`` are what their definitions say, and its limits let through what they should."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sdort.generation.pictures.images import Generated
from sdort.graph.signature import Array
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification import component_comparison
from sdort.verification.bisection.tensor_pairs import TensorPair, difference, in_layout_of
from sdort.verification.checks import Precision, check_images, check_outputs
from sdort.verification.component_comparison import Comparison
from sdort.verification.component_summary import summarize_comparisons
from sdort.verification.image_comparison import (
    ImageComparison,
    compare_images,
    exceeded_limits,
    failed_images,
    make_requests,
    read_prompts,
    summarize_images,
)
from sdort.verification.limits import ENOUGH, OTHER, PSNR, TOLERANCES, Tolerance
from sdort.verification.metrics import largest_pixel, ssim
from sdort.verification.recorded_inputs import Inputs
from sdort.verification.references import Reference
from sdort.verification.runners import RunConfiguration
from sdort.workload.cases import Case
from sdort.workload.judgement import judge_output, judge_outputs, pair_outputs

RNG = np.random.default_rng(5)
LIMIT = Tolerance(1e-2, 1e-3)


def picture(height: int = 15, width: int = 13) -> Array:
    return RNG.integers(0, 256, (height, width, 3)).astype(np.uint8)


def naive_ssim(x: Array, y: Array) -> float:
    """The paper's definition, window by window, without a shortcut: weighted means, variances and covariance."""
    offsets = np.arange(-5, 6)
    window = np.exp(-(offsets[:, None] ** 2 + offsets[None] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    found = []
    for channel in range(3):
        for row in range(x.shape[0] - 10):
            for column in range(x.shape[1] - 10):
                a = x[row : row + 11, column : column + 11, channel].astype(np.float64)
                b = y[row : row + 11, column : column + 11, channel].astype(np.float64)
                mean_a, mean_b = (window * a).sum(), (window * b).sum()
                var_a, var_b = (window * (a - mean_a) ** 2).sum(), (window * (b - mean_b) ** 2).sum()
                both = (window * (a - mean_a) * (b - mean_b)).sum()
                light = (2 * mean_a * mean_b + 6.5025) / (mean_a**2 + mean_b**2 + 6.5025)
                found.append(light * (2 * both + 58.5225) / (var_a + var_b + 58.5225))
    return float(np.mean(found))


def test_ssim_is_the_papers() -> None:
    image = picture()
    noisy = np.clip(image + RNG.normal(0, 30, image.shape), 0, 255).astype(np.uint8)
    assert 0.3 < naive_ssim(noisy, image) < 0.98
    assert ssim(noisy, image) == pytest.approx(naive_ssim(noisy, image), abs=1e-10)
    assert ssim(image, image) == 1
    assert ssim(255 - image, image) < 0


def test_ssim_wants_a_whole_window() -> None:
    with pytest.raises(ValueError, match="11 x 11 pixels, not 10 x 13"):
        ssim(picture(10), picture(10))


def test_pixel_differences_do_not_wrap_around() -> None:
    assert largest_pixel(np.array([[[0, 9]]], np.uint8), np.array([[[200, 9]]], np.uint8)) == 200


def test_a_rounded_output_passes_and_three_kinds_of_wrong_ones_do_not() -> None:
    wanted = RNG.standard_normal(4000)
    assert judge_output(wanted + RNG.normal(0, 5e-4, 4000), wanted, LIMIT)[1] is None
    corner = wanted.copy()
    corner[7] += 0.1
    assert "largest error" in str(judge_output(corner, wanted, LIMIT)[1])
    assert "mean error" not in str(judge_output(corner, wanted, LIMIT)[1])
    everywhere = str(judge_output(wanted + 2e-3, wanted, LIMIT)[1])
    assert "mean error" in everywhere
    assert "largest" not in everywhere
    # Outliers make the standard deviation large, so that only the angle tells.
    spiky = np.where(np.arange(4000) < 4, 100.0, 0.0)
    turned = str(judge_output(spiky + np.where(np.arange(4000) == 5, 2.0, 0.0), spiky, Tolerance(1, 1e-3))[1])
    assert turned.startswith("1 - cosine")


def test_what_is_not_finite_or_of_another_shape_is_said() -> None:
    wanted = np.ones((2, 3))
    broken = wanted.copy()
    broken[0] = np.nan
    assert judge_output(broken, wanted, LIMIT) == (None, "has NaN or infinite values (50 % of it)")
    assert judge_output(wanted, broken, LIMIT) == (
        None,
        "cannot be compared: the reference itself gives NaN or infinite values",
    )
    assert judge_output(wanted[:1], wanted, LIMIT)[1] == "has the shape (1, 3), the reference (2, 3)"


def _edge_cases() -> Iterator[tuple[str, Array, Array]]:
    """Outputs at both sides of every limit, of every precision and component, and constant ones."""
    rng = np.random.default_rng(0)
    reference = rng.standard_normal(4000)
    reference = (reference - reference.mean()) / reference.std()
    signs = np.sign(rng.standard_normal(4000))
    for factor in (0.5, 0.999, 1.001, 2.0):
        for share in (0.001, 0.05, 0.0985, 0.3, 1.0):
            few = rng.permutation(4000) < share * 4000
            yield f"{factor} of the limits in {share}", factor * signs * few, reference
    constant = np.full(4000, 3.0)
    yield "constant", 0 * constant, constant
    yield "constant where the reference is not", 3.0 - reference, reference
    yield "nearly constant", np.where(np.arange(4000), 0.0, 1e-9), constant


def _unfit_cases() -> Iterator[tuple[str, Array, Array]]:
    """Outputs that no limit makes right."""
    good = np.random.default_rng(0).standard_normal((2, 3))
    for number in (np.nan, np.inf, -np.inf):
        broken = np.where(np.arange(6).reshape(2, 3) == 4, number, good)
        yield f"{number}", broken, good
        yield f"{number} in the reference", good, broken
        yield f"{number} in both", broken, broken
    yield "fewer rows", good[:1], good
    yield "the same values in another shape", good.reshape(3, 2), good
    yield "no elements", good[:0], good[:0]
    yield "float16 beyond its range", np.full((2, 3), np.inf, np.float16), good


def _verdicts(
    monkeypatch: pytest.MonkeyPatch, component: str, precision: Precision, output: Array, reference: Array
) -> tuple[str | None, str | None]:
    """The problems of the output that bench and verify find, from what they call where a component has run."""
    case = Case(component, 1, 64, 64)
    bench = Reference("the reference", {case: {"y": reference}}).check(case, {"y": output}, precision)
    monkeypatch.setattr(component_comparison, "run_candidate", lambda *_: [{"y": output}])
    monkeypatch.setattr(component_comparison, "run_original", lambda *_: [{"y": reference}])
    configuration, inputs = RunConfiguration(CPU, RuntimeOptions()), [Inputs("random", "1", {})]
    [compared], missing = component_comparison.compare_component(
        component, Path(), {component_comparison.ONNX: Path()}, configuration, inputs, precision
    )
    assert not missing
    return bench.problem, compared.problem


@pytest.mark.parametrize(("dtype", "component"), TOLERANCES)
def test_bench_and_verify_give_one_verdict(monkeypatch: pytest.MonkeyPatch, dtype: str, component: str) -> None:
    """Of the same outputs, in the same words: bench says besides of which output and from what."""
    precision, found = Precision(dtype), set()
    limit = precision.tolerance(component)
    cases = [
        (name, reference + (error if "constant" in name else allowed * error), reference)
        for name, error, reference in _edge_cases()
        for allowed in (limit.largest, limit.mean)
    ]
    for name, output, reference in [*cases, *_unfit_cases()]:
        bench, verify = _verdicts(monkeypatch, component, precision, output, reference)
        assert bench in (verify, f"y {verify}", f"differs from the reference by its {verify}"), name
        found.add(verify is None)
    assert found == {True, False}


def test_bench_and_verify_judge_the_same_images_alike() -> None:
    one, two, small = picture(16), picture(17), picture(12)
    shown = [(one, None), (two, None), (small, None), (255 - one, None), (one, "it is all black")]
    for precision, image, other in itertools.product(PSNR, shown, shown):
        pair = [Generated(4, *each) for each in (image, other)]
        bench = check_images(pair[:1], pair[1:], "it", Precision(precision))
        verify = summarize_images(compare_images({("p", 4): pair[0]}, {("p", 4): pair[1]}, precision))
        assert bench.problem == (f"is not like it: {verify.problem}" if verify.problem else None)
        assert (bench.psnr, bench.lowest_psnr, bench.few) == (verify.psnr, verify.lowest, verify.few)


def test_an_output_without_a_counterpart_is_judged_alone() -> None:
    values, broken = np.arange(4.0), np.full(4, np.nan)
    judged = judge_outputs({"y": values, "z": broken, "flags": np.ones(4, bool)}, {"y": values}, LIMIT)
    assert [each.problem for each in judged.values()] == [None, "has NaN or infinite values (100 % of it)", None]
    assert [each.errors is None for each in judged.values()] == [False, True, True]


def test_an_output_may_be_constant_only_where_its_reference_is() -> None:
    varied, constant = np.arange(4.0), np.full(4, 3.0)
    assert judge_output(constant, constant, LIMIT).problem is None
    assert judge_output(constant, None, LIMIT).problem == judge_output(constant, varied, LIMIT).problem == "is constant"
    assert judge_output(varied, None, LIMIT) == (None, None)


def test_bench_looks_at_the_angle_too() -> None:
    """Errors within the largest and the mean that turn the output further than rounding does."""
    limit = Precision("float32").tolerance("unet")
    reference = np.tile([-1.0, 1.0], 2000)
    output = reference + np.where(np.arange(4000) % 20 < 2, 0.99 * limit.largest, 0.0)
    problem = check_outputs({"y": output}, {"y": reference}, "it", "unet", Precision("float32")).problem
    assert problem is not None
    assert problem.startswith("differs from it by its 1 - cosine")


def test_outputs_are_paired_by_name_else_by_order() -> None:
    one, two, other = np.zeros(1), np.zeros(2), np.zeros(3)
    assert [n for n, _, _ in pair_outputs({"a": one, "b": two}, {"b": two, "c": other})] == ["b"]
    assert [(n, w.size) for n, _, w in pair_outputs({"a": one}, {"x": two, "y": other})] == [("a", 2)]


@pytest.mark.parametrize(
    ("precision", "good"),
    [("float32", (40.0, 0.995, 32)), ("float16", (40.0, 0.95, 255)), ("bfloat16", (18.0, 0.8, 255))],
)
def test_image_limits(precision: str, good: tuple[float, float, int]) -> None:
    """Those that the README states."""
    assert exceeded_limits(*good, precision) is None
    assert "PSNR" in str(exceeded_limits(good[0] - 0.1, good[1], good[2], precision))
    assert "SSIM" in str(exceeded_limits(good[0], good[1] - 1e-4, good[2], precision))
    assert (exceeded_limits(good[0], good[1], 33, precision) is None) is (precision != "float32")


def drawn(*decibels: float, ssim: float = 1.0, pixel: int = 0, precision: str = "float16") -> list[ImageComparison]:
    return [ImageComparison("p", seed, precision, each, ssim, pixel) for seed, each in enumerate(decibels)]


def test_a_few_images_that_part_are_no_failure_but_most_are() -> None:
    few = summarize_images(drawn(*[25.0] * 4, *[60.0] * 4))
    assert (few.problem, few.images, few.psnr, few.lowest) == (None, 8, 60.0, 25.0)
    most = summarize_images(drawn(*[25.0] * 5, *[60.0] * 3))
    assert most.problem == "median PSNR 25.0 dB, at least 40 wanted (8 images)"
    assert not most.few
    assert summarize_images(drawn(math.inf, 25.0)).psnr == math.inf


def test_the_median_of_each_measure_has_to_hold() -> None:
    blurred, sharp = drawn(*[60.0] * 5, ssim=0.9), drawn(*[60.0] * 4)
    assert summarize_images(blurred + sharp).problem == "median SSIM 0.9000, at least 0.95 wanted (9 images)"
    assert summarize_images(blurred[:4] + sharp).problem is None
    spotted = drawn(*[60.0] * 5, pixel=33, precision="float32")
    clean = drawn(*[60.0] * 4, precision="float32")
    assert summarize_images(spotted + clean).problem == "median largest pixel difference 33, 32 allowed (9 images)"
    assert summarize_images(spotted[:4] + clean).problem is None


@pytest.mark.parametrize(("images", "allowed"), [(2, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_quarter_of_the_images_may_show_something_else(images: int, allowed: int) -> None:
    assert summarize_images(drawn(*[19.0] * allowed, *[60.0] * (images - allowed))).problem is None
    found = summarize_images(drawn(*[19.0] * (allowed + 1), *[60.0] * (images - allowed - 1)))
    assert found.problem is not None
    assert f"({images} images)" in found.problem
    if allowed < images // 2:  # else the median has fallen too
        assert f"images with a PSNR below 20 dB: {allowed + 1}, allowed: {allowed}" in found.problem


def test_in_fp32_every_image_has_to_be_its_reference() -> None:
    """No right one is off, so that one that is cannot be chance, however many are right."""
    assert summarize_images(drawn(*[41.0] * 4, precision="float32")).problem is None
    found = summarize_images(drawn(39.0, *[60.0] * 3, precision="float32"))
    assert found.problem == "images with a PSNR below 40 dB: 1, allowed: 0 (4 images)"
    assert not found.few
    assert not summarize_images(drawn(39.0, precision="float32")).few


def test_of_too_few_images_it_is_said() -> None:
    one = summarize_images(drawn(30.0))
    assert (one.problem, one.few) == ("PSNR 30.0 dB, at least 40 wanted", True)
    assert [summarize_images(drawn(*[30.0] * count)).few for count in (7, 8)] == [True, False]
    assert not summarize_images(drawn(60.0)).few


def test_a_bad_image_is_not_outvoted() -> None:
    bad = ImageComparison("p", 9, "float16", problem="the image is bad: it is all black")
    found = summarize_images([*drawn(*[60.0] * 8), bad])
    assert found.problem == "seed 9: the image is bad: it is all black"
    assert (found.images, found.psnr, found.few) == (8, 60.0, False)
    assert summarize_images([bad]).problem == found.problem
    assert summarize_images([]).problem is None


@pytest.mark.parametrize(("low", "other"), [(0.115, 0.0), (0.081, 0.006)])
def test_a_right_pipeline_fails_less_than_once_in_a_thousand_times(low: float, other: float) -> None:
    """The shares of images below the limits are those measured of right pipelines, after 8 and 20 steps."""
    chance = 0.0
    for lows in range(ENOUGH + 1):
        for others in range(lows + 1):
            values = [OTHER["float16"] - 1] * others + [PSNR["float16"] - 1] * (lows - others)
            if summarize_images(drawn(*values, *[60.0] * (ENOUGH - lows))).problem:
                ways = math.comb(ENOUGH, lows) * math.comb(lows, others)
                chance += ways * other**others * (low - other) ** (lows - others) * (1 - low) ** (ENOUGH - lows)
    assert 1e-5 < chance < 1e-3


def test_a_summary_has_the_worst_of_each_error() -> None:
    """Of every order of the cases; the cosine's worst is its smallest."""
    cases = [np.array([1.0, 2, 3, 9]), np.array([1.0, 2.5, 3, 4]), np.array([-1.0, 2, 3, 4.5])]
    reference = np.array([1.0, 2, 3, 4])
    found = [judge_output(case, reference, LIMIT).errors for case in cases]
    comparisons = [Comparison("unet", "float32", "random", "", "ONNX", "y", LIMIT, each, "wrong") for each in found]
    for order in itertools.permutations(comparisons):
        [summary] = summarize_comparisons(order)
        assert summary.largest is not None
        for name in ("largest", "mean", "largest_share", "mean_share", "largest_relative"):
            assert getattr(summary.largest, name) == max(getattr(each, name) for each in found)
        assert summary.largest.cosine == min(each.cosine for each in found if each)
        assert (summary.cases, summary.worst) == (3, max(comparisons, key=lambda each: each.share))


@pytest.mark.parametrize("done", range(4))
def test_the_images_that_were_not_made_are_those_after_the_ones_that_were(done: int) -> None:
    [request] = make_requests(["p"], 4, 5)
    references = {("p", seed): Generated(seed, picture(16 + seed), None) for seed in range(4)}
    found = failed_images(request, references, "float16", "no memory", done)
    assert [(each.seed, each.problem) for each in found] == [(seed, "no memory") for seed in range(done, 4)]
    assert [each.reference.shape[0] for each in found] == [*range(16 + done, 20)]


def test_ssim_finds_what_psnr_does_not() -> None:
    """A fine pattern of little contrast that is gone: above 40 dB, but the picture lost what it showed."""
    pattern = (128 + 2 * (np.indices((64, 64)).sum(0) % 2 * 2 - 1))[..., None].repeat(3, -1).astype(np.uint8)
    flat = np.full_like(pattern, 128)
    [found] = compare_images({("p", 0): Generated(0, flat, None)}, {("p", 0): Generated(0, pattern, None)}, "float32")
    assert found.psnr is not None
    assert found.psnr > PSNR["float32"]
    assert found.differs is not None
    assert found.differs.startswith("SSIM")
    assert not found.passed


def test_bad_images_fail_whoever_drew_them() -> None:
    bad, good = Generated(0, np.zeros((16, 16, 3), np.uint8), "it is all black"), Generated(0, picture(16, 16), None)
    one = compare_images({("p", 0): bad}, {("p", 0): good}, "float16")[0]
    other = compare_images({("p", 0): good}, {("p", 0): bad}, "float16")[0]
    assert (one.problem, other.problem) == (
        "the image is bad: it is all black",
        "the reference is bad: it is all black",
    )
    small = compare_images({("p", 0): Generated(0, picture(16, 8), None)}, {("p", 0): good}, "float16")[0]
    assert "the reference 16x16 pixels" in str(small.problem)


def test_prompts_from_a_file(tmp_path: object) -> None:
    from pathlib import Path

    from sdort.errors import UsageError

    path = Path(str(tmp_path)) / "prompts.txt"
    path.write_text("# mine\na cat\n\n  a dog  \na cat\n")
    assert read_prompts(path) == ("a cat", "a dog")
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="has no prompt"):
        read_prompts(path)
    lines = path.with_suffix(".jsonl")
    lines.write_text('{"prompt": "a cat"}\n{"prompt": "a dog"}')
    assert read_prompts(lines) == ("a cat", "a dog")
    lines.write_text('{"prompt": "a cat"}\n{"prompt": "a dog", "seed": 1}')
    with pytest.raises(UsageError, match="lines with options of their own: seed"):
        read_prompts(lines)
    requests = make_requests(("a cat", "a dog"), seeds=3, steps=5)
    assert [(r.prompt, r.steps, r.num_images, r.images_at_once) for r in requests] == [
        ("a cat", 5, 3, 1),
        ("a dog", 5, 3, 1),
    ]


def test_every_component_has_a_limit_in_every_precision_and_fewer_bits_have_wider_ones() -> None:
    for component in {component for _, component in TOLERANCES}:
        exact, half, coarse = (TOLERANCES[dtype, component] for dtype in ("float32", "float16", "bfloat16"))
        assert exact.largest < half.largest < coarse.largest
        assert exact.mean < half.mean < coarse.mean
        assert exact.cosine > half.cosine > coarse.cosine > 0.9


# --- tensors inside graphs ---


def test_layouts_are_seen_through() -> None:
    same, twin = TensorPair("a", "a"), TensorPair("a", "b")
    image = RNG.standard_normal((1, 3, 4, 5))
    last = image.transpose(0, 2, 3, 1)
    assert (in_layout_of(twin, image, last) == last).all()
    assert (in_layout_of(same, last, last.reshape(1, 20, 3)) == last.reshape(1, 20, 3)).all()
    assert in_layout_of(same, image, np.zeros((1, 2))).shape == image.shape
    # A shape that does not tell the layout.
    cube = RNG.standard_normal((1, 4, 4, 4))
    assert (in_layout_of(twin, cube, cube) == cube.transpose(0, 2, 3, 1)).all()
    assert (in_layout_of(same, cube, cube) == cube).all()


def test_differences_of_tensors() -> None:
    wanted = RNG.standard_normal(1000).astype(np.float32)
    assert difference(wanted, wanted) == (0, 0)
    largest, mean = difference(wanted, wanted + np.float32(0.1))
    assert mean == pytest.approx(0.1, rel=0.1)
    assert 0 < largest < 0.11
    assert difference(wanted, wanted[:4]) == (np.inf, np.inf)
    assert difference(np.arange(3), np.array([0, 1, 3])) == (np.inf, np.inf)
    nan = wanted.copy()
    nan[3] = np.nan
    assert difference(wanted, nan) == (np.inf, np.inf)
    assert difference(nan, wanted) == (np.inf, np.inf)


def test_a_masks_infinity_is_no_overflow_but_a_numbers_is() -> None:
    mask = np.array([0, -3.4e38, 0, 0], np.float32)
    assert difference(mask, np.array([0, -np.inf, 0, 0], np.float16)) == (0, 0)
    large = np.array([0, 1e5, 0, 0], np.float32)
    assert difference(large, np.array([0, np.inf, 0, 0], np.float16)) == (np.inf, np.inf)


@pytest.mark.parametrize(
    ("dtype", "timestep", "factor"),
    [
        ("float16", 1, 2.5),
        ("float16", 9.5, 2.5),
        ("float16", 10, 1),
        ("float16", None, 1),
        ("float32", 1, 1),
        ("bfloat16", 1, 1),
    ],
)
def test_fp16_may_err_more_where_hardly_any_noise_is_left(dtype: str, timestep: float | None, factor: float) -> None:
    plain, limit = TOLERANCES[dtype, "unet"], Precision(dtype).tolerance("unet", timestep)
    assert (limit.largest, limit.mean) == pytest.approx((factor * plain.largest, factor * plain.mean))
