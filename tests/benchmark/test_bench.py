"""``sdort bench``: no timing without a check, two pipelines in turn, and what each row says."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from support import tiny_pipeline
from support.tiny_pipeline import Tiny, edit_weights

from sdort.benchmark import measure as bench_module
from sdort.benchmark import timing
from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.measure import Measurement, measure_pipeline
from sdort.benchmark.row_table import as_text, caption, cells, legend
from sdort.benchmark.rows import Row
from sdort.benchmark.timing import clock, interleave, ratio, statistics
from sdort.checkpoints.configs import write_json
from sdort.cli import cli
from sdort.console import to_json
from sdort.engines.onnx import OnnxEngine
from sdort.engines.original import checkpoint_of, original_of
from sdort.errors import OutputError, ParityError, ProviderError, UsageError
from sdort.generation.pictures.images import Generated
from sdort.graph.signature import TensorSpec
from sdort.onnx_io.component_file import read_component
from sdort.optimizer.command import optimize
from sdort.pipelines.folder import image_channels
from sdort.pipelines.origin import origin_mark
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.memory import Peak
from sdort.verification.checks import Precision, check_images, check_outputs, precision
from sdort.verification.limits import GPU_ALLOWANCE, PSNR, TOLERANCES
from sdort.verification.metrics import psnr
from sdort.workload.cases import Case, cases, make_feeds

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

QUICK: dict[str, Any] = {"runtime": RuntimeOptions("cpu"), "steps": 2, "warmup": 1, "repeat": 2}
FP32 = Precision("float32")
TIMES = ("load_s", "first_ms", "prepare_ms", "median_ms", "mean_ms", "p90_ms", "min_ms", "images_per_s", "speedup")


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Path:
    """A copy of the ONNX pipeline that a test may break."""
    return Path(shutil.copytree(tiny.onnx, tmp_path / "copy"))


@pytest.fixture
def sdort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Calls ``sdort bench PIPELINE ...`` for few and short calls on the CPU."""
    monkeypatch.chdir(tmp_path)

    def call(pipeline: Path, *args: str) -> Result:
        few = ["--provider", "cpu", "--steps", "2", "--warmup", "1", "--repeat", "2"]
        return CliRunner().invoke(cli, ["bench", str(pipeline), *few, *args])

    return call


def shift(size: float) -> Callable[[Any, str], Any]:
    """A change of weights that moves outputs by a share of ``size``."""
    return lambda array, _: (array + size * np.linspace(-1, 1, array.size).reshape(array.shape)).astype(array.dtype)


# Statistics


def test_statistics_are_those_of_the_definition() -> None:
    found = statistics([4.0, 1.0, 2.0, 3.0, 10.0])
    assert (found.median, found.mean, found.minimum, found.repeat) == (3.0, 4.0, 1.0, 5)
    # Ranks 0 to 4: the 90th percentile stands at 3.6, between 4 and 10.
    assert found.p90 == pytest.approx(7.6)
    assert (found.low, found.high) == (1, 10)


def test_ratios_are_of_calls_that_followed_each_other() -> None:
    found = ratio([10, 20, 40, 10, 30], [5, 10, 10, 5, 10])
    # Pairs: 2, 2, 4, 2, 3. The ratio of the means would be 2.75.
    assert (found.median, found.low, found.high) == (2, 2, 4)
    assert ratio([10, 20, 40, 30], [5, 10, 10, 10]).low is None  # the interval of four says nothing


def test_a_clock_tells_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=iter([1.0, 1.25]).__next__))
    assert clock(lambda: None) == 250


