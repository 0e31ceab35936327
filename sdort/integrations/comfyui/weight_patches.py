"""ComfyUI's weight patches (LoRA nodes) in the weights of an open session."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sdort.console import progress
from sdort.errors import UsageError
from sdort.generation.denoising.adapted_weights import switched
from sdort.graph.signature import Array, Factors
from sdort.integrations.torch.tensor_session import TensorSession

MODULE = "diffusion_model."
"""Prefix of a UNet's names in ComfyUI's model."""

Patches = Mapping[str, Sequence[Any]]
"""``ModelPatcher.patches``: key of the model -> patches."""


@dataclass(frozen=True)
class PatchDifference:
    """The difference that ComfyUI's patches add to a parameter, computed by ComfyUI's own ``calculate_weight`` in fp32.

    Plain LoRAs are products of two matrices, by the same formula (``LoRAAdapter`` of ``comfy/weight_adapter/lora.py``).
    """

    shape: tuple[int, ...]
    patches: Sequence[Any]
    key: str

    by_rows = False
    """A patch changes a parameter as a whole."""

    def factors(self) -> Factors | None:
        """Two matrices whose product they add; None if it is no product."""
        found = [_factors(patch) for patch in self.patches]
        known = [factors for factors in found if factors]
        if len(known) < len(found):
            return None
        if any((len(left), right.shape[1]) != (self.shape[0], math.prod(self.shape[1:])) for left, right in known):
            return None  # refused where it is computed as a whole
        return np.concatenate([left for left, _ in known], 1), np.concatenate([right for _, right in known])

    def rows(self) -> Callable[[int, Array], Array]:
        """A function of 0 and of the parameter to the difference.

        Raises:
            UsageError: the patches change the parameter's shape.
        """
        import comfy.lora

        def compute(_: int, base: Array) -> Array:
            weight = torch.from_numpy(base.copy())
            patched = comfy.lora.calculate_weight(list(self.patches), weight, self.key)
            if patched.shape != self.shape:
                raise UsageError(
                    f"a patch makes {self.key} {list(patched.shape)}, and the exported graph has {list(self.shape)}",
                    hint="Such a patch makes another model of it: load it with ComfyUI's own loader.",
                )
            return np.asarray(patched.float().numpy() - base)

        return compute


def _factors(patch: Any) -> Factors | None:
    """The matrices of a plain LoRA; None for a patch that is something else."""
    strength, adapter, strength_model, offset, function = patch
    if strength_model != 1.0 or offset is not None or function is not None or getattr(adapter, "name", "") != "lora":
        return None
    up, down, alpha, *others = adapter.weights
    if any(other is not None for other in others):  # Tucker's core, DoRA's magnitudes, another shape
        return None
    scale = strength * (1.0 if alpha is None else float(alpha) / len(down))
    left, right = (np.asarray(each.float().cpu().flatten(1).numpy()) for each in (up, down))
    return left * np.float32(scale), right


class PatchedWeights:
    """The patches that the weights of a session have.

    Args:
        names: original names of the UNet's parameters -> diffusers'.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def use(self, patches: Patches, session: TensorSession) -> None:
        """Let a session, which was opened with ``options.adapters``, have these patches and no others.

        Raises:
            UsageError: a patch is for no weight that can change, or changes its shape.
            ParityError: a weight gets values that its dtype cannot hold.
        """
        weights = session.session.weights
        shapes = {name: shape for weight in weights.replaceable.values() for name, shape in weight.parameters.items()}
        changes = {}
        for key, values in patches.items():
            name = self._names.get(key.removeprefix(MODULE))
            if name not in shapes:
                raise UsageError(
                    f"a patch changes {key}, which is constant in the exported graph, as norms and biases are",
                    hint="Export the checkpoint with the LoRA in it (sdort export --lora), and load that folder.",
                )
            changes[name] = [(PatchDifference(shapes[name], values, key), 1.0)]
        changed = [name for name, weight in weights.replaceable.items() if changes.keys() & weight.parameters]
        session.synchronize()
        with progress("patches", total=len(changed)) as advance:
            for _ in switched(session.session, changed, changes):
                advance(1)
