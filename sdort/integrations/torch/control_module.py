"""A ControlNet as a torch module: diffusers' ``ControlNetModel``, whose computation is an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from diffusers import ControlNetModel
from diffusers.models.controlnets.controlnet import ControlNetOutput
from diffusers.models.modeling_utils import ModelMixin

from sdort.checkpoints.configs import read_component_config
from sdort.exporter.component_configs import class_defaults
from sdort.families.component_names import CONTROLNET
from sdort.integrations.torch.graph_module import GraphModule, StandIn, as_timestep, known_inputs, like, reloader
from sdort.integrations.torch.opened_component import open_components
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.providers.runtime_options import LoadOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class GraphControlNet(GraphModule, ControlNetModel, metaclass=StandIn):  # type: ignore[misc]
    """A ControlNet that runs as an ONNX graph; made by :func:`load_controlnet`."""

    stands_for = ControlNetModel

    def __init__(self, config: Mapping[str, Any]) -> None:
        ModelMixin.__init__(self)  # without the layers
        self.register_to_config(**config)
        self._scales: tuple[tuple[float, bool], torch.Tensor] | None = None

    @property
    def session(self) -> TensorSession:
        """The session that computes."""
        return self.sessions[CONTROLNET]

    def forward(
        self,
        sample: torch.Tensor,
        timestep: torch.Tensor | float,
        encoder_hidden_states: torch.Tensor,
        controlnet_cond: torch.Tensor,
        conditioning_scale: float = 1.0,
        class_labels: torch.Tensor | None = None,
        timestep_cond: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        added_cond_kwargs: Mapping[str, torch.Tensor] | None = None,
        cross_attention_kwargs: Mapping[str, Any] | None = None,
        guess_mode: bool = False,
        return_dict: bool = True,
    ) -> ControlNetOutput | tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """Residuals for a UNet, as diffusers' ControlNet gives them; ``cross_attention_kwargs`` are the UNet's.

        Args:
            sample: float [B, channels, H, W].
            timestep: one number, or a tensor [] or [B].
            encoder_hidden_states: float [B, tokens, width].
            controlnet_cond: the image in [0, 1], float [B, channels, H, W] in pixels.
            conditioning_scale: a factor of all outputs.
            added_cond_kwargs: SDXL's ``text_embeds`` and ``time_ids``.
            guess_mode: whether the factors grow from a tenth at the first output to the whole at the last.

        Returns:
            The tensors that go down, and that of the middle, in the dtype and on the device of ``sample``.

        Raises:
            UsageError: something is given that the graph does not take.
            BadModelError, ProviderError: as :meth:`sdort.integrations.torch.tensor_session.TensorSession.run`.
        """
        optional = {
            "class_labels": class_labels,
            "timestep_cond": timestep_cond,
            "attention_mask": attention_mask,
            **(added_cond_kwargs or {}),
        }
        feeds = {
            "sample": sample,
            "timestep": as_timestep(timestep),
            "encoder_hidden_states": encoder_hidden_states,
            "controlnet_cond": controlnet_cond,
            "conditioning_scale": self._factors(float(conditioning_scale), guess_mode),
            **known_inputs(self.session, optional),
        }
        *down, mid = (like(value, sample) for value in self.session.run(feeds).values())
        if return_dict:
            return ControlNetOutput(down_block_res_samples=tuple(down), mid_block_res_sample=mid)
        return tuple(down), mid

    def _factors(self, scale: float, guess: bool) -> torch.Tensor:
        """A factor for each output, as diffusers' ControlNet has them."""
        guess = guess and not self.config.global_pool_conditions
        if self._scales is None or self._scales[0] != (scale, guess):
            count = len(self.session.outputs)
            factors = torch.logspace(-1, 0, count) if guess else torch.ones(count)
            self._scales = (scale, guess), (scale * factors).to(self.device)
        return self._scales[1]


def load_controlnet(path: str | Path, **options: Unpack[LoadOptions]) -> GraphControlNet:
    """An exported or optimized ControlNet as a torch module.

    Args:
        path: the folder that ``sdort export`` or ``sdort optimize`` made of it.
        options: as for :func:`sdort.integrations.torch.unet_module.load_unet`, whose ``control_inputs`` take the
            outputs.

    Raises:
        BadModelError: there is no ControlNet, it does not load, or a file is not what sdort wrote.
        ProviderError, UsageError: as for the UNet.

    Example:
        >>> controlnet = load_controlnet("canny", provider="cuda")
    """
    opened = open_components(path, (CONTROLNET,), options)
    file = opened.sessions[CONTROLNET].session.path
    config = read_component_config(file.parent / "config.json", CONTROLNET)
    net = GraphControlNet({**class_defaults("ControlNetModel"), **config})
    net.attach(opened.sessions, reloader(load_controlnet, path, options))
    net.eval()
    return net
