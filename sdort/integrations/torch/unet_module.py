"""The UNet as a torch module with the forward signature and the config of diffusers' ``UNet2DConditionModel``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from diffusers import ConfigMixin, ModelMixin, UNet2DConditionModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionOutput

from sdort.errors import UsageError
from sdort.exporter.component_configs import class_defaults
from sdort.families.component_names import CONTROLNET, T2I_ADAPTER
from sdort.families.unet import UNET
from sdort.integrations.torch.graph_module import (
    GraphModule,
    Reload,
    StandIn,
    as_timestep,
    known_inputs,
    like,
    reloader,
)
from sdort.integrations.torch.opened_component import OpenedComponents, open_components
from sdort.integrations.torch.tensor_binding import Tensors
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.integrations.torch.unet_adapters import AdapterMethods, UnetAdapters
from sdort.onnx_io.component_file import read_component
from sdort.providers.runtime_options import LoadOptions
from sdort.workload.steering_inputs import residual_inputs

if TYPE_CHECKING:
    from typing_extensions import Unpack


class GraphUNet(AdapterMethods, GraphModule, ModelMixin, ConfigMixin, metaclass=StandIn):  # type: ignore[misc]
    """A UNet that runs as an ONNX graph; made by :func:`load_unet`.

    What changes the inside of diffusers' UNet (attention processors, FreeU, IP-Adapters) is not there, and says so.
    """

    config_name = "config.json"
    stands_for = UNet2DConditionModel

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.register_to_config(**config)
        # SDXL's pipelines ask the first layer how many numbers it takes.
        width = config.get("projection_class_embeddings_input_dim")
        if width is not None:
            self.add_embedding = SimpleNamespace(linear_1=SimpleNamespace(in_features=width))

    @property
    def session(self) -> TensorSession:
        """The session that computes."""
        return self.sessions[UNET.component]

    def forward(
        self,
        sample: torch.Tensor,
        timestep: torch.Tensor | float,
        encoder_hidden_states: torch.Tensor,
        class_labels: torch.Tensor | None = None,
        timestep_cond: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        cross_attention_kwargs: Mapping[str, Any] | None = None,
        added_cond_kwargs: Mapping[str, torch.Tensor] | None = None,
        down_block_additional_residuals: Sequence[torch.Tensor] | None = None,
        mid_block_additional_residual: torch.Tensor | None = None,
        down_intrablock_additional_residuals: Sequence[torch.Tensor] | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> UNet2DConditionOutput | tuple[torch.Tensor]:
        """The noise that the sample has, as diffusers' UNet says it.

        Args:
            sample: float [B, channels, H, W].
            timestep: one number, or a tensor [] or [B].
            encoder_hidden_states: float [B, tokens, width].
            timestep_cond: float [B, width], of UNets that take the guidance scale so.
            cross_attention_kwargs: ``scale``, of all adapters.
            added_cond_kwargs: SDXL's ``text_embeds`` [B, width] and ``time_ids`` [B, 6 or 5], and what else the graph
                takes by these names.
            down_block_additional_residuals, mid_block_additional_residual: a ControlNet's outputs, in diffusers' order.
            down_intrablock_additional_residuals: a T2I-Adapter's features.

        Returns:
            ``sample`` float [B, channels, H, W] in the dtype and on the device of ``sample``.

        Raises:
            UsageError: something is given that the graph does not take.
            BadModelError, ProviderError: as :meth:`sdort.integrations.torch.tensor_session.TensorSession.run`.
        """
        optional = {
            "class_labels": class_labels,
            "timestep_cond": timestep_cond,
            "attention_mask": attention_mask,
            "encoder_attention_mask": encoder_attention_mask,
        }
        feeds = {
            "sample": sample,
            "timestep": as_timestep(timestep),
            "encoder_hidden_states": encoder_hidden_states,
            **known_inputs(self.session, {**optional, **(added_cond_kwargs or {})}),
        }
        if down_block_additional_residuals or mid_block_additional_residual is not None:
            mid = () if mid_block_additional_residual is None else (mid_block_additional_residual,)
            feeds |= self._residuals(CONTROLNET, [*(down_block_additional_residuals or ()), *mid])
        if down_intrablock_additional_residuals:
            feeds |= self._residuals(T2I_ADAPTER, down_intrablock_additional_residuals)
        scale = _adapter_scale(cross_attention_kwargs) if cross_attention_kwargs else 1.0
        (made,) = self._run(feeds, scale).values()
        made = like(made, sample)
        return UNet2DConditionOutput(sample=made) if return_dict else (made,)

    def _load_ip_adapter_weights(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: ``load_ip_adapter`` would put layers into it.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "diffusers cannot load an IP-Adapter into an ONNX graph",
            hint="Export the checkpoint with it, and give the image to sdort's own pipeline:\n"
            "    sdort export MODEL OUT --ip-adapter FILE\n"
            "    sdort run OUT --prompt TEXT --ip-adapter-image IMAGE\n"
            "A pipeline of diffusers' takes it with torch's UNet alone.",
        )

    def _residuals(self, kind: str, given: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Residuals of controls, by the names of the graph's inputs."""
        names = self._exported_residuals[kind]
        if not names:
            raise UsageError(
                "this UNet was exported without inputs for controls",
                hint="Export it again:\n    sdort export MODEL OUT --control",
            )
        if not self.session.inputs.keys() >= set(names):
            raise UsageError(
                "this UNet was loaded without its inputs for controls", hint="Load it with control_inputs=True."
            )
        fewer = kind == T2I_ADAPTER and len(given) < len(names)
        if len(given) != len(names) and not fewer:
            raise UsageError(
                f"a control of {len(given)} tensors does not fit this UNet, which takes {len(names)}",
                hint="It is for another family of models.",
            )
        return dict(zip(names, given, strict=not fewer))

    @cached_property
    def _exported_residuals(self) -> dict[str, list[str]]:
        """The inputs for controls that the file has, of which a session may lack some."""
        return residual_inputs(read_component(self.session.session.path, UNET.component).signature.inputs)

    def _run(self, feeds: Tensors, scale: float) -> dict[str, torch.Tensor]:
        if self.adapters is None:
            return self.session.run(feeds)
        with self.session.lock:  # the weights of this scale, until it has run
            self.adapters.apply(scale)
            return self.session.run(feeds)


