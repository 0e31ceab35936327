"""The webgpu target: which operators it takes, and that what computed wrong is left in standard operators."""

from __future__ import annotations

import pytest
from support.small_graphs import edit

from sdort.graph.domains import MICROSOFT
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.providers import load_target
from sdort.providers.target import Target

ATTENTION = f"{MICROSOFT}.MultiHeadAttention"
WEBGPU = load_target("webgpu")
TRUSTED = WEBGPU.judged({ATTENTION: None})


def refusal(target: Target, node: str) -> str | None:
    """Why the target does not run a node, None if it does."""
    editor = edit(f"""g (float[2, 5, 12] x, float[2, 7, 12] k, float[2, 7, 3, 2, 4] kv, float[2, 3, 5, 12] image,
        float[12] w, float[36] b, float[B, 1, 5, 7] mask) => (float[] y) {{ y = {node} }}""")
    return target.unsupported(editor.graph.nodes[-1], editor)


@pytest.mark.parametrize(
    ("inputs", "taken"),
    [
        ("<num_heads = 3> (x, k, k)", True),
        ("<num_heads = 3> (x, k, k, b)", True),
        ("<num_heads = 3, unidirectional = 1> (x, k, k)", True),
        ('<num_heads = 3> (x, k, k, "", "", mask)', True),
        # "Packed KV not implemented for webgpu": it loads, and fails in the run.
        ("<num_heads = 3> (x, kv)", False),
    ],
)
def test_attention_is_taken_apart_where_it_is_trusted(inputs: str, taken: bool) -> None:
    node = f"{ATTENTION} {inputs}"
    assert (refusal(TRUSTED, node) is None) == taken
    told = refusal(WEBGPU, node)
    assert told is not None
    assert told.startswith("MultiHeadAttention of webgpu is not used: onnxruntime-ep-webgpu 0.4.0 gave an error")


@pytest.mark.parametrize("width", [12, 1278])
def test_no_width_is_compiled_in(width: int) -> None:
    editor = edit(f"""g (float[2, 5, {2 * width}] x, float[{2 * width}] b) => (float[] y) {{
        y = com.microsoft.BiasSplitGelu (x, b) }}""")
    assert WEBGPU.unsupported(editor.graph.nodes[-1], editor) is None


@pytest.mark.parametrize(
    "node", ["com.microsoft.GroupNorm <groups = 3, activation = 0> (image, w, w)", "com.microsoft.NhwcConv (image, w)"]
)
def test_images_have_no_operators_of_onnx_runtime(node: str) -> None:
    assert refusal(WEBGPU, node) == f"webgpu has no kernel for {node.split()[0].removeprefix(f'{MICROSOFT}.')}"


def test_a_verdict_takes_the_place_of_a_doubt() -> None:
    assert ATTENTION not in WEBGPU.conditions
    assert {*TRUSTED.conditions} - {*WEBGPU.conditions} == {ATTENTION}
    wrong = TRUSTED.judged({f"{MICROSOFT}.BiasAdd": "its error here is 0.7", f"{MICROSOFT}.Gelu": None})
    assert {*TRUSTED.conditions} - {*wrong.conditions} == {f"{MICROSOFT}.BiasAdd"}
    assert refusal(wrong, f"{MICROSOFT}.BiasAdd (x, w, x)") == "BiasAdd of webgpu is not used: its error here is 0.7"
    # One after the other.
    assert wrong.judged({ATTENTION: "x"}).doubted == {f"{MICROSOFT}.BiasAdd": "its error here is 0.7", ATTENTION: "x"}


@pytest.mark.parametrize("target", [WEBGPU, TRUSTED], ids=["doubted", "trusted"])
def test_doubted_attention_is_lowered(target: Target) -> None:
    editor = edit(
        """g (float[B, S, 12] q, float[B, T, 12] k, float[B, T, 12] v) => (float[] y) {
        y = Attention <q_num_heads = 3, kv_num_heads = 3> (q, k, v) }""",
        opset=23,
    )
    report = optimize_model(editor.model, OptimizeOptions(target))
    fused = report.operators.get(ATTENTION, 0)
    assert fused == (target is TRUSTED)
    assert report.operators.get("Softmax", 0) == 1 - fused
    assert report.misses == []
    told = [reason for reason in report.declined if "onnxruntime-ep-webgpu 0.4.0 gave an error" in reason]
    assert len(told) == 1 - fused
