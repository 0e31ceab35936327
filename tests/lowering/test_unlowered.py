"""A node that the provider does not run and no rule lowers: the error names the rule that came nearest, and why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from click.testing import CliRunner, Result
from support.small_graphs import parse

from sdort.cli import cli
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.unlowered import _refused
from sdort.rewrite.apply import Outcome

WEIGHTS = {
    "gamma": np.ones(8, np.float32),
    "beta": np.zeros(8, np.float32),
    "filters": np.ones((8, 8, 1, 1), np.float32),
}
ATTENTION = """g (float[B, S, 8] q, float[B, L, 8] k, float[B, L, 8] v) => (float[B, S, 8] y) {
    y = Attention <q_num_heads = 2, kv_num_heads = 2, softmax_precision = 7> (q, k, v) }"""
"""Its softmax would be computed in int64."""
NORMS = """g (float[B, 8, H, W] x) => (float[B, 8, H, W] y) {
    b = Conv (x, filters)
    a = GroupNormalization <num_groups = 8> (b, gamma, beta)
    r = Relu (a)
    c = Conv (r, filters)
    d = GroupNormalization <num_groups = 8> (c, gamma, beta)
    y = Conv (d, filters) }"""
"""One channel a group, for which ONNX Runtime's GroupNorm has no kernel, in a channels-last region."""
MASKED = """g (float[B, 2, S, 4] q, float[B, 2, L, 4] k, float[B, 2, L, 4] v, float[B, 1, S, L] m)
    => (float[B, 2, S, 4] y) <float c = {0.5}> {
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    s = MatMul (q, kt)
    t = Mul (s, c)
    a = Add (t, m)
    p = Softmax <axis = -1> (a)
    y = MatMul (p, v) }"""
SOFTMAX = """g (float[B, 2, S, 4] q, float[B, 2, L, 4] k, float[B, 2, L, 4] v) => (float[B, 2, S, 4] y) {
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    s = MatMul (q, kt)
    p = Softmax <axis = -1> (s)
    y = MatMul (p, v) }"""


def optimize(tmp_path: Path, text: str, *options: str) -> Result:
    path = tmp_path / "cut.onnx"
    onnx.save(parse(text, {name: values for name, values in WEIGHTS.items() if name in text}, 23), path)
    arguments = ["optimize", str(path), str(tmp_path / "out"), "--any-graph", "--provider", "rocm", *options]
    result = CliRunner().invoke(cli, arguments)
    assert (tmp_path / "out").exists() == (result.exit_code == 0)
    return result


def test_the_nearest_rule_and_its_reason(tmp_path: Path) -> None:
    result = optimize(tmp_path, ATTENTION)
    assert result.exit_code == 4
    assert "rocm has no kernel for Attention, and no rule lowers it" in result.stderr
    reason = "attention_to_standard, stops here: softmax_precision is no floating-point type (7)"
    assert f"The nearest, {reason}" in result.stderr
    assert "    sdort fusions attention_to_standard" in result.stderr
    assert result.stdout == ""


def test_the_table_is_shown_all_the_same(tmp_path: Path) -> None:
    printed = optimize(tmp_path, ATTENTION, "--explain", "multi_head_attention").stdout
    rows = [" ".join(line.split()) for line in printed.splitlines()]
    assert any(
        row.startswith("cut 1 of 1 Attention attention_to_standard Attention_") and row.endswith("type (7)")
        for row in rows
    ), printed
    at = rows.index("Places of multi_head_attention")
    assert "no kernel of MultiHeadAttention widens its softmax" in rows[at + 3]


def test_the_rule_that_the_user_disabled(tmp_path: Path) -> None:
    assert optimize(tmp_path, NORMS).exit_code == 0
    (tmp_path / "out").rename(tmp_path / "lowered")
    result = optimize(tmp_path, NORMS, "--disable", "group_norm_to_standard")
    assert result.exit_code == 4
    rule = "group_norm_to_standard"
    assert f"the rule {rule} would lower it; it is disabled by --disable {rule}" in result.stderr
    assert "The same holds for 1 more." in result.stderr
    assert f"Leave out --disable {rule}." in result.stderr


def test_a_disabled_rule_that_would_not_lower_it_is_not_to_blame(tmp_path: Path) -> None:
    result = optimize(tmp_path, ATTENTION, "--disable", "attention_to_standard")
    assert result.exit_code == 4
    assert "rocm has no kernel for Attention, and no rule lowers it. The nearest, " in result.stderr
    assert "--disable" not in result.stderr


@pytest.mark.parametrize("disabled", [(), ("attention",)], ids=["all", "without its fusion"])
def test_what_a_disabled_fusion_would_take_is_no_miss(tmp_path: Path, disabled: tuple[str, ...]) -> None:
    result = optimize(tmp_path, SOFTMAX, *(word for name in disabled for word in ("--disable", name)))
    assert result.exit_code == 0, result.output
    assert ("--disable attention" in result.stdout) == bool(disabled)
    assert ("MultiHeadAttention" in result.stdout) != bool(disabled)


def test_a_masked_attention_is_no_miss_of_the_others(tmp_path: Path) -> None:
    result = optimize(tmp_path, MASKED, "--disable", "attention_masked")
    assert result.exit_code == 0, result.output
    assert "--disable attention_masked" in result.stdout


def test_a_rule_that_fits_says_why_its_result_is_not_taken() -> None:
    """By its own name, not the operator's."""
    report = ComponentReport("unet")
    report.fusions["of_a"] = Outcome("of_a", declined={"no kernel for B": 2, "no kernel for C": 1})
    report.fusions["A"] = Outcome("A", declined={"another rule's": 1})
    node = gs.Node("A", "node_a")
    for name, why in (
        ("of_a", "no kernel for B; no kernel for C"), ("of_b", "the provider does not run what it makes")
    ):  # fmt: skip
        place = _refused(name, node, report)
        assert (place.fusion, place.node, place.why, place.applicable) == (name, "node_a", why, False)
