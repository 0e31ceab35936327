"""``sdort verify``: whole pipelines, right and wrong ones, what it prints, writes and returns."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from rich.console import Console
from support import fragile
from support.relisted import relist
from support.tiny_pipeline import Tiny, edit_weights

from sdort import console
from sdort.cli import cli
from sdort.console import to_json
from sdort.errors import BadModelError, ParityError
from sdort.graph.signature import Array
from sdort.optimizer.command import optimize
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification import pipeline_comparison as verification
from sdort.verification.bisection.blame import CAST, FUSION, NODE, SUM, BisectionFinding
from sdort.verification.command_line import VerifyOptions
from sdort.verification.component_comparison import Comparison
from sdort.verification.image_comparison import ImageComparison
from sdort.verification.outcome import Provenance, Verification
from sdort.verification.pipeline_comparison import verify_pipeline
from sdort.verification.report.difference import MOST_GAIN, difference_map, shared_gain
from sdort.verification.report.shares import percent
from sdort.verification.report.text import notes, tables, timestep_errors
from sdort.verification.report.verification_page import verification_page

FEW = ("--provider", "cpu", "--custom-ops", "off", "--steps", "3", "--seeds", "1")
OPTIONS = VerifyOptions(RuntimeOptions(CPU.name, custom_ops="off"), seeds=1, steps=3)


@pytest.fixture(scope="module")
def fast(tiny: Tiny) -> Path:
    """For ROCm and in fp16, so that the CPU runs it by its operators' definitions."""
    out = tiny.onnx.parent / "fast"
    # The tiny attention has a head size for which ROCm has no kernel: some fusions are left.
    optimize(tiny.onnx, out, provider="rocm", fp16=True, allow_misses=True)
    return out


@pytest.fixture(scope="module")
def right(tiny: Tiny, fast: Path) -> Verification:
    return verify_pipeline(fast, replace(OPTIONS, checkpoint=tiny.diffusers))


def sdort(*args: object) -> Result:
    return CliRunner().invoke(cli, ["verify", *map(str, args)])


def test_a_right_pipeline_passes_everywhere(right: Verification, tiny: Tiny) -> None:
    assert right.passed, (right.failed, right.missing)
    assert right.against == tiny.onnx
    kinds = {(each.component, each.inputs, each.against) for each in right.comparisons}
    components = ("text_encoder", "unet", "vae_decoder")
    assert kinds == {(c, i, a) for c in components for i in ("random", "recorded") for a in ("ONNX", "torch")}
    assert [(each.seed, each.passed) for each in right.images] == [(0, True)] * 2
    # Two reductions of one truth: if the candidate is near both, they are near each other.
    assert {each.precision for each in right.comparisons} == {"float16"}
    assert all(0 < each.share < 1 for each in right.comparisons)


def test_recorded_inputs_are_those_of_the_run(right: Verification, tiny: Tiny) -> None:
    unet = [e for e in right.comparisons if (e.component, e.inputs, e.against) == ("unet", "recorded", "torch")]
    moments = [float(re.findall(r"timestep (\S+)", each.sample)[0]) for each in unet]
    tiny.pipeline.scheduler.set_timesteps(3)
    assert moments == [float(t) for t in tiny.pipeline.scheduler.timesteps] * 2  # two prompts
    first, last = unet[0].feeds, unet[2].feeds
    assert first is not None
    assert last is not None
    # With guidance the two halves are one latent, noise at first and less of it at last, and two texts.
    sample = first.feeds["sample"]
    assert sample.shape == (2, 4, 16, 16)
    assert (sample[0] == sample[1]).all()
    assert sample.std() == pytest.approx(1, abs=0.1)
    assert not np.allclose(sample, last.feeds["sample"], atol=0.1)
    texts = first.feeds["encoder_hidden_states"]
    assert not np.allclose(texts[0], texts[1])


def test_random_inputs_have_two_sizes(right: Verification) -> None:
    found = {each.sample for each in right.comparisons if (each.component, each.inputs) == ("unet", "random")}
    assert found == {"1x4x16x16, scalar, 1x77x32", "2x4x8x8, scalar, 2x77x32"}


