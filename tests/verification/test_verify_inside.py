"""Looking inside fused operators: what is decomposed computes the same, and what was planted is what is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, inliner, numpy_helper
from support.attention_block import SIZE, WIDTH, write_block
from support.bisected import CONFIGURATION, compare, found_in, optimized, scaled
from support.exports import Case

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.onnx_io.standard_operators import MINIMUM_OPSET
from sdort.providers import load_target
from sdort.verification import runners
from sdort.verification.bisection import blame as blame_module
from sdort.verification.bisection import fused_steps as fused_steps_module
from sdort.verification.bisection.blame import CAST, FUSION, SUM, BisectionFinding, bisect
from sdort.verification.bisection.decomposition import decompose
from sdort.verification.bisection.fused_steps import WrongStep, same_order
from sdort.verification.bisection.step_detection import detect_steps
from sdort.verification.bisection.tensor_pairs import GraphPair, run_session
from sdort.verification.component_comparison import ONNX, Comparison
from sdort.verification.limits import Tolerance
from sdort.verification.recorded_inputs import RANDOM

Exported = Callable[[Case], Path]
Array = np.ndarray[Any, Any]
UNET, DECODER, TEXT = Case("sd1", "ts17"), Case("vae_decoder", "ts17"), Case("clip", "ts17")

# --- the decomposed operators ---

_MHA = "y = com.microsoft.MultiHeadAttention <num_heads = 3{more}> ({inputs})"
_OWN = "y = com.microsoft.Attention <num_heads = 3{more}> ({inputs})"
_ONNX = "y = Attention <{more}> ({inputs})"
_FLAT = "q_num_heads = 3, kv_num_heads = 3"
_SKIP = "y, m, d, s = com.microsoft.SkipLayerNormalization <epsilon = 0.01> ({inputs})"
ROWS, KEYS, HEADS = (2, 5, 12), (2, 7, 12), (2, 3, 5, 4)
OPERATORS: dict[str, tuple[str, dict[str, tuple[int, ...]], str]] = {
    "attention": (_MHA.format(more="", inputs="q, k, v"), {"q": ROWS, "k": KEYS, "v": KEYS}, ""),
    "attention, scale": (_MHA.format(more=", scale = 0.1", inputs="q, k, v"), {"q": ROWS, "k": KEYS, "v": KEYS}, ""),
    "attention, causal": (
        _MHA.format(more=", unidirectional = 1", inputs="q, k, v"), {"q": ROWS, "k": ROWS, "v": ROWS}, "",
    ),
    "attention, mask": (
        _MHA.format(more="", inputs='q, k, v, "", "", mask'),
        {"q": ROWS, "k": KEYS, "v": KEYS, "mask": (1, 1, 5, 7)}, "",
    ),
    "projected": (
        _OWN.format(more="", inputs="x, w, b"), {"x": (2, 5, 8), "w": (8, 36), "b": (36,)}, "",
    ),
    "projected, causal": (
        _OWN.format(more=", unidirectional = 1, scale = 0.2", inputs="x, w, b"),
        {"x": (2, 5, 8), "w": (8, 36), "b": (36,)}, "",
    ),
    "standard": (_ONNX.format(more=_FLAT, inputs="q, k, v"), {"q": ROWS, "k": KEYS, "v": KEYS}, ""),
    "standard, heads": (_ONNX.format(more="scale = 0.3", inputs="q, k, v"), {"q": HEADS, "k": HEADS, "v": HEADS}, ""),
    "standard, causal": (
        _ONNX.format(more=f"{_FLAT}, is_causal = 1", inputs="q, k, v"), {"q": ROWS, "k": ROWS, "v": ROWS}, "",
    ),
    "standard, mask": (
        _ONNX.format(more=_FLAT, inputs="q, k, v, mask"),
        {"q": ROWS, "k": KEYS, "v": KEYS, "mask": (1, 1, 5, 7)}, "",
    ),
    "standard, closed": (
        _ONNX.format(more=_FLAT, inputs="q, k, v, mask"), {"q": ROWS, "k": KEYS, "v": KEYS, "mask": (5, 7)}, "mask",
    ),
    "layer normalization": (
        "y = LayerNormalization <axis = -1, epsilon = 0.01> (x, g, b)", {"x": ROWS, "g": (12,), "b": (12,)}, "",
    ),
    "skip": (
        _SKIP.format(inputs="x, r, g, b, c"), {"x": ROWS, "r": ROWS, "g": (12,), "b": (12,), "c": (12,)}, "",
    ),
    "skip without beta and bias": (_SKIP.format(inputs="x, r, g"), {"x": ROWS, "r": ROWS, "g": (12,)}, ""),
    "bias and gelu": ("y = com.microsoft.BiasGelu (x, b)", {"x": ROWS, "b": (12,)}, ""),
    "gelu": ("y = com.microsoft.Gelu (x)", {"x": ROWS}, ""),
    "quick gelu": ("y = com.microsoft.QuickGelu <alpha = 1.5> (x)", {"x": ROWS}, ""),
}  # fmt: skip
"""A node, its inputs, and which of them is of booleans."""


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, feeds), strict=True))


def graph_of(node: str, inputs: dict[str, tuple[int, ...]], logical: str = "") -> onnx.ModelProto:
    """A model of one node."""
    declared = ", ".join(
        f"{'bool' if name == logical else 'float'}[{', '.join(map(str, shape))}] {name}"
        for name, shape in inputs.items()
    )
    made = [name.strip() for name in node.partition("=")[0].split(",")]
    outputs = ", ".join(f"float[] {name}" for name in made if name != "d")
    header = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{header} g ({declared}) => ({outputs}) {{ {node} }}")
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("name", OPERATORS)
def test_a_decomposed_operator_computes_what_its_kernel_does(name: str) -> None:
    node, inputs, logical = OPERATORS[name]
    draw = np.random.default_rng(7)
    feeds: dict[str, Array] = {each: draw.standard_normal(shape, np.float32) for each, shape in inputs.items()}
    if logical:
        feeds[logical] = (feeds[logical] > 0) | (np.arange(feeds[logical].shape[-1]) == 0)  # no row is all closed
    wanted = run(graph_of(node, inputs, logical), feeds)
    apart = inliner.inline_local_functions(decompose(graph_of(node, inputs, logical), {"y"}))
    assert len(apart.graph.node) > 3, "it is still whole"
    found = run(apart, feeds)
    for output, value in wanted.items():
        if value.size:  # ONNX Runtime leaves a statistic that is not asked for empty
            np.testing.assert_allclose(found[output], value, atol=2e-6, rtol=2e-5, err_msg=output)
    assert len(detect_steps(apart.graph.node)) >= (5 if "softmax" in str(apart).lower() else 1)


QKV: dict[str, tuple[int, ...]] = {"q": ROWS, "k": KEYS, "v": KEYS}


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        (_MHA.format(more="", inputs="q, k, v, b"), {**QKV, "b": (36,)}),
        (_ONNX.format(more=f"{_FLAT}, softcap = 2.0", inputs="q, k, v"), QKV),
        (_ONNX.format(more="q_num_heads = 3, kv_num_heads = 1", inputs="q, k, v"), {**QKV, "k": (2, 7, 4)}),
        ("y = LayerNormalization <axis = 1> (x, g)", {"x": ROWS, "g": (5, 12)}),
    ],
    ids=["bias", "softcap", "shared keys", "two axes"],
)
def test_a_form_that_is_not_known_stays_whole(node: str, inputs: dict[str, tuple[int, ...]]) -> None:
    model = decompose(graph_of(node, inputs), {"y"})
    assert [each.op_type for each in model.graph.node] == [graph_of(node, inputs).graph.node[0].op_type]
    assert not model.functions


def test_an_opset_without_what_the_steps_are_written_in_leaves_it_whole() -> None:
    model = graph_of(_MHA.format(more="", inputs="q, k, v"), QKV)
    assert decompose(model, {"y"}).functions
    old = graph_of(_MHA.format(more="", inputs="q, k, v"), QKV)
    next(entry for entry in old.opset_import if not entry.domain).version = MINIMUM_OPSET - 1
    assert not decompose(old, {"y"}).functions


def found_in_text(body: str) -> dict[str, str]:
    header = '<ir_version: 10, opset_import: ["": 23]> g (float[2, 2] x, float[2, 2] y) => ()'
    return detect_steps(onnx.parser.parse_model(f"{header} {{ {body} }}").graph.node)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("p{0} = MatMul (x, y)\n s{0} = Softmax (p{0})\n o{0} = MatMul (s{0}, y)", "shares"),
        ("n{0} = LayerNormalization (x, y)", "shifted"),
        ("e{0} = Erf (x)", "erf"),
    ],
    ids=["attention", "normalization", "activation"],
)
def test_what_is_there_twice_is_not_found(text: str, step: str) -> None:
    """Which of the two a step of the other graph stands for, nothing tells."""
    for times, found in ((1, True), (2, False)):
        assert (step in found_in_text("\n".join(text.format(index) for index in range(times)))) is found


def test_the_sum_of_the_values_is_found_behind_a_guard_against_nan() -> None:
    """Exporters write a softmax of rows that are all closed as zeros."""
    guard = "lost = IsNaN (s)\n none = Constant <value_float = 0.0> ()\n kept = Where (lost, none, s)"
    found = found_in_text(f"p = MatMul (x, y)\n s = Softmax (p)\n {guard}\n v = Add (x, y)\n o = MatMul (kept, v)")
    assert (found["shares"], found["sums"], found["value"]) == ("s", "o", "v")


def test_only_what_is_less_its_mean_is_a_normalization() -> None:
    text = "m = {} (x)\n c = Sub (x, m)\n r = Sqrt (y)\n n = Div (c, r)"
    assert found_in_text(text.format("ReduceMean")) == {"normal": "n"}
    assert found_in_text(text.format("ReduceMax")) == {}


# --- what was planted inside ---


def nodes_of(path: Path) -> list[onnx.NodeProto]:
    return list(onnx.load(path, load_external_data=False).graph.node)


def spoil(
    graphs: GraphPair, operator: str, change: Callable[[onnx.NodeProto, dict[str, onnx.TensorProto]], None]
) -> None:
    """Change the first ``operator`` of the candidate, or weights of it."""
    model = onnx.load(graphs.candidate)
    weights = {each.name: each for each in model.graph.initializer}
    change(next(node for node in model.graph.node if node.op_type == operator), weights)
    for file in graphs.candidate.parent.iterdir():
        if file.name != "original.onnx":
            file.unlink()
    onnx.save(model, graphs.candidate)


def add_to(index: int, part: slice = slice(None), size: float = 0.5) -> Callable[[onnx.NodeProto, Any], None]:
    """Something is added to the last dim's ``part`` of the weights that the node reads at ``index``."""

    def change(node: onnx.NodeProto, weights: dict[str, onnx.TensorProto]) -> None:
        weight = weights[node.input[index]]
        values = numpy_helper.to_array(weight).copy()
        values[..., part] += size
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))

    return change


