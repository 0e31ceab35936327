"""Input forms that ONNX Runtime's kernels take, read from its source; shared by the targets.

Sources: onnxruntime/contrib_ops/{cuda,rocm}/diffusion and bert, releases 1.22 (rocm) and 1.31 (cuda).
"""

from __future__ import annotations

from sdort.providers.target import NodeView

GEGLU_WIDTHS = (1280, 2560, 5120)
"""bias_split_gelu_impl.cu is compiled for these output widths and throws for any other."""


def bias_split_gelu(view: NodeView) -> str | None:
    shape = view.shape(0)
    width = shape[-1] if shape else None
    if not isinstance(width, int) or width // 2 not in GEGLU_WIDTHS:
        half = width // 2 if isinstance(width, int) else width
        return f"BiasSplitGelu is compiled for widths {', '.join(map(str, GEGLU_WIDTHS))}, this one is {half}"
    return None


def group_norm(view: NodeView) -> str | None:
    """Channels-last, two channels a thread, a group within one block."""
    if not view.node.attrs.get("channels_last", 1):
        return "GroupNorm runs in channels-last only"
    shape = view.shape(0)
    channels = shape[-1] if shape and len(shape) == 4 else None
    if not isinstance(channels, int):
        return "GroupNorm needs a fixed number of channels"
    return _even_groups(view, channels)


def _even_groups(view: NodeView, channels: int) -> str | None:
    groups = view.node.attrs.get("groups", 0)
    if groups < 1 or channels % groups:
        return f"GroupNorm needs channels that are a multiple of its groups, these are {channels} in {groups}"
    size = channels // groups
    return f"GroupNorm needs an even number of channels a group, this one has {size}" if size % 2 else None


def group_norm_of_two(view: NodeView) -> str | None:
    """The function body hands the sum of both inputs' channels to ONNX Runtime's GroupNorm."""
    parts = [shape for shape in map(view.shape, (0, 1)) if shape]
    channels = sum(shape[-1] for shape in parts if isinstance(shape[-1], int))
    if not all(len(shape) == 4 and isinstance(shape[-1], int) for shape in parts):
        return "GroupNorm needs a fixed number of channels"
    return _even_groups(view, channels)


def nhwc_conv(view: NodeView) -> str | None:
    shape = view.shape(0)
    return None if shape and len(shape) == 4 else "NhwcConv runs on images only"


def multi_head_attention(view: NodeView) -> str | None:
    """Causal only as an attribute that CUDA and the CPU read; ONNX Runtime's kernels take masks, sdort's own do not."""
    dtype = view.editor.dtype(view.node.inputs[0])
    if dtype is not None and dtype.name not in ("float32", "float16"):
        return f"MultiHeadAttention takes float32 and float16, these are {dtype}"
    if view.has(5):
        return "MultiHeadAttention of sdort's library takes no mask"
    return None


def attention_on_rocm(view: NodeView) -> str | None:
    """The ROCm kernel ignores ``unidirectional`` and refuses a bias."""
    if view.node.attrs.get("unidirectional"):
        return "MultiHeadAttention has no causal form on ROCm"
    if view.has(3):
        return "MultiHeadAttention takes no bias on ROCm"
    return multi_head_attention(view)


def unpacked_attention(view: NodeView) -> str | None:
    """Query, key and value apart: packed ones load on the CPU, then throw at run time."""
    if not view.has(2):
        return "MultiHeadAttention takes no packed inputs"
    return multi_head_attention(view)


def argmax_of_floats(view: NodeView) -> str | None:
    """Of integers neither GPU provider has one. Of equal ones the last, no provider has another operator for."""
    dtype = view.editor.dtype(view.node.inputs[0])
    if dtype is not None and dtype.kind in "iu" and not view.node.attrs.get("select_last_index"):
        return f"ArgMax takes floats only, these are {dtype}"
    return None
