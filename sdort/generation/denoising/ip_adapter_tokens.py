"""Image prompts of IP-Adapters: tokens for its cross-attentions, of a CLIP image encoder.

They are conditioning inputs as text embeddings are: the same at every step, on the device in the loop that runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from sdort.checkpoints.clip_processing import usual_processing
from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import IMAGE_ENCODER, IMAGE_SCALE, IMAGE_TOKENS, NEGATIVE_IMAGE_TOKENS
from sdort.families.unet import UNET
from sdort.generation.pictures.clip_pixels import clip_pixels
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.requests.ip_adapter_choice import OPTION, IpAdapterImage
from sdort.generation.requests.record import IpAdapterRecord
from sdort.graph.signature import Array, TensorSpec
from sdort.pipelines.conditioning import Conditioning
from sdort.pipelines.folder import PipelineFolder
from sdort.workload.steering_inputs import count_images, image_inputs

LONGEST = 256
"""The most times that an image is as long as it is wide: resized, it has 12.8 million pixels at 224."""

Encode = Callable[[Array], Mapping[str, Array]]
"""The image encoder's outputs by name, of pixels float32 [1, 3, side, side]."""


def check_ip_adapter_images(folder: PipelineFolder, images: Sequence[IpAdapterImage]) -> None:
    """Refuse images that the pipeline cannot take.

    Raises:
        BadModelError: its UNet was exported without an IP-Adapter, or it has no image encoder.
        UsageError: there are fewer or more images than IP-Adapters.
    """
    if not images:
        return
    taken = count_images(folder.file(folder.denoiser).signature.inputs)
    if not taken:
        raise BadModelError(
            f"the UNet of {folder.given} takes no images by an IP-Adapter",
            component=folder.denoiser,
            hint="Export the pipeline again, with one: sdort export MODEL OUT --ip-adapter FILE",
        )
    if IMAGE_ENCODER not in folder.models:
        raise BadModelError(
            f"{folder.given} has no {IMAGE_ENCODER}, which {OPTION} needs",
            hint="Export the pipeline with all of its components: sdort export MODEL OUT --ip-adapter FILE",
        )
    if len(images) != taken:
        have, want = f"{len(images)} images" if len(images) > 1 else "1 image", f"{taken} IP-Adapters"
        raise UsageError(
            f"{OPTION} gives {have}, and the pipeline has {want if taken > 1 else '1 IP-Adapter'}",
            hint="Give one image for each IP-Adapter, in the order of their export; a scale of 0 leaves one out.",
        )
    for each in images:
        _refuse_thin(each.image)


def _refuse_thin(image: InputImage) -> None:
    """Refuse an image that is so long and thin that its resized picture is too large."""
    if max(image.size) > LONGEST * min(image.size):
        raise UsageError(
            f"{OPTION} {image} has {image.size[1]}x{image.size[0]} pixels, which is too long and thin",
            hint="The image encoder takes the square in its middle: cut out what matters.",
        )


class IpAdapterTokens:
    """The tokens of a pipeline's last images, which are not computed again for the next request with them."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Array]] = {}

    def conditions(
        self, unet: Mapping[str, TensorSpec], images: Sequence[IpAdapterImage], encode: Encode, side: int, guided: bool
    ) -> list[Conditioning]:
        """The UNet's inputs for images, arrays [1, ...]: of the prompt, after those of the negative one if ``guided``.

        Without images they are zeros.

        Args:
            unet: the UNet's inputs by name.
            side: of the encoder's pixels.
        """
        if not images:
            zeros = {name: np.zeros((1, *_fixed(unet[name])), np.float32) for name in image_inputs(unet)}
            return [zeros] * (2 if guided else 1)
        before, self._known = self._known, {}

        def outputs(key: str, pixels: Callable[[], Array]) -> Mapping[str, Array]:
            if key not in self._known:
                self._known[key] = before.get(key) or encode(pixels())
            return self._known[key]

        prompt: Conditioning = {}
        negative: Conditioning = {}
        for number, each in enumerate(images):
            name, without = f"{IMAGE_TOKENS}.{number}", f"{NEGATIVE_IMAGE_TOKENS}.{number}"
            scale = {f"{IMAGE_SCALE}.{number}": np.full((1, 1), each.scale, np.float32)}
            made = outputs(each.image.digest, partial(clip_pixels, each.image.picture, usual_processing(side)))
            prompt |= {name: made[name], **scale}
            if guided:
                none = made[without] if without in made else outputs("", partial(_zeros, side))[name]
                negative |= {name: none, **scale}
        return [negative, prompt] if guided else [prompt]


def _zeros(side: int) -> Array:
    return np.zeros((1, 3, side, side), np.float32)


def _fixed(spec: TensorSpec) -> list[int]:
    """The dims of an input behind the first one.

    Raises:
        BadModelError: one is not fixed.
    """
    dims = [size for size in spec.shape[1:] if isinstance(size, int)]
    if len(dims) != len(spec.shape) - 1:
        raise BadModelError(f"nothing says how large its input {spec.name!r} is", component=UNET.component)
    return dims


def record_ip_adapter_image(image: IpAdapterImage) -> IpAdapterRecord:
    """The record of an image."""
    return IpAdapterRecord(str(image.image), image.image.digest, image.scale)
