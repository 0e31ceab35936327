"""Which forms of an operator each target takes: what its kernels' sources say, form by form."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import defs
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from support.small_graphs import edit, parse

from sdort.errors import ProviderError
from sdort.graph.domains import MICROSOFT_OPERATORS
from sdort.providers import CPU, load_target
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.runtime.placement import refuse_fallback

NAMES = ("rocm", "migraphx", "cuda", "cpu")
"""The targets whose kernels' sources were read for what is told here; a new one has tests of its own."""
GPUS = ("rocm", "cuda")


def takes(target: str, text: str, weights: dict[str, Any] | None = None) -> bool:
    """Whether the target runs the last node of a graph; a refusal gives a reason."""
    editor = edit(text, weights)
    reason = load_target(target).unsupported(editor.graph.nodes[-1], editor)
    assert reason is None or target in reason or len(reason.split()) > 3
    return reason is None


def takers(text: str, weights: dict[str, Any] | None = None) -> set[str]:
    return {name for name in NAMES if takes(name, text, weights)}


@pytest.mark.parametrize("target", NAMES)
def test_geglu_has_three_widths_on_gpus(target: str) -> None:
    """bias_split_gelu_impl.cu (CUDA and, hipified, ROCm) instantiates 1280, 2560 and 5120, and throws otherwise."""
    node = "y = com.microsoft.BiasSplitGelu (x, b)"
    widths = {
        width
        for width in (*range(64, 1280, 64), *range(1280, 10241, 320), 1279, 1281, 2559, 5121)
        if takes(target, f"g (float[B, S, {2 * width}] x, float[{2 * width}] b) => (float[] y) {{ {node} }}")
    }
    assert widths == ({1280, 2560, 5120} if target in GPUS else set())
    assert not takes(target, f"g (float[B, S, D] x, float[D] b) => (float[] y) {{ {node} }}")


def group_norm(channels: int | str, groups: int, op: str = "GroupNorm", layout: int = 1, rank: int = 4) -> str:
    dims = ", ".join(["N", "H", "W", str(channels)][-rank:])
    skip = ", s" if op.startswith("Skip") else ""
    node = f"com.microsoft.{op} <groups = {groups}, epsilon = 1e-5, activation = 1, channels_last = {layout}>"
    return f"""g (float[{dims}] x, float[{dims}] s, float[{channels}] w, float[{channels}] b) => (float[] y) {{
        y = {node} (x, w, b{skip}) }}"""


@pytest.mark.parametrize("op", ["GroupNorm", "SkipGroupNorm"])
@pytest.mark.parametrize("target", NAMES)
def test_group_norm_takes_pairs_of_channels(target: str, op: str) -> None:
    """Two channels a thread: a group of an odd number has half a pair."""
    for groups in (1, 2, 3, 4, 32):
        for size in (1, 2, 3, 4, 5, 9, 10, 30):
            taken = target in GPUS and size % 2 == 0
            assert takes(target, group_norm(groups * size, groups, op)) == taken, (groups, size)


def test_group_norm_needs_images_in_channels_last_of_known_channels() -> None:
    assert takers(group_norm(64, 32)) == set(GPUS)
    assert takers(group_norm(64, 32, layout=0)) == set()
    assert takers(group_norm(64, 32, rank=3)) == set()
    assert takers(group_norm("C", 32)) == set()
    for groups in (0, -1, 3):  # of 64 channels
        assert takers(group_norm(64, groups)) == set()


def test_group_norm_of_two_counts_both() -> None:
    def text(first: int | str, second: int | str, groups: int) -> str:
        return f"""g (float[N, H, W, {first}] x, float[N, H, W, {second}] x2, float[C] w, float[C] b) => (float[] y) {{
            y = sdort.GroupNorm <groups = {groups}, epsilon = 1e-5, activation = 0, channels_last = 1> (x, x2, w, b)
        }}"""

    assert takers(text(8, 4, 2)) == set(GPUS)  # 6 each
    assert takers(text(3, 5, 4)) == set(GPUS)  # 2 each
    assert takers(text(8, 4, 4)) == set()  # 3 each
    assert takers(text(4, 8, 4)) == set()
    assert takers(text(8, 8, 32)) == set()
    for open_ in (text("A", 4, 2), text(8, "B", 2)):
        assert takers(open_) == set()


ALL = set(NAMES)
ATTENTIONS: dict[str, tuple[str, set[str]]] = {
    "apart": ("(q, k, v)", ALL),
    # Packed ones load on the CPU and throw when they run; MIGraphX's parser takes three inputs.
    "packed key and value": ("(q, kv)", {"rocm", "cuda"}),
    "all packed": ("(qkv)", {"rocm", "cuda"}),
    # onnxruntime-rocm's kernel refuses a bias and does not read unidirectional; MIGraphX's parser likewise.
    "bias": ("(q, k, v, bias)", {"cuda", "cpu"}),
    "causal": ("(q, k, v) causal", {"cuda", "cpu"}),
    "bias and causal": ("(q, k, v, bias) causal", {"cuda", "cpu"}),
    "said not to be causal": ("(q, k, v) free", ALL),
    "a bias that is left out": ("(q, k, v, , mask)", ALL),
}