def wrong_scale(node: onnx.NodeProto, _: Any) -> None:
    size = [each for each in node.attribute if each.name == "scale"]
    for each in size:
        node.attribute.remove(each)
    node.attribute.append(helper.make_attribute("scale", 0.05))


def wrong_alpha(node: onnx.NodeProto, _: Any) -> None:
    next(each for each in node.attribute if each.name == "alpha").f = 1.5


def step_of(graphs: GraphPair) -> WrongStep:
    finding = found_in(graphs)
    assert finding.kind == FUSION, finding.message
    assert finding.inside is not None, finding.message
    return finding.inside


def optimized_block(folder: Path, target: str = "rocm", constant: float = 0.0, fp16: bool = False) -> GraphPair:
    source = write_block(folder / "original.onnx", constant)
    model = load_model(source, "unet")
    optimize_model(model, OptimizeOptions(load_target(target), fp16))
    save_model(model, folder / "model.onnx")
    feeds = {"sample": np.random.default_rng(5).standard_normal((2, 9, WIDTH), np.float32)}
    return GraphPair("unet", source, folder / "model.onnx", CONFIGURATION, feeds)


@pytest.mark.parametrize(("target", "right"), [("rocm", ("the value", "the query", "the key")), ("cpu", ())])
def test_a_wrong_scale_is_in_the_scores(tmp_path: Path, target: str, right: tuple[str, ...]) -> None:
    """On ROCm the projections are packed, so they have no counterpart outside of what is decomposed."""
    graphs = optimized_block(tmp_path, target)
    spoil(graphs, "MultiHeadAttention", wrong_scale)
    step = step_of(graphs)
    assert (step.step, step.right) == ("the scores", right)
    assert (step.node, step.operator, step.tensor) == ("logits", "Mul", "logits")