def test_calls_are_interleaved_in_alternating_order() -> None:
    order: list[str] = []
    times = interleave([lambda: order.append("a"), lambda: order.append("b")], 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [len(each) for each in times] == [3, 3]


# Checks


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("where", ["largest", "mean"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_both_tolerances_are_relative_to_the_standard_deviation_of_the_reference(
    dtype: str, where: str, on_gpu: bool
) -> None:
    limit = TOLERANCES[dtype, "unet"]
    allowance = GPU_ALLOWANCE if on_gpu else 1.0
    reference = np.tile([-100.0, 300.0], 5000)  # a standard deviation of 200
    for factor, passes in ((0.9, True), (1.1, False)):
        output = reference.copy()
        if where == "largest":
            output[500] += factor * allowance * limit.largest * 200
        else:
            output += factor * allowance * limit.mean * 200
        verdict = check_outputs({"y": output}, {"y": reference}, "the original", "unet", Precision(dtype, on_gpu))
        assert (verdict.problem is None) is passes
        found = verdict.error if where == "largest" else verdict.mean_error
        assert found == pytest.approx(factor * allowance * getattr(limit, where))
        assert verdict.checked == "the original"


MEASURED = [
    # dtype, component, on a GPU, the largest and the mean error, whether the pipeline is right
    ("float32", "unet", False, 6e-6, 1e-6, True),
    ("float16", "unet", False, 1.2e-2, 2.0e-3, True),
    ("float16", "vae_decoder", False, 1.2e-2, 1.5e-3, True),
    ("float16", "text_encoder", False, 1.4e-2, 1.3e-3, True),
    ("float16", "vae_decoder", True, 6.1e-2, 3.4e-3, True),
    ("bfloat16", "unet", False, 2.4e-1, 4.7e-2, True),
    ("bfloat16", "text_encoder", False, 1.8e-1, 1.8e-2, True),
    ("float32", "unet", False, 1e-3, 1e-6, False),  # a wrong corner
    ("float32", "unet", False, 6e-6, 1e-4, False),  # a small error everywhere
    ("float16", "vae_decoder", True, 2.5, 0.36, False),
    ("float16", "vae_decoder", True, 2e-2, 1.8e-2, False),  # its last weights off by 3 %
    ("float16", "unet", True, 2e-2, 4.8e-2, False),  # a bias left out
    ("bfloat16", "unet", False, 2e-1, 1e-1, False),
]
"""From the notes in sdort/verification/limits.py: what was measured of right pipelines, and of wrong ones."""


@pytest.mark.parametrize(("dtype", "component", "on_gpu", "largest", "mean", "right"), MEASURED)
def test_tolerances_tell_right_pipelines_from_wrong_ones(
    dtype: str, component: str, on_gpu: bool, largest: float, mean: float, right: bool
) -> None:
    reference = np.tile([-1.0, 1.0], 5000)
    output = reference + mean
    output[500] = reference[500] + max(largest, mean)
    verdict = check_outputs({"y": output}, {"y": reference}, "it", component, Precision(dtype, on_gpu))
    assert (verdict.problem is None) is right, verdict


def test_fp32_on_an_nvidia_gpu_is_rounded_to_11_bits() -> None:
    assert [precision("float32", each).dtype for each in (CPU, ROCM, CUDA)] == ["float32", "float32", "float16"]
    assert precision("float16", CPU) == Precision("float16", on_gpu=False)
    assert precision("float32", ROCM) == Precision("float32", on_gpu=True)
    assert FP32.coarser(Precision("float16")) == Precision("float16").coarser(FP32) == Precision("float16")
    assert Precision("float16").coarser(Precision("float32", on_gpu=True)) == Precision("float16", on_gpu=True)
    assert Precision("float32", on_gpu=True).coarser(Precision("float16")) == Precision("float16", on_gpu=True)


@pytest.mark.parametrize(
    ("output", "reference", "problem"),
    [
        ([1.0, math.nan], [1.0, 2.0], "y has NaN"),
        ([1.0, math.inf], None, "y has NaN or infinite"),
        ([3.0, 3.0], None, "y is constant"),
        ([1.0, 2.0, 3.0], [1.0, 2.0], "shape"),
        ([1.0, 2.0], [1.0, math.nan], "the original itself gives NaN"),
    ],
)
def test_outputs_that_cannot_be_right_fail(output: list[float], reference: list[float] | None, problem: str) -> None:
    wanted = None if reference is None else {"y": np.array(reference)}
    assert problem in (check_outputs({"y": np.array(output)}, wanted, "the original", "unet", FP32).problem or "")


def test_without_a_reference_it_is_said_that_there_is_none() -> None:
    verdict = check_outputs({"y": np.arange(3.0)}, None, "", "unet", FP32)
    assert verdict.problem is None
    assert "no reference" in verdict.checked


def test_outputs_are_compared_by_name_and_else_by_order() -> None:
    a, b = np.arange(3.0), np.arange(3.0) * 7
    assert check_outputs({"a": a, "b": b}, {"b": b, "a": a}, "it", "unet", FP32).problem is None
    assert check_outputs({"a": a, "b": b}, {"b": a, "a": b}, "it", "unet", FP32).problem is not None
    assert check_outputs({"sample": a}, {"image": a}, "it", "unet", FP32).problem is None
    assert check_outputs({"sample": a}, {"image": b}, "it", "unet", FP32).problem is not None


@pytest.mark.parametrize("wrong", ["a", "b"])
def test_the_worst_of_the_outputs_counts(wrong: str) -> None:
    reference = {name: np.array([-1.0, 1.0, -1.0, 1.0]) for name in ("a", "b")}
    outputs = {**reference, wrong: np.array([-1.0, 1.0, -1.0, 3.0])}
    verdict = check_outputs(outputs, reference, "it", "unet", FP32)
    assert verdict.problem is not None
    assert (verdict.error, verdict.mean_error) == (2.0, 0.5)


def test_one_number_is_not_constant() -> None:
    assert check_outputs({"y": np.array([3.0])}, None, "", "unet", FP32).problem is None


def test_psnr_is_that_of_the_definition() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    assert psnr(image, image) == math.inf
    # A mean squared error of 25: 10 log10(255^2 / 25).
    assert psnr(image + 5, image) == pytest.approx(34.151, abs=1e-3)


@pytest.mark.parametrize(("difference", "fp16", "bf16"), [(2, True, True), (3, False, True), (33, False, False)])
def test_images_are_held_to_the_psnr_of_their_precision(difference: int, fp16: bool, bf16: bool) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    one, other = Generated(1, pixels, None), Generated(1, pixels + np.uint8(difference), None)
    for dtype, passes in (("float32", fp16), ("float16", fp16), ("bfloat16", bf16)):
        verdict = check_images([other], [one], "it", Precision(dtype))
        assert (verdict.problem is None) is passes, (verdict, PSNR[dtype])


def test_a_bad_image_fails_whatever_it_is_compared_with() -> None:
    bad = Generated(3, np.zeros((2, 2, 3), np.uint8), "it is all black")
    assert "seed 3: the reference is bad: it is all black" in (check_images([bad], [bad], "it", FP32).problem or "")


# Cases


def test_text_encoders_are_measured_at_one_size() -> None:
    made = cases(["text_encoder", "unet"], [1, 2], [(64, 64), (32, 48)])
    assert [str(case) for case in made if case.component == "text_encoder"] == [
        "text_encoder, batch 1, 64x64",
        "text_encoder, batch 2, 64x64",
    ]
    assert len([case for case in made if case.component == "unet"]) == 4


def test_exports_of_one_model_get_equal_inputs() -> None:
    floats = np.dtype("float32")
    case = Case("unet", 2, 64, 32)
    inputs = {
        "sample": TensorSpec("sample", floats, ("batch", 9, "h", "w")),
        "timestep": TensorSpec("timestep", np.dtype("int64"), ()),
        "encoder_hidden_states": TensorSpec("encoder_hidden_states", floats, ("batch", None, 24)),
        "text_embeds": TensorSpec("text_embeds", floats, ("batch", 12)),
        "time_ids": TensorSpec("time_ids", floats, ("batch", 6)),
        "timestep_cond": TensorSpec("timestep_cond", floats, ("batch", 256)),
    }
    feeds = make_feeds(case, inputs, 8)
    assert {name: value.shape for name, value in feeds.items()} == {
        "sample": (2, 9, 8, 4),
        "timestep": (),
        "encoder_hidden_states": (2, 77, 24),
        "text_embeds": (2, 12),
        "time_ids": (2, 6),
        "timestep_cond": (2, 256),
    }
    assert np.abs(feeds["timestep_cond"]).max() <= 1  # sines of the guidance scale, as verify feeds
    assert feeds["time_ids"][1].tolist() == [64, 32, 0, 0, 64, 32]
    other = {**inputs, "timestep": TensorSpec("timestep", floats, ("batch",))}
    again = make_feeds(case, other, 8)
    np.testing.assert_array_equal(feeds["sample"], again["sample"])
    assert again["timestep"].tolist() == [500, 500]
    decoder = make_feeds(Case("vae_decoder", 1, 64, 32), {"z": TensorSpec("z", floats, (1, 4, None, None))}, 8)
    assert decoder["z"].shape == (1, 4, 8, 4)


def test_channels_that_a_model_leaves_open_are_its_configs(tmp_path: Path) -> None:
    open_ended = TensorSpec("z", np.dtype("float32"), ("batch", None, None, None))
    case = Case("vae_decoder", 1, 64, 32)
    assert make_feeds(case, {"z": open_ended}, 8)["z"].shape == (1, 4, 8, 4)
    assert make_feeds(case, {"z": open_ended}, 8, 16)["z"].shape == (1, 16, 8, 4)
    for component, key in (("vae_decoder", "latent_channels"), ("vae_encoder", "in_channels"), ("unet", "in_channels")):
        model = tmp_path / component / "model.onnx"
        model.parent.mkdir()
        assert image_channels(model, component) is None
        (model.parent / "config.json").write_text(json.dumps({"latent_channels": 3, "in_channels": 3, key: 16}))
        assert image_channels(model, component) == 16


def test_a_decoder_with_open_channels_is_measured(copy: Path) -> None:
    """The config's eight channels, of which the graph says nothing."""
    path = copy / "vae_decoder" / "model.onnx"
    widen_latent(path, 8)
    config = path.parent / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "latent_channels": 8}))
    options = BenchOptions(**{**QUICK, "reference": copy}, components=("vae_decoder",), placement=True)
    [found] = measure_pipeline(copy, options).rows
    assert found.status == "ok"
    assert found.placement is not None


