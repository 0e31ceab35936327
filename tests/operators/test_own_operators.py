"""Operators of sdort's own domain: their function bodies, the fusion that makes them, and what runs where."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from support import native, rocm_stub
from support.exports import Case
from support.group_norm_cases import Array, exact
from support.group_norm_models import EXTENDED, draw, make_model
from support.optimized_models import described, samples_of
from support.parity import compare

from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.inspection.description import inspect_path
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io import standard_operators as reference
from sdort.onnx_io.load import from_proto, load_model
from sdort.onnx_io.own_functions import own_function
from sdort.onnx_io.save import save_model
from sdort.optimizer.expected import architecture
from sdort.providers import load_target
from sdort.runtime.placement import parse_placement

Exported = Callable[[Case], Path]

OPTIONAL = {"X2": (2, 3, 5, 4), "skip": (2, 3, 5, 12), "bias": (12,), "embedding": (2, 12)}
FORMS = [set(form) for size in range(5) for form in itertools.combinations(OPTIONAL, size)]


def shapes(form: set[str]) -> dict[str, tuple[int, ...]]:
    channels = 8 if "X2" in form else 12
    return {"X": (2, 3, 5, channels), "gamma": (12,), "beta": (12,)} | {n: s for n, s in OPTIONAL.items() if n in form}


def total(feeds: dict[str, Array]) -> Array:
    parts = [feeds[name].astype(np.float64) for name in ("X", "X2") if name in feeds]
    result: Array = np.concatenate(parts, axis=-1)
    for name in ("skip", "bias"):
        result = result + feeds.get(name, np.zeros(1))
    return result + feeds.get("embedding", np.zeros((2, 12))).reshape(2, 1, 1, 12)


@pytest.mark.parametrize("flat", [True, False], ids=["(N, C)", "(N, 1, 1, C)"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "+".join(sorted(form)) or "plain")
def test_the_body_of_every_form_is_the_definition(form: set[str], flat: bool) -> None:
    feeds = draw(np.float32, shapes(form))
    if not flat and "embedding" in feeds:
        feeds["embedding"] = feeds["embedding"].reshape(2, 1, 1, 12)
    model = make_model(EXTENDED, feeds, ("Y", "S"), groups=3, activation=1, epsilon=1e-3, channels_last=1)
    model.functions.append(own_function("GroupNorm", frozenset(feeds), 18))
    reference.expand(model)
    assert {node.domain for node in model.graph.node} == {"", reference.REFERENCE_DOMAIN}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y, s = session.run(None, feeds)
    expected_sum = total(feeds)
    np.testing.assert_allclose(s, expected_sum, rtol=1e-6, atol=1e-6)
    # By hand, not by the helper of the kernels' tests: epsilon differs from its default here.
    grouped = expected_sum.reshape(2, 15, 3, 4)
    centered = grouped - grouped.mean(axis=(1, 3), keepdims=True)
    normal = centered / np.sqrt((centered**2).mean(axis=(1, 3), keepdims=True) + 1e-3)
    affine = normal.reshape(2, 3, 5, 12) * feeds["gamma"] + feeds["beta"]
    np.testing.assert_allclose(y, affine / (1 + np.exp(-affine)), rtol=1e-5, atol=1e-5)


def test_one_model_has_one_form(tmp_path: Path) -> None:
    feeds = draw(np.float32, shapes({"X2", "bias"}))
    model = make_model(EXTENDED, feeds, ("Y",), groups=3, epsilon=1e-5)
    second = helper.make_node("GroupNorm", ["X", "X2", "gamma", "beta"], ["Z"], "second", domain="sdort", groups=3)
    model.graph.node.append(second)
    model.graph.output.append(helper.make_tensor_value_info("Z", onnx.TensorProto.FLOAT, [2, 3, 5, 12]))
    with pytest.raises(BadModelError, match=r"sdort.GroupNorm is used with .* a model has one form"):
        save_model(from_proto(model, None, "unet"), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_own_operator_is_refused() -> None:
    model = make_model(EXTENDED, draw(np.float32, shapes(set())), ("Y",), groups=3)
    model.graph.node[0].op_type = "Norm"
    with pytest.raises(BadModelError, match=r"unknown operator sdort\.Norm"):
        from_proto(model, None, "unet")


# --- the fusion, on whole graphs ---


def extended(exported: Exported, case: Case, fp16: bool = True) -> tuple[Model, ComponentReport]:
    model = load_model(exported(case), described(case.family)[0])
    return model, optimize_model(model, OptimizeOptions(load_target("rocm"), fp16=fp16, sdort_ops=True))


def skip_connections(family: str) -> int:
    """A UNet's decoder joins what its encoder left, once a resnet: one more a level than the encoder has."""
    config = described(family)[1]
    layers = config["layers_per_block"]
    levels = config["block_out_channels"]
    return sum(n + 1 for n in ([layers] * len(levels) if isinstance(layers, int) else layers))


