"""Options of the sizes that components run at, declared once for the commands that run them ahead of a generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdort.options.declared_options import option


@dataclass(frozen=True)
class SizeOptions:
    """Sizes and numbers of what runs at once; each command says of what."""

    sizes: Sequence[tuple[int, int]] = option(
        (),
        flags=("--size",),
        form="sizes",
        metavar="WxH,...",
        unset="the model's own",
        help="Image sizes in pixels: the width first.",
        doc="Heights and widths of images in pixels; the model's own if empty.",
    )
    batch_sizes: Sequence[int] = option((1,), flags=("--batch-size",), form="numbers", help="Batch sizes.")
