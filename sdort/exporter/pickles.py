"""Pickled checkpoints, read only when the user allows it. Imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from sdort.checkpoints.configs import CONFIG_BYTES
from sdort.checkpoints.safetensors import write_tensors
from sdort.console import quiet_libraries
from sdort.errors import BadModelError
from sdort.errors.plain_text import library_reason
from sdort.files.disk import PlannedWrite, plan_writes
from sdort.files.input_file import open_input, read_input
from sdort.graph.signature import Array
from sdort.graph.weights import Weight


class _TorchWeight(Weight):
    """A tensor that torch mapped from a file."""

    def __init__(self, tensor: Any) -> None:
        # numpy has no bfloat16; the bits are the same.
        self._bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        dtype = ml_dtypes.bfloat16 if tensor.dtype == torch.bfloat16 else tensor.numpy().dtype
        super().__init__(tuple(tensor.shape), dtype)

    def load(self) -> Array:
        return np.ascontiguousarray(self._bits.numpy()).view(self.dtype)


def read_pickle(path: Path, component: str, *, unwrap: bool = False) -> dict[str, Weight]:
    """The tensors of a ``.bin`` file, read by torch's restricted unpickler, which runs no code of the file.

    Args:
        unwrap: take those of its ``state_dict``, and leave out what is no tensor.

    Raises:
        BadModelError: the file is broken or holds more than tensors.
    """
    is_zip = _is_zip(path, component)
    try:
        with quiet_libraries():  # torch warns about what it refuses a moment later
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # a stranger's pickle raises what it likes
        raise BadModelError(
            f"cannot read tensors from {path} ({library_reason(error)})",
            component=component,
            hint="The file is damaged, or holds more than tensors. Get the same model as .safetensors.",
        ) from error
    if unwrap and isinstance(state, dict):
        inner = state.get("state_dict", state)
        state = {name: value for name, value in inner.items() if isinstance(value, torch.Tensor)}
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise BadModelError(f"{path} holds something else than named tensors", component=component)
    return {str(name): _TorchWeight(tensor.detach()) for name, tensor in state.items()}


def convert_pickle(path: Path, folder: Path) -> Path:
    """A safetensors file in ``folder`` of the tensors of a single-file checkpoint (``.ckpt``), as :func:`read_pickle`
    reads them; what a trainer kept beside them is left out.

    Raises:
        BadModelError: the file is broken, or holds more than tensors, numbers and texts.
        OutputError: there is no room for it.
    """
    tensors = read_pickle(path, path.name, unwrap=True)
    target = folder / f"{path.stem}.safetensors"
    plan_writes([PlannedWrite(target.name, folder, sum(tensor.nbytes for tensor in tensors.values()))]).raise_if_short()
    write_tensors(target, tensors)
    training = path.with_suffix(".yaml")
    if training.is_file():
        target.with_suffix(".yaml").write_bytes(read_input(training, limit=CONFIG_BYTES))
    return target


def _is_zip(path: Path, component: str) -> bool:
    """torch's format since 1.6, which can be mapped; the older one is read into memory."""
    with open_input(path, "the weights", component=component) as file:
        return file.read(2) == b"PK"