def _adapter_scale(options: Mapping[str, Any]) -> float:
    """The scale of all adapters in ``cross_attention_kwargs``.

    Raises:
        UsageError: they have more.
    """
    unknown = options.keys() - {"scale"}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise UsageError(f"cross_attention_kwargs {names} would change the inside of an ONNX graph")
    return float(options.get("scale", 1.0))


def load_unet(path: str | Path, *, control_inputs: bool = False, **options: Unpack[LoadOptions]) -> GraphUNet:
    """The UNet of an exported or optimized pipeline as a torch module.

    Args:
        path: the pipeline's folder.
        control_inputs: keep the inputs for ControlNets and T2I-Adapters that the UNet was exported with; without them
            a step is a little faster.
        options: those of :func:`sdort.load`. With ``adapters`` its weights can change; ``fallback`` lets the CPU stand
            in for a whole provider, not for the UNet alone.

    Raises:
        BadModelError: there is no UNet, it does not load, or a file is not what sdort wrote.
        ProviderError: the provider does not load and ``fallback`` is not True, or it cannot run the UNet.
        UsageError: there is no such provider or option of it.

    Example:
        >>> unet = load_unet("fast", provider="cuda")
        >>> pipeline.register_modules(unet=unet)
    """
    opened = open_components(path, (UNET.component,), options, control_inputs=control_inputs)
    return unet_of(opened, reloader(load_unet, path, options, control_inputs=control_inputs))


def unet_of(opened: OpenedComponents, reload: Reload) -> GraphUNet:
    """The module of an open UNet; ``reload`` makes it again."""
    unet = GraphUNet({**class_defaults("UNet2DConditionModel"), **opened.folder.config(UNET.component)})
    session = opened.sessions[UNET.component]
    unet.attach({UNET.component: session}, reload)
    unet.adapters = UnetAdapters(session, opened.folder) if session.session.options.adapters else None
    unet.eval()
    return unet
