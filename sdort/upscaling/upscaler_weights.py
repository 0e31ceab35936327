"""The tensors of an upscaler's file, by the names that its architecture gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sdort.checkpoints.safetensors import read_tensors
from sdort.checkpoints.torch_file import read_torch_file
from sdort.errors import BadModelError
from sdort.files.input_file import open_input
from sdort.graph.weights import Weight

_TABLES = ("params_ema", "params-ema", "params", "state_dict", "model_state_dict", "generator", "model", "net")
"""Names under which trainers keep the network's tensors, the best first: averaged ones are what is meant to be used."""
_PREFIXES = ("module.", "netG.", "net_g.", "generator.", "params_ema.", "params.")
"""Prefixes of all names where a network was saved inside of another object."""


def read_upscaler_weights(path: Path) -> dict[str, Weight]:
    """The tensors of a ``.safetensors`` file or of one that ``torch.save`` wrote, described and not read.

    Raises:
        BadModelError: the file cannot be read, is damaged, or holds no tensors.
    """
    with open_input(path) as file:
        head = file.read(9)
    is_tensors = head[8:] == b"{" or path.suffix.lower() == ".safetensors"  # behind the length of its header
    if not is_tensors and head[:2] != b"PK" and head[:1] != b"\x80":
        kinds = "neither a .pth, nor a .safetensors, nor an .onnx file"
        raise BadModelError(f"{path} is {kinds}", hint="Is it the right file?")
    weights = dict(read_tensors(path)) if is_tensors else _network(read_torch_file(path))
    if not weights:
        raise BadModelError(f"{path} holds no network: it has no named tensors", hint="Is it the right file?")
    return _without_prefix(weights)


def _network(table: dict[str, Any]) -> dict[str, Weight]:
    """The tensors of the network in a checkpoint, which may lie in tables in each other."""
    inner = next((table[name] for name in _TABLES if isinstance(table.get(name), dict)), None)
    if inner is None and len(table) == 1:
        inner = next((part for part in table.values() if isinstance(part, dict)), None)
    if inner is not None:
        return _network(inner)
    return {name: part for name, part in table.items() if isinstance(part, Weight)}


def _without_prefix(weights: dict[str, Weight]) -> dict[str, Weight]:
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): weight for name, weight in weights.items()}
    return weights
