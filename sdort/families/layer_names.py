"""Names of a denoiser's layers in the files of its authors, and diffusers' names for them.

One table serves both directions: tensors of checkpoints are renamed by it, and modules of adapters found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

TRANSFORMER_PREFIXES = ("lora_transformer_", "transformer_", "lora_unet_", "diffusion_model_")
"""Beginnings of the names of a transformer's modules in LoRA files: kohya's, diffusers', and ComfyUI's."""

_NUMBER = re.compile(r"\.(\d+)\.")
_ANY = "{}"
"""Stands in names of a table for the number of a block."""


@dataclass(frozen=True)
class Layer:
    """A layer."""

    authors: str
    """Its name there; the number of its block is ``{}``."""
    own: tuple[str, ...]
    """Its name in diffusers; several, where its rows are those of several layers, one below the other. All but the last
    of these are as high as the layer is wide."""
    swapped: bool = False
    """The two halves of its rows, shift and scale, change places, where it has two rows for each column: one with more
    makes gates too, and these are in one order."""

    def swaps(self, weight: Sequence[int]) -> bool:
        """Whether the halves of a layer with a weight of this shape change places."""
        return self.swapped and len(weight) == 2 and weight[0] == 2 * weight[1]


@dataclass(frozen=True)
class LayerNames:
    """The names of a denoiser that differ."""

    layers: tuple[Layer, ...]
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Tensors that no layer has: the authors' name -> diffusers'."""
    unused: frozenset[str] = frozenset()
    """Tensors of files that nothing reads."""

    @cached_property
    def _by_authors(self) -> dict[str, Layer]:
        return {layer.authors: layer for layer in self.layers}

    @cached_property
    def _by_own(self) -> dict[str, Layer]:
        return {layer.own[0]: layer for layer in self.layers}

    def find(self, name: str) -> Layer | None:
        """The layer that a file's name is of, with the number of its block; None for one whose name is the same."""
        return _numbered(self._by_authors, name)

    def find_own(self, name: str) -> Layer | None:
        """The layer whose first or only name in diffusers this is; None as for :meth:`find`."""
        return _numbered(self._by_own, name)

    def own_names(self, tensor: str) -> Iterator[str]:
        """The names in diffusers of a file's tensor."""
        if tensor in self.tensors:
            yield self.tensors[tensor]
            return
        module, dot, leaf = tensor.rpartition(".")
        layer = self.find(module)
        for name in layer.own if layer else (module,):
            # The authors of Flux.1 call the weight of a norm so.
            yield f"{name}{dot}{'weight' if leaf == 'scale' else leaf}"

    def own(self, tensors: Collection[str]) -> set[str]:
        """The names in diffusers of a file's tensors."""
        return {name for tensor in tensors for name in self.own_names(tensor)}


def _numbered(layers: dict[str, Layer], name: str) -> Layer | None:
    number = _NUMBER.search(name)
    if number is None:
        return layers.get(name)
    layer = layers.get(f"{name[: number.start(1)]}{_ANY}{name[number.end(1) :]}")
    if layer is None:
        return layers.get(name)
    authors, *own = (each.replace(_ANY, number[1]) for each in (layer.authors, *layer.own))
    return Layer(authors, tuple(own), layer.swapped)


def alike(*pairs: tuple[str, str]) -> tuple[Layer, ...]:
    """Layers that differ by name alone: the authors' name and diffusers' of each."""
    return tuple(Layer(authors, (own,)) for authors, own in pairs)


def fused(authors: str, *own: str) -> Layer:
    """A layer whose rows are those of several of diffusers."""
    return Layer(authors, own)


def swapped(authors: str, own: str) -> Layer:
    """A layer that makes shift and scale, which are scale and shift in diffusers."""
    return Layer(authors, (own,), swapped=True)
