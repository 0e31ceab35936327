"""The keys of an adapter's file: the module that a tensor changes, and the part of the change that it is.

Conventions of kohya-ss/sd-scripts, diffusers (``state_dict_utils.py``), peft and KohakuBlueleaf/LyCORIS.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

_LORA = re.compile(
    # to_q_lora.down, to_q.lora.down, q_proj.lora_linear_layer.down; to_q.lora_down, to_q.lora_A, lora_embedding_A
    r"(?P<module>.+?)"
    r"(?:[._]lora(?:_linear_layer)?\.(?P<old>down|up)|\.lora_(?P<new>down|up|mid|A|B|embedding_A|embedding_B))"
    r"(?:\.(?!weight$|bias$)\w+)?"  # peft's name of the adapter
    r"(?P<leaf>\.weight|\.bias)?"
)
_MAGNITUDE = re.compile(r"(?P<module>.+?)\.(?:lora_magnitude_vector|magnitude)(?:\.(?!weight$)\w+)?(?:\.weight)?")
_OTHER = re.compile(
    r"(?P<module>.+?)(?:[._]lora)?\.(?P<part>alpha|dora_scale|diff|diff_b|w_norm|b_norm|bias_(?:indices|values|size)"
    r"|hada_(?:w[12]_[ab]|t[12])|lokr_(?:w[12](?:_[ab])?|t2))"
)
_FOREIGN = {
    "BOFT": re.compile(r"\bboft_"),
    "OFT": re.compile(r"\boft_"),
    "GLoRA": re.compile(r"\.([ab][12]|bm)\.weight$"),
    "(IA)^3": re.compile(r"\bia3_l\b|\.on_input$"),
    "VeRA": re.compile(r"\bvera_"),
}
"""Kinds of adapters that are not read, and what the ends of their keys have."""
_BOFT_AXES = 4
"""Axes of the blocks of LyCORIS's BOFT; those of its OFT, of the same name, have three."""
_LONGEST = 1000
"""Characters of a key: they are searched, and a stranger's may have millions."""
_BUNDLED = "bundle_emb."
"""OneTrainer's and AUTOMATIC1111's embeddings in the file of a LoRA (``networks.py`` of stable-diffusion-webui)."""
_PARTS = {"A": "down", "B": "up", "embedding_A": "table_down", "embedding_B": "table_up"}


class AdapterKeys(NamedTuple):
    """The keys of a file."""

    modules: dict[str, dict[str, str]]
    """Module -> part of its change (``down``, ``up``, ``alpha``, ``hada_w1_a``, ...) -> key."""
    unknown: list[str]
    """Keys of no known convention."""


def read_keys(keys: Iterable[str]) -> AdapterKeys:
    """The modules and parts that keys name; a part that stands there twice is taken for unknown."""
    modules: dict[str, dict[str, str]] = defaultdict(dict)
    unknown = []
    for key in keys:
        module, part = (len(key) <= _LONGEST and _split(key)) or ("", "")
        if not module or part in modules[module]:
            unknown.append(key)
        else:
            modules[module][part] = key
    modules.pop("", None)
    return AdapterKeys(dict(modules), unknown)


def foreign_kind(key: str, axes: int) -> str | None:
    """The kind of adapter that a key is of, where sdort knows and does not read it.

    Args:
        axes: number of the tensor's axes.
    """
    last = ".".join(key[-_LONGEST:].split(".")[-3:])  # peft puts the adapter's name behind its own
    kind = next((kind for kind, end in _FOREIGN.items() if end.search(last)), None)
    return "BOFT" if kind == "OFT" and axes == _BOFT_AXES else kind


def why_unknown(key: str, axes: int) -> str:
    """The reason why a key of no known convention changes nothing; ``axes`` as for :func:`foreign_kind`."""
    if kind := foreign_kind(key, axes):
        return f"it is of {kind}, which sdort does not read"
    if key.startswith(_BUNDLED):
        return "it is a word's embedding, which the file has beside the adapter; --embedding takes one of its own file"
    return "sdort does not know this kind of change"


def _split(key: str) -> tuple[str, str] | None:
    if lora := _LORA.fullmatch(key):
        part = lora["old"] or _PARTS.get(lora["new"], lora["new"])
        if lora["leaf"] == ".bias":
            return (lora["module"], "up_bias") if part == "up" else None
        return lora["module"], part
    if magnitude := _MAGNITUDE.fullmatch(key):
        return magnitude["module"], "magnitude"
    other = _OTHER.fullmatch(key)
    return (other["module"], other["part"]) if other else None
