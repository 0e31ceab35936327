"""The UNet of Stable Diffusion: diffusers' ``UNet2DConditionModel``."""

from __future__ import annotations

from sdort.families.family import Denoiser, Roles, Shapes
from sdort.families.part_counts import unet
from sdort.families.tensor_shapes import context_width, pooled_width
from sdort.families.unet_signature import GUIDANCE, POOLED, SIZES, UNET_COMPONENT, unet_signature

INPAINTING, EDITING = "inpainting", "instruct-pix2pix"
"""Variants by what it takes beside latents: a mask and the latents of an image, or these alone."""

UNET = Denoiser(
    component=UNET_COMPONENT,
    title="UNet",
    class_name="UNet2DConditionModel",
    roles=Roles(pooled=POOLED, sizes=SIZES, guidance=GUIDANCE),
    signature=unet_signature,
    counts=unet,
    # upcast_attention: scaled_dot_product_attention, which is traced, has no such option.
    without_effect=frozenset({"sample_size", "dropout", "upcast_attention"}),
    arguments={name: f"added_cond_kwargs.{name}" for name in (POOLED, SIZES)},
    adapter_prefixes=("lora_unet_", "lycoris_", "unet_", "model_diffusion_model_", "diffusion_model_"),
)

_REFINER_NUMBERS = 5


def takes_sizes(shapes: Shapes) -> bool:
    """Whether a UNet takes numbers of sizes and a pooled embedding, as SDXL's and its refiner's."""
    return "add_embedding.linear_1.weight" in shapes


def attends_to_pooled(shapes: Shapes) -> bool:
    """Whether the pooled embedding beside five numbers comes from the encoder whose states a UNet attends to.

    Raises:
        BadModelError: it attends to nothing.
    """
    return pooled_width(shapes, _REFINER_NUMBERS) == context_width(shapes)


def has_linear_projections(shapes: Shapes) -> bool:
    """Whether matrices stand around its attentions, and no 1x1 convolutions."""
    return any(len(shape) == 2 for name, shape in shapes.items() if name.endswith(".proj_in.weight"))
