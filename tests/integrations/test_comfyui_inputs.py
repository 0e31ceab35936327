"""What ComfyUI hands its UNet, as the inputs of an exported one: sizes, residuals, names of parameters."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.models.embeddings import get_timestep_embedding
from support import models, tiny_sdxl
from support.ldm_files import ldm_unet

from sdort.errors import UsageError
from sdort.integrations.comfyui.control_residuals import residual_feeds
from sdort.integrations.comfyui.denoiser import Denoiser
from sdort.integrations.comfyui.size_conditioning import split_condition
from sdort.integrations.comfyui.unet_folder import empty_unet, original_names
from sdort.integrations.comfyui.weight_patches import PatchedWeights

SIZES = [[0.0, 1.0, 768.0, 1023.0, 8192.0, 16384.0], [1000.0, 704.0, 3.0, 16.0, 1024.0, 6.37]]


def condition(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """SDXL's ``y`` with a pooled text of sevens, by diffusers' embedding."""
    embedded = get_timestep_embedding(numbers.flatten(), 256, flip_sin_to_cos=True, downscale_freq_shift=0)
    return torch.cat([torch.full((len(numbers), 40), 7.0), embedded.reshape(len(numbers), -1)], 1).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sizes_are_read_exactly(dtype: torch.dtype) -> None:
    pooled, found = split_condition(condition(torch.tensor(SIZES), dtype), 6)
    assert torch.equal(found, torch.tensor(SIZES))
    assert torch.equal(pooled, torch.full((2, 40), 7.0, dtype=dtype))


@pytest.mark.parametrize("element", [40, 40 + 255, 40 + 6 * 256 - 1])
def test_what_is_no_size_is_refused(element: int) -> None:
    changed = condition(torch.tensor(SIZES), torch.float32)
    changed[1, element] += 0.01
    with pytest.raises(UsageError, match="cannot be read"):
        split_condition(changed, 6)


def test_a_condition_of_another_family_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1024 elements, and 6 numbers alone take 1536"):
        split_condition(torch.zeros(1, 1024), 6)


class Recorded:
    """A session that keeps what it is fed."""

    dtype = torch.float32

    def __init__(self) -> None:
        self.fed: list[dict[str, torch.Tensor]] = []

    def run(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.fed.append(feeds)
        return {"out_sample": feeds["sample"]}


def test_every_step_gets_the_sizes_and_the_text_of_its_own_prompt() -> None:
    """Steps of one prompt have one condition, which may be in the memory of the one before."""
    session: Any = Recorded()
    config = {"cross_attention_dim": 32}
    denoiser = Denoiser(lambda **_: session, config, 6, {}, PatchedWeights({}), None)
    one, other = ([row] for row in SIZES)
    reused = torch.zeros(1, 40 + 6 * 256)
    for sizes in (one, one, other, SIZES, other, one):
        y = condition(torch.tensor(sizes), torch.float32)
        for given in (y, reused.copy_(y) if len(y) == 1 else y):
            denoiser(torch.zeros(len(y), 4, 8, 8), torch.zeros(len(y)), torch.zeros(len(y), 77, 32), given)
            assert torch.equal(session.fed[-1]["time_ids"], torch.tensor(sizes))
            assert torch.equal(session.fed[-1]["text_embeds"], y[:, :40])


SKIPS = [f"down_block_additional_residuals.{number}" for number in range(6)]
INPUTS = {"controlnet": [*SKIPS, "mid"], "t2i_adapter": ["level.0", "level.1"]}
CONFIG = {"layers_per_block": 2, "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"]}


def residual(value: float, samples: int = 2) -> torch.Tensor:
    return torch.full((samples, 3, 4, 4), value)


def taken(control: dict[str, list[Any]]) -> dict[str, float]:
    """Which residual each input gets, by what ComfyUI's UNet does: every place takes the last one that is left."""
    left, found = copy.copy({kind: [*values] for kind, values in control.items()}), {}
    blocks = ["", "", "", "level.0", "", "level.1"]
    for kind, names in {"input": blocks, "middle": ["mid"], "output": SKIPS[::-1]}.items():
        for name in names:
            value = left[kind].pop() if left.get(kind) else None
            if value is not None:
                found[name] = float(value.flatten()[0])
    return found


@pytest.mark.parametrize(
    "control",
    [
        pytest.param({"input": [], "middle": [residual(9)], "output": [*map(residual, range(6))]}, id="ControlNet"),
        pytest.param({"middle": [], "output": [residual(1), None, residual(2)]}, id="the deepest alone"),
        pytest.param({"output": [None, None, residual(1), *map(residual, range(2, 7))]}, id="nothing for no block"),
        pytest.param(
            {"input": [None, residual(5), None, residual(3), None, None, None], "middle": [residual(8)]},
            id="T2I-Adapter of SDXL",
        ),
    ],
)
def test_residuals_go_where_comfyui_puts_them(control: dict[str, list[Any]]) -> None:
    before = {kind: [*values] for kind, values in control.items()}
    feeds = residual_feeds(control, INPUTS, CONFIG)
    assert {name: float(value.flatten()[0]) for name, value in feeds.items()} == taken(control)
    assert feeds
    assert control == before


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ({"output": [residual(1)] * 7}, "7 residuals for 'output', and this UNet takes 6"),
        ({"input": [residual(1), None, None]}, "for a block at which this UNet takes none"),
        ({"single": [residual(1)]}, "knows no residuals for 'single'"),
    ],
)
def test_residuals_without_a_place_are_refused(control: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        residual_feeds(control, INPUTS, CONFIG)


def test_a_unet_without_inputs_for_residuals_refuses_them() -> None:
    with pytest.raises(UsageError, match="was exported without inputs for it"):
        residual_feeds({"output": [residual(1)]}, {"controlnet": [], "t2i_adapter": []}, CONFIG)


@pytest.mark.parametrize("config", [models.UNET_SD1, tiny_sdxl.UNET], ids=["sd1", "sdxl"])
def test_parameters_have_their_original_names(config: dict[str, Any]) -> None:
    with torch.device("meta"):
        state = dict(UNet2DConditionModel(**config).state_dict())
    # ldm_unet counts blocks as the original's constructors do; the numbers tell tensors of one shape apart.
    numbered = {name: (number, tuple(tensor.shape)) for number, (name, tensor) in enumerate(state.items())}
    expected = ldm_unet(numbered, config["layers_per_block"])
    found = empty_unet(config)
    names = original_names(found, config)
    assert {name: numbered[own] for name, own in names.items()} == expected
    assert all(found[own].is_meta and tuple(found[own].shape) == numbered[own][1] for own in names.values())
