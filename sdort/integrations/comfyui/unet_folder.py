"""An optimized UNet in the original layout, as ComfyUI and the web UIs before it call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from sdort.checkpoints.ldm_names import original_unet_names
from sdort.console import quiet_libraries, warn
from sdort.errors import BadModelError
from sdort.families.family import ComfyUI
from sdort.families.known_families import FAMILIES
from sdort.families.unet import UNET
from sdort.graph.signature import static_size
from sdort.integrations.comfyui.denoiser import Denoiser
from sdort.integrations.comfyui.weight_patches import PatchedWeights
from sdort.integrations.torch.opened_component import open_components
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import LoadOptions, RuntimeOptions
from sdort.providers.session_settings import can_tune
from sdort.runtime.probe import choose_provider
from sdort.warmup.command import warm


def empty_unet(config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """A UNet's parameters by diffusers' names, on the ``meta`` device, which holds no values.

    Args:
        config: the UNet's.
    """
    from diffusers import UNet2DConditionModel

    with quiet_libraries(), torch.device("meta"):
        parameters: dict[str, torch.Tensor] = dict(UNet2DConditionModel.from_config(dict(config)).state_dict())
    return parameters


def original_names(parameters: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """Original names of a UNet's parameters -> diffusers'.

    Args:
        parameters: by diffusers' names.
        config: the UNet's.
    """
    layers = int(config["layers_per_block"])
    return {_original(name, parameters, layers): name for name in parameters}


def _original(name: str, parameters: Mapping[str, Any], layers: int) -> str:
    # An upsampler's place depends on whether its level has attentions: the first name is that behind one.
    behind, *beside = original_unet_names(name, layers)
    level = name.partition(".upsamplers.")[0]
    return beside[0] if beside and f"{level}.attentions.0.proj_in.weight" not in parameters else behind


def load_denoiser(path: str | Path, provider: str = "auto") -> Denoiser:
    """The UNet of an optimized pipeline, called as the original one is: ``unet(x, timesteps, context=..., y=...)``.

    Where ``auto`` passes over a provider that does not load, a warning says why.

    Args:
        path: the pipeline's folder.
        provider: an execution provider by name, or ``auto`` for the best one that works here.

    Raises:
        BadModelError: the folder has no UNet, or none of a family of Stable Diffusion.
        ProviderError: the provider does not load, or cannot run the UNet.
    """
    folder = open_folder(Path(path), (UNET.component,))
    chosen, fallback = choose_provider(RuntimeOptions(provider))
    if fallback:
        warn(fallback)
    return UnetFolder(folder, chosen).denoiser()


@dataclass(frozen=True)
class UnetFolder:
    """An optimized UNet on disk, and where it runs."""

    folder: PipelineFolder
    provider: Provider

    @cached_property
    def config(self) -> dict[str, Any]:
        """The UNet's.

        Raises:
            BadModelError: there is none.
        """
        config = self.folder.config(UNET.component)
        if not config:
            raise BadModelError(
                f"{self.folder.path / UNET.component} has no config.json",
                component=UNET.component,
                hint="Export it with sdort export.",
            )
        return config

    @cached_property
    def sizes(self) -> int:
        """How many sizes the UNet takes beside the pooled text; 0 where it takes none.

        Raises:
            BadModelError: a number that no family has.
        """
        spec = self.folder.file(UNET.component).signature.inputs.get("time_ids")
        count = (static_size(spec.shape, 1) or 0) if spec else 0
        if count not in self._classes:
            raise BadModelError(f"it takes {count} sizes, as no SDXL and no refiner does", component=UNET.component)
        return count

    @property
    def comfyui(self) -> ComfyUI:
        """ComfyUI's classes for its family.

        Raises:
            BadModelError: as :attr:`sizes`.
        """
        return self._classes[self.sizes]

    @property
    def _classes(self) -> dict[int, ComfyUI]:
        """By the number of sizes that a UNet takes: a folder may hold a UNet alone, without what else tells."""
        families = [family for family in FAMILIES.values() if family.denoiser.component == UNET.component]
        return {len(each.sizes): each.comfyui for each in reversed(families) if each.comfyui}

    @cached_property
    def names(self) -> dict[str, str]:
        """Original names of the UNet's parameters -> diffusers'."""
        return original_names(self._empty, self.config)

    @cached_property
    def empty(self) -> dict[str, torch.Tensor]:
        """The parameters by their original names, without values."""
        return {name: self._empty[own] for name, own in self.names.items()}

    @cached_property
    def _empty(self) -> dict[str, torch.Tensor]:
        return empty_unet(self.config)

    def open(self, *, control: bool, adapters: bool) -> TensorSession:
        """Open the UNet, with its inputs for residuals, and with weights that may change.

        Raises:
            BadModelError, ProviderError: as :func:`open_components`.
        """
        options: LoadOptions = {"provider": self.provider.name, "adapters": adapters}
        return open_components(self.folder.path, (UNET.component,), options, control_inputs=control).sessions[
            UNET.component
        ]

    def denoiser(self) -> Denoiser:
        """The UNet, open.

        Raises:
            BadModelError, ProviderError: as :func:`open_components`.
        """
        tune = self.tune if can_tune(self.provider, RuntimeOptions(self.provider.name)) else None
        return Denoiser(self.open, self.config, self.sizes, self.empty, PatchedWeights(self.names), tune)

    def tune(self, images: int, height: int, width: int) -> None:
        """Tune the UNet for images of a height and width in pixels, and keep what is found, as ``sdort warm`` does.

        Raises:
            SdortError: as :func:`sdort.warmup.command.warm`, or the UNet does not run.
        """
        sizes, provider = [(height, width)], self.provider.name
        done = warm(self.folder.path, sizes=sizes, batch_sizes=[images], components=[UNET.component], provider=provider)
        done.raise_if_failed()