def widen_latent(path: Path, channels: int) -> None:
    """Take the mean of pairs of channels before the decoder, whose input says nothing of their number."""
    model = onnx.load(path, load_external_data=False)
    [declared] = model.graph.input
    inner = f"{declared.name}_inner"
    for node in model.graph.node:
        node.input[:] = [inner if name == declared.name else name for name in node.input]
    weight = np.repeat(np.eye(4, dtype=np.float32), channels // 4, axis=1)[..., None, None] / (channels // 4)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "narrow"))
    model.graph.node.insert(0, onnx.helper.make_node("Conv", [declared.name, "narrow"], [inner], "narrow"))
    dim = declared.type.tensor_type.shape.dim[1]
    dim.Clear()
    dim.dim_param = "channels"
    onnx.save(model, path)


def test_a_static_model_takes_its_own_size_only() -> None:
    inputs = {"sample": TensorSpec("sample", np.dtype("float32"), (2, 4, 8, 8))}
    assert make_feeds(Case("vae_decoder", 2, 64, 64), inputs, 8)["sample"].shape == (2, 4, 8, 8)
    with pytest.raises(UsageError, match=r"\[2, 4, 8, 8\], not \[1, 4, 8, 8\]"):
        make_feeds(Case("vae_decoder", 1, 64, 64), inputs, 8)


# Rows


def row(**values: Any) -> Row:
    base: dict[str, Any] = {
        "pipeline": "fast", "engine": "onnxruntime", "provider": "cpu", "device": "a|b", "component": "unet",
        "batch_size": 1, "height": 64, "width": 64, "steps": None, "dtype": "float32", "model_hash": "0123456789abcdef",
        "versions": {"sdort": "1", "onnxruntime": "2"},
    }  # fmt: skip
    return Row(**{**base, **values})


@pytest.mark.parametrize("name", ["=cmd|'/C calc'!A0", "+1", "-1+1", "@SUM(1)", " =1", "\t=1", "\r=1"])
def test_a_spreadsheet_computes_nothing_of_a_name(name: str) -> None:
    [line] = csv.DictReader(io.StringIO(as_text([row(pipeline=name, median_ms=1.5, error=-1.0)], "csv")))
    assert line["pipeline"][0] not in "=+-@\t\r "
    assert line["pipeline"].endswith(name.strip())
    assert (line["median_ms"], line["error"]) == ("1.5", "-1.0")


def test_markdown_holds_no_markup_of_a_name() -> None:
    name = "[a](http://b)<img src=x>`c`\\|d\n| e |\x1b[2J"
    lines = as_text([row(pipeline=name)], "markdown").splitlines()
    written = "[a]\\(http://b)\\<img src=x>\\`c\\`\\\\\\|d\\\\n\\| e \\|\\\\x1b[2J"
    assert lines[2].startswith(f"| {written} ")


def test_every_format_has_every_row() -> None:
    rows = [row(median_ms=1.5, psnr_db=math.inf, checked_against="it"), row(component="pipeline", status="bad | worse")]
    loaded = to_json(Measurement(rows))["rows"]
    assert [each["component"] for each in loaded] == ["unet", "pipeline"]
    assert set(loaded[0]) == {field.name for field in fields(Row)}
    assert loaded[0]["psnr_db"] == "inf"
    assert loaded[0]["versions"] == {"sdort": "1", "onnxruntime": "2"}
    table = list(csv.DictReader(io.StringIO(as_text(rows, "csv"))))
    assert [each["median_ms"] for each in table] == ["1.5", ""]
    assert table[0]["versions"] == "sdort 1; onnxruntime 2"
    lines = as_text(rows, "markdown").splitlines()
    assert len({line.replace("\\|", "").count("|") for line in lines[:4]}) == 1
    assert "FAILED: bad \\| worse" in lines[3]
    assert caption(rows) in lines[-1]
    ratios = [*rows, row(pipeline="other", speedup=2.0)]
    assert as_text(ratios, "markdown").endswith(f"\n{legend(ratios)}\n")


def test_one_step_is_no_plural() -> None:
    assert ", 1 step, 0 warm-up and 1 timed call;" in caption([row(steps=1, warmup=0, repeat=1)])
    assert ", 2 steps, 3 warm-up and 2 timed calls;" in caption([row(steps=2, warmup=3, repeat=2)])


def test_a_failed_row_has_no_times() -> None:
    failed = row(**dict.fromkeys(TIMES, 1.0), speedup_low=1.0, speedup_high=1.0)
    failed.fail("it is wrong")
    assert all(getattr(failed, name) is None for name in (*TIMES, "speedup_low", "speedup_high"))
    assert failed.times_ms == []


def test_a_row_says_what_was_found() -> None:
    alike = row(psnr_db=61.62, lowest_psnr_db=41.17, checked_against="it")
    assert alike.parity() == "61.6 dB (lowest 41.2) vs it"
    assert row(psnr_db=50.0, lowest_psnr_db=50.0, checked_against="it").parity() == "50.0 dB vs it"
    alike.fail("it is wrong")
    assert alike.parity() == "FAILED: it is wrong"
    titles, [line] = cells([row(speedup=1.5, speedup_low=1.25, speedup_high=2.0)])
    assert line[titles.index("time ratio")] == "0.67 (0.50 to 0.80)"


def test_memory_is_that_of_the_first_call_and_of_the_later_ones() -> None:
    mebibyte, found = 1 << 20, row()
    bench_module._fill_memory(found, Peak(mebibyte, 2 * mebibyte), Peak(3 * mebibyte, 4 * mebibyte))
    assert (found.host_first_mib, found.device_first_mib, found.host_later_mib, found.device_later_mib) == (1, 2, 3, 4)
    titles, [line] = cells([found])
    assert [line[titles.index(title)] for title in ("host MiB", "device MiB")] == ["1 / 3", "2 / 4"]
    found = row()
    bench_module._fill_memory(found, Peak(mebibyte), None)
    assert (found.host_first_mib, found.device_first_mib, found.host_later_mib, found.device_later_mib) == (
        1,
        *[None] * 3,
    )


@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("float16", "float32"), ("float32", "float32")])
def test_a_baseline_is_held_to_the_coarser_of_two_precisions(dtypes: tuple[str, str]) -> None:
    """An error that fp16 may have and fp32 may not, whichever of the two is the baseline."""
    reference = np.tile([-1.0, 1.0], 500)
    output = reference + TOLERANCES["float16", "unet"].mean / 2
    ready = []
    for dtype, value in zip(dtypes, (reference, output), strict=True):
        runner: Any = SimpleNamespace(result=lambda value=value: {"y": value})
        engine: Any = None
        ready.append(bench_module._Ready(engine, runner, row(dtype=dtype), runner.result(), Precision(dtype)))
    bench_module._check(ready, Case("unet", 1, 64, 64), None, BenchOptions())
    assert [each.row.failed for each in ready] == [False, "float16" not in dtypes]
    assert ready[1].row.mean_error == pytest.approx(TOLERANCES["float16", "unet"].mean / 2)


