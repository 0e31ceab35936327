"""The part of a model that prompts decide, on torch tensors."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from sdort.integrations.torch.tensor_binding import PreparedInputs, TensorBinding, Tensors
from sdort.runtime.step.preparation import OfShape
from sdort.runtime.step.step_caches import Mark


@dataclass(frozen=True)
class SeenTensor:
    """A tensor of a GPU as it was: the object, its count of changes in place, and its memory."""

    tensor: weakref.ref[torch.Tensor]
    changes: int | None
    """None of a tensor of ``torch.inference_mode``, whose changes are not counted."""
    address: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> SeenTensor:
        """A tensor as it is now."""
        changes = None if tensor.is_inference() else tensor._version
        return cls(weakref.ref(tensor), changes, tensor.data_ptr())

    def is_of(self, value: torch.Tensor) -> bool:
        """Whether this is the same object, and unchanged."""
        known: Any = self.tensor()
        return (
            known is value
            and not value.is_inference()
            and self.changes == value._version
            and self.address == value.data_ptr()
        )


class MadeOfPrompt(NamedTuple):
    """Outputs that were made of prompts.

    Attributes:
        step: those that the step reads.
        time: those that the graph of the timesteps reads.
    """

    step: PreparedInputs
    time: PreparedInputs


class PromptTensors:
    """The part of prompts for a :class:`sdort.runtime.step.step_caches.PromptCache` of tensors.

    On a GPU a tensor that is the same object with the same count of changes is taken for unchanged, for which the host
    waits for nothing; that count sees every operation in place but those through ``tensor.data``. Any other tensor, and
    all on the CPU, is compared by value.

    Args:
        binding: of that part.
        step, time: the names of what the step and the graph of the timesteps read.
        sample: the name of the latents, of which the part takes the shape alone.
    """

    def __init__(self, binding: TensorBinding, step: Collection[str], time: Collection[str], sample: str) -> None:
        self._binding = binding
        self._sample = sample
        self._readers = step, time

    @property
    def inputs(self) -> Collection[str]:
        """The names of the inputs."""
        return self._binding.inputs

    def fitted(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """An input as the graph reads it."""
        value = torch.zeros_like(value) if name == self._sample else value
        return self._binding.fitted(name, value)

    def equal(self, kept: torch.Tensor, value: torch.Tensor) -> bool:
        """Whether two tensors have the same values: a GPU is waited for."""
        return bool(torch.equal(kept, value))

    def mark(self, name: str, value: torch.Tensor) -> Mark | None:
        """A mark of the latents, or of a tensor on a GPU."""
        if name == self._sample:
            return OfShape(tuple(value.shape))
        return None if value.is_cpu else SeenTensor.of(value)

    def make(self, fitted: Tensors) -> tuple[Tensors, MadeOfPrompt]:
        """Copies of the inputs, and the outputs, on the device."""
        with self._binding.order.making():
            made = self._binding.run(fitted)
            copies = {name: value.clone() for name, value in fitted.items()}
        step, time = (
            PreparedInputs({name: value for name, value in made.items() if name in names}, fixed=False)
            for names in self._readers
        )
        return copies, MadeOfPrompt(step, time)
