"""Raw numbers from the embedding in which ComfyUI hands SDXL its sizes.

ComfyUI embeds each number as timesteps are embedded, 128 cosines before 128 sines of frequencies from 1 to 1e-4
(https://arxiv.org/abs/2006.11239), and puts them behind the pooled text. The exported graph takes the numbers and
embeds them itself.
"""

from __future__ import annotations

import math

import torch

from sdort.errors import UsageError

WIDTH = 256
"""Elements of the embedding of a number."""
_HALF = WIDTH // 2
_STEP = 100
"""Numbers are sizes in pixels, whole, or aesthetic scores, which ComfyUI's nodes step by 0.01."""
_ROUNDINGS = 4
"""Roundings that an embedding may be away from ours: its cosines' own, and one to the dtype that it came in."""


def embed(numbers: torch.Tensor) -> torch.Tensor:
    """Embeddings float32 [..., 256] of numbers [...]."""
    angles = numbers.float()[..., None] * _frequencies(numbers.device)
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


def split_condition(condition: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The pooled text and the raw numbers of SDXL's condition.

    Args:
        condition: [samples, pooled + 256 * count], ComfyUI's ``y``.
        count: how many numbers the model takes.

    Returns:
        ``text_embeds`` [samples, pooled] as it came, and ``time_ids`` float32 [samples, count].

    Raises:
        UsageError: what stands behind the pooled text are no embeddings of such numbers.
    """
    pooled = condition.shape[-1] - WIDTH * count
    if pooled <= 0:
        raise UsageError(
            f"the condition has {condition.shape[-1]} elements, and {count} numbers alone take {WIDTH * count}",
            hint="Encode the prompt with the text encoders of this checkpoint's family.",
        )
    embedded = condition[..., pooled:].reshape(*condition.shape[:-1], count, WIDTH)
    return condition[..., :pooled], find_numbers(embedded)


def find_numbers(embedded: torch.Tensor) -> torch.Tensor:
    """The numbers float32 [...] of embeddings [..., 256], found exactly: embedding them again gives the same.

    Raises:
        UsageError: there are none.
    """
    values = embedded.detach().cpu()
    phases = torch.atan2(values[..., _HALF:].double(), values[..., :_HALF].double())
    frequencies = _frequencies(values.device).double()
    found = phases[..., -1] / frequencies[-1]
    # A phase says its number up to whole turns, which the slower one before it counts.
    for phase, frequency in zip(phases.unbind(-1)[-2::-1], frequencies.flip(0)[1:], strict=True):
        turns = torch.round((found * frequency - phase) / math.tau)
        found = (phase + math.tau * turns) / frequency
    numbers = (torch.round(found * _STEP) / _STEP).float()
    # float32 holds an angle of n radians to n roundings.
    rounding = torch.finfo(torch.float32).eps * numbers.abs().clamp(min=1) + torch.finfo(values.dtype).eps
    error = (embed(numbers) - values.float()).abs().amax(-1)
    if not bool((error <= _ROUNDINGS * rounding).all()):
        raise UsageError(
            f"the sizes that came with the prompt cannot be read: the nearest numbers, {numbers.flatten().tolist()}, "
            f"are {float(error.max()):.2g} away",
            hint="A node changes the condition itself; take it out, or use ComfyUI's own loader.",
        )
    return numbers.to(embedded.device)


def _frequencies(device: torch.device) -> torch.Tensor:
    return torch.exp(-math.log(10000) * torch.arange(_HALF, dtype=torch.float32, device=device) / _HALF)
