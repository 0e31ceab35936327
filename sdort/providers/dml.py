"""onnxruntime-directml 1.24.4: the kernels in its library's own table of registrations, for every DirectX 12 GPU.

The table was read out of the wheel (``python scripts/directml_kernels.py WHEEL``), the forms out of the sources of the
kernels (microsoft/onnxruntime, onnxruntime/core/providers/dml/DmlExecutionProvider/src/Operators). It ends at opset 21.
It has ScatterND and ScatterElements up to opset 16 alone, so at 18 these would silently run on the CPU.

DirectML plans a graph for the sizes that it has, so graphs for it have fixed sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdort.providers.provider import Option, Provider, number, one_of
from sdort.providers.target import Target

if TYPE_CHECKING:  # a provider's file imports no graph libraries
    from sdort.graph.operator import Call

STANDARD = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BitShift BitwiseAnd
BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Col2Im Concat ConcatFromSequence ConstantOfShape
Conv ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div DynamicQuantizeLinear Einsum
Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gemm GlobalAveragePool
GlobalLpPool GlobalMaxPool Greater GreaterOrEqual HardSigmoid Hardmax Identity InstanceNormalization IsInf
IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul
MatMulInteger Max MaxPool MaxRoiPool MaxUnpool Mean MeanVarianceNormalization Min Mod Mul Neg NonZero Not
OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RNN Range Reciprocal ReduceL1 ReduceL2
ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape
Resize ReverseSequence RoiAlign Round Scatter Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax
Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu
Unsqueeze Upsample Where Xor
"""
"""Standard operators that the table has a kernel for at opset 18."""

_REGISTERED_APART = frozenset({"DFT", "GridSample", "STFT"})
"""Standard operators whose kernels are registered beside the table."""


def _any_form(call: Call) -> str | None:
    return None


def _whole_groups(call: Call) -> str | None:
    """Groups of any number of channels (DmlOperatorGroupNorm.cpp)."""
    if not call.attributes["channels_last"]:
        return "GroupNorm runs in channels-last only"
    shape, groups = call.shape("X"), call.attributes["groups"]
    channels = shape[-1] if shape and len(shape) == 4 else None
    if not isinstance(channels, int):
        return "GroupNorm needs a fixed number of channels"
    if groups < 1 or channels % groups:
        return f"GroupNorm needs channels that are a multiple of its groups, these are {channels} in {groups}"
    return None


def _images(call: Call) -> str | None:
    shape = call.shape("X")
    return None if shape and len(shape) == 4 else "NhwcConv runs on images only"


def _halves(call: Call) -> str | None:
    """Every even width (DmlOperatorBiasSplitGelu.cpp)."""
    shape = call.shape("X")
    width = shape[-1] if shape else None
    return None if isinstance(width, int) and width % 2 == 0 else f"BiasSplitGelu splits an even width, not {width}"


def _rows(call: Call) -> str | None:
    """Two or three axes, without the statistics (DmlOperatorSkipLayerNormalization.cpp)."""
    if call.has("mean", "inv_std_var"):
        return "SkipLayerNormalization gives no mean and no deviation in DirectML"
    shape = call.shape("input")
    if shape is not None and len(shape) in (2, 3):
        return None
    rank = "an unknown number of" if shape is None else len(shape)
    return f"SkipLayerNormalization takes two or three axes, these are {rank}"


def _attention(call: Call) -> str | None:
    """``unidirectional`` is not read, and a mask is one of every prompt and head
    (DmlOperatorMultiHeadAttention.cpp).
    """
    from sdort.operators.multi_head_attention import is_of_every_head  # --help needs it not

    if call.attributes["unidirectional"]:
        return f"{_name(call)} has no causal form in DirectML"
    if call.has("attention_bias") and not (call.has("query") and is_of_every_head(call)):
        return f"{_name(call)} repeats no mask over prompts and heads in DirectML"
    dtype = call.dtype("query") or call.dtype("input")
    if dtype is not None and dtype.name not in ("float32", "float16"):
        return f"{_name(call)} takes float32 and float16, these are {dtype}"
    return None


def _name(call: Call) -> str:
    return "MultiHeadAttention" if call.has("query") else "Attention"