def spoil(fast: Path, tmp_path: Path, component: str, change: Callable[[Any, str], Any], *names: str) -> Path:
    """A copy of a pipeline with changed weights."""
    copy = Path(shutil.copytree(fast, tmp_path / "spoiled"))
    edit_weights(copy / component / "model.onnx", change, *names)
    return copy


def test_a_wrong_decoder_fails_with_its_image_report_and_node(tiny: Tiny, fast: Path, tmp_path: Path) -> None:
    spoiled = spoil(fast, tmp_path, "vae_decoder", lambda array, _: -array, "decoder.conv_in.weight")
    report = tmp_path / "report.html"
    result = sdort(spoiled, *FEW, "--no-torch", "--bisect", "--report", report, "--json")
    assert result.exit_code == 5, result.output
    found = json.loads(result.stdout)
    assert found["passed"] is False
    assert set(found["failed"]) == {"vae_decoder", "images"}
    assert {each["component"] for each in found["components"] if not each["passed"]} == {"vae_decoder"}
    assert all(each["passed"] for each in found["components"] if each["component"] != "vae_decoder")
    [finding] = found["findings"]
    assert finding["operator"] == "Conv"
    assert "/decoder/conv_in/" in finding["node"]
    text = report.read_text()
    assert "✗ Failed: " in text
    assert finding["node"] in text


def test_the_table_names_what_failed_and_the_next_step(fast: Path, tmp_path: Path) -> None:
    spoiled = spoil(fast, tmp_path, "text_encoder", lambda array, _: array * 2, "final_layer_norm.weight")
    result = sdort(spoiled, *FEW, "--component", "text_encoder", "--inputs", "random", "--no-torch")
    assert result.exit_code == 5
    assert re.search(r"^text_encoder +random +ONNX +\d+ times  failed$", result.stdout, re.MULTILINE)
    assert "largest error" in result.stdout
    error = r"Error: 1 of 1 comparison out of limits, worst: text_encoder, random inputs, against ONNX: \d+ times the"
    assert re.search(error, result.stderr)
    step = shlex.join(["sdort", "verify", str(spoiled), "--no-torch", "--component", "text_encoder"])
    assert f"    {step} --bisect --inputs random " in result.stderr
    assert "PSNR" not in result.output


def test_no_search_is_advised_that_has_nothing_to_search(right: Verification) -> None:
    """--bisect walks the ONNX original's nodes: of what differs from torch alone it finds nothing."""
    hints = []
    for against in ("torch", "ONNX"):
        [wrong] = [each for each in right.comparisons if each.component == "unet" and each.against == against][:1]
        found = replace(right, comparisons=[replace(wrong, problem="largest error 1, 0.1 allowed")])
        with pytest.raises(ParityError) as caught:
            found.raise_if_failed()
        assert re.fullmatch(
            rf"1 of 1 comparison out of limits, worst: unet, random inputs, against {against}: (\d+|< 1) % of.+",
            caught.value.message,
        )
        hints.append(caught.value.hint)
    assert hints[0] is None
    assert "--component unet --bisect" in str(hints[1])