NORMS = ("com.microsoft.GroupNorm", "com.microsoft.SkipGroupNorm", "sdort.BiasGroupNorm")
"""Group normalizations beside those of joined images."""
CASES = [Case("sd1", "ts14"), Case("sd1", "dy18"), Case("sdxl", "ts17", dynamic=False)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_joined_group_norm_reads_both_parts(exported: Exported, tmp_path: Path, case: Case) -> None:
    model, report = extended(exported, case)
    joined = skip_connections(case.family)
    assert report.operators["sdort.GroupNorm"] == joined == report.fusions["concat_group_norm"].matched
    own = [node for node in model.graph.nodes if node.domain == "sdort"]
    assert all(len(node.outputs) == 2 for node in own if node.op == "GroupNorm")  # the shortcut reads S
    # None of these widths is compiled into ONNX Runtime's kernel; every GEGLU is fused all the same.
    geglu = architecture(described(case.family)[1], "unet")["geglu"]
    assert report.operators["sdort.BiasSplitGelu"] == geglu > 0
    assert not any("BiasSplitGelu" in reason for reason in report.declined)
    norms = sum(report.operators.get(name, 0) for name in NORMS)
    assert report.operators["sdort.BiasGroupNorm"] > 0
    assert norms + joined == architecture(described(case.family)[1], "unet")["group_norm"]
    assert not any(
        reader.op == "GroupNorm" for n in model.graph.nodes if n.op == "Concat" for reader in n.outputs[0].outputs
    )
    save_model(model, tmp_path / "model.onnx")
    for library in ("off", str(native.library())):
        compare(
            exported(case),
            tmp_path / "model.onnx",
            component="unet",
            samples=samples_of(case, "unet"),
            custom_ops=library,
        ).check()


def test_without_the_option_there_is_none(exported: Exported) -> None:
    model = load_model(exported(Case("sd1", "ts14")), "unet")
    report = optimize_model(model, OptimizeOptions(load_target("rocm")))
    assert not any(node.domain == "sdort" for node in model.graph.nodes)
    widths = [reason for reason in report.declined if "BiasSplitGelu" in reason]
    assert widths
    assert all("(sdort's own takes every width), this one is" in reason for reason in widths)


def test_a_written_model_can_be_read_shown_and_optimized_again(exported: Exported, tmp_path: Path) -> None:
    case = Case("sd1", "ts14")
    model, report = extended(exported, case, fp16=False)
    save_model(model, tmp_path / "model.onnx")
    written = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    assert [(f.domain, f.name) for f in written.functions] == [
        ("sdort", name)
        for name in ("BiasGroupNorm", "BiasLayerNormalization", "BiasSplitGelu", "GroupNorm", "InterleavePhases")
    ]
    [shown] = inspect_path(tmp_path / "model.onnx")
    assert shown.operators["sdort.GroupNorm"] == report.operators["sdort.GroupNorm"]
    again = load_model(tmp_path / "model.onnx", "unet")
    second = optimize_model(again, OptimizeOptions(load_target("cuda"), fp16=True))
    assert second.operators["sdort.GroupNorm"] == report.operators["sdort.GroupNorm"]
    save_model(again, tmp_path / "again.onnx")
    assert len(onnx.load(tmp_path / "again.onnx", load_external_data=False).functions) == 5
    own = next(node for node in again.graph.nodes if (node.domain, node.op) == ("sdort", "GroupNorm"))
    assert load_target("migraphx").unsupported(own) == "migraphx has no kernel for sdort.GroupNorm"


SCRIPT = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 0
if len(sys.argv) > 3:
    options.register_custom_ops_library(sys.argv[3])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["ROCMExecutionProvider"])