@pytest.mark.parametrize("target", ["rocm", "cpu"])
@pytest.mark.parametrize(
    ("case", "name"),
    [
        (DECODER, "MatMul"),  # of queries and keys that are scaled already
        (replace(DECODER, exporter="ts14", legacy=True), "Mul_1"),  # adds zeros behind it, as one adds a mask
    ],
    ids=str,
)
def test_a_wrong_scale_is_in_the_scores_of_every_spelling(
    exported: Exported, tmp_path: Path, case: Case, name: str, target: str
) -> None:
    graphs = optimized(exported(case), case, tmp_path, target)
    spoil(graphs, "MultiHeadAttention", wrong_scale)
    step = step_of(graphs)
    assert (step.step, step.node) == ("the scores", f"/decoder/mid_block/attentions.0/{name}")


def test_an_attention_that_is_one_node_of_the_original_too_is_looked_into(exported: Exported, tmp_path: Path) -> None:
    case = Case("clip", "dy23")
    graphs = optimized(exported(case), case, tmp_path, "rocm")
    spoil(graphs, "Attention", wrong_scale)
    step, nodes = step_of(graphs), nodes_of(exported(case))
    first = next(node for node in nodes if node.op_type == "Attention")
    assert (step.step, step.node, step.operator) == ("the scores", first.name, "Attention")
    assert step.tensor == first.output[0]


