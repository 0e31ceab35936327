"""Transformers as torch modules with the forward signatures and configs of diffusers' classes.

Their graphs take latents as images [B, C, H, W], and timesteps up to 1000, whatever diffusers' class takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from diffusers import (
    ChromaTransformer2DModel,
    ConfigMixin,
    FluxTransformer2DModel,
    ModelMixin,
    SD3Transformer2DModel,
    ZImageTransformer2DModel,
)
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from sdort.errors import BadModelError, UsageError
from sdort.exporter.component_configs import class_defaults
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
from sdort.integrations.torch.prompt_tensors import SeenTensor
from sdort.integrations.torch.tensor_binding import Tensors
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.providers.runtime_options import LoadOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

TRANSFORMER = "transformer"
"""The component."""
_STEPS = 1000
"""The timestep of noise alone."""


class GraphTransformer(GraphModule, ModelMixin, ConfigMixin):  # type: ignore[misc]
    """The base of the classes below; made by :func:`load_transformer`.

    What changes the inside of diffusers' transformer is not there, and says so.
    """

    config_name = "config.json"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.register_to_config(**config)

    @property
    def session(self) -> TensorSession:
        """The session that computes."""
        return self.sessions[TRANSFORMER]

    @contextmanager
    def cache_context(self, _name: str) -> Iterator[None]:
        """A block without effect: diffusers' caches of layers are not there."""
        yield

    def load_lora_adapter(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: ``load_lora_weights`` would put layers into it.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "diffusers cannot load a LoRA into the ONNX graph of a transformer",
            hint="Put it into the weights, or give it to sdort's own pipeline:\n"
            "    sdort export MODEL OUT --lora FILE\n"
            "    sdort run OUT --prompt TEXT --lora FILE",
        )

    def _run(self, feeds: Tensors, given: torch.Tensor) -> torch.Tensor:
        (made,) = self.session.run(feeds).values()
        return like(made, given)


class GraphSD3Transformer(GraphTransformer, metaclass=StandIn):
    """An ``SD3Transformer2DModel`` that runs as an ONNX graph."""

    stands_for = SD3Transformer2DModel

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        pooled_projections: torch.Tensor,
        timestep: torch.Tensor | float,
        block_controlnet_hidden_states: Sequence[torch.Tensor] | None = None,
        joint_attention_kwargs: Mapping[str, Any] | None = None,
        return_dict: bool = True,
        skip_layers: Sequence[int] | None = None,
    ) -> Transformer2DModelOutput | tuple[torch.Tensor]:
        """The velocity of the sample, as diffusers' transformer says it.

        Args:
            hidden_states: float [B, channels, H, W].
            encoder_hidden_states: float [B, tokens, width].
            pooled_projections: float [B, width].
            timestep: one number up to 1000, or a tensor [] or [B].

        Returns:
            ``sample`` float [B, channels, H, W] in the dtype and on the device of ``hidden_states``.

        Raises:
            UsageError: something is given that the graph does not take.
            BadModelError, ProviderError: as :meth:`sdort.integrations.torch.tensor_session.TensorSession.run`.
        """
        _refuse(
            block_controlnet_hidden_states=block_controlnet_hidden_states,
            joint_attention_kwargs=joint_attention_kwargs,
            skip_layers=skip_layers,
        )
        feeds = {
            "hidden_states": hidden_states,
            "encoder_hidden_states": encoder_hidden_states,
            "pooled_projections": pooled_projections,
            "timestep": as_timestep(timestep),
        }
        made = self._run(feeds, hidden_states)
        return Transformer2DModelOutput(sample=made) if return_dict else (made,)


