"""Positions, indices and buckets that a graph computes in floats are the model's in fp16, beyond 2048 too."""

from __future__ import annotations

import numpy as np
import pytest
from support import stored
from support.drawn import Generator, drawn
from support.small_graphs import Array, edit, load, parse, run

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.passes import half
from sdort.providers import load_target

STEPS = ("Mul ({x}, {c})", "Div ({x}, {c})", "Add ({x}, {c})", "Sub ({c}, {x})", "Min ({x}, {c})", "Abs ({x})",
         "Floor ({x})", "Neg ({x})")  # fmt: skip
CONSTANTS = (0.3, 0.5, 1.7, 3.0, 41.0, 640.0, 1e-2)
ENDS = {
    "Floor, Cast": ("int64", "{y}_f = Floor ({x})  {y} = Cast <to = 7> ({y}_f)"),
    "Cast": ("int32", "{y} = Cast <to = 6> ({x})"),
    "Round": ("float", "{y} = Round ({x})"),
    "fraction": ("float", "{y}_f = Floor ({x})  {y} = Sub ({x}, {y}_f)"),
    "Mod": ("float", "{y} = Mod <fmod = 1> ({x}, c0)"),
    "Greater": ("bool", "{y} = Greater ({x}, c0)"),
    "Where": ("float", "{y}_c = Less ({x}, c0)  {y} = Where ({y}_c, {x}, c0)"),
    "ArgMax": ("int64", "{y}_a = Abs ({x})  {y} = ArgMax <axis = 0> ({y}_a)"),
    "gathered": ("float", "{y}_i = Cast <to = 7> ({x})  {y}_m = Mod ({y}_i, wide)  {y} = Gather (h, {y}_m)"),
}
WIDE = "n = Shape <start = 0, end = 1> (h)  wide = Squeeze (n)"
HEAD = "{wide}  p = Range (zero, wide, one)  s = Cast <to = 1> (p)"


def graph(rng: Generator, seed: int) -> tuple[str, dict[str, Array]]:
    """A chain over the positions of ``h``, and a reader of it that a rounding would change."""
    lines, name = [HEAD.format(wide=WIDE)], "s"
    constants = {"c0": np.array(rng.choice(CONSTANTS), np.float32)}
    for index in range(1, int(rng.integers(2, 6))):
        step = STEPS[int(rng.integers(len(STEPS)))]
        if "{c}" in step:
            constants[f"c{index}"] = np.array(rng.choice(CONSTANTS), np.float32)
        lines.append(f"s{index} = {step.format(x=name, c=f'c{index}')}")
        name = f"s{index}"
    kind, end = ENDS[list(ENDS)[seed % len(ENDS)]]
    lines.append(end.format(x=name, y="y"))
    body = "  ".join(lines)
    used = {key: value for key, value in constants.items() if f"{key})" in body or f"{key}," in body}
    values = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    return f"g (float[N] h) => ({kind}[q] y, float[r] z) {{ {body}  z = Neg (h) }}", used | values


@drawn(36, graph)
def test_what_is_made_of_positions_is_what_it_was(case: tuple[str, dict[str, Array]]) -> None:
    text, constants = case
    model, proto = load(text, constants, 18), parse(text, constants, 18)
    feeds = {"h": np.arange(5000, dtype=np.float32) % 2048}  # of which fp16 holds each
    optimize_model(model, OptimizeOptions(load_target("rocm"), fp16=True))
    (found, _), (wanted, _) = stored.run(model, feeds), run(proto, feeds)
    np.testing.assert_array_equal(found, wanted)


FREE = {
    "a mask of tokens": "m = Cast <to = 1> (i)  n = Sub (one, m)  p = Mul (n, low)  y = Add (x, p)",
    "a mask that becomes truth": "m = Cast <to = 1> (i)  n = Sub (one, m)  b = Cast <to = 9> (n)  "
    "y = Where (b, low, x)",
    "activations that are rounded": "r = Round (x)  y = Neg (r)",
    "positions among activations": "m = Cast <to = 1> (i)  p = Add (m, x)  y = Floor (p)",
    "sizes alone": "m = Cast <to = 1> (i)  y = Mul (m, low)",
}


@pytest.mark.parametrize("body", FREE.values(), ids=FREE)
def test_nothing_else_is_kept(body: str) -> None:
    text = f"g (float[4] x, int64[4] i) => (float[q] y) <float one = {{1.0}}, float low = {{-100.0}}> {{ {body} }}"
    kept = half.fp32_nodes(edit(text, opset=18))
    assert [name for name in kept if not name.startswith("Cast")] == []