@pytest.mark.parametrize(("part", "step"), [(0, "query"), (1, "key"), (2, "value")])
def test_a_wrong_part_of_a_packed_weight_is_told(tmp_path: Path, part: int, step: str) -> None:
    """The packed weight has, for each head, the columns of the query, the key and the value after each other."""
    graphs = optimized_block(tmp_path)
    spoil(graphs, "MatMul", add_to(1, slice(part * SIZE, (part + 1) * SIZE)))
    found = step_of(graphs)
    assert (found.step, found.node) == (f"the {step}", f"to_{step[0]}")


@pytest.mark.parametrize("exporter", ["ts17", "dy23"])
@pytest.mark.parametrize(("part", "step"), [(0, "query"), (1, "key"), (2, "value")])
def test_a_wrong_projection_inside_an_operator_is_told(
    exported: Exported, tmp_path: Path, exporter: str, part: int, step: str
) -> None:
    case = Case("clip", exporter)
    graphs = optimized(exported(case), case, tmp_path, "rocm")
    [*_, bias] = next(node.input for node in nodes_of(graphs.candidate) if node.op_type == "Attention")
    width = next(w.dims[0] for w in onnx.load(graphs.candidate).graph.initializer if w.name == bias) // 3
    spoil(graphs, "Attention", add_to(1, slice(part * width, (part + 1) * width)))
    found, nodes = step_of(graphs), nodes_of(exported(case))
    assert (found.step, found.operator) == (f"the {step}", "Add")
    adds = [node for node in nodes if node.op_type == "Add" and any(f"{step[0]}_proj" in name for name in node.input)]
    assert found.node == adds[0].name


