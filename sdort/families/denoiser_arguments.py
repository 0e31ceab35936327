"""The arguments of a denoiser: those of its torch module, by the inputs of its graph, and its timestep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sdort.families.known_families import roles_of
from sdort.families.unet_signature import INTRABLOCK_INPUTS
from sdort.graph.signature import TensorSpec


def timestep_shape(inputs: Mapping[str, TensorSpec], batch: int) -> tuple[int, ...]:
    """A denoiser's timestep as the model declares it: a scalar, one for all samples, or one for each."""
    roles = roles_of(inputs)
    timestep, sample = inputs[roles.timestep].shape, inputs[roles.sample].shape
    if not timestep:
        return ()
    if isinstance(timestep[0], int):
        return (timestep[0],)
    return (batch,) if timestep[0] is not None and timestep[0] == sample[0] else (1,)


def module_arguments(names: Iterable[str], tensors: Iterable[Any], arguments_of: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a denoiser's or ControlNet's forward; inputs with a number after a dot are one tuple.

    Args:
        names: of the graph's inputs.
        tensors: one for each name.
        arguments_of: :attr:`sdort.families.family.Denoiser.arguments`.
    """
    arguments: dict[str, Any] = {}
    for name, tensor in zip(names, tensors, strict=True):
        group, _, inner = arguments_of.get(name, "").partition(".")
        if inner:
            arguments.setdefault(group, {})[inner] = tensor
        elif "." in name:
            group = name.partition(".")[0]
            arguments[group] = (*arguments.get(group, ()), tensor)
        else:
            arguments[group or name] = tensor
    # diffusers takes what it has used from the front of this one.
    if INTRABLOCK_INPUTS in arguments:
        arguments[INTRABLOCK_INPUTS] = list(arguments[INTRABLOCK_INPUTS])
    return arguments