# The whole benchmark


def test_a_pipeline_against_the_checkpoint_it_came_from(tiny: Tiny) -> None:
    rows = measure_pipeline(
        tiny.onnx, BenchOptions(**QUICK, reference=tiny.diffusers, batch_sizes=(1, 2), sizes=((32, 48),))
    ).rows
    assert [(each.component, each.batch_size) for each in rows] == [
        (name, batch) for name in ("text_encoder", "unet", "vae_decoder", "pipeline") for batch in (1, 2)
    ]
    for each in rows:
        assert each.status == "ok", each
        assert each.checked_against == "diffusers (torch)"
        assert (each.height, each.width, each.repeat, each.warmup) == (32, 48, 2, 1)
        assert each.median_ms
        assert each.min_ms
        assert each.p90_ms
        assert bool(each.prepare_ms) == (each.component == "unet")
        assert each.min_ms <= each.median_ms <= each.p90_ms
        assert each.model_hash == rows[0].model_hash
        assert {"sdort", "onnxruntime", "torch"} <= set(each.versions)
        if each.component == "pipeline":
            assert each.psnr_db is not None
            assert each.psnr_db >= 40
            assert each.images_per_s == pytest.approx(each.batch_size / each.median_ms * 1000)
        else:
            assert each.error is not None
            assert each.error < 1e-4
            assert each.images_per_s is None


