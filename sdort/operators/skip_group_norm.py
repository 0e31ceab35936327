"""com.microsoft.SkipGroupNorm: S = X + skip + bias; Y = its group normalization with optional SiLU.

Channels-last; skip is (N, H, W, C), (N, 1, 1, C) or (N, C).
"""

from sdort.errors import BadModelError
from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import Fact
from sdort.graph.operator import REQUIRED, Call, Category, Example, Operator, outputs_only, same
from sdort.operators.group_norm import normalize, pairs_of_channels


def infer(call: Call) -> list[Fact]:
    return same(call) * 2


def definition(call: Call) -> str:
    """Between the first and last dims of the skip stand 1 or H*W elements."""
    if not call.attributes["channels_last"]:
        raise BadModelError("SkipGroupNorm is defined for channels-last tensors only")
    bias = "summed = Add (skipped, bias)" if call.has("bias") else "summed = Identity (skipped)"
    return f"""
      batch = Shape <start = 0, end = 1> (X)
      channels = Shape <start = -1> (X)
      all = Constant <value_ints = [-1]> ()
      flat_shape = Concat <axis = 0> (batch, all, channels)
      flat = Reshape (X, flat_shape)
      flat_skip = Reshape (skip, flat_shape)
      flat_sum = Add (flat, flat_skip)
      x_shape = Shape (X)
      skipped = Reshape (flat_sum, x_shape)
      {bias}
      {"S = Identity (summed)" if call.has("S") else ""}
      {normalize(call, "summed", channels_last=True)}"""


_WEIGHTS = {"gamma": (12,), "beta": (12,)}

OPERATOR = Operator(
    name="SkipGroupNorm",
    domain=MICROSOFT,
    category=Category.NORMALIZATION,
    inputs=("X", "gamma", "beta", "skip", "bias"),
    outputs=("Y", "S"),
    attributes={"groups": REQUIRED, "activation": REQUIRED, "epsilon": 1e-5, "channels_last": 1},
    infer=infer,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=("gamma", "beta"),
    additive=True,
    factors=(),
    operations=11,
    kernels={"rocm": pairs_of_channels, "cuda": pairs_of_channels},
    unserved={},
    examples=(
        Example({"X": (2, 3, 5, 12), **_WEIGHTS, "skip": (2, 3, 5, 12)}, {"groups": 3, "activation": 0}),
        Example({"X": (2, 3, 5, 12), **_WEIGHTS, "skip": (2, 12), "bias": (12,)}, {"groups": 3, "activation": 1}),
    ),
)
