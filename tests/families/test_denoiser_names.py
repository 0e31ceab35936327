"""A denoiser's name and the names of its inputs stand in the families alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sdort.families.data.flux import FAMILY as FLUX
from sdort.families.data.sd1 import FAMILY as SD1
from sdort.families.data.sdxl import FAMILY as SDXL
from sdort.families.data.sdxl_refiner import FAMILY as REFINER
from sdort.families.known_families import FAMILIES, family_of, family_of_class, find_denoiser, find_roles, roles_of
from sdort.families.unet import UNET

ROOT = Path(__file__).parents[2]
OTHERS = {
    "sdort/generation/requests/lora_tags.py": "a word of A1111's <lora:...> tags",
}
"""Files where the word means something else -> what it means."""


def literals(source: str, word: str) -> list[int]:
    """Lines with a string that is the word."""
    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if isinstance(node, ast.Constant) and node.value == word]


def test_no_code_names_a_denoiser() -> None:
    places = {
        file.relative_to(ROOT).as_posix(): literals(file.read_text(), UNET.component)
        for folder in ("sdort", "fusions")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if not file.is_relative_to(ROOT / "sdort" / "families")
    }
    assert {name for name, lines in places.items() if lines} == OTHERS.keys()


def test_a_literal_is_seen() -> None:
    assert literals('x = {"unet": 1}\n"a unet"\ny = f("unet")', "unet") == [1, 3]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_what_a_family_says_fits_together(family: type) -> None:
    found = FAMILIES[family.name]  # type: ignore[attr-defined]
    roles = found.denoiser.roles
    assert {name for each in found.encoders for name in each.conditioning} <= {roles.context, roles.pooled}
    assert found.inputs <= roles.names
    assert bool(found.sizes) <= (roles.sizes is not None)
    assert len(found.latents.preview_factors) == found.latents.channels
    assert found.refines is None or found.refines in FAMILIES
    assert found.sample_size * found.latents.pixels == found.side


def test_roles_are_known_by_the_names_of_inputs() -> None:
    assert find_roles(["sample", "timestep", "encoder_hidden_states"]) is UNET.roles
    assert find_roles(["sample"]) is find_roles(["input_ids"]) is None  # a VAE's, a text encoder's
    assert roles_of(["x"]) is UNET.roles


def test_families_are_known_by_components_and_by_the_pipelines_class() -> None:
    both = ["text_encoder", "text_encoder_2"]
    assert family_of([]) is family_of(["vae_decoder", "text_encoder", "unet"]) is SD1
    assert family_of(both) is SDXL
    assert family_of(["unet", "text_encoder_2"]) is REFINER
    for name, family in (
        ("StableDiffusionInpaintPipeline", SD1), ("StableDiffusionXLControlNetPipeline", SDXL),
        ("PixArtAlphaPipeline", None), ("FluxImg2ImgPipeline", FLUX),
    ):  # fmt: skip
        assert family_of_class(name) is family
    assert find_denoiser("unet") is find_denoiser("unet", "UNet2DConditionModel") is UNET
    assert find_denoiser("vae_decoder") is None
