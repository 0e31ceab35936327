"""The parts of a component's graph that decide how much memory its activations take."""

from __future__ import annotations

from dataclasses import dataclass

from sdort.onnx_io.component_file import ComponentFile
from sdort.providers.provider import Provider


@dataclass(frozen=True)
class Footprint:
    """Bytes of an activation, and how many copies of an attention's scores are held at once."""

    element: int = 4
    """Bytes of an activation."""
    score_copies: int = 2
    """Copies of the scores; those of the decoder are float32."""


def decoder_footprint(file: ComponentFile, provider: Provider, widened: bool = False) -> Footprint:
    """The footprint of a decoder on ``provider``.

    Fused attention takes its scores piece by piece, but for AMD's: its kernels do not have the decoder's wide head,
    and what runs instead holds them. The CPU takes the softmax in place; on a GPU there may be two copies.

    Args:
        widened: whether the decoder is computed in fp32 by now, whatever its file has.
    """
    copies = 1 if provider.is_fallback else 2
    if not keeps_scores(file) and provider.vendor != "amd":
        copies = 0
    return Footprint(4 if widened else activation_bytes(file, provider), copies)


def activation_bytes(file: ComponentFile, provider: Provider) -> int:
    """Bytes of an activation: the CPU computes in fp32 what the file has in fp16."""
    return 2 if provider.on_gpu and file.dtype == "float16" else 4


def keeps_scores(file: ComponentFile) -> bool:
    """Whether attention is spelled in operators that hold all scores at once; fused ones take them piece by piece."""
    return file.derived(_keeps_scores)


def _keeps_scores(file: ComponentFile) -> bool:
    return any(node.op_type in ("Attention", "Softmax") and not node.domain for node in file.graph.graph.node)
