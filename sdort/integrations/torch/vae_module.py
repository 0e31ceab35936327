"""The VAE as a torch module: diffusers' own classes, whose halves are ONNX graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from diffusers import AutoencoderKL, AutoencoderTiny

from sdort.errors import BadModelError, UsageError
from sdort.exporter.component_configs import class_defaults
from sdort.families.component_names import DECODER, ENCODER
from sdort.integrations.torch.graph_module import GraphModule, Reload, StandIn, like, reloader
from sdort.integrations.torch.opened_component import OpenedComponents, open_components
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.providers.runtime_options import LoadOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class GraphHalf(torch.nn.Module):  # type: ignore[misc]
    """The encoder or the decoder of a VAE with the convolution between it and the latents.

    Args:
        session: None where the pipeline has no such component.
    """

    def __init__(self, component: str, session: TensorSession | None) -> None:
        super().__init__()
        self.component = component
        self.session = session

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The graph's output for images or latents, float [B, channels, H, W] both.

        Raises:
            UsageError: the pipeline has no such component.
        """
        if self.session is None:
            raise UsageError(
                f"the pipeline has no {self.component}",
                hint="Export all of the checkpoint:\n    sdort export MODEL OUT",
            )
        name = next(iter(self.session.inputs))
        return like(next(iter(self.session.run({name: x}).values())), x)


class GraphVae(GraphModule):
    """The base of the classes below; slicing, tiling and distributions are diffusers'.

    ``config.force_upcast`` is False: a graph has the precision that it was made with.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        with torch.device("meta"):  # the layers go, what diffusers derives from the config stays
            super().__init__(**config)
        self.register_to_config(force_upcast=False)

    def attach_halves(self, sessions: Mapping[str, TensorSession]) -> None:
        """Put graphs in the place of the layers."""
        self.encoder = GraphHalf(ENCODER, sessions.get(ENCODER))
        self.decoder = GraphHalf(DECODER, sessions[DECODER])


class GraphAutoencoderKL(GraphVae, AutoencoderKL, metaclass=StandIn):  # type: ignore[misc]
    """An ``AutoencoderKL`` of two graphs."""

    stands_for = AutoencoderKL

    def attach_halves(self, sessions: Mapping[str, TensorSession]) -> None:
        super().attach_halves(sessions)
        self.quant_conv = self.post_quant_conv = torch.nn.Identity()  # the graphs have these


class GraphAutoencoderTiny(GraphVae, AutoencoderTiny, metaclass=StandIn):  # type: ignore[misc]
    """An ``AutoencoderTiny`` (TAESD) of two graphs."""

    stands_for = AutoencoderTiny


_CLASSES: Mapping[str, type[Any]] = {"AutoencoderKL": GraphAutoencoderKL, "AutoencoderTiny": GraphAutoencoderTiny}


def load_vae(path: str | Path, **options: Unpack[LoadOptions]) -> GraphAutoencoderKL | GraphAutoencoderTiny:
    """The VAE of an exported or optimized pipeline as a torch module.

    Args:
        path: the pipeline's folder. Without a ``vae_encoder`` it decodes alone.
        options: as for :func:`sdort.integrations.torch.unet_module.load_unet`.

    Raises:
        BadModelError: there is no decoder, or it is of no class that is known; a component does not load, or a file is
            not what sdort wrote.
        ProviderError, UsageError: as for the UNet.

    Example:
        >>> vae = load_vae("fast", provider="cuda")
        >>> pipeline.register_modules(vae=vae)
    """
    opened = open_components(path, (DECODER,), options, optional=(ENCODER,))
    return vae_of(opened, reloader(load_vae, path, options))


def vae_of(opened: OpenedComponents, reload: Reload) -> GraphAutoencoderKL | GraphAutoencoderTiny:
    """The module of an open decoder and of the encoder, if that is open too; ``reload`` makes it again.

    Raises:
        BadModelError: it is of no class that is known.
    """
    config = opened.folder.vae
    name = config.get("_class_name", "AutoencoderKL")
    if name not in _CLASSES:
        raise BadModelError(f"a VAE of the class {name!r} is not known", component=DECODER)
    sessions = {half: opened.sessions[half] for half in (DECODER, ENCODER) if half in opened.sessions}
    vae = _CLASSES[name]({key: config.get(key, default) for key, default in class_defaults(name).items()})
    vae.attach(sessions, reload)
    vae.attach_halves(sessions)
    vae.eval()
    made: GraphAutoencoderKL | GraphAutoencoderTiny = vae
    return made
