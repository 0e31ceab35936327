"""``sdort bench --report`` and ``--plots``: self-contained, readable in light and dark, nothing over anything else."""

from __future__ import annotations

import base64
import csv
import importlib.util
import io
import itertools
import re
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from support import tiny_pipeline
from support.browser import views

from sdort.benchmark import measure as bench_module
from sdort.benchmark import roofline, roofline_worker
from sdort.benchmark.ablation import Ablation, MeasuredStep, ablation_steps
from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.measure import ImagePair, Measurement
from sdort.benchmark.report import figures, image_maps, latency_plots
from sdort.benchmark.report.ablation_table import as_text as ablation_text
from sdort.benchmark.report.benchmark_page import (
    BenchReport,
    add_rooflines,
    benchmark_page,
    benchmark_report,
    write_plots,
)
from sdort.benchmark.report.image_maps import similarity
from sdort.benchmark.report.latency_plots import cost_segments, cost_words
from sdort.benchmark.report.roofline_plot import attainable
from sdort.benchmark.report.roofline_plot import roofline as roofline_figure
from sdort.benchmark.report.theme import NARROW, SERIES, footnote, text_on
from sdort.benchmark.roofline import Point, Roofline, flops, hot_nodes, measure_roofline, moved
from sdort.benchmark.rows import Compared, Row
from sdort.cli import cli
from sdort.engines.engine import ImageStages
from sdort.errors import ProviderError, UsageError
from sdort.generation.pictures.images import Generated
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.report.html import LIGHT, THEMES, Theme
from sdort.workload.cases import Case

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TIMES = {"text_encoder": 2.0, "unet": 90.0, "vae_decoder": 310.0, "pipeline": 1100.0}


def row(component: str, **values: Any) -> Row:
    base: dict[str, Any] = {
        "pipeline": "demo + packed QKV", "engine": "onnxruntime", "provider": "cpu", "device": "a CPU",
        "batch_size": 1, "height": 64, "width": 64, "steps": 20, "dtype": "float16", "model_hash": "0123456789",
        "median_ms": TIMES[component], "checked_against": "demo (ONNX)", "host_first_mib": 120.0,
        "versions": {"sdort": "1"},
    }  # fmt: skip
    checked = {"psnr_db": 61.6} if component == "pipeline" else {"error": 1.7e-2, "mean_error": 1e-3}
    return Row(component=component, **{**base, **checked, **values})


def images() -> tuple[Generated, Generated]:
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    other = pixels.copy()
    other[2, 3] += np.array([1, 7, 2], np.uint8)
    return Generated(1, other, None), Generated(1, pixels, None)


def measurement() -> Measurement:
    rows = [row(component, pipeline=name) for name in ("demo <b>", "fast") for component in TIMES]
    rows[1].fail('differs from "demo" by 1 & more')
    image, reference = images()
    larger = row("pipeline", batch_size=8)
    return Measurement(
        rows,
        [ImagePair(rows[3], image, reference), ImagePair(rows[7], image, None), ImagePair(larger, image, reference)],
    )


def ablation() -> Ablation:
    found = Ablation("demo", "cpu")
    for index, step in enumerate(ablation_steps()):
        stage = MeasuredStep(step.name, [row(name, pipeline=f"demo {step.name}", batch_size=8) for name in TIMES])
        if index == 3:
            stage = MeasuredStep(step.name, found.stages[-1].rows, same_as="+ FMHA")
        elif index == 5:
            stage.rows[3].fail(
                "differs from demo (ONNX) by 1.2e-01 at most and 3.4e-03 in the mean of its standard deviation"
            )
        found.stages.append(stage)
        found.measured.rows += [] if stage.same_as else stage.rows
    return found


ROOFLINE = Roofline(
    "unet",
    [
        Point("NhwcConv", "2x64x64x320, 320x3x3x320", 7, 12_000_000, 15_000_000_000, 9e-5),
        Point("MultiHeadAttention", "2x4096x320, 2x4096x320, 2x4096x320", 5, 21_000_000, 43_000_000_000, 2.3e-4),
        Point("GroupNorm", "2x64x64x320", 12, 10_485_760, 26_000_000, 6.4e-6),
    ],
    3e12,
    733e12,
)


# The page