def test_a_search_that_fails_leaves_what_was_compared(
    fast: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BadModelError("a part of it does not run: no memory")

    monkeypatch.setattr(verification, "bisect", refuse)
    spoiled = spoil(fast, tmp_path, "text_encoder", lambda array, _: array * 2, "final_layer_norm.weight")
    result = sdort(spoiled, *FEW, "--component", "text_encoder", "--inputs", "random", "--no-torch", "--bisect")
    assert result.exit_code == 5
    assert re.search(r"^text_encoder +random +ONNX .+failed$", result.stdout, re.MULTILINE)
    assert "text_encoder: --bisect cannot tell: a part of it does not run: no memory" in result.stdout
    assert "--component text_encoder --bisect" not in result.stderr


def test_an_export_is_compared_with_torch(tiny: Tiny, tmp_path: Path) -> None:
    options = replace(OPTIONS, against=tiny.diffusers, texts=("a",))
    result = verify_pipeline(tiny.onnx, options)
    assert result.passed, (result.failed, result.missing)
    assert {each.against for each in result.comparisons} == {"torch"}
    assert {each.precision for each in result.comparisons} == {"float32"}
    [image] = result.images
    assert image.psnr is not None
    assert image.psnr > 45


def test_what_cannot_be_compared_is_no_success(tiny: Tiny, tmp_path: Path) -> None:
    """A UNet alone draws nothing: asked for everything, that is said; asked for what there is, it passes."""
    original, fast = tmp_path / "original", tmp_path / "fast"
    shutil.copytree(tiny.onnx / "unet", original / "unet")
    optimize(original, fast, provider="cpu")
    result = sdort(fast, *FEW)
    assert result.exit_code == 5
    assert "recorded inputs and images" in result.output
    assert "has no text_encoder, vae_decoder" in result.output
    few = sdort(fast, *FEW, "--inputs", "random", "--no-images")
    assert few.exit_code == 0, few.output
    assert "not compared with torch" in few.output


def test_a_single_file_against_a_single_file(tiny: Tiny, fast: Path) -> None:
    files = fast / "vae_decoder" / "model.onnx", tiny.onnx / "vae_decoder" / "model.onnx"
    result = sdort(files[0], "--against", files[1], *FEW, "--inputs", "random", "--no-images", "--json")
    assert result.exit_code == 0, result.output
    assert {each["component"] for each in json.loads(result.stdout)["components"]} == {"vae_decoder"}


def test_what_overflows_on_a_gpu_fails_on_the_cpu(tmp_path: Path) -> None:
    """ONNX Runtime's CPU provider alone would let it pass: it keeps fp32 between its casts."""
    made = fragile.build(tmp_path)
    for auto, code in ((False, 5), (True, 0)):
        folder, _ = made.optimized("rocm", auto=auto)
        files = folder / "vae_decoder" / "model.onnx", made.onnx / "vae_decoder" / "model.onnx"
        result = sdort(files[0], "--against", files[1], *FEW, "--inputs", "random", "--no-images")
        assert result.exit_code == code, result.output
        assert ("NaN or infinite" in result.output) == (code == 5)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--component", "vae"], 2, "there is no component 'vae'"),
        (["--report", "missing/report.html"], 7, "mkdir -p missing"),
        (["--report", __file__], 7, "test_verify_command.py exists"),
        (["--inputs", "some"], 2, "'some' is not one of"),
    ],
)
def test_what_is_asked_wrongly(fast: Path, args: list[str], code: int, words: str) -> None:
    result = sdort(fast, *FEW, *args)
    assert result.exit_code == code
    assert words in result.output


def test_an_unknown_original_is_a_usage_error(tiny: Tiny) -> None:
    result = sdort(tiny.onnx, *FEW)
    assert result.exit_code == 2
    assert "--against ORIGINAL" in result.output


def test_an_original_that_is_a_single_file_is_told(tiny: Tiny, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny.onnx, tmp_path / "model"))
    (copy / "sdort.json").write_text(json.dumps({"source": "merge.safetensors"}))
    result = sdort(copy, "--no-check", *FEW)
    assert result.exit_code == 2
    told = " ".join(result.output.split())
    assert "merge.safetensors, which is neither where it was, nor here, nor beside" in told
    assert "Name it: --against ORIGINAL, an ONNX pipeline, a diffusers folder or a single file." in told


def test_a_component_that_does_not_run_is_said_not_raised(tiny: Tiny, fast: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(fast, tmp_path / "broken"))
    (copy / "unet" / "model.onnx.data").write_bytes(b"")
    relist(copy)
    result = verify_pipeline(copy, replace(OPTIONS, torch=False))
    assert not result.passed
    assert [what.partition(":")[0] for what in result.missing] == ["unet", "images"]
    assert {each.component for each in result.comparisons} == {"text_encoder", "vae_decoder"}


