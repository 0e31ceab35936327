"""The correspondence of tensors: enough to find an optimized graph's tensors in the original, and who changed them.

Passes keep a tensor's name as long as it holds the same values, so most correspondences need no record. What names
cannot tell is kept by the editor and written into the model's metadata: which tensor a channels-last twin stands for,
and which fusions or steps made a node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx

from sdort.files.json_text import parse_json
from sdort.rewrite.editor import Editor

PROVENANCE_KEY = "sdort.provenance"
"""In the model's ``metadata_props``. Some 60 bytes a node: 100 KB for a UNet of Stable Diffusion."""


@dataclass(frozen=True)
class Provenance:
    """Read back from a model; empty for one that sdort did not optimize."""

    makers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node -> the fusions and steps that made it, the last one last. A node that is not here is the original's."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """Channels-last tensor -> the channels-first tensor of the original that it stands for."""


def provenance_json(editor: Editor) -> str:
    """The provenance of an editor's graph as JSON; what the graph no longer has is left out."""
    makers: dict[str, list[str]] = {}
    tensors: set[str] = set()
    for node in editor.graph.nodes:
        tensors.update(tensor.name for tensor in node.outputs)
        if node.name in editor.origins:
            makers.setdefault(",".join(editor.origins[node.name]), []).append(node.name)
    layouts = {twin: name for twin, name in editor.layouts.items() if twin in tensors}
    return json.dumps({"makers": makers, "layouts": layouts}, separators=(",", ":"), sort_keys=True)


def read_provenance(model: onnx.ModelProto) -> Provenance:
    """The provenance that :func:`provenance_json` wrote into ``model``; empty if it is not there or not readable.

    It only tells where to look, so a damaged record makes a search poorer and no result wrong.
    """
    text = next((entry.value for entry in model.metadata_props if entry.key == PROVENANCE_KEY), "{}")
    try:
        record = parse_json(text.encode())
        makers = {str(node): tuple(key.split(",")) for key, nodes in record["makers"].items() for node in nodes}
        return Provenance(makers, {str(twin): str(name) for twin, name in record["layouts"].items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return Provenance()
