"""Regions are turned where that pays, by the stated count, and compute the same whatever lies in them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.drawn import Generator, drawn
from support.small_graphs import Array, edit, feeds_for, operators, parse, run

from sdort.passes import nhwc
from sdort.passes.layout_choice import CONVOLUTION, NORM, TRANSPOSE
from sdort.providers import load_target
from sdort.rewrite.editor import Editor

CHANNELS = 8
_ONE = """
Abs Ceil Cos Elu Erf Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg Relu Round Selu Sigmoid Sign Sin
Softplus Softsign Tanh ThresholdedRelu
"""
_TWO = ("Add", "Sub", "Mul", "Max", "Min", "Mean", "Sum")
STEPS = {
    **{name: f"{{y}} = {name} ({{a}})" for name in _ONE.split()},
    **{name: f"{{y}} = {name} ({{a}}, {{b}})" for name in _TWO},
    "Exp": "p{y} = Clip ({a}, low, two)  {y} = Exp (p{y})",
    "Sqrt": "p{y} = Abs ({a})  {y} = Sqrt (p{y})",
    "Clip": "{y} = Clip ({a}, low, two)",
    "PRelu": "{y} = PRelu ({a}, column)",
    "Pow": "p{y} = Abs ({a})  {y} = Pow (p{y}, two)",
    "Where": "p{y} = Greater ({a}, {b})  {y} = Where (p{y}, {a}, column)",
    "Cast": "p{y} = Cast <to = 11> ({a})  {y} = Cast <to = 1> (p{y})",
    "Softmax": "{y} = Softmax <axis = 1> ({a})",
    "gate": "p{y} = ReduceMean <keepdims = 1> ({a}, plane)  q{y} = Conv (p{y}, point)  s{y} = Sigmoid (q{y})  "
    "{y} = Mul ({a}, s{y})",
    "pooled gate": "p{y} = GlobalAveragePool ({a})  {y} = Mul ({a}, p{y})",
    "spread": "p{y} = ReduceMax <keepdims = 0> ({a}, plane)  q{y} = Unsqueeze (p{y}, plane)  {y} = Add ({a}, q{y})",
    "over channels": "p{y} = ReduceSum <keepdims = 1> ({a}, first)  {y} = Sub ({a}, p{y})",
    "halves": "p{y}, q{y} = Split <axis = 1, num_outputs = 2> ({a})  {y} = Concat <axis = 1> (q{y}, p{y})",
    "Slice": "p{y} = Slice ({a}, zero, half, first)  {y} = Concat <axis = 1> (p{y}, p{y})",
    "pixels": 'p{y} = SpaceToDepth <blocksize = 2> ({a})  {y} = DepthToSpace <blocksize = 2, mode = "CRD"> (p{y})',
    "blocks": "p{y} = SpaceToDepth <blocksize = 2> ({a})  {y} = DepthToSpace <blocksize = 2> (p{y})",
    "Resize": "p{y} = Resize (  {a}, , scales)  {y} = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (p{y})",
    "Pad": "p{y} = Pad ({a}, pads)  {y} = AveragePool <kernel_shape = [2, 3]> (p{y})",
    "Shape": "p{y} = Shape <start = 2> ({a})  q{y} = Cast <to = 1> (p{y})  r{y} = ReduceMax <keepdims = 0> (q{y})  "
    "{y} = Div ({a}, r{y})",
    "turned": "p{y} = Transpose <perm = [0, 1, 3, 2]> ({a})  {y} = Transpose <perm = [0, 1, 3, 2]> (p{y})",
    "last": "p{y} = Transpose <perm = [0, 2, 3, 1]> ({a})  q{y} = Sigmoid (p{y})  "
    "{y} = Transpose <perm = [0, 3, 1, 2]> (q{y})",
    "sequence": "p{y} = Transpose <perm = [0, 2, 3, 1]> ({a})  q{y} = Softmax <axis = -1> (p{y})  "
    "r{y} = Transpose <perm = [0, 3, 1, 2]> (q{y})  {y} = Add (r{y}, {a})",
    "InstanceNormalization": "{y} = InstanceNormalization ({a}, g, b)",
    "GroupNormalization": "{y} = GroupNormalization <num_groups = 2> ({a}, g, b)",
    "odd GroupNormalization": "{y} = GroupNormalization <num_groups = 8> ({a}, g, b)",
    "ConvTranspose": "{y} = ConvTranspose <pads = [1, 1, 1, 1]> ({a}, w, b)",
    "depthwise": "{y} = Conv <pads = [1, 1, 1, 1], group = 8> ({a}, each)",
    "Conv": "{y} = Conv <pads = [1, 1, 1, 1]> ({a}, w, b)",
    "Conv without bias": "{y} = Conv <pads = [1, 1, 1, 1]> ({a}, w)",
}
CONSTANTS = """<float two = {2.0}, float low = {-0.5}, int64[2] plane = {2, 3}, int64[1] first = {1},
int64[1] zero = {0}, int64[1] half = {4}, float[4] scales = {1.0, 1.0, 2.0, 2.0},
int64[8] pads = {0, 0, 1, 1, 0, 0, 0, 1}>"""
_RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Array] = {
    name: (_RNG.standard_normal(shape) / 3).astype(np.float32)
    for name, shape in {
        "w": (8, 8, 3, 3), "each": (8, 1, 3, 3), "point": (8, 8, 1, 1), "column": (8, 1, 1), "g": (8,), "b": (8,),
    }.items()
}  # fmt: skip


def graph(rng: Generator, seed: int) -> str:
    """A graph of up to twelve steps, each reading images before it; every image that nobody reads is an output."""
    names, lines, read = ["x"], [], set()
    count = int(rng.integers(1, 13))
    for index in range(count):
        kinds = list(STEPS) + ["Conv"] * 15
        a, b = (names[-1 - int(min(rng.geometric(0.6) - 1, len(names) - 1))] for _ in range(2))
        lines.append(STEPS[str(rng.choice(kinds))].format(a=a, b=b, y=f"t{index}"))
        read |= {name for name in (a, b) if name in lines[-1]}
        names.append(f"t{index}")
    outputs = [name for name in names[1:] if name not in read]
    result = ", ".join(f"float[n{name}, c{name}, h{name}, w{name}] {name}" for name in outputs)
    return f"g (float[B, {CHANNELS}, H, W] x) => ({result}) {CONSTANTS} {{ {'  '.join(lines)} }}"


def pay(text: str, step: str) -> tuple[Counter[str], Counter[str], Editor]:
    """Operators before and after, and the graph after, a check that it computes the same."""
    used = {name: values for name, values in WEIGHTS.items() if f", {name}" in text}
    editor = edit(text, used)
    before = Counter(operators(editor))
    proto = parse(text, used)
    feeds = feeds_for(proto, {"B": 2, "H": 6, "W": 4})
    wanted = run(proto, feeds)
    if step == "last":
        nhwc.run(editor, load_target("cuda"))
    else:
        nhwc.to_first(editor)
    for found, value in zip(run(editor.model, feeds), wanted, strict=True):
        assert found.shape == value.shape
        assert np.abs(found - value).max() <= 1e-4 * max(1.0, np.abs(value).max())
    return before, Counter(operators(editor)), editor


@drawn(40, graph)
def test_a_region_is_turned_where_it_pays(case: str) -> None:
    before, after, _ = pay(case, "last")
    inside = sum(before[name] - after[name] for name in ("SpaceToDepth", "DepthToSpace"))  # their kernels' own
    added = TRANSPOSE * (after["Transpose"] - before["Transpose"] - inside)
    assert added <= CONVOLUTION * after["com.microsoft.NhwcConv"] + NORM * after["com.microsoft.GroupNorm"]


@drawn(20, graph)
def test_to_channels_first_no_transpose_is_added(case: str) -> None:
    before, after, _ = pay(case, "first")
    assert after["Transpose"] <= before["Transpose"]


def _between(kind: str, count: int) -> str:
    lines = []
    for index in range(count):
        lines.append(STEPS["Conv"].format(a=f"m{index - 1}" if index else "x", y=f"c{index}"))
        lines.append(STEPS[kind].format(a=f"c{index}", b=f"c{index}", y=f"m{index}"))
    lines.append(STEPS["Conv"].format(a=f"m{count - 1}", y="y"))
    return f"g (float[B, {CHANNELS}, H, W] x) => (float[n, c, h, w] y) {CONSTANTS} {{ {'  '.join(lines)} }}"


BORDERS = frozenset({"InstanceNormalization", "ConvTranspose", "Resize", "Pad"})
"""Kinds of which ONNX Runtime has no channels-last kernel, two of them with a pooling behind."""
MORE = {"turned": 3, "last": 0, "sequence": 0, "pixels": 2, "blocks": 2}
"""Transposes that a kind has itself, or has in a region."""


@pytest.mark.parametrize("kind", sorted({*STEPS} - BORDERS))
def test_what_may_lie_in_a_region(kind: str) -> None:
    _, after, _ = pay(_between(kind, 3), "last")
    assert after["Transpose"] <= 2 + 3 * MORE.get(kind, 0)
    assert after["com.microsoft.NhwcConv"] >= 3


@pytest.mark.parametrize("kind", sorted(BORDERS))
def test_no_region_is_where_a_border_is_at_each_convolution(kind: str) -> None:
    _, after, _ = pay(_between(kind, 3), "last")
    assert after["Transpose"] == 0


ALONE = {"a convolution": ("Conv", 0), "a group normalization": ("GroupNormalization", 2),
         "one that no kernel takes": ("odd GroupNormalization", 0), "depthwise": ("depthwise", 0)}  # fmt: skip


@pytest.mark.parametrize(("kind", "transposes"), ALONE.values(), ids=ALONE)
def test_a_kernel_alone(kind: str, transposes: int) -> None:
    body = STEPS[kind].format(a="x", y="y")
    text = f"g (float[B, {CHANNELS}, H, W] x) => (float[n, c, h, w] y) {CONSTANTS} {{ {body} }}"
    assert pay(text, "last")[1]["Transpose"] == transposes