@pytest.mark.parametrize("form", ATTENTIONS)
def test_multi_head_attention(form: str) -> None:
    inputs, _, causal = ATTENTIONS[form][0].partition(") ")
    more = {"causal": ", unidirectional = 1", "free": ", unidirectional = 0", "": ""}[causal]
    text = f"""g (float[B, S, 64] q, float[B, L, 64] k, float[B, L, 64] v, float[B, L, 8, 2, 8] kv,
        float[B, L, 8, 3, 8] qkv, float[192] bias, int32[B, L] mask) => (float[] y) {{
        y = com.microsoft.MultiHeadAttention <num_heads = 8{more}> {inputs.rstrip(")")}) }}"""
    assert takers(text) == ATTENTIONS[form][1]
    # Fusions make no packed form for CUDA, which copies its parts.
    editor = edit(text)
    node = editor.graph.nodes[-1]
    preferred = {name for name in NAMES if load_target(name).preferring().unsupported(node, editor) is None}
    assert preferred == ATTENTIONS[form][1] - ({"cuda"} if "packed" in form else set())


@pytest.mark.parametrize(("dims", "known"), [("N, H, W, 4", True), ("N, W, 4", False), ("H, 4", False)])
def test_nhwc_conv_runs_on_images(dims: str, known: bool) -> None:
    text = f"g (float[{dims}] x, float[8, 3, 3, 4] w) => (float[] y) {{ y = com.microsoft.NhwcConv (x, w) }}"
    assert takers(text) == (set(GPUS) if known else set())


@pytest.mark.parametrize(
    ("dtype", "last", "wanted"),
    [
        ("float", 0, ALL),
        ("float16", 0, ALL),
        ("int64", 0, {"cpu", "migraphx"}),
        ("int32", 0, {"cpu", "migraphx"}),
        # No other operator finds the last of equal ones, so that the CPU has to.
        ("int64", 1, ALL),
    ],
)
def test_argmax(dtype: str, last: int, wanted: set[str]) -> None:
    node = f"y = ArgMax <axis = -1, select_last_index = {last}> (x)"
    assert takers(f"g ({dtype}[B, S] x) => (int64[] y) {{ {node} }}") == wanted


@pytest.mark.parametrize("target", NAMES)
def test_what_no_provider_registers_at_this_opset(target: str) -> None:
    found = load_target(target)
    assert not takes(target, "g (float[B, 8] x) => (float[] y) { y = Gelu (x) }")
    assert not takes(target, "g (float[B, 3, 4, 8] q) => (float[] y) { y = Attention (q, q, q) }")
    group_normalization = "y = GroupNormalization <num_groups = 2> (x, w, b)"
    assert not takes(target, f"g (float[B, 4, 3] x, float[4] w, float[4] b) => (float[] y) {{ {group_normalization} }}")
    assert takes(target, "g (float[B, 8] x, float[8] w) => (float[] y) { y = LayerNormalization (x, w) }")
    # onnxruntime-rocm 1.22.2 registers Resize and Pad of version 18 at most, and loads IR version 10 at most.
    assert [defs.get_schema(op, found.opset).since_version for op in ("Resize", "Pad")] == [18, 18]
    assert found.ir_version <= 10


def test_operators_of_unheard_of_domains_run_nowhere() -> None:
    editor = edit("g (float[B, 8] x) => (float[] y) { y = Neg (x) }")
    editor.graph.nodes[0].domain = "elsewhere"
    for target in NAMES:
        assert "domain elsewhere" in str(load_target(target).unsupported(editor.graph.nodes[0], editor))


FORMS = {
    "Attention": "<num_heads = 2> (x, packed, triple)",
    "BiasAdd": "(x, b, x)",
    "BiasGelu": "(x, b)",
    "BiasSplitGelu": "(x, b)",
    "FastGelu": "(x)",
    "Gelu": "(x)",
    "GroupNorm": "<groups = 2, activation = 0> (image, b, b)",
    "MultiHeadAttention": "<num_heads = 2> (x, x, x)",
    "NhwcConv": "(image, filter)",
    "QuickGelu": "<alpha = 1.0> (x)",
    "SkipGroupNorm": "<groups = 2, activation = 0> (image, b, b, image)",
    "SkipLayerNormalization": "(x, x, b)",
}


