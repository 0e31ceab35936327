"""sdort.GroupNorm: S = Concat(X, X2) + skip + bias + embedding; Y = its group normalization with optional SiLU.

X, X2 and skip are channels-last; embedding is (N, C) or (N, 1, 1, C); S and Y are (N, H, W, C).
"""

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.fact import Fact
from sdort.graph.operator import REQUIRED, Call, Category, Example, Operator, outputs_only
from sdort.operators.group_norm import even_groups


def infer(call: Call) -> list[Fact]:
    x, x2 = call.fact("X"), call.fact("X2")
    if not call.has("X2"):
        return [Fact(x.dtype, x.shape)] * 2
    if x.shape is None or x2.shape is None:
        return [Fact(x.dtype)] * 2
    return [Fact(x.dtype, (*x.shape[:-1], x.shape[-1] + x2.shape[-1]))] * 2


def definition(call: Call) -> str:
    """The function that a model carries: with ONNX Runtime's GroupNorm, which GPU providers have a kernel of."""
    lines = ["joined = Concat <axis = -1> (X, X2)" if call.has("X2") else "joined = Identity (X)"]
    last = "joined"
    if call.has("embedding"):
        lines += ["pixel_shape = Constant <value_ints = [0, 1, 1, -1]> ()"]
        lines += ["pixel = Reshape (embedding, pixel_shape)"]
    for name, tensor in (("skip", "skip"), ("bias", "bias"), ("embedding", "pixel")):
        if call.has(name):
            lines.append(f"with_{name} = Add ({last}, {tensor})")
            last = f"with_{name}"
    settings = call.text("groups", "activation", "epsilon", channels_last=1)
    return "\n".join([*lines, f"S = Identity ({last})", f"Y = com.microsoft.GroupNorm {settings} (S, gamma, beta)"])


def pairs_of_channels(call: Call) -> str | None:
    """The function hands the sum of both inputs' channels to ONNX Runtime's GroupNorm."""
    parts = [shape for shape in map(call.shape, ("X", "X2")) if shape]
    channels = sum(shape[-1] for shape in parts if isinstance(shape[-1], int))
    if not all(len(shape) == 4 and isinstance(shape[-1], int) for shape in parts):
        return "GroupNorm needs a fixed number of channels"
    return even_groups(call, channels)


_WEIGHTS = {"gamma": (12,), "beta": (12,)}

OPERATOR = Operator(
    name="GroupNorm",
    domain=OWN_DOMAIN,
    category=Category.NORMALIZATION,
    inputs=("X", "X2", "gamma", "beta", "skip", "bias", "embedding"),  # in the order of the library's kernels
    outputs=("Y", "S"),
    attributes={"groups": REQUIRED, "activation": 0, "epsilon": 1e-5, "channels_last": 1},
    infer=infer,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=("gamma", "beta"),
    additive=False,  # what is small is normalized with the rest
    factors=(),
    operations=10,
    kernels={"rocm": pairs_of_channels, "cuda": pairs_of_channels},
    unserved={},
    examples=(
        Example({"X": (2, 3, 5, 8), "X2": (2, 3, 5, 4), **_WEIGHTS}, {"groups": 3, "activation": 1}),
        Example({"X": (2, 3, 5, 12), **_WEIGHTS, "bias": (12,), "embedding": (2, 12)}, {"groups": 3}),
    ),
)
