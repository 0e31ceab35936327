"""Graphs that other tools have changed: ONNX Runtime's optimizer, quantizers, newer exporters, other networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from support import native
from support.exports import Case, quiet
from support.hardware import provider_of
from support.optimized_models import counts
from support.parity import compare, open_raw
from support.small_graphs import Array, feeds_for, load, operators, parse, run, to_proto

from sdort.errors import BadModelError, MissedFusionError
from sdort.graph.model import Model
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.onnx_io.standard_operators import expand
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.rewrite.editor import Editor
from sdort.workload.samples import Sample

Exported = Callable[[Case], Path]
COMPONENTS = {"clip": "text_encoder", "vae_decoder": "vae_decoder"}
GPUS = tuple(name for name in PROVIDER_NAMES if load_target(name).channels_last)
RNG = np.random.default_rng(0)


def optimized(path: Path, component: str, target: str, fp16: bool = False) -> tuple[Model, ComponentReport]:
    model = load_model(path, component)
    return model, optimize_model(model, OptimizeOptions(load_target(target), fp16))


def check_parity(original: Path, target: str, model: Model, folder: Path) -> None:
    save_model(model, folder / "model.onnx")
    sequence = 77 if model.component.startswith("text") else 7
    samples = [Sample(1, 16, 24, sequence), Sample(2, 9, 13, sequence)]
    compare(
        original, folder / "model.onnx", component=model.component, samples=samples, provider=provider_of(target)
    ).check()


def small(text: str, weights: dict[str, Array] | None, target: str, sizes: dict[str, int], *, opset: int = 18) -> Model:
    """The optimized model of a graph text, after a check that it computes the same."""
    model = load(text, weights, opset)
    report = optimize_model(model, OptimizeOptions(load_target(target)))
    assert report.misses == []
    proto = parse(text, weights, opset)
    feeds = feeds_for(proto, sizes)
    for found, wanted in zip(run(model, feeds), run(proto, feeds), strict=True):
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 2e-5 * max(np.abs(wanted).max(), 1)
    return model


# --- optimized by ONNX Runtime before ---


@pytest.fixture(scope="module")
def preoptimized(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A text encoder and a decoder as ONNX Runtime's own fusions leave them."""
    folder = tmp_path_factory.mktemp("preoptimized")
    paths = {}
    for family in COMPONENTS:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(folder / f"{family}.onnx")
        options.log_severity_level = 4
        onnxruntime.InferenceSession(str(exported(Case(family, "ts17"))), options, providers=["CPUExecutionProvider"])
        paths[family] = folder / f"{family}.onnx"
    return paths


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("family", COMPONENTS)
def test_what_onnx_runtime_fused_fuses_as_if_it_had_not(
    exported: Exported, preoptimized: dict[str, Path], tmp_path: Path, family: str, target: str
) -> None:
    path, component = preoptimized[family], COMPONENTS[family]
    fused = {node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft"}
    assert fused == {"QuickGelu", "FusedMatMul"}
    model, report = optimized(path, component, target)
    assert report.misses == []
    wanted = optimized(exported(Case(family, "ts17")), component, target)[1]
    assert _fused(report) == _fused(wanted)
    assert report.operators.get("Transpose", 0) <= wanted.operators.get("Transpose", 0)
    check_parity(path, target, model, tmp_path)


def _fused(report: ComponentReport) -> dict[str, int]:
    kinds = ("com.microsoft", "Sigmoid", "MatMul", "Softmax", "LayerNorm")
    return {name: count for name, count in counts(report).items() if name.startswith(kinds)}


@pytest.mark.parametrize(
    ("first", "second"), [("rocm", "cpu"), ("cuda", "migraphx"), ("rocm", "cuda"), ("cuda", "rocm"), ("cuda", "dml")]
)
@pytest.mark.parametrize("family", COMPONENTS)
def test_a_result_for_one_provider_is_taken_to_another(
    exported: Exported, tmp_path: Path, family: str, first: str, second: str
) -> None:
    source, component = exported(Case(family, "ts17")), COMPONENTS[family]
    save_model(optimized(source, component, first)[0], tmp_path / "first.onnx")
    model, report = optimized(tmp_path / "first.onnx", component, second)
    assert report.misses == []
    wanted = optimized(source, component, second)[1]
    assert _fused(report) == _fused(wanted)
    assert report.operators.get("Transpose", 0) <= wanted.operators.get("Transpose", 0)
    check_parity(source, second, model, tmp_path)


def test_a_form_that_cannot_be_restored_is_refused_with_advice() -> None:
    """One without a bias, as ONNX Runtime's schema allows and no fusion of it writes."""
    text = "g (float[2, 4, 12] x) => (float[a, b, c] y) { y = com.microsoft.Attention <num_heads = 3> (x, w) }"
    model = load(text, {"w": np.ones((12, 36), np.float32)}, 18)
    with pytest.raises(MissedFusionError, match="migraphx has no kernel for Attention") as caught:
        optimize_model(model, OptimizeOptions(load_target("migraphx")))
    assert "as it was before ONNX Runtime's optimizer fused it" in (caught.value.hint or "")


RESTORED = {
    "SiLU": ("y = com.microsoft.QuickGelu <alpha = 1.0> (x)", {"Mul": 1, "Sigmoid": 1}),
    "QuickGelu by default": ("y = com.microsoft.QuickGelu (x)", {"com.microsoft.QuickGelu": 1}),
    "another slope": ("y = com.microsoft.QuickGelu <alpha = 1.5> (x)", {"Mul": 2, "Sigmoid": 1}),
    "FastGelu": ("y = com.microsoft.FastGelu (x)", {"com.microsoft.FastGelu": 1}),
    "FusedMatMul": ("y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, x)", None),
    "both turned": ("y = com.microsoft.FusedMatMul <transA = 1, transB = 1> (x, w)", None),
}


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("name", RESTORED)
def test_operators_of_onnx_runtime_are_restored(name: str, target: str) -> None:
    body, wanted = RESTORED[name]
    weights = {"w": RNG.standard_normal((6, 4)).astype(np.float32)} if "w)" in body else None
    model = small(f"g (float[2, 4, 8] x) => (float[a, b, c] y) {{ {body} }}", weights, target, {})
    if target == "openvino" and name == "FastGelu":
        wanted = {"Gelu": 1}  # OpenVINO takes the standard operator
    if wanted is not None:
        assert operators(Editor(model)) == wanted
    assert "FusedMatMul" not in {node.op for node in model.graph.nodes}


@pytest.mark.parametrize(
    "call",
    ["<transBatchA = 1> (x, x)", "<transBatchB = 1> (x, x)", "(x, any)", "<transB = 1> (any, x)", "(x, row)"],
)
def test_other_forms_of_fused_mat_mul_are_refused_in_words(call: str) -> None:
    text = f"""g (float[2, 4, 8] x, float[] any, float[8] row) => (float[] y) {{
        y = com.microsoft.FusedMatMul {call} }}"""
    model = load(text, opset=18)
    for tensor in model.graph.inputs:
        tensor.shape = None if tensor.name == "any" else tensor.shape
    with pytest.raises(MissedFusionError, match="no kernel for FusedMatMul"):
        optimize_model(model, OptimizeOptions(load_target("cpu")))


# --- norms that are no LayerNormalization ---

_ROOT = "s = Sqrt (e)  r = Reciprocal (s)  n = Mul (x, r)"
NO_LAYER_NORM = {
    "RMSNorm": f"q = Pow (x, two)  v = ReduceMean (q, last)  e = Add (v, eps)  {_ROOT}  y = Mul (n, g)",
    "RMSNorm without weights": f"q = Mul (x, x)  v = ReduceMean (q, last)  e = Add (v, eps)  {_ROOT}  y = Neg (n)",
    "pooling": "p = ReduceMean (x, middle)  y = Mul (x, p)",
    "a gate": "p = ReduceMean (x, last)  q = Sigmoid (p)  y = Mul (x, q)",
}
_MEANS = "m = ReduceMean (x, last)  d = Sub (x, m)"
LAYER_NORM_LIKE = {
    "a bound for a shift": f"{_MEANS}  q = Pow (d, two)  v = ReduceMean (q, last)  e = Max (v, eps)  s = Sqrt (e)  "
    "n = Div (d, s)  t = Mul (n, g)  y = Add (t, g)",
    "a bound without weights": f"{_MEANS}  q = Mul (d, d)  v = ReduceMean (q, last)  e = Max (eps, v)  s = Sqrt (e)  "
    "y = Div (d, s)",
}
NORM_HEADER = """g (float[2, S, 8] x) => (float[a, b, c] y) <int64[1] last = {-1}, int64[1] middle = {1},
float two = {2.0}, float three = {3.0}, float eps = {0.00001}>"""


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("name", NO_LAYER_NORM)
def test_other_means_are_no_missed_layer_normalization(name: str, target: str) -> None:
    body = NO_LAYER_NORM[name]
    weights = {"g": RNG.standard_normal(8).astype(np.float32)} if "g)" in body else None
    small(f"{NORM_HEADER} {{ {body} }}", weights, target, {"S": 5})


@pytest.mark.parametrize("name", LAYER_NORM_LIKE)
def test_what_is_nearly_one_is_missed(name: str) -> None:
    body = LAYER_NORM_LIKE[name]
    weights = {"g": RNG.standard_normal(8).astype(np.float32)} if "g)" in body else None
    model = load(f"{NORM_HEADER} {{ {body} }}", weights, 18)
    report = optimize_model(model, OptimizeOptions(load_target("cpu")))
    assert {miss.fusion for miss in report.misses} == {"layer_normalization"}


# --- newer opsets ---


@pytest.mark.parametrize(("opset", "target"), [(24, "rocm"), (24, "cpu"), (25, "cuda"), (25, "migraphx")])
def test_opsets_that_export_offers(exported: Exported, tmp_path: Path, opset: int, target: str) -> None:
    path = exported(Case("clip", f"dy{opset}", dynamic=False))
    assert {entry.version for entry in onnx.load(path).opset_import} == {opset}
    model, report = optimized(path, "text_encoder", target)
    assert report.misses == []
    assert (
        report.operators
        == optimized(exported(Case("clip", "dy23", dynamic=False)), "text_encoder", target)[1].operators
    )
    check_parity(path, target, model, tmp_path)


# --- quantized ---


def quantize_weights(source: Path, path: Path, per_channel: bool) -> Path:
    """Every matrix in 8 bits behind a DequantizeLinear, as weight-only quantizers write it."""
    model = onnx.load(source)
    made = []
    for tensor in [t for t in model.graph.initializer if t.data_type == 1 and len(t.dims) > 1]:
        values = numpy_helper.to_array(tensor)
        axes = tuple(range(1, values.ndim)) if per_channel else None
        least, most = (f(values, axis=axes, keepdims=True, initial=0) for f in (np.min, np.max))
        scale = ((most - least) / 255).astype(np.float32)
        zero = np.round(-least / scale).astype(np.uint8)
        stored = np.clip(np.round(values / scale) + zero, 0, 255).astype(np.uint8)
        model.graph.initializer.remove(tensor)
        shape = (-1,) if per_channel else ()
        parts = {"q": stored, "s": scale.reshape(shape), "z": zero.reshape(shape)}
        model.graph.initializer.extend(numpy_helper.from_array(v, f"{tensor.name}.{k}") for k, v in parts.items())
        inputs = [f"{tensor.name}.{k}" for k in parts]
        made.append(helper.make_node("DequantizeLinear", inputs, [tensor.name], axis=0))
    nodes = [*made, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_that_are_stored_in_8_bits(exported: Exported, tmp_path: Path, per_channel: bool, target: str) -> None:
    source = exported(Case("vae_decoder", "ts17"))
    path = quantize_weights(source, tmp_path / "quantized.onnx", per_channel)
    model, report = optimized(path, "vae_decoder", target, fp16=target == "rocm")
    assert report.misses == []
    assert counts(report) == counts(optimized(source, "vae_decoder", target, fp16=target == "rocm")[1])
    check_parity(path, target, model, tmp_path)


QUANTIZED = {
    "QuantizeLinear": "q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z)",
    "DynamicQuantizeLinear": "q, t, o = DynamicQuantizeLinear (x)  y = DequantizeLinear (q, t, o)",
    "QLinearMatMul": """q, t, o = DynamicQuantizeLinear (x)  m = QLinearMatMul (q, t, o, w, s, z, s, z)
        y = DequantizeLinear (m, s, z)""",
    "MatMulInteger": "q, t, o = DynamicQuantizeLinear (x)  m = MatMulInteger (q, w, o, z)  y = Cast <to = 1> (m)",
    "QLinearAdd": """q = QuantizeLinear (x, s, z)  m = com.microsoft.QLinearAdd (q, s, z, q, s, z, s, z)
        y = DequantizeLinear (m, s, z)""",
    "MatMulNBits": "y = com.microsoft.MatMulNBits <K = 16, N = 4, bits = 4, block_size = 16> (x, packed, scales)",
}


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("fp16", [False, True])
@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_arithmetic_is_refused_in_words(name: str, fp16: bool, target: str) -> None:
    weights: dict[str, Array] = {
        "s": np.array(0.1, np.float32),
        "z": np.array(128, np.uint8),
        "w": RNG.integers(0, 255, (16, 4)).astype(np.uint8),
        "packed": RNG.integers(0, 255, (4, 1, 8)).astype(np.uint8),
        "scales": np.ones(4, np.float32),
    }
    body = QUANTIZED[name]
    used = {k: v for k, v in weights.items() if any(f"{k}{end}" in body.replace("(", " ") for end in (",", ")"))}
    model = load(f"g (float[3, 16] x) => (float[a, b] y) {{ {body} }}", used, 18)
    with pytest.raises(BadModelError, match="computes in a quantized form") as caught:
        optimize_model(model, OptimizeOptions(load_target(target), fp16))
    assert caught.value.node
    assert "quantized from" in (caught.value.hint or "")


# --- convolutions and what follows them ---

PADDED = {
    "upper": ('auto_pad = "SAME_UPPER"', True),
    "lower": ('auto_pad = "SAME_LOWER"', True),
    "valid, strided": ('auto_pad = "VALID", strides = [2, 3]', True),
    "not set": ('auto_pad = "NOTSET", pads = [1, 0, 0, 1]', True),
    "upper, strided": ('auto_pad = "SAME_UPPER", strides = [2, 3]', False),
    "lower, strided": ('auto_pad = "SAME_LOWER", strides = [3, 2]', False),
}


@pytest.mark.parametrize("target", PROVIDER_NAMES)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", PADDED)
def test_automatic_padding(name: str, static: bool, target: str) -> None:
    settings, everywhere = PADDED[name]
    # One convolution alone is not worth two Transposes.
    weights = {
        name: RNG.standard_normal(shape).astype(np.float32)
        for name, shape in (("w", (6, 4, 3, 2)), ("v", (6, 6, 1, 1)))
    }
    sizes = "1, 4, 8, 7" if static else "B, 4, H, W"
    text = f"""g (float[{sizes}] x) => (float[a, b, c, d] y) {{
        c = Conv <{settings}> (x, w)  n = Neg (c)  y = Conv (n, v) }}"""
    for height, width in ((8, 7), (7, 8)) if not static else ((8, 7),):
        model = small(text, weights, target, {"B": 2, "H": height, "W": width})
    conv, _ = (node for node in model.graph.nodes if node.op in ("Conv", "NhwcConv"))
    turned = target in GPUS and (everywhere or static)
    assert conv.op == ("NhwcConv" if turned else "Conv")
    assert ("auto_pad" in conv.attrs) == (not everywhere and not static)


def test_automatic_padding_of_a_dilated_convolution() -> None:
    """ONNX Runtime does not run it as it is; 2 (3 - 1) are put around the height, 2 - 1 behind the width."""
    weights = {"w": RNG.standard_normal((6, 4, 3, 2)).astype(np.float32)}
    text = "g (float[B, 4, H, W] x) => (float[a, b, c, d] y) {{ y = Conv <{}, dilations = [2, 1]> (x, w) }}"
    model = load(text.format('auto_pad = "SAME_UPPER"'), weights, 18)
    optimize_model(model, OptimizeOptions(load_target("rocm")))
    proto = parse(text.format("pads = [2, 0, 2, 1]"), weights, 18)
    feeds = feeds_for(proto, {"B": 2, "H": 8, "W": 7})
    np.testing.assert_allclose(run(model, feeds)[0], run(proto, feeds)[0], rtol=1e-5, atol=1e-5)


ACTIVATIONS = {
    "Relu": "y = Relu (c)",
    "a residual and a Relu": "s = Add (c, x)  y = Relu (s)",
    "Sigmoid": "y = Sigmoid (c)",
    "Tanh": "y = Tanh (c)",
    "Clip": "y = Clip (c, zero, six)",
    "LeakyRelu": "y = LeakyRelu <alpha = 0.1> (c)",
    "HardSigmoid": "y = HardSigmoid (c)",
}


@pytest.mark.parametrize("target", ["rocm", "cuda"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_follows_a_convolution_runs_with_the_library(tmp_path: Path, name: str, target: str) -> None:
    """ONNX Runtime would fuse an activation into the NhwcConv, and has no kernel for the result."""
    weights = {"w": RNG.standard_normal((4, 4, 3, 3)).astype(np.float32)}
    text = f"""g (float[B, 4, H, W] x) => (float[n, m, h, w0] r) <float zero = {{0.0}}, float six = {{6.0}}> {{
        c = Conv <pads = [1, 1, 1, 1]> (x, w)  {ACTIVATIONS[name]}  r = Conv (y, w) }}"""
    model = small(text, weights, target, {"B": 2, "H": 6, "W": 5})
    proto = to_proto(model)
    assert {"NhwcConv"} == {node.op_type for node in proto.graph.node} & {"NhwcConv", "Conv", "Relu"}
    feeds = feeds_for(proto, {"B": 2, "H": 6, "W": 5})
    session = open_raw(to_proto(model), tmp_path, "test", "cpu", native.library())
    (wanted,) = run(parse(text, weights, 18), feeds)
    assert np.abs(session.run(None, feeds)[0] - wanted).max() <= 2e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("target", PROVIDER_NAMES)
def test_a_tiny_autoencoder(tmp_path: Path, target: str) -> None:
    """AutoencoderTiny: a Relu behind nearly every convolution, and no norms."""
    from diffusers import AutoencoderTiny

    torch.manual_seed(0)
    widths: dict[str, tuple[int, ...]] = {
        "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8),
        "num_encoder_blocks": (1, 1),
        "num_decoder_blocks": (1, 1),
    }
    decoder = AutoencoderTiny(**widths, upsampling_scaling_factor=2, latent_channels=4).decoder.eval()
    path = tmp_path / "decoder.onnx"
    with quiet(), torch.no_grad():
        torch.onnx.export(
            decoder, (torch.randn(1, 4, 8, 8),), str(path), dynamo=False, opset_version=17, input_names=["latent"],
            dynamic_axes={"latent": {0: "b", 2: "h", 3: "w"}},
        )  # fmt: skip
    model, report = optimized(path, "vae_decoder", target)
    assert report.misses == []
    assert report.operators.get("Transpose", 0) <= 2
    assert ("Relu" in report.operators) == (target not in GPUS)
    (tmp_path / "out").mkdir()
    check_parity(path, target, model, tmp_path / "out")
    if target in GPUS:
        proto = onnx.load(tmp_path / "out" / "model.onnx")
        expand_free = open_raw(proto, tmp_path / "out", "vae_decoder", "cpu", native.library())
        latent = RNG.standard_normal((2, 4, 5, 6)).astype(np.float32)
        original = onnx.load(path)
        expand(original)
        (wanted,) = run(original, {"latent": latent})
        assert np.abs(expand_free.run(None, {"latent": latent})[0] - wanted).max() <= 1e-4 * wanted.std()