class Page(HTMLParser):
    """What a page loads, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "srcset", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_loads_nothing_and_shows_everything() -> None:
    text = benchmark_page(benchmark_report(measurement(), "bench of <demo>"))
    page = Page(text)
    assert page.loaded
    assert all(re.match(r"data:image/(svg\+xml|png);base64,", each) for each in page.loaded)
    assert not {"script", "link", "iframe", "b"} & set(page.tags)
    assert "@import" not in text
    # Three plots, each light and dark, wide and narrow; two images, and the reference and difference of one.
    assert (page.tags.count("picture"), page.tags.count("source"), page.tags.count("img")) == (3, 9, 3 + 4)
    for words in ("bench of <demo>", "demo <b>", 'differs from "demo" by 1 & more', "at most 7 of 255", "no reference"):
        assert words in page.text
    assert page.tags.count("tr") == 2 * (1 + 8)  # what matters, and everything


def test_no_name_or_message_becomes_markup() -> None:
    def named(text: str) -> str:
        words = {"pipeline": text, "device": text, "provider": text, "prompt": text, "checked_against": text}
        rows = [row(component, **words, versions={text: text}) for component in TIMES]
        rows[1].fail(text)
        image, reference = images()
        report = benchmark_report(
            Measurement(rows, [ImagePair(rows[3], replace(image, problem=text), reference)]), text
        )
        report.remarks, report.command_line = [text], text
        return benchmark_page(report)

    hostile = "</td></p></style><script>alert('x')</script>\" onload='y' {{ 7 * 7 }} \x1b[31m \u202e"
    page, plain = named(hostile), named("plain")
    assert Page(page).tags == Page(plain).tags
    assert "<script" not in page
    assert page.count("{{ 7 * 7 }}") > 20


def test_the_page_of_a_baseline_shows_its_image_beside_the_others_only() -> None:
    found = measurement()
    image = found.images[1].image
    found.images[1] = ImagePair(found.rows[7], image, image)
    assert [pair.row for pair in benchmark_report(found, "x").images] == [found.rows[3]]


def test_an_image_is_stacked_from_its_stages() -> None:
    stages = ImageStages(encode=10.0, denoise=1800.0, decode=150.0, samples=4)
    image = row("pipeline", batch_size=2, median_ms=2000.0, stages=stages)
    assert cost_segments(image) == {"text encoders": 5.0, "UNet": 900.0, "decoder": 75.0, "the rest": 20.0}
    assert cost_segments(row("pipeline", median_ms=1500.0)) == {"not split": 1500.0}
    assert cost_words([image]) == "20 UNet steps, each on two latents an image (classifier-free guidance)"
    alone = replace(image, stages=replace(stages, samples=2))
    assert cost_words([alone]) == "20 UNet steps, each on one latent an image"


def test_the_page_begins_with_its_answer_and_fits_every_screen(browser: Browser, tmp_path: Path) -> None:
    found = measurement()
    found.rows[1] = row("unet", speedup=1 / 0.86, speedup_low=1 / 0.89, speedup_high=1 / 0.83)
    report = benchmark_report(found, "sdort bench fast")
    report.command_line = (
        "sdort bench fast --baseline model --provider cpu --repeat 20 --report fast.html --plots plots"
    )
    (tmp_path / "bench.html").write_text(benchmark_page(report))
    for view in views(browser, tmp_path / "bench.html"):
        assert view.problems == []
        assert "every output is within its tolerance" in view.first_screen
        assert "0.86 of the baseline's time for a UNet step" in view.first_screen


def test_what_is_wrong_stands_first_with_its_reason() -> None:
    found = measurement()
    for each in found.rows:
        each.compared = Compared("slower", 1.4, 1.3, 1.5, 1.0, "by more than 10 %")
    text = Page(benchmark_page(benchmark_report(found, "x"))).text
    failed, slower, took = (text.index(words) for words in ("1 of 8 outputs failed", "8 slower", "takes 1,100 ms"))
    assert failed < slower < took
    assert 'unet, batch 1, 64x64, float16: differs from "demo" by 1 & more' in text


@pytest.mark.parametrize(
    ("compared", "failed", "checked", "mark"),
    [
        ([], False, True, "ok"),
        ([], False, False, "differs"),  # nothing was compared, with a reference or a file
        ([], True, True, "failed"),
        (["same", "faster", "too noisy"], False, True, "ok"),
        (["not comparable"], False, False, "differs"),
        (["slower"], False, True, "failed"),
        (["faster", "slower"], False, False, "failed"),
        (["faster"], True, True, "failed"),
    ],
)
def test_the_mark_of_the_page_is_that_of_its_worst_row(
    compared: list[str], failed: bool, checked: bool, mark: str
) -> None:
    unchecked = {"checked_against": "", "error": None, "mean_error": None, "psnr_db": None}
    rows = [row("unet", **({} if checked else unchecked)) for _ in range(3)]
    for each, verdict in zip(rows, compared, strict=False):
        each.compared = Compared(verdict, 1.4, 1.3, 1.5, 1.0, "by more than 10 %")
    if failed:
        rows[-1].fail("differs")
    text = benchmark_page(benchmark_report(Measurement(rows, []), "x"))
    assert re.findall("<p class='answer (.*?)'>", text) == [mark]


def test_no_colour_stands_for_two_contenders() -> None:
    timed = [row("unet", pipeline=f"p{index}") for index in range(len(SERIES) + 1)]
    for rows in (timed, timed[:-1]):
        drawn = latency_plots.component_latency(rows, 1, LIGHT)
        assert drawn is not None
        shown = [text.get_text() for legend in drawn.legends for text in legend.get_texts()]
        shown += [label.get_text() for label in drawn.axes[0].get_yticklabels()]
        assert all(any(each.pipeline in text for text in shown) for each in rows)
        assert len(drawn.legends) == (0 if rows is timed else 1)


def test_the_page_of_an_ablation_has_its_table() -> None:
    found = ablation()
    page = Page(benchmark_page(benchmark_report(found, "ablation")))
    assert page.tags.count("tr") == 1 + len(found.stages)
    assert "same graphs as '+ FMHA'" in page.text
    assert "6.1 s" not in page.text  # batch 8 alone was measured
    assert "39.1 s, 10,821 MiB" in page.text
    assert "another device and library" in page.text


def test_the_same_results_give_the_same_page() -> None:
    report = BenchReport("x", [row("unet")])
    assert benchmark_page(report) == benchmark_page(report)


# Plots


def overlaps(figure: Any) -> list[tuple[str, str]]:
    """Texts that lie over each other, and texts that the figure cuts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    # Numbers of ticks beyond an axis' end are there, and are not drawn; only logarithmic axes have numbers, in $.
    shown = [each for each in figure.findobj(Text) if each.get_visible() and each.get_text().strip()]
    texts = [each for each in shown if not each.get_text().startswith("$")]
    boxes = [(each.get_text(), each.get_window_extent(renderer).padded(-0.5)) for each in texts]
    over = [(a, b) for (a, one), (b, other) in itertools.combinations(boxes, 2) if one.overlaps(other)]
    page = figure.bbox.padded(1)
    return over + [
        (name, "the edge") for name, box in boxes if not page.containsx(box.x1) or not page.containsx(box.x0)
    ]


