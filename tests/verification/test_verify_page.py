"""The page of ``sdort verify`` in a browser, of made-up results: on a phone and in a window, light and dark."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.browser import views

from sdort.console import to_json
from sdort.graph.signature import Array
from sdort.verification.bisection.blame import BisectionFinding, Culprit
from sdort.verification.checks import Precision
from sdort.verification.component_comparison import Comparison
from sdort.verification.image_comparison import ImageComparison, no_image
from sdort.verification.limits import TOLERANCES
from sdort.verification.outcome import Provenance, Verification
from sdort.verification.recorded_inputs import Inputs
from sdort.verification.report.shares import percent
from sdort.verification.report.verification_page import verification_page
from sdort.verification.semantic import Miss, SemanticScore
from sdort.workload.judgement import Errors

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_ERRORS = Errors(largest=0.1, mean=0.01, cosine=1 - 1e-6, largest_share=2e-2, mean_share=1e-3, largest_relative=1e-2)
_NODE = "/down_blocks.0/attentions.0/transformer_blocks.0/attn1/to_out.0/MatMul"


def comparison(component: str, kind: str, against: str, error: float, timestep: float | None = None) -> Comparison:
    limit = TOLERANCES["float16", component]
    wrong = f"largest error {error:.1e} of the standard deviation, {limit.largest:.1e} allowed"
    return Comparison(
        component, "float16", kind, "1x4x8x8", against, "out", limit, replace(_ERRORS, largest_share=error),
        wrong if error > limit.largest else None, Inputs(kind, "", {}, timestep),
    )  # fmt: skip


def image(prompt: str, difference: int) -> ImageComparison:
    reference = np.full((64, 64, 3), 100, np.uint8)
    changed: Array = reference.copy()
    changed[8:16, 8:16] += np.uint8(difference)
    differs = "PSNR 28.1 dB, at least 40 wanted" if difference > 20 else None
    decibels = 28.1 if difference > 20 else 52.0
    return ImageComparison(prompt, 0, "float16", decibels, 0.99, difference, None, differs, changed, reference)


def result(unet: float = 2.4e-2) -> Verification:
    """Everything that a page may show; the UNet's error is 96 % of its limit."""
    made = Verification(Path("/somewhere/long/enough/to/wrap/on/a/phone/fast"), Path("model"), Path("demo"), "cpu", 8)
    made.provenance = Provenance(
        "2026-01-02T03:04:05+00:00", "a processor (2 processors)", {"sdort": "1", "onnxruntime": "1.22"}, "rocm",
        "sdort verify fast --against model --checkpoint /somewhere/long/enough/to/wrap/on/a/phone/checkpoint",
    )  # fmt: skip
    made.precisions = {name: Precision("float16") for name in ("text_encoder_2", "unet", "vae_decoder")}
    for against in ("ONNX", "torch"):
        made.comparisons += [comparison(name, "random", against, 1e-3) for name in made.precisions]
        made.comparisons += [comparison("unet", "recorded", against, error, t) for error, t in ((3e-3, 999), (unet, 1))]
    made.images = [image("a photo of an astronaut riding a horse on mars", 3), image("word" * 20, 50)]
    made.images += [image("a red circle", 2)]
    made.notes = ["made for rocm and checked on the CPU"]
    return made


def test_the_page_can_be_read_everywhere_and_begins_with_its_verdict(browser: Browser, tmp_path: Path) -> None:
    wrong = result(unet=9e-2)
    culprit = Culprit(_NODE, "com.microsoft.MultiHeadAttention", ("attention",))
    wrong.findings = [BisectionFinding("unet", "out", "fusion", f"it diverges at {_NODE}", culprits=(culprit,))]
    wrong.missing = ["vae_encoder: the original has no such component"]
    verdicts = {
        "right": "✓ 8 comparisons and 3 images within limits, closest: unet 96 %",
        "wrong": "✗ Failed: 2 of 8 comparisons out of limits, worst: unet, recorded inputs, against ONNX: "
        "360 % of the limit not compared: vae_encoder: the original has no such component",
    }
    for name, verification in (("right", result()), ("wrong", wrong)):
        page = tmp_path / f"{name}.html"
        page.write_text(verification_page(verification))
        for seen in views(browser, page, ["figure", "table", ".share.over:not(details *)"]):
            assert seen.problems == []
            then = f"Next: {verification.next_command}" if name == "wrong" else "date 2026-01-02"
            assert seen.first_screen.startswith(f"sdort verify: fast {verdicts[name]} {then}")
            for fact in ("a processor", "sdort 1, onnxruntime 1.22", "made for rocm", "checked on cpu"):
                assert fact in seen.first_screen
            assert len(seen.images) == 9
            table = next(box for box in seen.boxes["table"] if box.height)  # closed ones have none
            assert seen.boxes["figure"][-1].top < table.top
            # The UNet's worst comparison and the two of the timestep; the second image. All comparisons are closed.
            assert len(seen.boxes[".share.over:not(details *)"]) == (4 if name == "wrong" else 1)


