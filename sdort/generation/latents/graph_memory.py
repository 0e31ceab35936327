"""The parts of a component's graph that decide how much memory its activations take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sdort.families.component_names import ENCODER
from sdort.onnx_io.component_file import ComponentFile
from sdort.providers.provider import Provider
from sdort.runtime.activations import activation_bytes
from sdort.workload.samples import Sample

Size = tuple[int, int, int]
"""Images, and the latents along their height and their width."""


def _nothing(size: Size, factor: int) -> int | None:
    return None


@dataclass(frozen=True)
class GraphMemory:
    """The memory of an autoencoder's graph: counted, and where its tensors' sizes are not known, two numbers of it."""

    element: int = 4
    """Bytes of an activation."""
    score_copies: int = 2
    """Copies of an attention's scores that are held at once; those of the decoder are float32."""
    counted: Callable[[Size, int], int | None] = field(default=_nothing, compare=False)
    """The bytes of its activations for images of so many latents, each of so many pixels a side; None if not known."""


def decoder_memory(file: ComponentFile, provider: Provider, widened: bool = False) -> GraphMemory:
    """The memory of a decoder on ``provider``.

    Fused attention takes its scores piece by piece, but for AMD's: its kernels do not have the decoder's wide head,
    and what runs instead holds them. The CPU takes the softmax in place; on a GPU there may be two copies.

    Args:
        widened: whether the decoder is computed in fp32 by now, whatever its file has.
    """
    copies = 1 if provider.is_fallback else 2
    if not keeps_scores(file) and provider.vendor != "amd":
        copies = 0
    element = 4 if widened else element_bytes(file, provider)
    return GraphMemory(element, copies, partial(_counted, file, provider, widened))


def _counted(file: ComponentFile, provider: Provider, widened: bool, size: Size, factor: int) -> int | None:
    images, height, width = size
    scale = factor if file.component == ENCODER else 1
    return activation_bytes(file, Sample(images, scale * height, scale * width), provider, widened)


def element_bytes(file: ComponentFile, provider: Provider) -> int:
    """Bytes of an activation: the CPU computes in fp32 what the file has in fp16."""
    return 2 if provider.on_gpu and file.dtype == "float16" else 4


def keeps_scores(file: ComponentFile) -> bool:
    """Whether attention is spelled in operators that hold all scores at once; fused ones take them piece by piece."""
    return file.derived(_keeps_scores)


def _keeps_scores(file: ComponentFile) -> bool:
    return any(node.op_type in ("Attention", "Softmax") and not node.domain for node in file.graph.graph.node)