def every_figure(theme: Theme) -> dict[str, Any]:
    several = [(f"a pipeline {i}", engine) for i in (1, 2) for engine in ("torch-compile", "torch")]
    long = [row(component, pipeline=name, engine=engine) for name, engine in several for component in TIMES]
    return {
        "cost": latency_plots.image_cost(long, theme),
        "cost on a phone": latency_plots.image_cost(long, theme, NARROW),
        "latency": latency_plots.component_latency(long, 1, theme),
        "latency on a phone": latency_plots.component_latency(long, 1, theme, NARROW),
        "ablation": figures.ablation(ablation(), 8, theme),
        "memory": figures.memory_use(long, theme),
        "memory on a phone": figures.memory_use(long, theme, NARROW),
        "roofline": roofline_figure(ROOFLINE, theme),
    }


def test_no_text_lies_over_another() -> None:
    drawn = every_figure(THEMES[0])
    for figure in drawn.values():
        footnote(figure, THEMES[0], "AMD Ryzen 9 7950X (32 processors); 2026-11-22 13:12; batch 1, 64x64; " * 3)
    assert {name: over for name, figure in drawn.items() if (over := overlaps(figure))} == {}


def test_published_rows_stand_beside_where_there_are_some() -> None:
    found = ablation()
    for stage in found.stages:
        for each in stage.rows:
            each.batch_size = 2
    assert [len(figures.ablation(one, batch, THEMES[0]).axes) for one, batch in ((ablation(), 8), (found, 2))] == [3, 1]


def luminance(colour: str) -> float:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_words_can_be_read(theme: Theme) -> None:
    """WCAG 2: 4.5 for text, 3 for what is no text."""
    assert contrast(theme.ink, theme.paper) >= 7
    assert contrast(theme.quiet, theme.paper) >= 4.5
    assert all(contrast(text_on(colour), colour) >= 4.5 for colour in SERIES)