def test_the_page_and_the_record_give_one_verdict() -> None:
    for verification in (result(), result(unet=9e-2)):
        verification.missing = [] if verification.passed else ["<vae_encoder>: the original has none"]
        record, text = to_json(verification), verification_page(verification)
        found = re.search(r"<p class='answer (\w+)'>(.*?)</p>", text)
        assert found is not None
        assert found[1] == ("ok" if record["passed"] else "failed")
        words = html.unescape(re.sub("<[^>]*>", "", found[2].replace("<br>", "; "))).lstrip("✓✗ ")
        assert words.removeprefix("Failed: ") == record["verdict"]
        for component in verification.precisions:
            shares = [each["limit_share"] for each in record["components"] if each["component"] == component]
            assert re.search(rf"<td[^>]*>{component}</td><td[^>]*>[^/]*/i><b>{percent(max(shares))}</b>", text)


HOSTILE = "</td></p></style><script>alert('x')</script>\" onload='y' {{ 7 * 7 }} {% raw %} \x1b[31m \u202e &lt;"


def elements(text: str) -> list[tuple[str, list[str]]]:
    """Every tag of a page with the names of its attributes, in order."""
    found: list[tuple[str, list[str]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, [name for name, _ in attrs]))  # type: ignore[method-assign]
    parser.feed(text)
    return found


def test_no_name_prompt_or_message_becomes_markup() -> None:
    """The same elements whatever the texts are, and the texts where a person reads them."""

    def named(text: str) -> Verification:
        made = result(unet=9e-2)
        made.candidate, made.against, made.checkpoint = Path(text), Path(text), Path(text)
        made.comparisons = [
            replace(each, component=text, inputs=text, sample=text, against=text, output=text, problem=text)
            for each in made.comparisons[:1]
        ]
        bad = replace(made.images[0], prompt=text, problem=text)
        made.images = [bad, replace(bad, differs=text, problem=None), replace(bad, image=no_image())]
        culprit = Culprit(text, text, (text,))
        made.findings = [BisectionFinding(text, text, "fusion", text, culprits=(culprit,), originals=(text,))]
        made.missing, made.notes, made.precisions = [text], [text], {text: Precision(text)}
        misses = (Miss(text, 1, (text,), text, text, True),)
        made.semantic = SemanticScore({"single": (1, 2)}, {"single": 0.9, "pair": 0.8}, False, misses)
        made.provenance = Provenance("2026-01-02T03:04:05+00:00", text, {text: text}, text, text, text)
        return made

    hostile = verification_page(named(HOSTILE))
    assert elements(hostile) == elements(verification_page(named("plain")))
    for raw in ("<script", "\x1b", "\u202e"):
        assert raw not in hostile.split("</head>")[1].replace("data:", "")
    assert hostile.count("{{ 7 * 7 }}") > 20


def test_all_difference_maps_have_one_factor() -> None:
    text = verification_page(result())
    assert "Original, candidate and their difference, 4 times as bright as it is, in every map." in text
    for largest in (2, 3, 50):
        assert f"difference: times 4, at most {largest} of 255" in text


def test_an_images_share_is_that_of_what_uses_most_of_its_limit() -> None:
    same = ImageComparison("a", 0, "float32", 60.0, 1.0, 0)
    assert same.limit_share == 0.1  # 20 dB below the limit: a tenth of the root mean square
    assert replace(same, ssim=0.9975).limit_share == pytest.approx(0.5)
    assert replace(same, largest_pixel=48).limit_share == 1.5
    assert replace(same, precision="float16", largest_pixel=48).limit_share == 0.1
    assert replace(same, psnr=None).limit_share is None