class GraphZImageTransformer(GraphTransformer, metaclass=StandIn):
    """A ``ZImageTransformer2DModel`` that runs as an ONNX graph."""

    stands_for = ZImageTransformer2DModel

    @property
    def in_channels(self) -> int:
        """Channels of the latents, which pipelines ask for."""
        return int(self.config.in_channels)

    def forward(
        self,
        x: Sequence[torch.Tensor],
        t: torch.Tensor,
        cap_feats: Sequence[torch.Tensor],
        return_dict: bool = True,
        controlnet_block_samples: Mapping[int, torch.Tensor] | None = None,
        siglip_feats: Sequence[Any] | None = None,
        image_noise_mask: Sequence[Any] | None = None,
        patch_size: int = 2,
        f_patch_size: int = 1,
        joint_attention_kwargs: Mapping[str, Any] | None = None,
    ) -> Transformer2DModelOutput | tuple[list[torch.Tensor]]:
        """The image less the noise of each sample, as diffusers' transformer says it.

        Samples of the same size and the same number of tokens run together, others after each other.

        Args:
            x: latents of each sample, float [channels, 1, H, W].
            t: the time of each sample, from 0, noise alone, to 1; [B].
            cap_feats: the tokens of each sample's prompt, float [tokens, width].

        Returns:
            ``sample``, of each sample float [channels, 1, H, W] in the dtype and on the device of its latents.

        Raises:
            UsageError: something is given that the graph does not take.
            BadModelError, ProviderError: as :meth:`sdort.integrations.torch.tensor_session.TensorSession.run`.
        """
        _refuse(
            controlnet_block_samples=controlnet_block_samples,
            siglip_feats=siglip_feats,
            image_noise_mask=image_noise_mask,
            joint_attention_kwargs=joint_attention_kwargs,
        )
        if (patch_size, f_patch_size) != (2, 1):
            raise UsageError(f"the graph of {TRANSFORMER} has tokens of 2 x 2 latents of one frame alone")
        if len(x) != len(cap_feats) or not all(isinstance(each, torch.Tensor) and each.ndim == 4 for each in x):
            raise UsageError(
                f"{TRANSFORMER} takes latents [channels, 1, height, width] and the tokens of a prompt for each sample",
                hint="Images to be edited (omni mode) are not there.",
            )
        times = as_timestep(t).reshape(-1).expand(len(x)) if as_timestep(t).numel() == 1 else as_timestep(t)
        alike: dict[Any, list[int]] = {}
        for number, (latents, text) in enumerate(zip(x, cap_feats, strict=True)):
            alike.setdefault((latents.shape, text.shape), []).append(number)
        made: dict[int, torch.Tensor] = {}
        for numbers in alike.values():
            latents = torch.stack([x[number] for number in numbers])
            feeds = {
                "hidden_states": latents.squeeze(2),
                "timestep": _STEPS - _STEPS * times[numbers],
                "encoder_hidden_states": torch.stack([cap_feats[number] for number in numbers]),
            }
            # The graph has the sign that diffusers' pipeline gives to what the class predicts.
            made |= zip(numbers, -self._run(feeds, latents).unsqueeze(2), strict=True)
        samples = [made[number] for number in range(len(x))]
        return Transformer2DModelOutput(sample=samples) if return_dict else (samples,)


