"""DirectML: the forms that its kernels' sources take, its table of kernels, and the graphs that are made for it."""

from __future__ import annotations

import struct
from pathlib import Path

import directml_kernels
import onnx
import pytest
from onnx import defs
from support.small_graphs import edit, parse

import sdort
from sdort.errors import ProviderError, UsageError
from sdort.providers.dml import PROVIDER, STANDARD, TARGET
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import session_options

IMAGE, ROWS = "float[2, 3, 5, {0}] x, float[{0}] b", "float[2, 5, {0}] x, float[2, 5, {0}] s, float[{0}] b"
HEADS = """float[2, 5, 64] q, float[2, 7, 64] k, float[2, 7, 64] v, float[2, 7, 8, 2, 8] kv, float[2, 5, 8, 3, 8] qkv,
    float[192] bias, int32[2, 7] padding, float[1, 1, 5, 7] mask"""
TURNED = "float[2, 5, 16] x, float[2, 2, 5, 8] x4, int64[2, 5] p, float[7, 4] c"
INTEGERS = "float[2, 5, 32] x, uint8[6, 1, 32] w, float[6] s, uint8[6] z"
FORMS: dict[str, tuple[str, str, bool]] = {
    "groups of one channel": (IMAGE.format(4), "GroupNorm <groups = 4, activation = 1> (x, b, b)", True),
    "groups of three": (IMAGE.format(12), "GroupNorm <groups = 4, activation = 0> (x, b, b)", True),
    "no whole groups": (IMAGE.format(12), "GroupNorm <groups = 5, activation = 0> (x, b, b)", False),
    "no groups": (IMAGE.format(12), "GroupNorm <groups = 0, activation = 0> (x, b, b)", False),
    "channels first": (IMAGE.format(12), "GroupNorm <groups = 4, activation = 0, channels_last = 0> (x, b, b)", False),
    "any channels": (IMAGE.format("C"), "GroupNorm <groups = 4, activation = 0> (x, b, b)", False),
    "a sum before it": (IMAGE.format(12), "SkipGroupNorm <groups = 4, activation = 0> (x, b, b, x)", False),
    "any even width": (ROWS.format(18), "BiasSplitGelu (x, b)", True),
    "an odd width": (ROWS.format(17), "BiasSplitGelu (x, b)", False),
    "an unknown width": (ROWS.format("C"), "BiasSplitGelu (x, b)", False),
    "a skip": (ROWS.format(8), "SkipLayerNormalization (x, s, b)", True),
    "a skip of an image": (IMAGE.format(8), "SkipLayerNormalization (x, x, b)", False),
    "apart": (HEADS, "MultiHeadAttention <num_heads = 8> (q, k, v)", True),
    "packed": (HEADS, "MultiHeadAttention <num_heads = 8> (qkv)", True),
    "packed key and value": (HEADS, "MultiHeadAttention <num_heads = 8> (q, kv)", True),
    "with a bias": (HEADS, "MultiHeadAttention <num_heads = 8> (q, k, v, bias)", True),
    "padded keys": (HEADS, 'MultiHeadAttention <num_heads = 8> (q, k, v, "", padding)', True),
    "a mask": (HEADS, 'MultiHeadAttention <num_heads = 8> (q, k, v, "", "", mask)', False),
    "causal": (HEADS, "MultiHeadAttention <num_heads = 8, unidirectional = 1> (q, k, v)", False),
    "turned rows": (TURNED, "RotaryEmbedding (x, p, c, c)", True),
    "turned heads": (TURNED, "RotaryEmbedding (x4, p, c, c)", False),
    "a part of a head": (TURNED, "RotaryEmbedding <rotary_embedding_dim = 4> (x, p, c, c)", False),
    "zero points": (INTEGERS, "MatMulNBits <K = 32, N = 6, bits = 8, block_size = 32> (x, w, s, z)", True),
    "no zero points": (INTEGERS, "MatMulNBits <K = 32, N = 6, bits = 8, block_size = 32> (x, w, s)", False),
    "two bits": (INTEGERS, "MatMulNBits <K = 32, N = 6, bits = 2, block_size = 32> (x, w, s, z)", False),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_of_its_kernels(form: str) -> None:
    inputs, node, taken = FORMS[form]
    editor = edit(f"g ({inputs}) => (float[] y) {{ y = com.microsoft.{node} }}")
    reason = TARGET.unsupported(editor.graph.nodes[-1], editor)
    assert (reason is None) == taken
    assert reason is None or "DirectML" in reason or "dml" in reason or len(reason.split()) > 3


def test_statistics_of_a_norm_are_not_its_own() -> None:
    text = f"g ({ROWS.format(8)}) => (float[] y, float[] m) {{ y, m = com.microsoft.SkipLayerNormalization (x, s, b) }}"
    editor = edit(text)
    assert "gives no mean" in str(TARGET.unsupported(editor.graph.nodes[-1], editor))


def test_it_has_the_standard_operators_of_its_table_alone() -> None:
    names = STANDARD.split()
    assert names == sorted(names)
    assert {name for name in names if not defs.has(name, TARGET.opset)} == set()
    (node,) = edit("g (float[B, 8] x) => (float[] y) { y = Neg (x) }").graph.nodes
    # Registered up to opset 16, and ONNX has another version of them at 18.
    for node.op in ("ScatterElements", "HardSwish", "Gelu", "GroupNormalization", "Attention", "If"):
        assert TARGET.unsupported(node) == f"dml has no kernel for {node.op}"
    for dtype, taken in (("float", False), ("float16", False), ("int64", True)):
        editor = edit(f"g ({dtype}[4] x, int64[2, 1] i, {dtype}[2] u) => ({dtype}[4] y) {{ y = ScatterND (x, i, u) }}")
        assert (TARGET.unsupported(editor.graph.nodes[-1], editor) is None) == taken
    for node.op in ("Resize", "Trilu", "GridSample", "Constant", "ArgMax"):
        assert TARGET.unsupported(node) is None


def library(rows: list[tuple[str, str, int]]) -> bytes:
    """A library for Windows of one section with a table of 64 bytes a row, between other constants."""
    base, virtual, start, width = 0x180000000, 0x1000, 0x400, 64
    texts = b"\0other\0" + b"".join(name.encode() + b"\0" for row in rows for name in row[:2])
    place = base + virtual
    header = bytearray(start)
    struct.pack_into("<I", header, 0x3C, 0x80)
    struct.pack_into("<H12xH", header, 0x86, 1, 0xF0)
    struct.pack_into("<Q", header, 0x80 + 48, base)
    table = bytearray(b"\xff" * width)
    for domain, name, opset in rows:
        addresses = (place + texts.index(b"\0" + each.encode() + b"\0") + 1 for each in (name, domain))
        table += struct.pack("<QI4xQ", next(addresses), opset, next(addresses)).ljust(width, b"\1")
    body = texts.ljust(-(-len(texts) // 8) * 8, b"\0") + bytes(table) + b"\xff" * width
    struct.pack_into("<III", header, 0x80 + 24 + 0xF0 + 12, virtual, len(body), start)
    return bytes(header) + body


def test_the_table_is_read_out_of_a_library() -> None:
    rows = [("", "Conv", 1), ("", "Conv", 11), ("", "Neg", 13), ("com.microsoft", directml_kernels.LANDMARK, 1)]
    rows += [("com.microsoft", "BiasAdd", 1), ("", "Pad", 18), ("", "Pad", 19)]
    found = directml_kernels.kernels(library(rows))
    assert found == {
        ("", "Conv"): [1, 11], ("", "Neg"): [13], ("com.microsoft", directml_kernels.LANDMARK): [1],
        ("com.microsoft", "BiasAdd"): [1], ("", "Pad"): [18, 19],
    }  # fmt: skip
    with pytest.raises(ValueError, match="no table of kernels"):
        directml_kernels.kernels(library(rows[:3]))


def test_its_sessions_have_the_settings_that_it_asks_for() -> None:
    """ONNX Runtime refuses a session on DirectML that plans memory, or runs nodes side by side."""
    import onnxruntime

    settings = session_options(onnxruntime, PROVIDER, RuntimeOptions("dml", custom_ops="off"), 4)
    assert settings.enable_mem_pattern is False
    assert settings.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL


def test_where_it_is_not_for_this_system_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for system, words in (("Linux", "It runs on Windows alone. There, install"), ("Windows", "Install the distrib")):
        monkeypatch.setattr("platform.system", lambda name=system: name)
        assert PROVIDER.how_to_get.startswith(words)
        assert "onnxruntime-directml>=1.24" in PROVIDER.how_to_get


def test_nodes_are_placed_by_the_list_where_it_is_not_installed(tmp_path: Path) -> None:
    text = """g (float[2, 4, 6, 8] x, float[8] b, int64[1] i) => (float[2, 4, 6, 8] y, int64[1] j) {
        n = com.microsoft.GroupNorm <groups = 4, activation = 1> (x, b, b)
        y = com.microsoft.SkipGroupNorm <groups = 4, activation = 0> (n, b, b, x)
        j = Mod (i, i) }"""
    onnx.save(parse(text, {}, 18), tmp_path / "model.onnx")
    found = sdort.placement(tmp_path / "model.onnx", "dml")
    (placement,) = found.placement
    assert {(share.provider, share.operator): share.nodes for share in placement.shares} == {
        ("DmlExecutionProvider", "GroupNorm"): 1,
        ("DmlExecutionProvider", "Mod"): 1,
        ("CPUExecutionProvider", "SkipGroupNorm"): 1,
    }
    assert placement.fallen == {"SkipGroupNorm": 1}
    assert found.remarks[0].endswith(": 1 SkipGroupNorm on the CPU")
    assert "the kernels that onnxruntime-directml 1.24.4 registers for opset 18" in found.remarks[-1]
    onnx.save(
        parse(text.replace("y = com.microsoft.SkipG", "y = com.microsoft.G").replace(", b, x)", ", b)"), {}, 18),
        tmp_path / "whole.onnx",
    )
    assert "dml has kernels for all of" in sdort.placement(tmp_path / "whole.onnx", "dml").remarks[0]
    with pytest.raises(ProviderError, match="rocm cannot be used"):
        sdort.placement(tmp_path / "model.onnx", "rocm")


def test_integers_without_zero_points_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--weights int8: DirectML reads MatMulNBits without zero points") as caught:
        sdort.optimize(tmp_path / "none", tmp_path / "out", provider="dml", weights="int8")
    assert caught.value.hint == "Take --weights int4."
    with pytest.raises(UsageError, match="does not exist"):
        sdort.optimize(tmp_path / "none", tmp_path / "out", provider="dml", weights="int4")