@pytest.mark.parametrize(
    ("case", "operator", "index", "step", "named"),
    [
        (DECODER, "GroupNorm", 1, "the normalized values times gamma", ("Mul", "norm")),
        (DECODER, "GroupNorm", 2, "the normalized values with gamma and beta", ("Add", "norm")),
        (DECODER, "SkipGroupNorm", 2, "the normalized values with gamma and beta", ("Add", "group_norm")),
        (replace(TEXT, exporter="ts14"), "SkipLayerNormalization", 2, "the normalized values times gamma",
         ("Mul", "layer_norm2")),
        (TEXT, "QuickGelu", 0, "the argument of the gate", ("Mul", "activation_fn")),
    ],
    ids=["gamma", "beta", "skip", "layer", "gate"],
)  # fmt: skip
def test_a_wrong_weight_is_at_the_node_that_reads_it(
    exported: Exported, tmp_path: Path, case: Case, operator: str, index: int, step: str, named: tuple[str, str]
) -> None:
    graphs = optimized(exported(case), case, tmp_path, "rocm")
    spoil(graphs, operator, add_to(index) if index else wrong_alpha)
    found = step_of(graphs)
    assert (found.step, found.operator) == (step, named[0])
    assert f"/{named[1]}" in found.node
    [original] = [node for node in nodes_of(exported(case)) if node.name == found.node]
    assert found.tensor in original.output


def test_the_bias_before_a_gate_is_told(tmp_path: Path) -> None:
    graphs = optimized_block(tmp_path)
    spoil(graphs, "BiasSplitGelu", add_to(1))
    found = step_of(graphs)
    assert (found.step, found.node, found.operator) == ("the sum with the bias", "bias", "Add")


def test_what_is_only_left_out_is_the_last_step(exported: Exported, tmp_path: Path) -> None:
    """A GroupNorm that forgets its SiLU: the affine values are right, what comes of them is not."""

    def forget(node: onnx.NodeProto, _: Any) -> None:
        next(each for each in node.attribute if each.name == "activation").i = 0

    graphs = optimized(exported(DECODER), DECODER, tmp_path, "rocm")
    spoil(graphs, "GroupNorm", forget)
    finding = found_in(graphs)
    assert finding.inside is not None
    assert finding.inside.node == finding.node
    assert finding.inside.right[-2:] == ("the normalized values with gamma and beta", "the gate")


# --- fp16 ---


def tensor_of(path: Path, name: str, feeds: Any) -> Array:
    model = onnx.load(path)
    model.graph.output.append(onnx.ValueInfoProto(name=name))
    return run(model, dict(feeds))[name]


def loud_step(folder: Path, constant: float) -> tuple[GraphPair, BisectionFinding, WrongStep]:
    """What is found in the block, in fp16, whose scores are all larger by ``constant`` squared, halved."""
    graphs = optimized_block(folder, "rocm", constant, fp16=True)
    finding = found_in(graphs, "float16")
    assert (finding.kind, finding.blamed) == (CAST, ("half",)), finding.message
    assert finding.inside is not None, finding.message
    return graphs, finding, finding.inside


def test_scores_that_overflow_are_named(tmp_path: Path) -> None:
    graphs, finding, step = loud_step(tmp_path, 400.0)
    assert (step.step, step.node, step.tensor) == ("the scores", "logits", "logits")
    assert step.right == ("the value", "the query", "the key")
    largest = float(np.abs(tensor_of(graphs.original, "logits", graphs.feeds)).max())
    assert step.largest_value == pytest.approx(largest)
    assert largest > 65504
    assert f"the scores, logits (Mul): values up to {largest:.3g} come out, and fp16 ends at 65504" in finding.message