class GraphTokenTransformer(GraphTransformer):
    """The base of those that take tokens of 2 x 2 latents with ids of their places, as Flux.1's."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._grid: tuple[SeenTensor, SeenTensor, tuple[int, int]] | None = None
        """The ids on a GPU that came last, and the tokens along each side that they say."""

    def _velocity(self, hidden_states: torch.Tensor, sides: tuple[int, int], feeds: Tensors) -> torch.Tensor:
        """The velocity of tokens [B, tokens, 4 * channels] of an image with so many tokens along each side."""
        batch, tokens, width = hidden_states.shape
        rows, columns = sides
        tiles = hidden_states.view(batch, rows, columns, width // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
        latents = {"hidden_states": tiles.reshape(batch, width // 4, 2 * rows, 2 * columns)}
        made = self._run({**latents, **feeds}, hidden_states)
        made = made.view(batch, width // 4, rows, 2, columns, 2).permute(0, 2, 4, 1, 3, 5)
        return made.reshape(batch, tokens, width)

    def _sides(self, image: torch.Tensor, text: torch.Tensor, tokens: int) -> tuple[int, int]:
        """Tokens along each side of the image. On a GPU ids are read once, as the host waits for it.

        Raises:
            UsageError: the ids are not those of one image.
        """
        if self._grid and self._grid[0].is_of(image) and self._grid[1].is_of(text):
            return self._grid[2]
        ids = image[0] if image.ndim == 3 else image
        rows, columns = (int(side) + 1 for side in ids[-1, 1:]) if ids.shape == (tokens, 3) else (0, 0)
        if rows * columns != tokens or not torch.equal(ids, _places(rows, columns, ids)) or bool(text.any()):
            raise UsageError(
                f"the graph of {TRANSFORMER} takes the ids of the tokens of one image and no others",
                hint="Pipelines that put images beside the noise, such as FluxKontextPipeline, need the torch model.",
            )
        if not image.is_cpu:
            self._grid = SeenTensor.of(image), SeenTensor.of(text), (rows, columns)
        return rows, columns


class GraphFluxTransformer(GraphTokenTransformer, metaclass=StandIn):
    """A ``FluxTransformer2DModel`` that runs as an ONNX graph."""

    stands_for = FluxTransformer2DModel

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        pooled_projections: torch.Tensor,
        timestep: torch.Tensor | float,
        img_ids: torch.Tensor,
        txt_ids: torch.Tensor,
        guidance: torch.Tensor | None = None,
        joint_attention_kwargs: Mapping[str, Any] | None = None,
        controlnet_block_samples: Sequence[torch.Tensor] | None = None,
        controlnet_single_block_samples: Sequence[torch.Tensor] | None = None,
        return_dict: bool = True,
        controlnet_blocks_repeat: bool = False,
    ) -> Transformer2DModelOutput | tuple[torch.Tensor]:
        """The velocity of the sample, as diffusers' transformer says it.

        Args:
            hidden_states: tokens of 2 x 2 latents, float [B, tokens, 4 * channels].
            encoder_hidden_states: float [B, tokens of the text, width].
            pooled_projections: float [B, width].
            timestep: one number up to 1, or a tensor [] or [B] of one number.
            img_ids: the row and the column of each token, [tokens, 3]: those of one image.
            txt_ids: zeros [tokens of the text, 3].
            guidance: the guidance scale of models that take it, [B].

        Returns:
            ``sample`` of the shape of ``hidden_states``, in its dtype and on its device.

        Raises:
            UsageError: something is given that the graph does not take.
            BadModelError, ProviderError: as :meth:`sdort.integrations.torch.tensor_session.TensorSession.run`.
        """
        _refuse(
            joint_attention_kwargs=joint_attention_kwargs,
            controlnet_block_samples=controlnet_block_samples,
            controlnet_single_block_samples=controlnet_single_block_samples,
        )
        feeds = {
            "timestep": as_timestep(timestep) * _STEPS,
            "encoder_hidden_states": encoder_hidden_states,
            "pooled_projections": pooled_projections,
            **known_inputs(self.session, {"guidance": guidance}),
        }
        made = self._velocity(hidden_states, self._sides(img_ids, txt_ids, hidden_states.shape[1]), feeds)
        return Transformer2DModelOutput(sample=made) if return_dict else (made,)


class GraphChromaTransformer(GraphTokenTransformer, metaclass=StandIn):
    """A ``ChromaTransformer2DModel`` that runs as an ONNX graph."""

    stands_for = ChromaTransformer2DModel

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._masks: list[tuple[SeenTensor, list[int]]] = []
        """The masks on a GPU that came last, of a prompt and of a negative one, and the tokens that they leave."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor | float,
        img_ids: torch.Tensor,
        txt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        joint_attention_kwargs: Mapping[str, Any] | None = None,
        controlnet_block_samples: Sequence[torch.Tensor] | None = None,
        controlnet_single_block_samples: Sequence[torch.Tensor] | None = None,
        return_dict: bool = True,
        controlnet_blocks_repeat: bool = False,
    ) -> Transformer2DModelOutput | tuple[torch.Tensor]:
        """The velocity of the sample, as diffusers' transformer says it with a mask of booleans.

        Samples with the same number of tokens that the mask leaves run together, others after each other.

        Args:
            hidden_states: tokens of 2 x 2 latents, float [B, tokens, 4 * channels].
            encoder_hidden_states: float [B, tokens of the text, width].
            timestep: one number up to 1, or a tensor [] or [B] of one number.
            img_ids: the row and the column of each token, [tokens, 3]: those of one image.
            txt_ids: zeros [tokens of the text, 3].
            attention_mask: of the text's tokens and the image's, [B, both], which leaves out tokens at the text's end.

        Returns:
            ``sample`` of the shape of ``hidden_states``, in its dtype and on its device.

        Raises:
            UsageError: something is given that the graph does not take.
            BadModelError, ProviderError: as :meth:`sdort.integrations.torch.tensor_session.TensorSession.run`.
        """
        _refuse(
            joint_attention_kwargs=joint_attention_kwargs,
            controlnet_block_samples=controlnet_block_samples,
            controlnet_single_block_samples=controlnet_single_block_samples,
        )
        sides, made = self._sides(img_ids, txt_ids, hidden_states.shape[1]), torch.empty_like(hidden_states)
        times = as_timestep(timestep).reshape(-1).expand(len(hidden_states))
        kept = self._kept(attention_mask, hidden_states, encoder_hidden_states)
        for tokens in dict.fromkeys(kept):
            numbers = [number for number, each in enumerate(kept) if each == tokens]
            feeds = {
                "timestep": times[numbers] * _STEPS,
                "encoder_hidden_states": encoder_hidden_states[numbers, :tokens],
            }
            made[numbers] = self._velocity(hidden_states[numbers], sides, feeds)
        return Transformer2DModelOutput(sample=made) if return_dict else (made,)

    def _kept(self, mask: torch.Tensor | None, image: torch.Tensor, text: torch.Tensor) -> list[int]:
        """The tokens of each sample's text that the mask leaves. On a GPU a mask is read once.

        Raises:
            UsageError: it leaves out others.
        """
        batch, tokens, _ = text.shape
        if mask is None:
            return [tokens] * batch
        for seen, counts in self._masks:
            if seen.is_of(mask):
                return counts
        left = mask.bool().int()
        fits = mask.shape == (batch, tokens + image.shape[1]) and bool(left[:, tokens:].all() and left[:, 0].all())
        if not fits or bool((left[:, :tokens].diff(dim=1) > 0).any()):
            raise UsageError(
                f"the graph of {TRANSFORMER} takes a mask that leaves out tokens at the text's end and no others",
                hint="Give the tokenizer padding_side='right'.",
            )
        found: list[int] = left[:, :tokens].sum(1).tolist()
        if not mask.is_cpu:
            self._masks = [(SeenTensor.of(mask), found), *self._masks[:1]]
        return found


