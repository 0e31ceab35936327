"""com.microsoft.GroupNorm: group normalization with optional SiLU, channels-last or channels-first.

https://arxiv.org/abs/1803.08494
"""

from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import REQUIRED, Call, Category, Example, Operator, outputs_only, same


def normalize(call: Call, source: str, channels_last: bool) -> str:
    """Group normalization of ``source`` with optional SiLU into Y: (N, H, W, C), or (N, C, H, W)."""
    groups = int(call.attributes["groups"])
    ones, zeros = ", ".join(["1.0"] * groups), ", ".join(["0.0"] * groups)
    transposed = "Transpose <perm = [{}]> ({})" if channels_last else "Identity ({1})"
    return f"""
      wide = Cast <to = 1> ({source})
      planes = {transposed.format("0, 3, 1, 2", "wide")}
      shape = Shape (planes)
      rows = Constant <value_ints = [0, {groups}, -1]> ()
      grouped = Reshape (planes, rows)
      one = Constant <value_floats = [{ones}]> ()
      zero = Constant <value_floats = [{zeros}]> ()
      normal = InstanceNormalization {call.text("epsilon")} (grouped, one, zero)
      restored = Reshape (normal, shape)
      column = Constant <value_ints = [-1, 1, 1]> ()
      gamma_wide = Cast <to = 1> (gamma)
      beta_wide = Cast <to = 1> (beta)
      gamma_column = Reshape (gamma_wide, column)
      beta_column = Reshape (beta_wide, column)
      scaled = Mul (restored, gamma_column)
      affine = Add (scaled, beta_column)
      gate = Sigmoid (affine)
      activated = {"Mul (affine, gate)" if call.attributes.get("activation") else "Identity (affine)"}
      laid_out = {transposed.format("0, 2, 3, 1", "activated")}
      Y = CastLike (laid_out, X)"""


def definition(call: Call) -> str:
    return normalize(call, "X", bool(call.attributes["channels_last"]))


def pairs_of_channels(call: Call) -> str | None:
    """Channels-last, two channels a thread, a group within one block (diffusion/group_norm_impl.cu)."""
    if not call.attributes["channels_last"]:
        return "GroupNorm runs in channels-last only"
    shape = call.shape("X")
    channels = shape[-1] if shape and len(shape) == 4 else None
    if not isinstance(channels, int):
        return "GroupNorm needs a fixed number of channels"
    return even_groups(call, channels)


def even_groups(call: Call, channels: int) -> str | None:
    groups = call.attributes.get("groups", 0)
    if groups < 1 or channels % groups:
        return f"GroupNorm needs channels that are a multiple of its groups, these are {channels} in {groups}"
    size = channels // groups
    return f"GroupNorm needs an even number of channels a group, this one has {size}" if size % 2 else None


OPERATOR = Operator(
    name="GroupNorm",
    domain=MICROSOFT,
    category=Category.NORMALIZATION,
    inputs=("X", "gamma", "beta"),
    outputs=("Y",),
    attributes={"groups": REQUIRED, "activation": REQUIRED, "epsilon": 1e-5, "channels_last": 1},
    infer=same,
    definition=definition,
    on_cpu=definition,
    stores_intermediates=outputs_only,
    float32_inputs=("gamma", "beta"),  # ORT's kernels read them so whatever the activations are
    additive=False,
    factors=(),
    operations=10,
    kernels={"rocm": pairs_of_channels, "cuda": pairs_of_channels},
    unserved={},
    examples=(
        Example({"X": (2, 3, 5, 12), "gamma": (12,), "beta": (12,)}, {"groups": 3, "activation": 1}),
        Example(
            {"X": (2, 12, 3, 5), "gamma": (12,), "beta": (12,)}, {"groups": 3, "activation": 0, "channels_last": 0}
        ),
    ),
    trials=(Example({"X": (2, 8, 8, 320), "gamma": (320,), "beta": (320,)}, {"groups": 32, "activation": 1}),),
)
