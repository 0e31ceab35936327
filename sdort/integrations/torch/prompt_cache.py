"""Tensors made of prompts before the steps, cached as long as the same prompts come in."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from sdort.integrations.torch.tensor_binding import PreparedInputs, TensorBinding, Tensors
from sdort.runtime.step.preparation import KEPT


@dataclass(frozen=True)
class _Seen:
    """A tensor as it was: the object, its count of changes in place, and its memory."""

    tensor: weakref.ref[torch.Tensor]
    changes: int | None
    address: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Seen:
        # A tensor of torch.inference_mode counts no changes.
        changes = None if tensor.is_inference() else tensor._version
        return cls(weakref.ref(tensor), changes, tensor.data_ptr())

    def is_as_it_was(self, tensor: torch.Tensor) -> bool:
        return self.tensor() is tensor and self.changes is not None and self == _Seen.of(tensor)


@dataclass(frozen=True)
class MadeOfPrompt:
    """Outputs that were made of tensors.

    Attributes:
        version: of the weights.
        seen: the tensors by the names of inputs.
        copies: their values, as the graph read them.
        step: what the step reads.
        time: what the graph of the timesteps reads.
    """

    version: int
    seen: Mapping[str, _Seen]
    copies: Tensors
    step: PreparedInputs
    time: PreparedInputs


class PromptCache:
    """The outputs of the graph that prompts alone decide. Those of the last few prompts are kept.

    On a GPU a tensor that is the same object with the same count of changes is taken for unchanged, for which the host
    waits for nothing; that count sees every operation in place but those through ``tensor.data``. Any other tensor, and
    all on the CPU, is compared by value.
    """

    def __init__(self, binding: TensorBinding, step: Collection[str], time: Collection[str]) -> None:
        self._binding = binding
        self._readers = step, time
        self._made: list[MadeOfPrompt] = []

    def of(self, feeds: Tensors, version: int) -> MadeOfPrompt:
        """The outputs: the same object for the same prompts.

        Args:
            feeds: the whole model's inputs, as the caller has them.
            version: of the weights.
        """
        given = {name: feeds[name] for name in self._binding.inputs}
        if self._made and self._made[0].version == version and (found := self._same_objects(given, self._made[:1])):
            return found
        self._made = [made for made in self._made if made.version == version]
        found = self._same_objects(given, self._made) or self._same_values(given) or self._make(given, version)
        self._made = [found, *(made for made in self._made if made is not found)][:KEPT]
        return found

    def _make(self, given: Tensors, version: int) -> MadeOfPrompt:
        fitted = {name: self._binding.fitted(name, value) for name, value in given.items()}
        made = self._binding.run(fitted)
        step, time = (
            PreparedInputs({name: value for name, value in made.items() if name in names}, fixed=False)
            for names in self._readers
        )
        copies = {name: value.clone() for name, value in fitted.items()}
        return MadeOfPrompt(version, {name: _Seen.of(value) for name, value in given.items()}, copies, step, time)

    def _same_objects(self, given: Tensors, known: Sequence[MadeOfPrompt]) -> MadeOfPrompt | None:
        if any(value.device.type == "cpu" for value in given.values()):
            return None
        for made in known:
            if all(made.seen[name].is_as_it_was(value) for name, value in given.items()):
                return made
        return None

    def _same_values(self, given: Tensors) -> MadeOfPrompt | None:
        if not self._made:
            return None
        fitted = {name: self._binding.fitted(name, value) for name, value in given.items()}
        return next(
            (made for made in self._made if all(torch.equal(made.copies[name], fitted[name]) for name in fitted)), None
        )