def test_a_baseline_is_measured_beside_and_gives_ratios(tiny: Tiny, copy: Path) -> None:
    quick = BenchOptions(**{**QUICK, "repeat": 5}, baseline=tiny.onnx, components=("unet", "pipeline"))
    rows = measure_pipeline(copy, quick).rows
    assert [(each.pipeline, each.component) for each in rows] == [
        (name, component) for component in ("unet", "pipeline") for name in ("onnx", "copy")
    ]
    for baseline, candidate in zip(rows[::2], rows[1::2], strict=True):
        assert baseline.speedup is None
        assert candidate.speedup
        assert candidate.speedup_low
        assert candidate.speedup_high
        assert candidate.speedup_low <= candidate.speedup <= candidate.speedup_high
        assert candidate.checked_against == "the baseline onnx"


def test_a_checkpoint_as_baseline_runs_in_torch(tiny: Tiny) -> None:
    rows = measure_pipeline(
        tiny.onnx, BenchOptions(**QUICK, baseline=tiny.diffusers, components=("text_encoder", "vae_decoder"))
    ).rows
    assert [each.engine for each in rows] == ["torch", "onnxruntime"] * 2
    assert all(each.status == "ok" for each in rows)
    assert rows[1].error is not None
    assert 0 < rows[1].error < 1e-4


@pytest.mark.parametrize("component", ["unet", "pipeline"])
def test_a_wrong_output_has_no_timing(component: str, tiny: Tiny, copy: Path, sdort: Callable[..., Result]) -> None:
    edit_weights(copy / "unet" / "model.onnx", shift(0.5), "conv_in.weight")
    result = sdort(copy, "--baseline", str(tiny.onnx), "--component", component, "--format", "json")
    assert result.exit_code == ParityError.exit_code
    assert "1 of 2 rows were not timed" in result.stderr
    baseline, candidate = json.loads(result.stdout)["rows"]
    assert baseline["median_ms"] > 0
    assert "the baseline onnx" in candidate["status"]
    assert all(candidate[name] is None for name in TIMES)
    if component == "pipeline":
        assert re.search(r"PSNR [\d.]+ dB, at least 40 wanted;", candidate["status"])  # in fp32 one image decides


def test_a_wrong_pipeline_is_called_so_after_eight_images_of_its_reference(tiny: Tiny, tmp_path: Path) -> None:
    """In fp16, and at a batch of three nine: the reference is opened again for them."""
    optimize(tiny.onnx, tmp_path / "fast", provider="cpu", fp16=True)
    edit_weights(tmp_path / "fast" / "unet" / "model.onnx", shift(0.5), "conv_in.weight")
    options = BenchOptions(**QUICK, reference=tiny.onnx, components=("pipeline",), batch_sizes=(3,))
    [row] = measure_pipeline(tmp_path / "fast", options).rows
    assert row.status.startswith("is not like onnx (ONNX): median PSNR")
    assert row.status.endswith("(9 images)")
    [right] = measure_pipeline(tiny.onnx, options).rows
    assert (right.status, right.psnr_db) == ("ok", math.inf)


