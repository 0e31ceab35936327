"""Text to image over ONNX Runtime sessions and diffusers' schedulers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdort.console import progress
from sdort.errors import BadModelError
from sdort.runtime.denoise import UNet, batch_slices, denoise
from sdort.runtime.folder import DECODER, NEEDED, PipelineFolder, open_folder
from sdort.runtime.images import Generated, to_image
from sdort.runtime.probe import choose_provider
from sdort.runtime.prompt import load_tokenizer, tokenize
from sdort.runtime.providers import Provider, RuntimeOptions
from sdort.runtime.request import Request, check_request, check_side, check_text_to_image
from sdort.runtime.schedulers import load_scheduler
from sdort.runtime.session import Session, open_session, static_size
from sdort.runtime.tensors import run_tensors, torch_device


@dataclass
class Timings:
    """Seconds spent per stage; ``steps`` has one entry per denoising step."""

    encode: float = 0.0
    steps: list[float] = field(default_factory=list)
    decode: float = 0.0


class TextToImage:
    """A pipeline whose sessions are open. ``fallback`` says why ``provider`` is not the one that was asked for."""

    def __init__(
        self, folder: PipelineFolder, sessions: dict[str, Session], provider: Provider, fallback: str | None
    ) -> None:
        self.folder = folder
        self.sessions = sessions
        self.provider = provider
        self.fallback = fallback
        self.tokenizer = load_tokenizer(folder.path / "tokenizer")
        self.device = torch_device(provider, sessions["unet"].options.device_id)
        self.timings = Timings()

    @property
    def latent_channels(self) -> int:
        """Channels of the latents that the autoencoder decodes."""
        spec = next(iter(self.sessions[DECODER].inputs.values()))
        return static_size(spec.shape, 1) or int(self.folder.vae.get("latent_channels", 4))

    def size(self, request: Request) -> tuple[int, int]:
        """Height and width in pixels of what ``request`` draws: as asked, or as the model was made for.

        Raises:
            UsageError: not a multiple of the autoencoder's factor, or another size than a static model has.
        """
        factor = self.folder.vae_factor
        default = self.folder.config("unet").get("sample_size") or 512 // factor
        height, width = default if isinstance(default, list) else (default, default)
        latent = self.sessions["unet"].inputs["sample"].shape
        return (
            check_side("height", request.height, height * factor, static_size(latent, 2), factor),
            check_side("width", request.width, width * factor, static_size(latent, 3), factor),
        )

    def generate(self, request: Request, on_step: Callable[[float], None] = lambda _: None) -> list[Generated]:
        """Draw the images of a request.

        Args:
            on_step: called after every denoising step with the number of images that it advanced.

        Raises:
            UsageError: a value that the pipeline cannot do.
            ParityError: the UNet returned NaN or infinity.
            ProviderError: a run failed.
        """
        check_request(request)
        height, width = self.size(request)
        self.timings = Timings()
        started = time.perf_counter()
        prompts = [request.prompt] if self._guidance(request) is None else [request.negative_prompt, request.prompt]
        embeddings = [self._encode(prompt) for prompt in prompts]
        self.timings.encode = time.perf_counter() - started
        seeds = [request.seed + index for index in range(request.num_images)]
        images: list[Generated] = []
        for first in range(0, len(seeds), request.images_at_once):
            some = seeds[first : first + request.images_at_once]
            latents = self._draw(request, embeddings, some, (height, width), on_step)
            images += self._decode(latents, some)
        return images

    def _guidance(self, request: Request) -> float | None:
        """The scale of classifier-free guidance, None without it: at 1 and below, or when the UNet embeds the scale."""
        embedded = "timestep_cond" in self.sessions["unet"].inputs
        return None if embedded or request.guidance_scale <= 1 else request.guidance_scale

    def _encode(self, prompt: str) -> Any:
        """Text embeddings [1, tokens, width]."""
        import torch

        session = self.sessions["text_encoder"]
        results = session.run({"input_ids": tokenize(self.tokenizer, prompt)})
        name = "last_hidden_state" if "last_hidden_state" in results else session.outputs[0].name
        return torch.from_numpy(results[name]).float().to(self.device)

    def _draw(
        self,
        request: Request,
        embeddings: list[Any],
        seeds: list[int],
        size: tuple[int, int],
        on_step: Callable[[float], None],
    ) -> Any:
        """Denoised latents [images, channels, height / factor, width / factor], fp32."""
        import torch
        from diffusers.utils.torch_utils import randn_tensor

        factor = self.folder.vae_factor
        scheduler = load_scheduler(self.folder.path / "scheduler", request.scheduler)
        scheduler.set_timesteps(request.steps, device=self.device)
        # On the CPU whatever the device: its numbers are the same everywhere, and diffusers' own default.
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        shape = (len(seeds), self.latent_channels, size[0] // factor, size[1] // factor)
        noise = randn_tensor(shape, generator=generators, device=torch.device(self.device), dtype=torch.float32)
        unet = UNet(self.sessions["unet"], embeddings, len(seeds), request.guidance_scale)
        noise = noise * scheduler.init_noise_sigma
        latents, seconds = denoise(unet, scheduler, noise, generators, self._guidance(request), on_step)
        self.timings.steps += seconds
        return latents

    def _decode(self, latents: Any, seeds: list[int]) -> list[Generated]:
        session = self.sessions[DECODER]
        vae, factor = self.folder.vae, self.folder.vae_factor
        started = time.perf_counter()
        scaled = latents / vae["scaling_factor"] + (vae.get("shift_factor") or 0.0)
        name, output = next(iter(session.inputs)), session.outputs[0].name
        images = []
        for part in batch_slices(session, name, len(seeds)):
            some = scaled[part]
            shape = (len(some), 3, some.shape[2] * factor, some.shape[3] * factor)
            decoded = run_tensors(session, {name: some}, {output: shape})[output].float().cpu().numpy()
            images += [to_image(each, seed) for each, seed in zip(decoded, seeds[part], strict=True)]
        self.timings.decode += time.perf_counter() - started
        return images


def load_pipeline(path: Path, options: RuntimeOptions) -> TextToImage:
    """Open a pipeline's sessions on a provider.

    Raises:
        BadModelError: the folder is no text-to-image pipeline, or a component does not load.
        ProviderError: the provider does not load and fallback is forbidden, or it cannot run a component.
    """
    folder = open_folder(path)
    if "text_encoder_2" in folder.models:
        raise BadModelError(f"{path} is an SDXL pipeline, which sdort run does not draw with yet")
    provider, fallback = choose_provider(options)
    sessions = {}
    with progress("loading", total=len(NEEDED)) as advance:
        for name in NEEDED:
            sessions[name] = open_session(folder.models[name], name, provider, options)
            advance(1)
    return assemble(folder, sessions, provider, fallback)


def assemble(
    folder: PipelineFolder, sessions: dict[str, Session], provider: Provider, fallback: str | None
) -> TextToImage:
    """Put open sessions of ``folder``'s components together.

    Raises:
        BadModelError: they do not make text to image, or the tokenizer does not load.
    """
    pipeline = TextToImage(folder, sessions, provider, fallback)
    check_text_to_image(sessions, pipeline.latent_channels)
    return pipeline