def _packed_attention(call: Call) -> str | None:
    if call.has("mask_index", "past", "past_sequence_length", "present"):
        return "Attention with a mask or a past is not known in DirectML"
    return _attention(call)


def _three_axes(call: Call) -> str | None:
    """[batch, rows, heads * size], each head turned as a whole (DmlOperatorRotaryEmbedding.cpp)."""
    x, table, positions = (call.shape(name) for name in ("input", "cos_cache", "position_ids"))
    if call.attributes["is_packed_batching"] or call.attributes["scale"] not in (None, 1):
        return "RotaryEmbedding of packed batches, or of a scale, is not known"
    if x is None or table is None or positions is None or len(x) != 3 or len(table) != 2:
        return "RotaryEmbedding takes three axes, and tables of two, in DirectML"
    if not isinstance(table[-1], int) or call.attributes["rotary_embedding_dim"] not in (None, 0, 2 * table[-1]):
        return "RotaryEmbedding turns whole heads of a fixed size"
    return None


def _given_zero_points(call: Call) -> str | None:
    """Without zero points the kernel takes 0 for one (DmlOperatorMatMulNBits.cpp), and ONNX Runtime's definition half
    of the range.
    """
    bits = call.attributes["bits"]
    if bits not in (4, 8):
        return f"MatMulNBits has 4 or 8 bits in DirectML, not {bits}"
    if not call.has("zero_points"):
        return "DirectML reads MatMulNBits without zero points as if these were 0"
    return "MatMulNBits takes no groups in another order and no bias in DirectML" if call.has("g_idx", "bias") else None


def _sizes_alone(call: Call) -> str | None:
    """Integers, which are sizes, ONNX Runtime computes on the CPU as it does other arithmetic on these."""
    dtype = call.dtype("data")
    return None if dtype is not None and dtype.kind in "iu" else "dml has a kernel for ScatterND up to opset 16 alone"


TARGET = Target(
    name="dml",
    execution_provider="DmlExecutionProvider",
    opset=18,
    ir_version=10,
    channels_last=True,
    fixed_sizes=True,
    only=frozenset(STANDARD.split()) | _REGISTERED_APART | {"Constant", "ScatterND"},
    forms={"ScatterND": _sizes_alone},
    kernels={
        "com.microsoft.Attention": _packed_attention,
        "com.microsoft.BiasAdd": _any_form,
        "com.microsoft.BiasGelu": _any_form,
        "com.microsoft.BiasSplitGelu": _halves,
        "com.microsoft.FastGelu": _any_form,
        "com.microsoft.Gelu": _any_form,
        "com.microsoft.GroupNorm": _whole_groups,
        "com.microsoft.MatMulNBits": _given_zero_points,
        "com.microsoft.MultiHeadAttention": _attention,
        "com.microsoft.NhwcConv": _images,
        "com.microsoft.QuickGelu": _any_form,
        "com.microsoft.RotaryEmbedding": _three_axes,
        "com.microsoft.SimplifiedLayerNormalization": _any_form,
        "com.microsoft.SkipLayerNormalization": _rows,
        "com.microsoft.SkipSimplifiedLayerNormalization": _rows,
    },
)

_TRUTH = Option("False", "True|False", "True or False")

# What the library of onnxruntime-directml 1.24.4 reads by name.
_OPTIONS: dict[str, Option] = {
    "device_id": number(0).owned_by("Use --device-id."),
    "disable_metacommands": _TRUTH,
    "performance_preference": one_of("default", "high_performance", "minimum_power").owned_by(
        "It chooses a GPU where no number does. Use --device-id."
    ),
    "device_filter": one_of("gpu", "npu", "any").owned_by("It chooses a device where no number does. Use --device-id."),
}

PROVIDER = Provider(
    TARGET,
    rank=40,
    # Its memory has a name in builds for Windows alone, none of which ran here, so tensors pass through the host's.
    device=None,
    system="Windows",
    kernel_table="onnxruntime-directml 1.24.4",
    vendor="directx",
    no_graph="DirectML records the commands of a graph of fixed sizes by itself",
    no_bf16="DirectML has no bf16 arithmetic",
    needs="DirectML is a part of Windows 10 (1903) and later, and runs on GPUs for DirectX 12: update their driver.",
    releases={"1.24": _OPTIONS},
)
