"""A model in memory: onnx-graphsurgeon's graph plus what it does not keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_graphsurgeon as gs


@dataclass
class Model:
    """One ONNX component.

    ``graph`` is the IR of all passes. Its large constants hold a :class:`sdort.graph.weights.Weight`; small ones hold
    plain numpy arrays. ``graph.opset`` is the default domain's opset, other domains stand in
    ``graph.import_domains``.
    """

    graph: gs.Graph
    component: str
    """The pipeline component's name (``unet``, ``vae_decoder``, ...), used in messages."""
    path: Path | None = None
    """The .onnx file it was read from."""
    metadata: dict[str, str] = field(default_factory=dict)
    """ONNX ``metadata_props``, without what the fields here say."""
    origins: dict[Any, dict[str, Any]] = field(default_factory=dict)
    """Stored values -> what they are made of (:mod:`sdort.onnx_io.weight_origins`)."""