feeds = dict(numpy.load(sys.argv[2]))
numpy.savez(sys.argv[2] + ".out", *session.run(None, feeds))
"""


def test_on_rocm_the_body_runs_without_the_library_and_the_kernel_with_it(tmp_path: Path) -> None:
    feeds = draw(np.float16, {"X": (2, 8, 8, 64), "X2": (2, 8, 8, 32), "gamma": (96,), "beta": (96,)})
    model = make_model(EXTENDED, feeds, ("Y", "S"), groups=8, activation=1, epsilon=1e-5, channels_last=1)
    model.functions.append(own_function("GroupNorm", frozenset(feeds), 18))
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", allow_pickle=False, **feeds)
    arguments = [str(tmp_path / "model.onnx"), str(tmp_path / "feeds.npz")]

    body = rocm_stub.runtime().run(SCRIPT, *arguments)
    assert body.returncode == 0, body.stderr[-2000:]
    placed = parse_placement(body.stderr)
    assert set(placed) == {"ROCMExecutionProvider"}
    assert placed["ROCMExecutionProvider"].total() > 1  # the Concat and the GroupNorm of the body

    log, bodies = tmp_path / "calls", native.build_folder() / "libsdort_simulated_wmma_gfx11.so"
    kernel = rocm_stub.runtime().run(
        SCRIPT, *arguments, str(native.library()), gfx="gfx1100", log=str(log), bodies=str(bodies)
    )
    assert kernel.returncode == 0, kernel.stderr[-2000:]
    assert parse_placement(kernel.stderr)["ROCMExecutionProvider"].total() == 1
    [launch] = [call for call in rocm_stub.read_log(log) if call["call"] == "hipModuleLaunchKernel"]
    assert launch["kernel"].startswith("group_norm_f16")
    with np.load(tmp_path / "feeds.npz.out.npz") as found:
        y, s = found["arr_0"], found["arr_1"]
    joined = np.concatenate([feeds["X"], feeds["X2"]], axis=-1)
    np.testing.assert_array_equal(s, joined)
    expected, _ = exact(joined.reshape(2, 64, 96), feeds["gamma"], feeds["beta"], 8, True)
    np.testing.assert_allclose(y.reshape(2, 64, 96), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("width", "heads", "own"), [(576, 2, True), (512, 2, False), (520, 2, False)])
def test_heads_too_wide_for_fast_kernels_are_the_library_s(width: int, heads: int, own: bool, tmp_path: Path) -> None:
    """Of the function's body and of the library's kernel the result is that of ONNX Runtime's operator."""
    inputs = ", ".join(f"float[2, {rows}, {width}] {name}" for name, rows in (("q", "S"), ("k", "L"), ("v", "L")))
    original = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>
        g ({inputs}) => (float[2, S, {width}] y) {{
            y = com.microsoft.MultiHeadAttention <num_heads = {heads}> (q, k, v)
        }}"""
    )
    plain = original.SerializeToString()
    model = from_proto(original, None, "vae_decoder")
    report = optimize_model(model, OptimizeOptions(load_target("cuda"), sdort_ops=True))
    assert report.operators.get("sdort.MultiHeadAttention", 0) == own
    # ONNX Runtime's operator, if it stays, is none that is left in standard operators, on no provider.
    on_cpu = optimize_model(
        from_proto(original, None, "vae_decoder"), OptimizeOptions(load_target("cpu"), sdort_ops=True)
    )
    assert (report.declined, on_cpu.declined) == ({}, {})
    assert on_cpu.operators == {"com.microsoft.MultiHeadAttention": 1}
    save_model(model, tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.normal(size=(2, rows, width)).astype(np.float32) for name, rows in (("q", 3), ("k", 5), ("v", 5))
    }
    results = []
    for path in (plain, str(tmp_path / "model.onnx")):
        for library in ("", str(native.library())):
            options = onnxruntime.SessionOptions()
            if library:
                options.register_custom_ops_library(library)
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            results.append(session.run(None, feeds)[0])
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-5)
