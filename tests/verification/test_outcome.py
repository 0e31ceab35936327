"""What a verification says of results that are made by hand: what failed, what comes next, and every number's place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sdort.console import to_json
from sdort.errors import ParityError, SdortError
from sdort.generation.pictures.images import Generated
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification import references
from sdort.verification.bisection.blame import CAST, FUSION, NODE, SUM, BisectionFinding, _blamed, _spacing
from sdort.verification.bisection.fused_steps import same_order
from sdort.verification.bisection.tensor_pairs import TensorPair, difference, in_layout_of, tolerance_share
from sdort.verification.checks import Precision, check_images
from sdort.verification.command_line import VerifyOptions
from sdort.verification.component_comparison import Comparison
from sdort.verification.component_summary import summarize_comparisons, worst_summaries, worst_summary
from sdort.verification.image_comparison import (
    ImageComparison,
    blots,
    compare_image,
    exceeded_limits,
    make_requests,
    summarize_images,
)
from sdort.verification.limits import PIXEL, PSNR, SSIM, Tolerance
from sdort.verification.outcome import Provenance, Verification, remedy
from sdort.verification.references import compute_reference
from sdort.verification.report.shares import of_the_limit, percent
from sdort.verification.report.text import (
    compared_line,
    error_numbers,
    finding_lines,
    image_numbers,
    images_lines,
    kind_cells,
    miss_line,
    notes,
    semantic_lines,
    timestep_errors,
)
from sdort.verification.semantic import Miss, SemanticScore
from sdort.workload.cases import Case
from sdort.workload.judgement import Errors, pair_outputs

LIMIT = Tolerance(0.1, 0.01)


def errors(largest: float = 0.0, mean: float = 0.0, cosine: float = 1.0) -> Errors:
    return Errors(2 * largest, 3 * mean, cosine, largest, mean, 5 * largest)


def comparison(
    component: str = "unet", share: float = 0.5, against: str = "ONNX", inputs: str = "random", **values: Any
) -> Comparison:
    problem = values.pop("problem", "it is off" if share > 1 else None)
    measured = values.pop("errors", errors(0.1 * share))
    return Comparison(component, "float16", inputs, "sample 1", against, "y", LIMIT, measured, problem, **values)


def image(seed: int = 0, psnr: float | None = 60.0, precision: str = "float16", **values: Any) -> ImageComparison:
    return ImageComparison(values.pop("prompt", "a cat"), seed, precision, psnr, **values)


def verification(*comparisons: Comparison, **values: Any) -> Verification:
    options = values.pop("options", VerifyOptions())
    made = Verification(values.pop("candidate", Path("fast")), Path("model"), None, "cpu", 8, options)
    made.comparisons = list(comparisons)
    for name, value in values.items():
        setattr(made, name, value)
    return made


# Shares


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"), (0.009, "< 1 %"), (0.01, "1 %"), (0.979, "97 %"), (1.0, "100 %"), (1.0001, "101 %"),
        (10.0, "1000 %"), (10.01, "11 times"), (12.0, "12 times"), (2e6, "2.0e+06 times"), (math.inf, "no number"),
        (math.nan, "no number"),
    ],
)  # fmt: skip
def test_shares_of_a_limit(share: float, text: str) -> None:
    assert percent(share) == text
    assert of_the_limit(share) == (f"{text} the limit" if "times" in text else f"{text} of the limit")


@pytest.mark.parametrize(
    ("measured", "share"),
    [(errors(0.05), 0.5), (errors(0.0, 0.02), 2.0), (errors(0.05, 0.002, 1 - 9e-4), 2.0), (errors(0.3, 0.02), 3.0)],
)
def test_a_comparison_s_share_is_that_of_what_uses_most(measured: Errors, share: float) -> None:
    assert comparison(errors=measured).share == pytest.approx(share)
    assert comparison(errors=None, problem="NaN").share == math.inf


@pytest.mark.parametrize(
    ("psnr", "ssim", "pixel", "precision", "share"),
    [
        (40.0, 1.0, 0, "float32", 1.0), (60.0, 1.0, 16, "float32", 0.5), (60.0, 0.99, 0, "float32", 2.0),
        (60.0, 1.0, 255, "float16", 0.1), (20.0, 0.95, 1, "float16", 10.0), (60.0, None, None, "float32", 0.1),
        (38.0, 0.9, 0, "bfloat16", 0.5),
    ],
)  # fmt: skip
def test_an_image_s_share(psnr: float, ssim: float | None, pixel: int | None, precision: str, share: float) -> None:
    assert image(psnr=psnr, ssim=ssim, largest_pixel=pixel, precision=precision).limit_share == pytest.approx(share)
    assert image(psnr=None).limit_share is None


@pytest.mark.parametrize("precision", PSNR)
def test_a_limit_may_be_reached(precision: str) -> None:
    most = PIXEL[precision] or 255
    just = (PSNR[precision], SSIM[precision], most)
    assert exceeded_limits(*just, precision) is None
    assert exceeded_limits(just[0], None, 0, precision) is None
    assert str(exceeded_limits(just[0] - 0.1, *just[1:], precision, "median ")).startswith("median PSNR")
    assert str(exceeded_limits(just[0], just[1] - 1e-4, most, precision)).startswith("SSIM")
    assert bool(exceeded_limits(*just[:2], most + 1, precision)) is (PIXEL[precision] is not None)
    both = str(exceeded_limits(just[0] - 1, just[1] - 0.1, 0, precision))
    assert (both.count(";"), "SSIM" in both) == (1, True)


# What failed


def test_what_is_out_of_its_limits_is_named_once() -> None:
    bad = image(problem="it is black")
    score = SemanticScore({"single": (0, 1)}, {"single": 0.9, "pair": 0.75}, False)
    assert verification(comparison(), images=[image()]).failed == []
    assert verification(
        comparison("vae_decoder", 2), comparison(), comparison("unet", 3), comparison("unet", 4), images=[bad],
        semantic=score,
    ).failed == ["vae_decoder", "unet", "images", "semantic score"]  # fmt: skip
    assert not verification(missing=["x"]).passed
    assert verification().verdict == "nothing within limits"
    right = verification(comparison(share=0.25), comparison("vae_decoder", 0.5), images=[image(), image(1)])
    assert right.verdict == "2 comparisons and 2 images within limits, closest: vae_decoder 50 %"
    right.semantic = replace(score, passed=True)
    assert right.verdict.endswith(", semantic score reached")
    wrong = verification(comparison(share=3), comparison("vae_decoder", 4, "torch", "recorded"), semantic=score)
    wrong.missing = ["a", "b", "c"]
    assert wrong.verdicts == [
        "2 of 2 comparisons out of limits, worst: vae_decoder, recorded inputs, against torch: 400 % of the limit",
        "semantic score too low: 90 % of single shapes, 75 % of pairs wanted", "not compared: a (and 2 more)",
    ]  # fmt: skip
    wrong.missing = ["a"]
    assert wrong.verdicts[-1] == "not compared: a"
    assert verification(images=[bad]).verdict == "images out of limits: seed 0: it is black"


def test_what_is_out_of_limits_is_the_worst_however_small_its_share() -> None:
    failed = comparison(share=0.1, problem="is constant", inputs="recorded")
    groups = summarize_comparisons([comparison(share=0.9), failed, comparison(share=0.8), comparison(against="torch")])
    assert [(each.inputs, each.against, each.cases, each.passed) for each in groups] == [
        ("random", "ONNX", 2, True), ("recorded", "ONNX", 1, False), ("random", "torch", 1, True)
    ]  # fmt: skip
    assert worst_summary(groups).worst is failed
    [mixed] = summarize_comparisons([comparison(share=0.9), replace(failed, inputs="random")])
    assert mixed.worst.problem == "is constant"
    others = summarize_comparisons([comparison("vae_decoder", 0.4), comparison(share=0.1)])
    assert [each.worst.share for each in worst_summaries([*groups, *others])] == pytest.approx([0.1, 0.4])
    assert [each.component for each in worst_summaries([*groups, *others])] == ["unet", "vae_decoder"]


# What comes next


def test_the_search_goes_to_what_differs_from_the_onnx_original_and_was_not_searched() -> None:
    options = VerifyOptions(steps=5, seeds=3)
    wrong = verification(
        comparison("text_encoder", 2, "torch"), comparison("unet", 2), comparison("vae_decoder", 2), options=options
    )
    assert wrong.next_command == "sdort verify fast --component unet --bisect --seeds 3 --steps 5 --provider cpu"
    wrong.searched = ["unet"]
    assert "--component vae_decoder --bisect" in str(wrong.next_command)
    wrong.searched = ["unet", "vae_decoder"]
    assert wrong.next_command is None
    with pytest.raises(ParityError) as caught:
        wrong.raise_if_failed()
    assert caught.value.hint is None
    wrong.searched = []
    with pytest.raises(ParityError, match="3 of 3 comparisons out of limits") as caught:
        wrong.raise_if_failed()
    assert str(caught.value.hint).startswith("Find the node:\n    sdort verify fast")
    verification(comparison()).raise_if_failed()


@pytest.mark.parametrize(("prompts", "seeds"), [(1, 8), (2, 4), (3, 3), (5, 2)])
def test_of_few_images_more_are_made(prompts: int, seeds: int) -> None:
    few = verification(images=[image(psnr=10.0, prompt=f"p{n}", differs="far") for n in range(prompts)])
    assert few.failed == ["images"]
    assert f"--seeds {seeds} " in str(few.next_command) or seeds == VerifyOptions().seeds
    with pytest.raises(ParityError) as caught:
        few.raise_if_failed()
    assert str(caught.value.hint).startswith("Compare more images, chance may have done it:")
    assert images_lines(few)[1] == f"images: {prompts} may differ by chance; --seeds {seeds} tells"
    many = verification(images=[image(n, 10.0) for n in range(8)])
    assert (many.next_command, many.images_together.few) == (None, False)


def test_after_some_components_the_whole_is_checked(tmp_path: Path) -> None:
    some = VerifyOptions(components=["unet"], images=False, bisect=True)
    right = verification(comparison(), options=some, candidate=tmp_path)
    assert right.next_command == f"sdort verify {tmp_path} --provider cpu"
    assert verification(comparison(), options=some, candidate=tmp_path / "file.onnx").next_command is None
    assert verification(comparison(), options=VerifyOptions(images=False), candidate=tmp_path).next_command is None


@pytest.mark.parametrize(
    ("asked", "made_for", "ends"),
    [("auto", "rocm", "--provider rocm"), ("auto", None, "'a dog'"), ("cuda", "rocm", "--provider cuda")],
)
def test_a_right_pipeline_is_run_where_it_is_made_for(asked: str, made_for: str | None, ends: str) -> None:
    options = VerifyOptions(RuntimeOptions(asked, tuning=True))
    right = verification(comparison(), options=options, images=[image(prompt="a long prompt"), image(prompt="a dog")])
    right.provenance = Provenance(made_for=made_for)
    assert str(right.next_command).startswith("sdort run fast --prompt 'a dog'")
    assert str(right.next_command).endswith(ends)


@pytest.mark.parametrize(
    ("kind", "blamed", "precision", "provider", "original", "made_for", "words"),
    [
        (CAST, ("half",), "bf16", "cpu", True, "rocm", None), (CAST, ("half",), "fp16", "cpu", False, "rocm", None),
        (CAST, ("half",), "fp16", "cpu", True, None, None), (FUSION, ("fold",), "fp16", "cpu", True, "rocm", None),
        (FUSION, ("attention", "packed_qkv"), "fp32", "cuda", True, "rocm", "--disable attention --disable packed_qkv"),
        (NODE, (), "fp16", "cpu", True, "rocm", "--provider rocm --fp16"), (NODE, (), "bf16", "cpu", True, "migraphx",
         "--provider migraphx --bf16"), (NODE, (), "fp16", "rocm", False, None, "--component unet --provider cpu"),
        (SUM, (), "fp16", "rocm", True, "rocm", None),
    ],
)  # fmt: skip
def test_what_helps(
    kind: str, blamed: tuple[str, ...], precision: str, provider: str, original: bool, made_for: str | None,
    words: str | None, tmp_path: Path,
) -> None:  # fmt: skip
    finding = BisectionFinding("unet", "y", kind, "it diverges", blamed=blamed)
    options = VerifyOptions(RuntimeOptions(provider, tuning=True, graph=True), steps=8)
    place = Path("model") if original else None
    made = Provenance(made_for=made_for, precision=precision)
    found = remedy([finding], tmp_path, place, made, options)
    assert (found is None) is (words is None)
    assert found is None or found[1].endswith(str(words))
    if found and original and kind != NODE:  # the first finding that something helps against
        summed = BisectionFinding("unet", "y", SUM, "they add up")
        assert remedy([summed, finding], tmp_path, place, made, options) == found
    assert remedy([], tmp_path, place, made, options) is None


# Numbers in their places


def test_the_record_s_fields_are_those_of_what_was_compared() -> None:
    measured = Errors(1.0, 2.0, 0.5, 4.0, 5.0, 6.0)
    each = comparison("unet", 2, "torch", "recorded", errors=measured)
    shown = image(3, 25.5, ssim=0.75, largest_pixel=9, differs="much")
    result = verification(each, images=[shown], missing=["m"], notes=["n"], precisions={"unet": Precision("float16")})
    record = to_json(result)
    [one], [two] = record["components"], record["images"]
    for name in ("component", "precision", "inputs", "sample", "against", "output", "passed", "problem"):
        assert one[name] == getattr(each, name)
    for field in fields(Errors):
        if field.name != "largest_relative":
            assert one[field.name] == getattr(measured, field.name)
    assert one["allowed"] == {"largest_share": 0.1, "mean_share": 0.01, "cosine": LIMIT.cosine}
    assert one["limit_share"] == each.share
    for name in ("prompt", "seed", "precision", "psnr", "ssim", "largest_pixel", "differs", "passed", "problem"):
        assert two[name] == getattr(shown, name)
    assert two["limit_share"] == shown.limit_share
    assert not {"errors", "feeds", "share"} & {*one}
    assert not {"image", "reference"} & {*two}
    assert (record["against"], record["checkpoint"], record["steps"]) == ("model", None, 8)
    assert (record["missing"], record["notes"], record["failed"]) == (["m"], ["n"], ["unet", "images"])
    bare = to_json(verification(comparison(errors=None, problem="NaN")))["components"][0]
    assert (bare["largest"], bare["mean_share"], bare["limit_share"]) == (None, None, None)


def test_numbers_in_the_tables() -> None:
    [summary] = summarize_comparisons([comparison(errors=errors(0.05, 0.002, 1 - 3e-4))])
    assert error_numbers(summary) == ("5.0e-02", "2.0e-03", "3.0e-04")
    assert error_numbers(summarize_comparisons([comparison(errors=errors(0.05, 0.0, 1 + 1e-9))])[0])[2] == "0.0e+00"
    assert error_numbers(summarize_comparisons([comparison(errors=None, problem="x")])[0]) == ("", "", "")
    assert image_numbers(image(0, 25.55, ssim=0.98765, largest_pixel=7)) == ("25.6", "0.9877", "7")
    assert image_numbers(image(0, math.inf)) == ("equal", "", "")
    assert image_numbers(image(0, None, ssim=0.0, largest_pixel=0)) == ("", "0.0000", "0")


def test_errors_along_a_run_are_sorted_by_component_reference_and_time() -> None:
    from sdort.verification.recorded_inputs import Inputs

    def at(component: str, against: str, timestep: float | None, share: float = 0.5) -> Comparison:
        return comparison(component, share, against, "recorded", feeds=Inputs("recorded", "", {}, timestep))

    rows = timestep_errors(
        [at("unet", "torch", 1), at("unet", "ONNX", 1), at("unet", "ONNX", 999), at("unet", "ONNX", 1, 2.0),
         at("controlnet", "ONNX", 0), at("unet", "ONNX", None)]
    )  # fmt: skip
    assert [each.cells for each in rows] == [
        ("controlnet", "ONNX", "0", "5.0e-02", "0.0e+00", "50 %", "ok"),
        ("unet", "ONNX", "999", "5.0e-02", "0.0e+00", "50 %", "ok"),
        ("unet", "ONNX", "1", "2.0e-01", "0.0e+00", "200 %", "failed"),
        ("unet", "torch", "1", "5.0e-02", "0.0e+00", "50 %", "ok"),
    ]


def test_notes_have_every_reason_or_the_worst() -> None:
    result = verification(
        comparison(share=2), comparison(share=3, inputs="recorded"), images=[image(1, 30.0, differs="far")],
        missing=["m"], notes=["n"], findings=[BisectionFinding("unet", "y", FUSION, "it diverges", blamed=("a", "b"))],
    )  # fmt: skip
    assert notes(result)[:3] == [
        "unet, random inputs, ONNX: y (sample 1): it is off", "unet, recorded inputs, ONNX: y (sample 1): it is off",
        "image, seed 1, 'a cat': far",
    ]  # fmt: skip
    assert notes(result)[-2:] == ["not compared: m", "n"]
    assert notes(result, every=False)[:1] == ["unet, recorded inputs, ONNX: y (sample 1): it is off"]
    assert not any("far" in line for line in notes(result, every=False)[:1])
    assert finding_lines(result) == ["unet: it diverges", "  made by: a, b"]


def test_a_semantic_score_in_words() -> None:
    counts = {"single": (9, 10), "pair": (7, 10), "size": (0, 0), "position": (3, 4)}
    original = {"single": (10, 10), "pair": (8, 10), "size": (0, 0), "position": (4, 4)}
    miss = Miss("a cat", 3, ("shapes", "colours"), "a dog", "a cow", False)
    score = SemanticScore(
        counts, {"single": 0.9, "pair": 0.75}, False, (miss,) * 9 + (replace(miss, original_right=True),)
    )
    assert kind_cells(replace(score, original=original)) == [
        ("single", "9 of 10", "10 of 10", "90 %", "ok"), ("pair", "7 of 10", "8 of 10", "75 %", "failed"),
        ("position", "3 of 4", "4 of 4", "", ""),
    ]  # fmt: skip
    assert kind_cells(score)[0][2] == "not run"
    assert miss_line(miss) == "shapes, colours wrong, seed 3: 'a cat' shows a dog; the original, wrong too, a cow"
    assert "the original, right, a cow" in miss_line(score.misses[-1])
    assert miss_line(replace(miss, original=None)).endswith("shows a dog")
    lines = semantic_lines(score)
    assert lines[0].endswith(
        "single 9 of 10, pair 7 of 10, position 3 of 4 (wanted: 90 % of single shapes, 75 % of pairs): failed"
    )
    assert lines[1] == "semantic score: 10 wrong, 9 of them by the original too"
    assert (len(lines), lines[-1]) == (11, "and 2 more wrong images; --json and --report have all")
    assert len(semantic_lines(replace(score, misses=(miss,) * 8))) == 10


# Images


def picture(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_requests_of_images_that_can_be_made_again_alone() -> None:
    made = make_requests(["one", "two"], 3, 7)
    assert [(each.prompt, each.seed, each.num_images, each.steps, each.images_at_once) for each in made] == [
        ("one", 0, 3, 7, 1), ("two", 0, 3, 7, 1)
    ]  # fmt: skip
    assert {(each.prompt_weighting, each.init_image) for each in made} == {("none", None)}
    [refined] = make_requests(["one"], 1, 7, (48, 80))
    assert refined.init_image is not None
    assert (refined.init_image.picture.size, refined.image_strength) == ((80, 48), 0.5)
    assert np.asarray(blots((48, 80)).picture).shape == (48, 80, 3)


def test_images_of_other_sizes_are_told_as_width_by_height() -> None:
    def told(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> str | None:
        return compare_image("p", Generated(4, one, None), Generated(4, other, None), "float16").problem

    assert told(picture(16, 24), picture(24, 16)) == "it is 24x16 pixels, the reference 16x24 pixels"
    assert told(picture(16, 24), picture(16, 24)) is None
    narrow = compare_image("p", Generated(4, picture(10, 64), None), Generated(4, picture(10, 64), None), "float32")
    assert (narrow.ssim, narrow.psnr, narrow.seed) == (None, math.inf, 4)


def test_images_together() -> None:
    found = summarize_images([image(n, psnr) for n, psnr in enumerate((50.0, 70.0, 60.0, 80.0))])
    assert (found.images, found.psnr, found.lowest, found.problem) == (4, 70.0, 50.0, None)
    bad = summarize_images([image(1), image(7, None, problem="it is black"), image(8, None, problem="late")])
    assert (bad.images, bad.problem, bad.few) == (1, "seed 7: it is black", False)
    assert summarize_images([]).images == 0
    far = [summarize_images([image(n, 10.0, "float16") for n in range(count)]) for count in (1, 7, 8)]
    assert [each.few for each in far] == [True, True, False]
    assert not str(far[0].problem).endswith("images)")
    assert str(far[1].problem).endswith("(7 images)")
    assert not summarize_images([image(0, 10.0, "float32")]).few
    pixels = [image(n, 60.0, "float32", largest_pixel=p) for n, p in enumerate((32, 33, 200, 1))]
    assert summarize_images(pixels).problem is None  # the lower of the middle ones


def test_a_bad_reference_is_told_apart_from_a_bad_image() -> None:
    good, bad = Generated(5, picture(16, 24), None), Generated(5, picture(16, 24), "it is black")
    precision = Precision("float16")
    assert "seed 5: the image is bad: it is black" in str(check_images([bad], [good], "it", precision).problem)
    assert "is not like it: seed 5: the reference is bad: it is black" in str(
        check_images([good], [bad], "it", precision).problem
    )
    other = Generated(5, picture(24, 16), None)
    assert "is not like it: seed 5: it is 24x16 pixels, the reference 16x24" in str(
        check_images([good], [other], "it", precision).problem
    )
    assert check_images([good], None, "", precision).problem is None
    assert check_images([good], [good], "it", precision).psnr == math.inf


def test_outputs_that_torch_has_beside_are_left_out() -> None:
    a, b, c = np.zeros(1), np.ones(1), np.full(1, 2)
    assert [name for name, *_ in pair_outputs({"a": a, "b": b}, {"c": c, "b": a})] == ["b"]
    assert [(name, float(x[0]), float(y[0])) for name, x, y in pair_outputs({"a": a}, {"c": c, "d": b})] == [
        ("a", 0, 2)
    ]


# Tensors


def test_channels_last_is_known_by_its_name() -> None:
    value = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    last = in_layout_of(TensorPair("a", "a_nhwc"), value, value)
    np.testing.assert_array_equal(last, np.moveaxis(value, 1, 3))
    assert in_layout_of(TensorPair("a", "a"), value, np.zeros((6, 20))).shape == (6, 20)
    assert in_layout_of(TensorPair("a", "b"), value[0], np.zeros((60,))).shape == (60,)
    assert in_layout_of(TensorPair("a", "a"), value, np.zeros(7)).shape == value.shape


def test_the_error_of_a_tensor_is_the_worse_of_two() -> None:
    expected = np.array([1.0, -1.0, 1.0, -1.0], np.float32)
    assert tolerance_share(LIMIT, expected, expected + np.float32(0.02)) == pytest.approx(2.0, rel=1e-3)
    spot = expected.copy()
    spot[0] += 0.02  # a tenth of the largest, half of the mean
    assert tolerance_share(LIMIT, expected, spot) == pytest.approx(0.5, rel=1e-3)
    assert tolerance_share(Tolerance(0.001, 1), expected, spot) == pytest.approx(10, rel=1e-2)
    whole = np.array([1, 2])
    assert difference(whole, whole) == (0, 0)
    assert difference(whole, np.array([1, 3])) == (np.inf, np.inf)
    assert difference(whole, np.array([[1, 2]])) == (np.inf, np.inf)
    assert difference(np.zeros(0, np.float32), np.zeros(0, np.float32)) == (0, 0)


def test_neighbours_of_numbers_and_what_is_blamed() -> None:
    for precision, dtype in (("fp16", np.float16), ("bf16", None)):
        for value in (1.0, 3.0, 700.0, 0.3):
            apart = float(np.spacing(dtype(value))) if dtype else float(np.spacing(np.float32(value))) * 2**16
            assert _spacing(precision, value) == apart
    assert _blamed(CAST, "bf16", ("a",)) == ("bf16",)
    assert _blamed(CAST, "fp16", ("a",)) == ("half",)
    assert [_blamed(kind, "fp16", ("a", "b")) for kind in (FUSION, NODE, SUM)] == [("a", "b"), (), ()]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((2, 8, 5, 7), (2, 8, 35), True), ((2, 8, 5, 7), (16, 5, 7), True), ((2, 8, 5, 7), (2, 5, 7, 8), False),
        ((2, 8, 5, 7), (2, 8, 5, 6), False), ((2, 5, 8), (2, 5, 2, 4), True),
    ],
)  # fmt: skip
def test_views_of_the_same_order(one: tuple[int, ...], other: tuple[int, ...], same: bool) -> None:
    assert same_order(one, other) is same
    assert same_order(other, one) is same


# References


def test_components_are_referred_to_the_cpu_and_images_to_the_provider(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[str] = []
    closed: list[str] = []

    class Fake:
        def __init__(self, provider: Any) -> None:
            self.provider = provider
            opened.append(provider.name)

        def components(self) -> Sequence[str]:
            return ["unet", "pipeline", "broken"]

        def prepare(self, case: Case, steps: int, scheduler: str | None) -> Any:
            if case.component == "broken":
                raise SdortError("it does not run")
            assert (steps, scheduler) == (7, "euler")
            provider = self.provider.name

            class Runner:
                def __call__(self) -> None:
                    pass

                def result(self) -> Any:
                    return {"y": provider}

            return Runner()

        def close(self) -> None:
            closed.append(self.provider.name)

    monkeypatch.setattr(references, "open_reference", lambda path, provider, options: Fake(provider))
    todo = [Case(name, 1, 64, 96) for name in ("pipeline", "broken", "unet", "other")]
    found = compute_reference(tmp_path, todo, CUDA, RuntimeOptions(), 7, "euler")
    assert {case.component: result for case, result in found.results.items()} == {  # type: ignore[comparison-overlap]
        "unet": {"y": "cpu"}, "pipeline": {"y": "cuda"}
    }  # fmt: skip
    assert (opened, closed, found.label) == (["cpu", "cuda"], ["cpu", "cuda"], f"{tmp_path.name} (torch)")
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "model.onnx").touch()
    opened.clear()
    assert compute_reference(tmp_path, todo[2:3], CUDA, RuntimeOptions(), 7, "euler").label == f"{tmp_path.name} (ONNX)"
    assert opened == ["cpu"]
    opened.clear()
    compute_reference(tmp_path, todo, CPU, RuntimeOptions(), 7, "euler")
    assert opened == ["cpu"]


@pytest.mark.parametrize("made_of", [None, Path("/m/dream.safetensors")])
def test_what_was_made_on_first_use_is_called_by_its_checkpoint(made_of: Path | None) -> None:
    """In all that a person reads and copies; what is a record has the folder."""
    made, shown = {"made_of": made_of, "candidate": Path("/cache/model")}, str(made_of or "/cache/model")
    drawn = verification(comparison(), images=[image()], **made)
    assert str(drawn.next_command).startswith(f"sdort run {shown} --prompt 'a cat'")
    wrong = verification(comparison(share=2.0), **made)
    assert str(wrong.next_command).startswith(f"sdort verify {shown} --component unet --bisect")
    assert compared_line(drawn) == f"{shown} against model (ONNX)"
    assert to_json(drawn)["candidate"] == "/cache/model"
