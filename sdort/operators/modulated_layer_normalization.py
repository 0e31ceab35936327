"""sdort.ModulatedLayerNormalization: a LayerNorm without affine, times a scale, plus a shift of each image (AdaLN).

https://arxiv.org/abs/2212.09748; the scale has the 1 in it that is added there. X is [batch, rows, width], scale and
shift are [batch, 1, width].
"""

from __future__ import annotations

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.fact import Fact
from sdort.graph.operator import Call, Category, Example, Operator, any_form, outputs_only, same

ROWS, OF_IMAGE = (2, 5, 12), (2, 1, 12)
EXAMPLE = {"X": ROWS, "scale": OF_IMAGE, "shift": OF_IMAGE}


def infer(call: Call) -> list[Fact]:
    """All outputs are like X."""
    return same(call) * len(call.outputs)


WIDE = """
      wide = Cast <to = 1> (X)"""


def normal(call: Call, x: str) -> str:
    """Steps from x, of float32, to ``normal``: over the last axis, without affine."""
    return f"""
      one = Constant <value_float = 1.0> ()
      width = Shape <start = -1> (X)
      ones = Expand (one, width)
      normal = LayerNormalization {call.text("epsilon", axis=-1)} ({x}, ones)"""


def modulated(scale: str, shift: str | None, y: str) -> str:
    """Steps from ``normal`` to y, of X's dtype."""
    moved = f"""
      {y}_shift = Cast <to = 1> ({shift})
      {y}_wide = Add ({y}_scaled, {y}_shift)"""
    return f"""
      {y}_scale = Cast <to = 1> ({scale})
      {y}_scaled = Mul (normal, {y}_scale){moved if shift else ""}
      {y} = CastLike ({y}_{"wide" if shift else "scaled"}, X)"""


def definition(call: Call) -> str:
    return WIDE + normal(call, "wide") + modulated("scale", "shift", "Y")


OPERATOR = Operator(
    name="ModulatedLayerNormalization",
    domain=OWN_DOMAIN,
    category=Category.NORMALIZATION,
    inputs=("X", "scale", "shift"),
    outputs=("Y",),
    attributes={"epsilon": 1e-6},
    infer=infer,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=(),
    additive=False,
    factors=("scale",),
    operations=9,
    kernels={"rocm": any_form, "cuda": any_form},
    unserved={},
    examples=(Example(EXAMPLE), Example(EXAMPLE, {"epsilon": 0.25})),
)
