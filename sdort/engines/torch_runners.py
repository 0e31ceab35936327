"""A component or the whole of a diffusers pipeline in torch, as something to be called again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sdort.engines.torch_prompts import prompt_arguments
from sdort.exporter.signatures import CONCEPTS
from sdort.families.component_names import DECODER, ENCODER, SAFETY_CHECKER
from sdort.families.denoiser_arguments import module_arguments
from sdort.families.family import Denoiser
from sdort.families.known_families import DENOISERS
from sdort.families.text_models import TEXT_MODELS
from sdort.families.unet import UNET
from sdort.generation.pictures.images import Generated, to_image
from sdort.generation.requests.request import Request
from sdort.graph.signature import Array, TensorSpec

RunGuard = Callable[[Callable[[], Any]], Any]
"""Runs a call, waits for the device, and turns torch's errors into ours."""

_TEXT_OUTPUTS = ("text_embeds", "last_hidden_state", "pooler_output")


class ComponentRunner:
    """One component on fixed inputs.

    Args:
        call: the module, or its method.
        feeds: inputs by the names that the ONNX export has; a 4-D one is the image.
        device, dtype: where and in which precision; timesteps and token ids keep their dtypes.
        denoiser: of the pipeline.
        text_class: the class of a text encoder.
        masked: it attends to no padding.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        component: str,
        feeds: Mapping[str, Array],
        device: str,
        dtype: str,
        guard: RunGuard,
        denoiser: Denoiser = UNET,
        text_class: str | None = None,
        *,
        masked: bool = False,
    ) -> None:
        import torch

        self.call = call
        self.component = component
        self.guard = guard
        self._denoiser = denoiser
        self.whole = denoiser.call
        """Calls a denoiser's module, where its family says how."""
        self.arguments = {}
        for name, value in feeds.items():
            tensor = torch.from_numpy(np.asarray(value)).to(device)
            kept = not tensor.is_floating_point() or name == self._denoiser.roles.timestep
            self.arguments[name] = tensor if kept else tensor.to(getattr(torch, dtype))
        if masked:
            self.arguments["attention_mask"] = self.arguments["input_ids"] != call.config.pad_token_id  # type: ignore[attr-defined]
        self.values: Any = None
        text = TEXT_MODELS.get(text_class or "")
        self._states = text is not None and text.penultimate

    def __call__(self) -> None:
        self.values = None  # a compiled module's next graph would write over them
        self.values = self.guard(self._run)

    def _run(self) -> Any:
        if self.component in DENOISERS and self.whole:
            return (self.whole(self.call, self.arguments),)
        if self.component in DENOISERS:
            given = module_arguments(self.arguments, self.arguments.values(), self._denoiser.arguments)
            return self.call(**given, return_dict=False)
        if self.component == DECODER:
            return self.call(self.arguments["sample"], return_dict=False)
        if self.component == ENCODER:
            encoded = self.call(self.arguments["sample"], return_dict=True)
            if "latents" in encoded:  # of a tiny VAE
                return {"latent_sample": encoded["latents"]}
            return {"latent_parameters": encoded["latent_dist"].parameters}
        if self.component == SAFETY_CHECKER:
            return dict(zip(CONCEPTS, self.call(**self.arguments), strict=True))
        if self._states:
            states = self.call(**self.arguments, output_hidden_states=True).hidden_states
            return {f"hidden_states.{len(states) - 2}": states[-2]}
        return self.call(**self.arguments, return_dict=True)

    def result(self) -> dict[str, Array]:
        try:
            return self._named()
        except RuntimeError:  # the graphs of another compiled module have written over them
            self()
            return self._named()

    def _named(self) -> dict[str, Array]:
        """The outputs, named as the exports name them."""
        values = self.values
        if self.component in DENOISERS:
            named = {self._denoiser.output: values[0]}
        elif self.component == DECODER:
            named = {"sample": values[0]}
        elif self.component in (ENCODER, SAFETY_CHECKER) or self._states:
            named = values
        else:
            named = {name: values[name] for name in _TEXT_OUTPUTS if name in values}
        return {name: value.float().cpu().numpy() for name, value in named.items()}


class PipelineRunner:
    """A diffusers pipeline with one request to generate.

    Args:
        context: ``encoder_hidden_states`` of the UNet that it is compared with, which may read fewer tokens.
    """

    def __init__(
        self,
        pipeline: Any,
        request: Request,
        size: tuple[int, int],
        guard: RunGuard,
        context: TensorSpec | None = None,
        denoiser: Denoiser = UNET,
    ) -> None:
        self.pipeline = pipeline
        self.denoiser = denoiser
        self.request = request
        self.size = size
        self.guard = guard
        self.context = context
        self.decoded: Any = None

    def __call__(self) -> None:
        self.decoded = self.guard(self._run)

    def _run(self) -> Any:
        import torch
        from diffusers.utils.torch_utils import randn_tensor

        request, pipeline = self.request, self.pipeline
        height, width = self.size
        generators = [torch.Generator().manual_seed(request.seed + index) for index in range(request.num_images)]
        if request.init_image:
            return self._from_image(request.init_image.picture, generators)
        latent = (height // pipeline.vae_scale_factor, width // pipeline.vae_scale_factor)
        # Sampled in fp32 and rounded: torch's fp16 noise of a seed is other noise.
        denoiser = getattr(pipeline, self.denoiser.component)
        shape = (request.num_images, self.denoiser.channels_of(denoiser.config), *latent)
        noise = randn_tensor(shape, generator=generators, dtype=torch.float32)
        if self.denoiser.packed:
            noise = torch.nn.functional.pixel_unshuffle(noise, self.denoiser.patch).flatten(2).transpose(1, 2)
        return pipeline(
            **prompt_arguments(pipeline, request, self.context),
            num_inference_steps=request.steps,
            guidance_scale=request.guidance_scale,
            height=height,
            width=width,
            num_images_per_prompt=request.num_images,
            latents=noise.to(pipeline.device, denoiser.dtype),
            generator=generators,
            output_type="np",
        ).images

    def _from_image(self, picture: Any, generators: list[Any]) -> Any:
        """A refiner's latents of the init image, Pillow's; the generators draw them, then the noise."""
        request = self.request
        return self.pipeline(
            request.prompt,
            negative_prompt=request.negative_prompt or None,
            image=picture,
            strength=request.image_strength,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance_scale,
            num_images_per_prompt=request.num_images,
            generator=generators,
            output_type="np",
        ).images

    def result(self) -> list[Generated]:
        # diffusers' arrays are [height, width, 3] in [0, 1].
        return [
            to_image(image.transpose(2, 0, 1) * 2 - 1, self.request.seed + index)
            for index, image in enumerate(self.decoded)
        ]
