"""Torch tensors in and out of a session, without a copy where both are on one device.

On the CPU a tensor and an array share memory. On a GPU, torch's pointers are bound as inputs and outputs, so latents
and embeddings never leave the device; where torch is a CPU build, embeddings are uploaded once and the latents (64 KiB
an image) pass through host memory at each step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sdort.runtime.providers import Provider
from sdort.runtime.session import Session


@cache
def torch_device(provider: Provider, device_id: int) -> str:
    """Where the scheduler's tensors live: the provider's device if torch can reach it, else ``cpu``."""
    import torch

    if provider.torch_device is None or not torch.cuda.is_available():
        return "cpu"
    # torch for ROCm and for CUDA both call their device "cuda"; only the provider's own kind shares memory.
    if (provider.name == "rocm") != (torch.version.hip is not None):
        return "cpu"
    if provider.name == "rocm" and len(hip_runtimes(Path("/proc/self/maps").read_text())) > 1:
        return "cpu"
    return f"{provider.torch_device}:{device_id}"


def hip_runtimes(maps: str) -> set[str]:
    """The HIP runtimes that a process has loaded; torch wheels bring their own, whose pointers another does not know.

    Args:
        maps: the text of ``/proc/self/maps``.
    """
    return set(re.findall(r"\S*/libamdhip64\.so\S*", maps))


def run_tensors(session: Session, feeds: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Run a session on torch tensors.

    Args:
        feeds: per input a tensor, or what :func:`keep` returned; cast to the dtype that the input declares.
        shapes: the outputs that are wanted, with their shapes.

    Returns:
        The wanted outputs as tensors on the device of :func:`torch_device`.
    """
    import torch

    device = torch_device(session.provider, session.options.device_id)
    if device != "cpu":
        return _run_on_device(session, feeds, shapes, device)
    arrays = {name: _as_array(session, name, value) for name, value in feeds.items() if name in session.inputs}
    results = session.run(arrays)
    return {name: torch.from_numpy(results[name]) for name in shapes}


def keep(session: Session, name: str, tensor: Any) -> Any:
    """``tensor`` as an input that stays on the device over many runs of :func:`run_tensors`."""
    if torch_device(session.provider, session.options.device_id) != "cpu" or session.memory[0] == "cpu":
        return tensor
    return session.upload(_as_array(session, name, tensor))


def _as_array(session: Session, name: str, value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    dtype = session.inputs[name].dtype
    if value.is_floating_point() and dtype.kind == "i":
        value = value.round()
    return value.detach().cpu().numpy().astype(dtype, order="C", copy=False)


def _run_on_device(
    session: Session, feeds: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], device: str
) -> dict[str, Any]:
    import torch

    binding = session.ort.io_binding()
    tensors = {name: _typed(feeds[name], spec.dtype, device) for name, spec in session.inputs.items()}
    dtypes = {spec.name: spec.dtype for spec in session.outputs}
    results = {
        name: torch.empty(tuple(shape), dtype=_torch_dtype(dtypes[name]), device=device)
        for name, shape in shapes.items()
    }
    for name, tensor in tensors.items():
        binding.bind_input(name, *session.memory, session.inputs[name].dtype, tuple(tensor.shape), tensor.data_ptr())
    for name, dtype in dtypes.items():
        if name in results:
            shape = tuple(results[name].shape)
            binding.bind_output(name, *session.memory, dtype, shape, results[name].data_ptr())
        else:
            binding.bind_output(name, *session.memory)
    # ONNX Runtime works on a stream of its own: the inputs must be there before it starts.
    torch.cuda.current_stream(device).synchronize()
    session.run_bound(binding)
    binding.synchronize_outputs()
    return results


def _typed(tensor: Any, dtype: np.dtype[Any], device: str) -> Any:
    if tensor.is_floating_point() and dtype.kind == "i":
        tensor = tensor.round()
    return tensor.to(device=device, dtype=_torch_dtype(dtype)).contiguous()


def _torch_dtype(dtype: np.dtype[Any]) -> Any:
    import torch

    return getattr(torch, dtype.name)