def test_a_checkpoint_that_was_made_for_the_while_is_told_by_its_name(
    tiny: Tiny, fast: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def made(path: Path) -> Iterator[Path]:
        yield Path(shutil.copytree(tiny.diffusers, tmp_path / "demo"))
        shutil.rmtree(tmp_path / "demo")

    monkeypatch.setattr(verification, "checkpoint_of", made)
    asked = replace(OPTIONS, checkpoint=None, torch=True, components=["text_encoder"], images=False)
    result = verify_pipeline(fast, asked)
    assert {each.against for each in result.comparisons} == {"ONNX", "torch"}
    assert result.checkpoint == Path("demo")


def test_a_checkpoint_that_does_not_load_leaves_the_other_comparison(tiny: Tiny, fast: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(tiny.diffusers, tmp_path / "checkpoint"))
    for path in (checkpoint / "vae").glob("*.safetensors"):
        path.write_bytes(b"")
    result = verify_pipeline(fast, replace(OPTIONS, checkpoint=checkpoint, components=["vae_decoder"], images=False))
    assert {(each.against, each.passed) for each in result.comparisons} == {("ONNX", True)}
    assert len(result.missing) == 1
    assert result.missing[0].startswith("vae_decoder with torch: diffusers cannot load")
    assert not result.passed


# --- the page ---


class Page(HTMLParser):
    """Checks that tags are balanced; keeps links and images."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "src":
                self.sources.append(value or "")
            elif name in ("href", "srcset"):
                self.links.append(value or "")
        if tag not in ("meta", "img", "br", "!doctype"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parse(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert not page.open
    return page


def test_the_page_is_whole_and_needs_nothing_else(right: Verification) -> None:
    text = verification_page(right)
    page = parse(text)
    assert not page.links
    assert not re.findall(r"https?://|url\(|@import", text)
    assert len(page.sources) == 3 * len(right.images)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    pictures = [Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) for source in page.sources]
    assert (np.asarray(pictures[0]) == right.images[0].reference).all()
    assert (np.asarray(pictures[1]) == right.images[0].image).all()
    assert "prefers-color-scheme: dark" in text
    for reason in right.comparisons[0].component, "largest pixel, median", "finds a wrong corner", "sdort verify ":
        assert reason in text


def test_images_are_judged_together_and_what_differs_is_said(right: Verification) -> None:
    same, other = (ImageComparison("a", seed, "float16", 70.0, 1.0) for seed in range(2))
    other = replace(other, psnr=30.0, differs="PSNR 30.0 dB, at least 40 wanted")
    found = replace(right, images=[same, other])
    assert found.passed
    assert "image, seed 1, 'a': PSNR 30.0 dB, at least 40 wanted" in notes(found)
    assert "images: 1 of 2 differ, as single ones may: the median is within the limits" in notes(found)
    assert notes(found, every=False) == [line for line in notes(found) if not line.startswith("image, ")]
    assert "<span class='verdict differs'>differs</span>" in verification_page(found)
    assert to_json(found)["images_together"]["lowest"] == 30
    found.images = [other]
    assert found.failed == ["images"]
    assert "images: PSNR 30.0 dB, at least 40 wanted" in notes(found)
    assert "images: 1 may differ by chance; --seeds 8 tells" in notes(found)
    found.images = [other, replace(other, prompt="b")]
    assert "images: 2 may differ by chance; --seeds 4 tells" in notes(found)
    found.images = [other] * 5 + [same] * 3
    assert found.failed == ["images"]
    assert "images: median PSNR 30.0 dB, at least 40 wanted (8 images)" in notes(found)
    assert "chance" not in " ".join(notes(found))
    assert not [line for line in notes(replace(right, images=[same])) if line.startswith("image")]


def test_equal_images_are_no_missing_ones_in_json(right: Verification) -> None:
    """JSON has no infinity, and null is what could not be measured."""
    equal, bad = ImageComparison("a", 0, "float32", math.inf, 1.0, 0), ImageComparison("a", 1, "float32", problem="no")
    told = to_json(replace(right, images=[equal, bad]))
    assert [each["psnr"] for each in told["images"]] == ["inf", None]
    assert (told["images_together"]["psnr"], told["images_together"]["lowest"]) == ("inf", "inf")


def test_errors_along_the_run_have_a_row_each(right: Verification, tiny: Tiny) -> None:
    tiny.pipeline.scheduler.set_timesteps(3)
    moments = [f"{float(t):g}" for t in tiny.pipeline.scheduler.timesteps]
    rows = [error.cells for error in timestep_errors(right.comparisons)]
    assert [row[:3] for row in rows] == [("unet", against, t) for against in ("ONNX", "torch") for t in moments]
    kept = [each for each in to_json(right)["components"] if each["timestep"] is not None]
    assert {each["component"] for each in kept} == {"unet"}
    for _, against, moment, *numbers, _, verdict in rows:
        both = [each for each in kept if (f"{each['timestep']:g}", each["against"]) == (moment, against)]
        assert len(both) == 2  # prompts
        assert numbers == [f"{max(each[key] for each in both):.1e}" for key in ("largest_share", "mean_share")]
        assert verdict == "ok"
    assert "<h2>Errors by timestep</h2>" in verification_page(right)
    broken = replace(kept_comparison(right), errors=None, problem="has NaN")
    rows = [error.cells for error in timestep_errors([*right.comparisons, broken])]
    assert [row[-1] for row in rows] == ["failed"] + ["ok"] * 5
    assert rows[0][-2] == "no number"


def kept_comparison(right: Verification) -> Comparison:
    """The first along the run, which is with the ONNX original at the first timestep."""
    return next(each for each in right.comparisons if each.timestep is not None)


def test_the_terminal_has_the_worst_of_each_component_and_all_when_verbose(right: Verification) -> None:
    image = replace(right.images[0], prompt="a red circle " * 9)
    found = replace(right, images=[image])
    components, images = tables(found)
    assert [row.cells[0] for row in components.rows] == ["text_encoder", "unet", "vae_decoder"]
    for row in components.rows:
        of = [each for each in found.comparisons if each.component == row.cells[0]]
        assert row.cells[-2:] == (percent(max(each.share for each in of)), "ok")
    assert [row.cells[0] for row in images.rows] == ["a red circle a red circle a red circle a red ..."]
    console.set_verbosity(console.VERBOSE)
    components, timesteps, images = tables(found)
    assert components.row_count == len(found.summaries) == 12
    assert timesteps.row_count == 6
    with io.StringIO() as out:
        Console(file=out, width=80).print(components)
        lines = out.getvalue().splitlines()
    assert [len(line.split()) for line in lines if line.startswith("text_encoder")] == [9] * 4  # no blocks
    assert images.rows[0].cells[0] == image.prompt
    assert f"<td class='words wrap'>{image.prompt}</td>" in verification_page(found)


def test_the_last_line_is_the_verdict_and_the_next_command(right: Verification) -> None:
    worst = max(right.comparisons, key=lambda each: each.share)
    expected = f"12 comparisons and 2 images within limits, closest: {worst.component} {percent(worst.share)}"
    assert right.verdict == expected
    prompt = min((image.prompt for image in right.images), key=len)
    assert shlex.split(str(right.next_command)) == [
        "sdort", "run", str(right.candidate), "--prompt", prompt, "--provider", "cpu"
    ]  # fmt: skip
    runtime = replace(right.options.runtime, provider="auto")
    elsewhere = replace(right, options=replace(right.options, runtime=runtime))
    elsewhere.provenance = replace(right.provenance, made_for="rocm")  # and checked on the CPU: it may not run there
    assert str(elsewhere.next_command).endswith(" --provider rocm")
    some = replace(right, images=[], options=replace(right.options, components=["unet"], images=False))
    assert some.next_command == replace(right.options).command_line(right.candidate)
    failed = replace(right, comparisons=[replace(worst, errors=None, problem="all of it is NaN")], missing=["x", "y"])
    assert failed.verdict == (
        f"1 of 1 comparison out of limits, worst: {worst.component}, {worst.inputs} inputs, against {worst.against}: "
        "all of it is NaN; not compared: x (and 1 more)"
    )


@pytest.mark.parametrize(
    ("kind", "precision", "provider", "expected"),
    [
        (FUSION, "fp16", "cpu", "optimize model fast-again --provider rocm --fp16 --disable attention"),
        (CAST, "fp16", "rocm", "optimize model fast-again --provider rocm --fp16 auto"),
        (NODE, "fp32", "cpu", "optimize model fast-again --provider rocm"),
        (NODE, "fp16", "rocm", "verify fast --component unet --provider cpu"),
        (SUM, "fp16", "cpu", None),
    ],
)
def test_what_helps_against_a_finding_is_the_next_command(
    kind: str, precision: str, provider: str, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fast").mkdir()
    blamed = ("attention", "tidy") if kind == FUSION else ()
    result = Verification(Path("fast"), Path("model"), None, provider, 8, VerifyOptions(RuntimeOptions(provider)))
    result.provenance = Provenance(made_for="rocm", precision=precision)
    result.findings = [BisectionFinding("unet", "out", kind, "it diverges", blamed=blamed)]
    assert result.next_command == (expected and f"sdort {expected}")


def test_a_command_line_asks_for_the_same_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prompts = tmp_path / "my prompts.txt"
    prompts.write_text("a cat")
    (tmp_path / "model.onnx").touch()
    words = [
        tmp_path, "--against", tmp_path, "--checkpoint", tmp_path, "--no-torch", "--component", "unet", "--component",
        "vae_decoder", "--bisect", "--inputs", "random", "--images", "--prompts", prompts, "--seeds", "3", "--steps",
        "5", "--provider", "rocm", "--tuning", "--graph", "--no-fallback", "--device-id", "1", "--provider-option",
        "a=b c", "--custom-ops", "off", "--semantic", "--semantic-prompts", "7", "--semantic-original",
    ]  # fmt: skip
    asked: list[VerifyOptions] = []

    def stand_in(candidate: Path, options: VerifyOptions) -> Verification:
        asked.append(options)
        return Verification(candidate, None, None, "cpu", options.steps)

    monkeypatch.setattr("sdort.verification.command.verify_pipeline", stand_in)
    for given in (words, [tmp_path], [tmp_path, "--no-images", "--fallback"]):
        sdort(*given)
        line = asked[-1].command_line(tmp_path)
        assert shlex.split(line) == ["sdort", "verify", *map(str, given)]


def test_a_report_is_replaced_only_if_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun: list[Path] = []

    def stand_in(candidate: Path, options: VerifyOptions) -> Verification:
        begun.append(candidate)
        return Verification(candidate, None, None, "cpu", options.steps)

    monkeypatch.setattr("sdort.verification.command.verify_pipeline", stand_in)
    report = tmp_path / "report.html"
    report.write_text("mine")
    (tmp_path / "model.onnx").touch()
    refused = sdort(tmp_path, "--report", report)
    assert (refused.exit_code, begun, report.read_text()) == (7, [], "mine")
    assert "--overwrite" in refused.stderr
    assert sdort(tmp_path, "--report", report, "--overwrite").exit_code == 0
    assert report.read_text().startswith("<!doctype html>")


def test_prompts_are_text_on_the_page_not_markup(right: Verification) -> None:
    image = right.images[0]
    nasty = ImageComparison("<script>alert('x')</script>", 0, image.precision, problem="<b>bad</b>")
    page = verification_page(replace(right, images=[nasty]))
    parse(page)
    assert "<script" not in page
    assert "<b>bad" not in page
    assert page.count("<div class='none'>") == 3


def test_difference_maps_share_one_factor_with_which_none_is_clipped() -> None:
    image = np.full((2, 2, 3), 100, np.uint8)

    def changed(difference: int) -> Array:
        other = image.copy()
        other[0, 0, 0] += difference
        return other

    for differences, gain in (((0,), MOST_GAIN), ((1, 3), 64), ((4, 1), 32), ((1, 50), 4), ((155, 0), 1)):
        pairs = [(changed(difference), image) for difference in differences]
        assert shared_gain([*pairs, (image[:1], image), (image[:0], image[:0])]) == gain
        for pair, difference in zip(pairs, differences, strict=True):
            pixels, words = difference_map(*pair, gain)
            assert pixels.max() == difference * gain
            assert words == f"times {gain}, at most {difference} of 255"