def _places(rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
    """The ids [rows * columns, 3] of the tokens of an image."""
    places = torch.zeros(rows, columns, 3, device=like.device, dtype=like.dtype)
    places[..., 1] += torch.arange(rows, device=like.device)[:, None]
    places[..., 2] += torch.arange(columns, device=like.device)
    return places.flatten(0, 1)


def _refuse(**given: Any) -> None:
    """Refuse arguments that would change the inside of a graph; what is empty changes nothing.

    Raises:
        UsageError: there is one.
    """
    names = ", ".join(name for name, value in given.items() if value is not None and len(value))
    if names:
        raise UsageError(
            f"{names} would change the inside of an ONNX graph",
            hint="ControlNets, IP-Adapters and guidance that leaves out layers need the torch model.",
        )


TRANSFORMERS: Mapping[str, type[GraphTransformer]] = {
    kind.stands_for.__name__: kind
    for kind in (GraphSD3Transformer, GraphZImageTransformer, GraphFluxTransformer, GraphChromaTransformer)
}
"""Diffusers' class -> the module in its place."""


def load_transformer(path: str | Path, **options: Unpack[LoadOptions]) -> GraphTransformer:
    """The transformer of an exported or optimized pipeline as a torch module.

    Args:
        path: the folder of a Stable Diffusion 3, Z-Image, Flux.1 or Chroma pipeline.
        options: as for :func:`sdort.integrations.torch.unet_module.load_unet`.

    Raises:
        BadModelError: there is no transformer, or it is of no class that is known; it does not load, or a file is not
            what sdort wrote.
        ProviderError: as for the UNet.
        UsageError: as for the UNet, or ``adapters`` are asked for.

    Example:
        >>> transformer = load_transformer("fast", provider="cuda")
        >>> pipeline.register_modules(transformer=transformer)
    """
    check_no_adapters(options)
    return transformer_of(open_components(path, (TRANSFORMER,), options), reloader(load_transformer, path, options))


def check_no_adapters(options: LoadOptions) -> None:
    """Refuse to open a transformer for adapters, which nothing would load.

    Raises:
        UsageError: the options ask for it.
    """
    if options.get("adapters"):
        raise UsageError(
            "adapters=True has no effect on a transformer in torch",
            hint="Leave it out. sdort.load takes adapters, and sdort export puts them into the weights: --lora FILE",
        )


def transformer_of(opened: OpenedComponents, reload: Reload) -> GraphTransformer:
    """The module of an open transformer; ``reload`` makes it again.

    Raises:
        BadModelError: it is of no class that is known.
    """
    config, name = opened.folder.config(TRANSFORMER), opened.folder.family.denoiser.class_name
    if name not in TRANSFORMERS:
        raise BadModelError(f"a transformer of the class {name!r} is not known", component=TRANSFORMER)
    transformer = TRANSFORMERS[name]({**class_defaults(name), **config})
    transformer.attach({TRANSFORMER: opened.sessions[TRANSFORMER]}, reload)
    transformer.eval()
    return transformer