@pytest.mark.parametrize("op", FORMS)
def test_the_cpu_target_knows_what_the_cpu_provider_has(op: str) -> None:
    """Asked of ONNX Runtime itself: a session opens where there is a kernel."""
    assert op in MICROSOFT_OPERATORS
    model = parse(f"""g (float[1, 3, 8] x, float[8] b, float[24] triple, float[8, 24] packed, float[1, 2, 2, 8] image,
        float[8, 1, 1, 8] filter) => (float[a, c, d] y) {{ y = com.microsoft.{op} {FORMS[op]} }}""")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU.ep])
    except NoKernel:
        there = False
    else:
        shapes = {i.name: i.shape for i in session.get_inputs()}
        session.run(None, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
        there = True
    assert (f"com.microsoft.{op}" in load_target("cpu").conditions) == there


# What diffusion models compute with; none of it is arithmetic on sizes.
COMPUTING = [
    "ArgMax",
    "Conv",
    "Einsum",
    "Erf",
    "Exp",
    "GatherND",
    "Gemm",
    "InstanceNormalization",
    "LayerNormalization",
    "MatMul",
    "Pad",
    "Pow",
    "ReduceMean",
    "Resize",
    "Sigmoid",
    "Softmax",
    "Sqrt",
    "Tanh",
    "TopK",
    "Transpose",
    "BiasAdd",
    "BiasGelu",
    "BiasSplitGelu",
    "FastGelu",
    "Gelu",
    "GroupNorm",
    "MultiHeadAttention",
    "NhwcConv",
    "QuickGelu",
    "SkipGroupNorm",
    "SkipLayerNormalization",
]


def log(op: str, provider: str = CPU.ep) -> str:
    line = "2026-01-01 [V:onnxruntime:, session_state.cc:1 VerifyEachNodeIsAssignedToAnEp]"
    return f"{line}  Node(s) placed on [{provider}]. Number of nodes: 1\n{line}   {op} (/node)\n"


@pytest.mark.parametrize("op", COMPUTING)
def test_computing_on_the_cpu_is_a_fallback(op: str) -> None:
    for provider in (ROCM, CUDA):
        with pytest.raises(ProviderError, match=f"1 {op} would run on the CPU, not on {provider.name}"):
            refuse_fallback(log(op), provider, "unet")
        refuse_fallback(log(op, provider.ep), provider, "unet")
    refuse_fallback(log(op), CPU, "unet")  # where else


def test_refusals_tell_what_is_missing_from_what_is_left_out() -> None:
    norm = edit(group_norm(64, 32))
    own = edit("g (float[B, 8] x) => (float[] y) { y = Neg (x) }")
    own.graph.nodes[0].domain, own.graph.nodes[0].op = "sdort", "GroupNorm"
    rocm = load_target("rocm")
    without = rocm.without("com.microsoft.GroupNorm", "sdort.GroupNorm")
    for editor, name, why in (
        (norm, "GroupNorm", "left out, as --disable asks"),
        (own, "sdort.GroupNorm", "one of the operators that are not used"),
    ):
        node = editor.graph.nodes[-1]
        assert rocm.unsupported(node) is None
        assert load_target("cpu").unsupported(node) == f"cpu has no kernel for {name}"
        assert without.unsupported(node) == f"{name} is {why}"
    # One after the other, and no more than that.
    both = rocm.without("com.microsoft.GroupNorm").without("com.microsoft.BiasAdd")
    assert both.left_out == {"com.microsoft.GroupNorm", "com.microsoft.BiasAdd"}
    assert rocm.conditions.keys() - both.conditions.keys() == both.left_out
    assert both.preferring().left_out == both.left_out


def test_without_facts_the_name_alone_is_looked_at() -> None:
    wrong = edit(group_norm(63, 32)).graph.nodes[-1]
    assert load_target("rocm").unsupported(wrong) is None
    whole = edit("g (int64[B, S] x) => (int64[] y) { y = ArgMax (x) }")
    for name in GPUS:
        assert load_target(name).unsupported(whole.graph.nodes[-1]) is None
        assert load_target(name).unsupported(whole.graph.nodes[-1], whole) is not None


def test_migraphx_has_the_standard_operators_of_its_list_alone() -> None:
    editor = edit("g (float[B, 8] x) => (float[] y) { y = Neg (x) }")
    (node,) = editor.graph.nodes
    for name in ("Resize", "Einsum", "Trilu", "Abs", "Xor"):
        node.op = name
        assert load_target("migraphx").unsupported(node) is None
    for name in ("Erfinv", "GridSample", "Bernoulli"):
        node.op = name
        assert load_target("migraphx").unsupported(node) == f"migraphx has no kernel for {name}"
        assert load_target("rocm").unsupported(node) is None
    assert load_target("migraphx").explicit_inputs == {"Resize": (1, 2)}


NORM_16 = "g (float16[2, 3, 8] x, float16[2, 3, 8] s, float16[8] w) => (float16[] y) {{ y = {0} }}"


@pytest.mark.parametrize(
    "node",
    ["com.microsoft.SimplifiedLayerNormalization (x, w)", "com.microsoft.SkipSimplifiedLayerNormalization (x, s, w)"],
)
def test_root_mean_square_norms_of_migraphx_are_for_fp32(node: str) -> None:
    """MIGraphX's parser hands the mean square on in the type of X: parse_skip_simplified_layer_normalization.cpp."""
    half = NORM_16.format(node)
    assert takers(half) == {*NAMES} - {"migraphx"}
    assert takers(half.replace("float16", "float")) == {*NAMES}
    for target in NAMES:
        for text, wide in ((half, False), (half.replace("float16", "float"), target == "migraphx")):
            editor = edit(text)
            assert load_target(target).only_wide(editor.graph.nodes[-1], editor) == wide