def test_an_error_with_json_is_one_object_with_the_rows(copy: Path, sdort: Callable[..., Result]) -> None:
    edit_weights(copy / "vae_decoder" / "model.onnx", lambda array, _: array * np.nan, "conv_out.bias")
    result = sdort(copy, "--component", "vae_decoder", "--component", "text_encoder", "--json")
    assert result.exit_code == ParityError.exit_code
    told = json.loads(result.stdout)
    assert (told["type"], told["exit_code"]) == ("ParityError", ParityError.exit_code)
    assert [(row["component"], row["status"]) for row in told["rows"]] == [
        ("vae_decoder", "sample has NaN or infinite values (100 % of it)"), ("text_encoder", "ok"),
    ]  # fmt: skip
    assert "vae_decoder, batch 1" in result.stderr


def test_every_row_that_failed_is_named_at_the_end(copy: Path, sdort: Callable[..., Result]) -> None:
    for component, weight in (("vae_decoder", "conv_out.bias"), ("unet", "conv_in.weight")):
        edit_weights(copy / component / "model.onnx", lambda array, _: array * np.nan, weight)
    names = ["--component", "vae_decoder", "--component", "unet"]
    result = sdort(copy, *names, "--batch-size", "1,2", "--json", "-o", "rows.json")
    assert result.exit_code == ParityError.exit_code
    lines = result.stderr.splitlines()[-5:]
    assert lines[0].endswith("4 of 4 rows were not timed, because they failed:")
    wanted = [(name, batch) for name in ("vae_decoder", "unet") for batch in (1, 2)]
    for line, (name, batch) in zip(lines[1:], wanted, strict=True):
        assert f", {name}, batch {batch}, " in line
        assert "NaN or infinite" in line
    assert [row["component"] for row in json.loads(Path("rows.json").read_text())["rows"]] == [
        name for name, _ in wanted
    ]
    assert "rows" not in json.loads(result.stdout)


def test_nan_is_found_without_any_reference(copy: Path) -> None:
    edit_weights(copy / "vae_decoder" / "model.onnx", lambda array, _: array * np.nan, "conv_out.bias")
    rows = measure_pipeline(copy, BenchOptions(**QUICK, components=("vae_decoder", "pipeline", "text_encoder"))).rows
    assert "NaN" in rows[0].status
    assert "NaN" in rows[1].status
    assert rows[2].status == "ok"
    assert [each.median_ms is None for each in rows] == [True, True, False]
    assert "no reference" in rows[2].checked_against


def test_a_reference_that_is_broken_approves_of_nothing(tiny: Tiny, copy: Path) -> None:
    edit_weights(copy / "unet" / "model.onnx", lambda array, _: array * np.nan, "conv_out.bias")
    rows = measure_pipeline(tiny.onnx, BenchOptions(**QUICK, reference=copy, components=("unet",))).rows
    assert "copy (ONNX) itself gives NaN" in rows[0].status
    assert rows[0].median_ms is None


def test_outputs_that_do_not_repeat_have_no_timing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from sdort.engines import onnx as engines

    def drifting(self: Any, calls: list[int] = []) -> Any:  # noqa: B006 - counts the calls
        calls.append(1)
        return {"y": np.arange(5.0) * len(calls)}

    monkeypatch.setattr(engines._OnnxComponent, "result", drifting)
    rows = measure_pipeline(tiny.onnx, BenchOptions(**QUICK, components=("unet",))).rows
    assert "not repeatable" in rows[0].status
    assert rows[0].median_ms is None


