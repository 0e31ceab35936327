"""A text encoder as a torch module with the signature and outputs of transformers' CLIP text models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from transformers import CLIPTextConfig
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.clip.modeling_clip import CLIPTextModelOutput

from sdort.errors import UsageError
from sdort.families.component_names import CLIP_SKIP
from sdort.families.known_families import TEXT_ENCODERS
from sdort.integrations.torch.graph_module import GraphModule, Reload, reloader
from sdort.integrations.torch.opened_component import OpenedComponents, open_components
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.providers.runtime_options import LoadOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LAST, _POOLED, _EMBEDS, _STATES = "last_hidden_state", "pooler_output", "text_embeds", "hidden_states."


class SkippedStates(Sequence[torch.Tensor]):
    """The outputs of an encoder's last layers, through its final norm, counted from the end: what clip skip takes.

    Exports of Stable Diffusion 1.x and 2.x have these, and no states without the norm; the module's
    ``text_model.final_layer_norm`` leaves them as they are.
    """

    def __init__(self, outputs: Mapping[str, torch.Tensor], layers: int) -> None:
        self._outputs = outputs
        self._layers = layers

    def __len__(self) -> int:
        return self._layers + 1

    def __getitem__(self, index: Any) -> Any:
        name = _LAST if index == -1 else f"{CLIP_SKIP}.{-index}" if isinstance(index, int) else str(index)
        if name not in self._outputs:
            raise UsageError(
                f"the text encoder was exported without the hidden state {index}",
                hint="Take text_encoder='torch', or another clip_skip.",
            )
        return self._outputs[name]


class GraphTextEncoder(GraphModule, torch.nn.Module):  # type: ignore[misc]
    """A text encoder that runs as an ONNX graph; made by :func:`load_text_encoder`."""

    def __init__(self, component: str, config: CLIPTextConfig) -> None:
        super().__init__()
        self.component = component
        self.config = config

    @property
    def session(self) -> TensorSession:
        """The session that computes."""
        return self.sessions[self.component]

    @property
    def text_model(self) -> SimpleNamespace:
        """The final norm that diffusers asks for with clip skip, which the graph has done."""
        return SimpleNamespace(final_layer_norm=torch.nn.Identity())

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Embeddings of the tokens.

        Args:
            input_ids: integers [B, tokens].
            output_hidden_states: also :class:`SkippedStates`, or all layers' outputs where the graph has them (SDXL).

        Returns:
            ``last_hidden_state`` float [B, tokens, width], ``pooler_output`` [B, width] and ``hidden_states``; of an
            encoder that projects, ``text_embeds`` [B, width] first.

        Raises:
            UsageError: a mask, positions or attentions are asked for, or states that the graph does not have; there are
                more tokens than it takes, or tokens that it does not know.
            BadModelError, ProviderError: as :meth:`sdort.integrations.torch.tensor_session.TensorSession.run`.
        """
        asked = {
            "attention_mask": attention_mask is not None,
            "position_ids": position_ids is not None,
            "output_attentions": bool(output_attentions),
        }
        if any(asked.values()):
            names = ", ".join(name for name, value in asked.items() if value)
            raise UsageError(f"the graph of {self.component} takes no {names}", hint="Take text_encoder='torch'.")
        self._check_tokens(input_ids)
        outputs = self.session.run({next(iter(self.session.inputs)): input_ids})
        outputs = {name: value.to(input_ids.device) for name, value in outputs.items()}
        # Whatever another exporter calls it, it comes first.
        last = outputs[_LAST] if _LAST in outputs else next(iter(outputs.values()))
        states = self._states(outputs) if output_hidden_states else None
        made = (
            CLIPTextModelOutput(text_embeds=outputs[_EMBEDS], last_hidden_state=last, hidden_states=states)
            if _EMBEDS in outputs
            else BaseModelOutputWithPooling(
                last_hidden_state=last, pooler_output=outputs.get(_POOLED), hidden_states=states
            )
        )
        return made.to_tuple() if return_dict is False else made

    def _check_tokens(self, input_ids: torch.Tensor) -> None:
        """Refuse what the graph's tables of positions and words do not have.

        Raises:
            UsageError: there are more tokens, or others.
        """
        if not isinstance(input_ids, torch.Tensor):
            return  # which the session says
        positions, words = self.config.max_position_embeddings, self.config.vocab_size
        if input_ids.ndim == 2 and input_ids.shape[1] > positions:
            raise UsageError(
                f"{self.component} takes at most {positions} tokens, and these are {input_ids.shape[1]}",
                hint="Encode a longer prompt in pieces, and join what comes of them (compel does).",
            )
        if not input_ids.numel():
            return
        least, most = int(input_ids.min()), int(input_ids.max())
        if not 0 <= least <= most < words:
            raise UsageError(
                f"{self.component} knows the tokens 0 to {words - 1}, and not {least if least < 0 else most}",
                hint="For new words (textual inversion) take text_encoder='torch'.",
            )

    def _states(self, outputs: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
        numbered = [name for name in outputs if name.startswith(_STATES)]
        if numbered:
            return tuple(outputs[f"{_STATES}{layer}"] for layer in range(len(numbered)))
        return SkippedStates(outputs, self.config.num_hidden_layers)

    def get_input_embeddings(self) -> NoReturn:
        """Refused: ``load_textual_inversion`` would add words to it.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"a word cannot be added to the ONNX graph of {self.component}",
            hint="Take text_encoder='torch', or export the checkpoint with the word: "
            "sdort export MODEL OUT --embedding FILE",
        )

    def load_adapter(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"an adapter of {self.component} cannot be loaded into its ONNX graph",
            hint="Take text_encoder='torch', or put it into the weights: sdort export MODEL OUT --lora FILE",
        )


def load_text_encoder(
    path: str | Path, component: str = "text_encoder", **options: Unpack[LoadOptions]
) -> GraphTextEncoder:
    """A text encoder of an exported or optimized pipeline as a torch module.

    Args:
        path: the pipeline's folder.
        component: ``text_encoder`` or SDXL's ``text_encoder_2``.
        options: as for :func:`sdort.integrations.torch.unet_module.load_unet`.

    Raises:
        BadModelError: there is no such component, it does not load, or a file is not what sdort wrote.
        UsageError: ``component`` is none of the two, or none of CLIP's; or as for the UNet.
        ProviderError: as for the UNet.

    Example:
        >>> encoder = load_text_encoder("fast", provider="cuda")
        >>> pipeline.register_modules(text_encoder=encoder)
    """
    if component not in TEXT_ENCODERS:
        raise UsageError(f"there is no text encoder {component!r}", hint=f"There are {' and '.join(TEXT_ENCODERS)}.")
    opened = open_components(path, (component,), options)
    return text_encoder_of(opened, component, reloader(load_text_encoder, path, options, component=component))


def text_encoder_of(opened: OpenedComponents, component: str, reload: Reload) -> GraphTextEncoder:
    """The module of an open text encoder; ``reload`` makes it again.

    Raises:
        UsageError: it is none of CLIP's.
    """
    for each in opened.folder.family.encoders:
        if each.component == component and each.plain:
            raise UsageError(
                f"{component} of {opened.folder.path} is a {each.class_name}, and torch modules are of CLIP's alone",
                hint="sdort.load runs the whole pipeline.",
            )
    encoder = GraphTextEncoder(component, CLIPTextConfig(**opened.folder.config(component)))
    encoder.attach({component: opened.sessions[component]}, reload)
    encoder.eval()
    return encoder