def test_scores_that_fp16_holds_but_too_coarsely_make_the_softmax_wrong(tmp_path: Path) -> None:
    """Some 40000 fit, in steps of 32: the scores are right to three digits, their differences are gone."""
    _, finding, step = loud_step(tmp_path, 280.0)
    assert (step.step, step.node, step.right[-1]) == ("the softmax of the scores", "softmax", "the scores")
    assert 32768 < step.largest_before < 65504
    assert f"values up to {step.largest_before:.3g} go in, where fp16 has steps of 32" in finding.message


def test_bf16_holds_the_scores_but_not_their_differences(tmp_path: Path) -> None:
    """It reaches as far as fp32, with 8 bits: 80000 is in steps of 512. MIGraphX rounds, so the graph holds fp32."""
    graphs = optimized_block(tmp_path, "migraphx", 400.0)
    model = onnx.load(graphs.candidate)
    model.metadata_props.add(key="sdort.precision", value="bf16")
    onnx.save(model, graphs.candidate)
    finding = found_in(graphs, "bfloat16")
    assert (finding.kind, finding.blamed) == (CAST, ("bf16",))
    assert finding.inside is not None
    assert (finding.inside.step, finding.inside.node) == ("the softmax of the scores", "softmax")
    assert "rounding to bf16 does it" in finding.message
    assert "values up to 8e+04 go in, where bf16 has steps of 512" in finding.message
    assert "fp16" not in finding.message


def test_scores_that_are_small_enough_pass(tmp_path: Path) -> None:
    assert all(each.passed for each in compare(optimized_block(tmp_path, "rocm", 0.5, fp16=True), "float16"))


def test_the_scores_of_an_exported_unet_are_named(tmp_path: Path, exported: Exported) -> None:
    """Its queries and keys are a thousand times too large, which only the scores are too large for."""
    model = onnx.load(exported(UNET))
    weights = {each.name: each for each in model.graph.initializer}
    named = "down_blocks.0/attentions.0/transformer_blocks.0/attn1"
    for node in model.graph.node:
        if node.name.endswith((f"{named}/to_q/MatMul", f"{named}/to_k/MatMul")):
            weight = weights[node.input[1]]
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1e3), weight.name))
    onnx.save(model, tmp_path / "original.onnx")
    finding = found_in(optimized(tmp_path / "original.onnx", UNET, tmp_path, "rocm", fp16=True), "float16")
    step, nodes = finding.inside, nodes_of(exported(UNET))
    assert step is not None, finding.message
    softmax = next(node for node in nodes if node.op_type == "Softmax" and named in node.name)
    assert (finding.kind, step.step, step.tensor) == (CAST, "the scores", softmax.input[0])
    assert step.largest_value > 65504


def test_an_overflow_that_is_no_step_inside_is_told_as_before(exported: Exported, tmp_path: Path) -> None:
    source = scaled(exported(DECODER), tmp_path, "decoder.conv_in.weight", 6e4)
    finding = found_in(optimized(source, DECODER, tmp_path, "rocm", fp16=True), "float16")
    assert (finding.kind, finding.inside) == (CAST, None)
    assert "inside" not in finding.message
    assert "values up to" in finding.message


# --- what cannot be told ---


