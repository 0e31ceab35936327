"""The timestep as a denoiser takes it."""

from __future__ import annotations

from collections.abc import Mapping

from sdort.families.known_families import roles_of
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