@pytest.mark.parametrize(("right", "timed"), [(1, False), (2, True), (3, True)])
def test_an_output_that_changes_later_has_no_timing_either(
    right: int, timed: bool, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the warm-up, which is call 2, nothing is timed any more; in the timed calls, 3 and 4, what was is dropped."""
    from sdort.engines import onnx as engines

    run, calls = engines._OnnxComponent.__call__, []
    real = engines._OnnxComponent.result

    def counted(self: Any) -> None:
        calls.append(1)
        run(self)

    def drifting(self: Any) -> Any:
        found = real(self)
        return found if len(calls) <= right else {name: value[..., ::-1] for name, value in found.items()}

    monkeypatch.setattr(engines._OnnxComponent, "__call__", counted)
    monkeypatch.setattr(engines._OnnxComponent, "result", drifting)
    monkeypatch.setattr(bench_module, "find_reference", lambda *_: None)
    [row] = measure_pipeline(tiny.onnx, BenchOptions(**QUICK, components=("text_encoder",))).rows
    assert "not repeatable: " in row.status
    assert "differs from the first call" in row.status
    assert len(calls) == (4 if timed else 2)
    assert row.times_ms == []
    assert all(getattr(row, name) is None for name in TIMES)


@pytest.mark.parametrize("emptied", [False, True])
def test_a_cache_that_was_emptied_is_filled_before_anything_is_timed(
    emptied: bool, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sdort.benchmark import measure as module
    from sdort.engines import onnx as engines

    calls: list[str] = []
    run = engines._OnnxComponent.__call__

    def ran(self: Any) -> None:
        calls.append("run")
        run(self)

    def timed(*args: Any) -> list[list[float]]:
        calls.append("timed")
        return timing.interleave(*args)

    monkeypatch.setattr(engines._OnnxComponent, "__call__", ran)
    monkeypatch.setattr(module, "interleave", timed)
    monkeypatch.setattr(module, "torch_on_gpu", lambda: emptied)
    options = BenchOptions(
        runtime=RuntimeOptions("cpu"), components=("text_encoder",), reference=tiny.onnx, warmup=1, repeat=1
    )
    [row] = measure_pipeline(tiny.onnx, options).rows
    assert row.status == "ok"
    assert row.host_later_mib is not None
    # The reference's, the first, the warm-up's, and the one that fills the cache.
    assert calls == ["run"] * (4 if emptied else 3) + ["timed", "run"]


def test_without_warm_up_nothing_is_told_of_later_calls(tiny: Tiny) -> None:
    options = BenchOptions(runtime=RuntimeOptions("cpu"), components=("text_encoder",), warmup=0, repeat=3)
    [row] = measure_pipeline(tiny.onnx, options).rows
    assert (row.status, row.warmup, row.repeat, len(row.times_ms)) == ("ok", 0, 3, 3)
    assert row.host_first_mib is not None
    assert row.host_later_mib is None
    assert row.device_later_mib is None


def test_one_size_that_fails_does_not_lose_the_others(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = OnnxEngine.prepare

    def fail_at_two(self: Any, case: Case, *rest: Any) -> Any:
        if case.batch == 2:
            raise ProviderError("cpu ran out of memory", hint="Take fewer images at once.")
        return prepare(self, case, *rest)

    monkeypatch.setattr(OnnxEngine, "prepare", fail_at_two)
    rows = measure_pipeline(tiny.onnx, BenchOptions(**QUICK, components=("unet",), batch_sizes=(1, 2, 3))).rows
    assert [each.status for each in rows] == ["ok", "cpu ran out of memory. Take fewer images at once.", "ok"]
    assert [each.median_ms is None for each in rows] == [False, True, False]


def test_a_static_unet_is_fed_the_batch_it_was_exported_for(tiny: Tiny, tmp_path: Path) -> None:
    tiny_pipeline.export_onnx(tiny.pipeline, tmp_path / "static", batch=2)
    rows = measure_pipeline(tmp_path / "static", BenchOptions(**QUICK, components=("unet", "vae_decoder"))).rows
    assert [(each.batch_size, each.status) for each in rows] == [(2, "ok"), (1, "ok")]


def test_torch_runs_the_checkpoint(tiny: Tiny) -> None:
    rows = measure_pipeline(tiny.diffusers, BenchOptions(**QUICK, engine="torch", components=("unet", "pipeline"))).rows
    assert [(each.engine, each.status, each.dtype) for each in rows] == [("torch", "ok", "float32")] * 2
    assert all(each.checked_against == "diffusers (torch)" for each in rows)


def test_torch_compile_compiles_the_unet_and_the_decoder(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    compiled: list[tuple[str, dict[str, Any]]] = []

    def record(module: Any, **how: Any) -> Any:
        compiled.append((type(module).__name__, how))
        return module

    monkeypatch.setattr(torch, "compile", record)
    options = BenchOptions(**QUICK, engine="torch-compile", checkpoint=tiny.diffusers, components=("pipeline",))
    rows = measure_pipeline(tiny.onnx, options).rows
    assert rows[0].engine == "torch-compile"
    assert rows[0].status == "ok"
    assert rows[0].engine_settings == "mode default"
    how = {"mode": "default", "dynamic": False}
    assert compiled == [("UNet2DConditionModel", how), ("method", how)]


def test_a_compiler_that_fails_is_a_row_and_no_traceback(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def broken(module: Any, **_: Any) -> Any:
        def call(*_: Any, **__: Any) -> None:
            raise RuntimeError("no C++ compiler\nlong story")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    options = BenchOptions(**QUICK, engine="torch-compile", components=("vae_decoder",))
    rows = measure_pipeline(tiny.diffusers, options).rows
    assert rows[0].status == "torch-compile on cpu failed: no C++ compiler"


def test_torch_on_a_gpu_that_torch_does_not_have_is_an_error(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench_module, "choose_provider", lambda options: (ROCM, None))
    monkeypatch.setattr(bench_module, "announce", lambda options: None)
    with pytest.raises(ProviderError, match="has no GPU"):
        measure_pipeline(tiny.diffusers, BenchOptions(engine="torch"))


# Where originals are


def test_an_optimized_pipeline_is_compared_with_what_its_manifest_names(tiny: Tiny, copy: Path) -> None:
    optimized = {"from": str(tiny.onnx), "origin": origin_mark(tiny.onnx)}
    (copy / "sdort.json").write_text(json.dumps({"source": "x", "optimized": optimized}))
    with original_of(copy, "") as original:
        assert original == tiny.onnx
    rows = measure_pipeline(copy, BenchOptions(**QUICK, components=("unet",))).rows
    assert rows[0].checked_against == "onnx (ONNX)"
    assert rows[0].error == 0


def test_the_checkpoint_is_at_the_end_of_the_chain(tiny: Tiny, copy: Path, tmp_path: Path) -> None:
    optimized = Path(shutil.copytree(tiny.onnx, tmp_path / "optimized"))
    checkpoint = Path(shutil.copytree(tiny.diffusers, tmp_path / "diffusers"))
    write_json(copy / "sdort.json", {"source": "diffusers", "origin": origin_mark(checkpoint)})
    made = {"from": str(copy), "origin": origin_mark(copy)}
    write_json(optimized / "sdort.json", {"source": "gone", "optimized": made})
    with checkpoint_of(optimized) as checkpoint:
        assert checkpoint == tmp_path / "diffusers"


def test_the_demo_is_made_again(copy: Path) -> None:
    (copy / "sdort.json").write_text('{"source": "demo"}')
    with original_of(copy, "") as original:
        assert original is not None
        assert (original / "unet" / "config.json").is_file()
    assert not original.exists()


def test_a_manifest_that_names_its_own_folder_is_no_original(copy: Path) -> None:
    (copy / "sdort.json").write_text(json.dumps({"optimized": {"from": str(copy)}}))
    with original_of(copy, "") as original:
        assert original is None


def test_an_inpainting_pipeline_has_components_and_draws_nothing(tiny: Tiny, copy: Path, tmp_path: Path) -> None:
    pipeline = tiny_pipeline.build_diffusers(tmp_path / "inpaint", unet={"in_channels": 9})
    shutil.rmtree(copy / "unet")
    tiny_pipeline.export_onnx(pipeline, copy, only="unet")
    assert OnnxEngine(tiny.onnx, CPU, RuntimeOptions()).components()[-1] == "pipeline"
    assert OnnxEngine(copy, CPU, RuntimeOptions()).components() == ["text_encoder", "unet", "vae_decoder"]
    rows = measure_pipeline(copy, BenchOptions(**QUICK, sizes=((32, 48),), reference=tmp_path / "inpaint")).rows
    assert [(each.component, each.status) for each in rows] == [
        (name, "ok") for name in ("text_encoder", "unet", "vae_decoder")
    ]


@pytest.mark.parametrize("manifest", [None, "{}", '{"source": "nowhere"}', '{"optimized": {"from": "/nowhere"}}'])
def test_an_original_that_is_not_here_is_not_guessed(manifest: str | None, copy: Path) -> None:
    if manifest:
        (copy / "sdort.json").write_text(manifest)
    with original_of(copy, "") as original:
        assert original is None
    with pytest.raises(UsageError, match="--checkpoint DIR"), checkpoint_of(copy):
        pass


def test_the_dtype_of_the_weights_is_found(tiny: Tiny, copy: Path) -> None:
    assert read_component(tiny.onnx / "unet" / "model.onnx", "unet").dtype == "float32"


# The command


def test_the_command_prints_a_table(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    result = sdort(tiny.onnx, "--component", "unet", "--component", "text_encoder")
    assert result.exit_code == 0, result.output
    assert "median ms" in result.stdout
    assert "text_encoder" in result.stdout
    assert "2 timed calls" in result.stdout


@pytest.mark.parametrize("form", ["csv", "json", "markdown", "table"])
def test_the_result_goes_to_a_file(form: str, tiny: Tiny, sdort: Callable[..., Result]) -> None:
    result = sdort(tiny.onnx, "--component", "text_encoder", "--format", form, "--output", "out.txt")
    assert result.exit_code == 0, result.output
    assert "median ms" in result.stdout  # a person sees the table whatever the file's form
    text = Path("out.txt").read_text()
    assert {"csv": "pipeline,engine", "json": "{", "markdown": "| pipeline", "table": "| pipeline"}[form] == text[
        : len({"csv": "pipeline,engine", "json": "{", "markdown": "| pipeline", "table": "| pipeline"}[form])
    ]


def test_json_is_a_short_form(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    result = sdort(tiny.onnx, "--component", "text_encoder", "--json", "-q")
    assert [each["component"] for each in json.loads(result.stdout)["rows"]] == ["text_encoder"]


def test_a_failed_check_still_delivers_the_file(copy: Path, sdort: Callable[..., Result]) -> None:
    edit_weights(copy / "unet" / "model.onnx", lambda array, _: array * np.nan, "conv_out.bias")
    result = sdort(copy, "--component", "unet", "--format", "csv", "--output", "out.csv")
    assert result.exit_code == ParityError.exit_code
    assert "NaN" in Path("out.csv").read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--batch-size", "1,x"], "like 1,2,4"),
        (["--batch-size", "0"], "like 1,2,4"),
        (["--size", "512"], "'512' is no size. Write WIDTHxHEIGHT in pixels"),
        (["--size", "512x512,"], "'' is no size. Write WIDTHxHEIGHT in pixels"),
        (["--size", "64x66"], "--size 64x66: width and height must be multiples of 4"),
        (["--repeat", "0"], "--repeat"),
        (["--component", "decoder"], "there is no component decoder"),
        (["--engine", "torch"], "--checkpoint DIR"),
        (["--scheduler", "dppm"], "there is no scheduler"),
    ],
)
def test_wrong_options_are_usage_errors(
    args: list[str], message: str, tiny: Tiny, sdort: Callable[..., Result]
) -> None:
    result = sdort(tiny.onnx, *args)
    assert result.exit_code == UsageError.exit_code, result.output
    assert message in result.stderr


def test_a_folder_that_cannot_be_written_to_is_found_first(
    tiny: Tiny, sdort: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdort.benchmark.command.measure_pipeline", None)
    result = sdort(tiny.onnx, "--output", "missing/out.csv")
    assert result.exit_code == OutputError.exit_code
    assert "missing" in result.stderr