def test_a_kernel_that_differs_from_its_parts_is_told(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expand = vars(runners)["expand"]

    def wrong(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupNorm":
                next(each for each in node.attribute if each.name == "epsilon").f = 0.5
        expand(model)

    monkeypatch.setattr(runners, "expand", wrong)
    graphs = optimized(exported(DECODER), DECODER, tmp_path, "rocm")
    finding = found_in(graphs)
    assert finding.inside is None
    assert finding.message.endswith("computed one by one: the kernel of GroupNorm differs")


def test_a_form_that_is_not_known_is_told(exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_steps_module, "decompose", lambda model, *_: model)
    graphs = optimized(exported(TEXT), TEXT, tmp_path, "rocm")
    spoil(graphs, "Attention", wrong_scale)
    finding = found_in(graphs)
    assert finding.inside is None
    assert "the steps of Attention cannot be compared: none of them is a node of the original" in finding.message


def test_one_tensor_at_a_time_is_recorded(exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, sizes = vars(fused_steps_module)["record_tensors"], list[int]()

    def counted(model: onnx.ModelProto, graphs: GraphPair, names: Sequence[str], original: bool) -> Any:
        sizes.append(len(names))
        return record(model, graphs, names, original)

    monkeypatch.setattr(fused_steps_module, "record_tensors", counted)
    graphs = optimized(exported(TEXT), TEXT, tmp_path, "rocm")
    spoil(graphs, "Attention", wrong_scale)
    assert step_of(graphs).step == "the scores"
    assert sizes == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((2, 5, 12), (2, 5, 3, 4), True),  # heads apart
        ((6, 5, 7), (2, 3, 5, 7), True),  # heads merged into the batch
        ((2, 8, 6, 4), (2, 8, 24), True),
        ((2, 8, 6, 4), (2, 6, 4, 8), False),  # channels last
        ((2, 5, 36), (2, 5, 12), False),  # packed with two others
        ((2, 3, 5, 4), (2, 5, 3, 4), False),  # heads in front of the rows
    ],
)
def test_only_views_of_the_same_elements_are_compared(one: tuple[int, ...], other: tuple[int, ...], same: bool) -> None:
    assert same_order(one, other) is same
    assert same_order(other, one) is same


def test_what_is_no_view_of_the_originals_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_steps_module, "same_order", lambda *_: False)
    graphs = optimized_block(tmp_path)
    spoil(graphs, "MultiHeadAttention", wrong_scale)
    finding = found_in(graphs)
    assert finding.inside is None
    assert "cannot be compared" in finding.message


def test_a_part_that_does_not_run_alone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("[ONNXRuntimeError] : no\nmore")

    graphs = optimized_block(tmp_path)
    spoil(graphs, "MultiHeadAttention", wrong_scale)
    open_model = vars(fused_steps_module)["open_model"]

    def opened(*arguments: Any) -> Any:
        session = open_model(*arguments)
        session.ort.run = refuse
        return session

    monkeypatch.setattr(fused_steps_module, "open_model", opened)
    finding = found_in(graphs)
    told = "the steps of MultiHeadAttention cannot be compared: the run on cpu failed: [ONNXRuntimeError] : no"
    assert finding.inside is None
    assert finding.message.endswith(told)


def test_nothing_is_looked_for_inside_where_errors_only_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame_module, "compare_steps", lambda *_: pytest.fail("compared steps"))
    graphs = optimized_block(tmp_path, fp16=True)
    [right] = compare(graphs, "float16")
    assert right.errors is not None
    limit = Tolerance(right.errors.largest_share * 0.99, right.errors.mean_share * 0.99)
    finding = bisect(graphs, Comparison("unet", "float16", RANDOM, "", ONNX, right.output, limit))
    assert (finding.kind, finding.inside) == (SUM, None)
    assert "inside" not in finding.message


def test_recorded_values_do_not_keep_their_session(tmp_path: Path) -> None:
    """ONNX Runtime's outputs lie in the memory of all that the session computed."""
    graphs = optimized_block(tmp_path)
    session = runners.open_model(graphs.graph(graphs.original), graphs.original, "unet")
    [raw] = session.run(graphs.feeds).values()
    [value] = run_session(session, graphs.feeds).values()
    assert (raw.flags.owndata, value.flags.owndata) == (False, True)
    np.testing.assert_array_equal(raw, value)