def test_plots_are_files_for_light_and_dark(tmp_path: Path) -> None:
    written = write_plots(benchmark_report(measurement(), "x"), tmp_path / "plots")
    plots = ("image-cost", "latency-batch-1", "memory", "images")
    names = [f"{name}-{theme.name}.png" for name in plots for theme in THEMES]
    assert [path.name for path in written] == names
    for path in written:
        wanted = next(theme.paper for theme in THEMES if path.stem.endswith(theme.name))
        assert "#{:02x}{:02x}{:02x}".format(*Image.open(path).convert("RGB").getpixel((1, 1))) == wanted  # type: ignore[misc]


def test_small_numbers_do_not_break_at_their_hyphen() -> None:
    rows = [row("unet", checked_against="it-self", error=1.5e-03)]
    assert "<span class='whole'>1.5e-03</span> vs it-self" in benchmark_page(BenchReport("", rows))


# Differences


def test_a_difference_map_is_scaled_as_verify_does_and_says_so() -> None:
    image, reference = images()
    said = "times 32, at most 7 of 255"
    assert f"difference: {said}" in benchmark_page(
        BenchReport("", [row("pipeline")], [ImagePair(row("pipeline"), image, reference)])
    )
    figure = image_maps.image_figure([ImagePair(row("pipeline"), image, reference)], ["it"], LIGHT)
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes][2] == f"difference\n{said}"
    [shown] = figure.axes[2].get_images()
    assert np.asarray(shown.get_array()).max() == 7 * 32


def test_likeness_says_what_stands_in_its_way() -> None:
    image, reference = images()
    one = row("pipeline")
    assert similarity(ImagePair(one, reference, reference)) == "equal"
    # 1 + 49 + 4 over 192 values: 10 log10(255^2 / 0.28125).
    assert similarity(ImagePair(one, image, reference)) == "53.6 dB PSNR"
    assert similarity(ImagePair(one, image, None)) == "no reference"
    assert (
        similarity(ImagePair(one, Generated(1, image.pixels[:4], None), reference)) == "another size than the reference"
    )
    assert similarity(ImagePair(one, Generated(1, image.pixels, "it is all black"), reference)) == "it is all black"


# Rooflines


def test_operations_and_bytes_are_those_of_the_definition() -> None:
    half = "float16"
    assert flops("MatMul", [(half, (2, 5, 3)), (half, (3, 7))], [(half, (2, 5, 7))]) == 2 * 2 * 5 * 3 * 7
    conv = [(half, (1, 4, 8, 8)), (half, (6, 4, 3, 3))]
    assert flops("Conv", conv, [(half, (1, 6, 8, 8))]) == 2 * 6 * 64 * 4 * 9
    last = [(half, (1, 8, 8, 4)), (half, (6, 3, 3, 4))]
    assert flops("NhwcConv", last, [(half, (1, 8, 8, 6))]) == 2 * 6 * 64 * 4 * 9
    # Scores and their product with the values: 5 queries, 7 keys, a width of 12.
    attention = [(half, (2, 5, 12)), (half, (2, 7, 12)), (half, (2, 7, 12))]
    assert flops("MultiHeadAttention", attention, [(half, (2, 5, 12))]) == 2 * (2 * 2 * 5 * 7 * 12)
    assert flops("MultiHeadAttention", [(half, (2, 5, 3, 3, 4))], [(half, (2, 5, 12))]) == 2 * (2 * 2 * 5 * 5 * 12)
    assert flops("Add", [(half, (2, 5)), (half, (5,))], [(half, (2, 5))]) == 10
    assert flops("Conv", conv[:1], [(half, (1, 6, 8, 8))]) is None
    assert moved([(half, (2, 5)), ("float", (5,))], [(half, (2, 5))]) == 20 + 20 + 20


def event(operator: str, microseconds: int, *shape: int, provider: str = "ROCMExecutionProvider") -> dict[str, Any]:
    tensors = [{"float16": list(shape)}]
    args = {"op_name": operator, "provider": provider, "input_type_shape": tensors, "output_type_shape": tensors}
    return {"cat": "Node", "name": f"{operator}_kernel_time", "dur": microseconds, "args": args}


