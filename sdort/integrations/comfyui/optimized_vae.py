"""ComfyUI's VAE of an optimized autoencoder."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sdort.errors import BadModelError, MemoryShortageError, ParityError
from sdort.families.component_names import DECODER, ENCODER
from sdort.generation.latents.decode import SHARE, Plan, planner_of
from sdort.generation.latents.graph_memory import Size
from sdort.integrations.torch.opened_component import open_components
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.machine.gpus import free_memory
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import LoadOptions


class Autoencoder(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """ComfyUI's ``first_stage_model`` on sessions of sdort's, each of which is opened when it is first needed.

    Where memory is short it raises what torch would, and ComfyUI goes on in tiles.

    Args:
        folder: with a decoder, and perhaps an encoder.
    """

    def __init__(self, folder: PipelineFolder, provider: Provider) -> None:
        super().__init__()
        self.folder = folder
        self._provider = provider

    @cached_property
    def _decoder(self) -> TensorSession:
        return self._opened(DECODER)

    @cached_property
    def _encoder(self) -> TensorSession:
        return self._opened(ENCODER)

    def decode(self, latents: torch.Tensor, **_: Any) -> torch.Tensor:
        """Images [images, 3, height, width], -1 to 1, of latents [images, channels, height, width] without their scale.

        Raises:
            torch.cuda.OutOfMemoryError: memory is short.
            ParityError: the images are no numbers.
        """
        images, _, height, width = latents.shape
        return self._run(self._decoder, latents, (images, height, width))

    def encode(self, pixels: torch.Tensor, **_: Any) -> torch.Tensor:
        """Latents [images, channels, height, width] without their scale of images [images, 3, height, width], -1 to 1.

        They are the mean of their distribution, as ComfyUI's own VAE takes it.

        Raises:
            torch.cuda.OutOfMemoryError: memory is short.
            ParityError: the latents are no numbers.
        """
        images, _, height, width = pixels.shape
        factor = self.folder.vae_factor
        found = self._run(self._encoder, pixels, (images, height // factor, width // factor))
        return found[:, : self.folder.latent_channels]

    def _opened(self, component: str) -> TensorSession:
        if component not in self.folder.models:
            raise BadModelError(f"{self.folder.path} has no {component}", hint="Export the whole VAE.")
        options: LoadOptions = {"provider": self._provider.name}
        return open_components(self.folder.path, (component,), options).sessions[component]

    def _run(self, session: TensorSession, values: torch.Tensor, size: Size) -> torch.Tensor:
        component = session.session.component
        self._refuse_shortage(component, size)
        try:
            (output,) = session.run({next(iter(session.inputs)): values}).values()
        except MemoryShortageError as error:
            raise torch.cuda.OutOfMemoryError(str(error)) from error
        if not bool(torch.isfinite(output).all()):
            raise ParityError(
                f"{component} gives values that are no numbers",
                hint="Load the VAE with precision fp32; if it is, what it was given is none either.",
            )
        return output.to(values.device)

    def _refuse_shortage(self, component: str, size: Size) -> None:
        planner = planner_of(self.folder, self._provider, component)
        free = free_memory(self._provider.vendor, 0)
        if free is not None and planner.bytes_for(size, Plan()) > SHARE * free:
            raise torch.cuda.OutOfMemoryError(f"{component}: {size} does not fit into {free} bytes")


def make_vae(path: Path, provider: Provider) -> Any:
    """ComfyUI's ``VAE`` on an optimized autoencoder.

    Raises:
        BadModelError: the folder has no decoder.
    """
    import comfy.model_management
    import comfy.model_patcher
    import comfy.sd
    import comfy.taesd.taesd

    folder = open_folder(path, (DECODER,))
    autoencoder = Autoencoder(folder, provider)
    # Made of a tiny one, as this release of ComfyUI makes it, with all attributes that its nodes ask for.
    vae = comfy.sd.VAE(sd=comfy.taesd.taesd.TAESD(latent_channels=folder.latent_channels).state_dict())
    vae.first_stage_model = autoencoder
    vae.vae_dtype = torch.float32  # what it hands over; the graph casts it to its own
    vae.latent_channels = folder.latent_channels
    vae.upscale_ratio = vae.downscale_ratio = folder.vae_factor
    offload = comfy.model_management.vae_offload_device()
    vae.patcher = comfy.model_patcher.ModelPatcher(autoencoder, load_device=vae.device, offload_device=offload, size=1)
    return vae