def test_the_hot_nodes_are_those_that_take_longest_together() -> None:
    events = [event("GroupNorm", 30, 2, 8), event("GroupNorm", 50, 2, 8), event("Add", 60, 2, 8), event("Mul", 5, 2, 8)]
    events += [event("Shape", 900, 2, 8, provider="CPUExecutionProvider"), {"name": "model_run", "dur": 1000}]
    found = hot_nodes(events, "ROCMExecutionProvider", most=2)
    assert [(point.operator, point.shape, point.nodes) for point in found] == [
        ("GroupNorm", "2x8", 2),
        ("Add", "2x8", 1),
    ]
    assert found[0].seconds == pytest.approx(40e-6)
    assert (found[0].bytes, found[0].flops) == (64, 160)
    assert found[0].intensity == 2.5
    assert found[0].speed == pytest.approx(4e6)


def test_the_roof_is_the_lower_of_two() -> None:
    assert attainable(ROOFLINE, 1) == 3e12
    assert attainable(ROOFLINE, 1e6) == 733e12


def test_the_process_measures_nodes_and_roofs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = tiny_pipeline.shared(tmp_path / "tiny")
    monkeypatch.setattr(roofline, "MATRIX_SIDE", 64)
    monkeypatch.setattr(roofline, "COPIED_BYTES", 1 << 16)
    case = Case("unet", 2, 64, 64)
    found = measure_roofline(tiny.onnx / "unet" / "model.onnx", case, CPU, RuntimeOptions("cpu"), 4, 77)
    assert len(found.points) == roofline.HOT
    assert {"MatMul", "Conv"} & {point.operator for point in found.points}
    assert all(point.seconds > 0 and point.bytes > 0 and point.flops > 0 for point in found.points)
    assert found.bandwidth > 0
    assert found.peak > 0


def test_the_roofline_s_process_asks_whether_its_provider_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("unet", 1, 64, 64)
    task = {"path": "nowhere.onnx", "case": vars(case), "factor": 8, "provider": "cuda", "options": {}}
    monkeypatch.setattr(roofline_worker, "why_not", lambda provider, options: f"{provider.name} has no driver")
    with pytest.raises(ProviderError, match="cuda has no driver"):
        roofline_worker.profile_component(task)


def test_on_the_cpu_a_sentence_stands_for_the_roofline() -> None:
    report = BenchReport("x", [row("unet")])
    add_rooflines(report, Path("nowhere"), BenchOptions(RuntimeOptions("cpu")))
    assert report.remarks == ["No roofline: it is for GPUs, and this ran on the CPU."]
    assert report.remarks[0] in Page(benchmark_page(report)).text


# The command


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(bench_module, "measure_engines", None)
    result = CliRunner().invoke(cli, ["bench", str(tmp_path), "--report", str(tmp_path / "x.html")])
    assert result.exit_code == UsageError.exit_code
    assert "need matplotlib" in result.stderr
    assert "pip install 'matplotlib>=3.8'" in result.stderr


def test_the_command_writes_report_and_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sdort.benchmark import command

    monkeypatch.setattr(command, "measure_pipeline", lambda path, options: measurement())
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "model.onnx").touch()
    places = ["--report", str(tmp_path / "x.html"), "--plots", str(tmp_path / "plots"), "--provider", "cpu"]
    result = CliRunner().invoke(cli, ["bench", str(tmp_path), *places, "--format", "csv"])
    assert result.exit_code == 5, result.output  # a row failed, and all is delivered first
    assert Page((tmp_path / "x.html").read_text()).tags.count("img") == 7
    assert (tmp_path / "plots" / "images-dark.png").is_file()


def test_plots_write_names_as_they_are() -> None:
    """Dollars begin no formula, which may be a wrong one, and control characters make no broken SVG."""
    name = "$x_{$ \x1b]0;a\x07\u202e-->[red]"
    found = benchmark_report(Measurement([row(component, pipeline=name) for component in TIMES]), "t")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that no font has
        page = benchmark_page(found)
    drawn = [base64.b64decode(text) for text in re.findall(r"data:image/svg\+xml;base64,([^']+)", page)]
    assert len(drawn) > 5
    assert any(b"$x_{$ \\x1b]0;a\\x07\\u202e" in svg for svg in drawn)
    for svg in drawn:
        ElementTree.fromstring(svg)
    assert "\x1b" not in page


def test_the_rows_of_an_ablation_say_their_step_and_what_it_equals() -> None:
    found = ablation()
    lines = list(csv.DictReader(io.StringIO(ablation_text(found, "csv"))))
    stages = [stage for stage in found.stages for _ in stage.rows]
    assert [(line["step"], line["same_as"]) for line in lines] == [(stage.name, stage.same_as) for stage in stages]
    assert {line["same_as"] for line in lines} == {"", "+ FMHA"}
