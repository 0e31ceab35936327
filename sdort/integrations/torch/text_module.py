"""A text encoder as a torch module with the signature and outputs of transformers' CLIP, T5 and Qwen3 models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.models.clip.modeling_clip import CLIPTextModelOutput

from sdort.errors import UsageError
from sdort.families.component_names import CLIP_SKIP
from sdort.families.known_families import TEXT_ENCODERS
from sdort.families.text_models import CLIP, TEXT_MODELS
from sdort.integrations.torch.graph_module import GraphModule, Reload, reloader
from sdort.integrations.torch.opened_component import OpenedComponents, open_components
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.providers.runtime_options import LoadOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LAST, _POOLED, _EMBEDS, _STATES = "last_hidden_state", "pooler_output", "text_embeds", "hidden_states."


class SkippedStates(Sequence[torch.Tensor]):
    """The outputs of those of an encoder's layers that a graph has.

    Exports of Stable Diffusion 1.x and 2.x have those of the last layers through the final norm, counted from the end:
    what clip skip takes. The module's ``text_model.final_layer_norm`` leaves them as they are.
    """

    def __init__(self, outputs: Mapping[str, torch.Tensor], layers: int) -> None:
        self._outputs = outputs
        self._layers = layers

    def __len__(self) -> int:
        return self._layers + 1

    def __getitem__(self, index: Any) -> Any:
        names = []
        if isinstance(index, int):
            skipped = _LAST if index == -1 else f"{CLIP_SKIP}.{-index}"
            names = [skipped, f"{_STATES}{index + len(self) if index < 0 else index}"]
        found = next((name for name in names if name in self._outputs), None)
        if found is None:
            raise UsageError(
                f"the text encoder was exported without the hidden state {index}",
                hint="Take text_encoder='torch', or another clip_skip.",
            )
        return self._outputs[found]


class GraphTextEncoder(GraphModule, torch.nn.Module):  # type: ignore[misc]
    """A text encoder that runs as an ONNX graph; made by :func:`load_text_encoder`."""

    def __init__(self, component: str, config: Any, *, masked: bool = False) -> None:
        super().__init__()
        self.component = component
        self.config = config
        self.masked = masked
        """As :attr:`sdort.families.family.PlainText.masked`."""

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
            attention_mask: [B, tokens], of padding, which the graph of Chroma's encoder leaves out by itself.
            output_hidden_states: also :class:`SkippedStates`, or all layers' outputs where the graph has them (SDXL).

        Returns:
            ``last_hidden_state`` float [B, tokens, width], ``pooler_output`` [B, width] and ``hidden_states``; of an
            encoder that projects, ``text_embeds`` [B, width] first.

        Raises:
            UsageError: another mask, positions or attentions are asked for, or states that the graph does not have;
                there are more tokens than it takes, or tokens that it does not know.
            BadModelError, ProviderError: as :meth:`sdort.integrations.torch.tensor_session.TensorSession.run`.
        """
        self._refuse(
            attention_mask=attention_mask is not None and not self._is_own(attention_mask, input_ids),
            position_ids=position_ids is not None,
            output_attentions=bool(output_attentions),
        )
        self._check_tokens(input_ids)
        outputs = self._encoded(input_ids)
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

    def _refuse(self, **asked: bool) -> None:
        names = ", ".join(name for name, value in asked.items() if value)
        if names:
            raise UsageError(f"the graph of {self.component} takes no {names}", hint="Take text_encoder='torch'.")

    def _is_own(self, mask: torch.Tensor, input_ids: torch.Tensor) -> bool:
        """Whether a mask leaves out what the graph leaves out by itself: padding, of an encoder that does."""
        return self.masked and torch.equal(mask.bool(), input_ids != self.config.pad_token_id)

    def _encoded(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """The graph's outputs, where the tokens are."""
        outputs = self.session.run({next(iter(self.session.inputs)): input_ids})
        return {name: value.to(input_ids.device) for name, value in outputs.items()}

    def _check_tokens(self, input_ids: torch.Tensor) -> None:
        """Refuse what the graph's tables of positions and words do not have.

        Raises:
            UsageError: there are more tokens, or others.
        """
        if not isinstance(input_ids, torch.Tensor):
            return  # which the session says
        # T5 has no table of positions.
        positions, words = getattr(self.config, "max_position_embeddings", None), self.config.vocab_size
        if positions is not None and input_ids.ndim == 2 and input_ids.shape[1] > positions:
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
        if len(numbered) > self.config.num_hidden_layers:
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


class GraphPenultimateEncoder(GraphTextEncoder):
    """A language model (Qwen3) that encodes text, whose graph ends before the last layer.

    A token's state follows from the tokens up to it, so that padding behind them needs no mask.
    """

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """States of the tokens.

        Args:
            input_ids: integers [B, tokens].
            attention_mask: [B, tokens], which leaves out tokens at the end alone.
            output_hidden_states: has to be True.

        Returns:
            ``hidden_states``, of which the graph has ``hidden_states[-2]``, float [B, tokens, width]. Columns that the
            mask leaves out of all rows are zeros.

        Raises:
            UsageError: positions or attentions are asked for, no states are, or the mask leaves out others; tokens as
                for :class:`GraphTextEncoder`.
            BadModelError, ProviderError: as there.
        """
        self._refuse(position_ids=position_ids is not None, output_attentions=bool(output_attentions))
        if not output_hidden_states:
            raise UsageError(
                f"the graph of {self.component} ends before its last layer",
                hint="Give output_hidden_states=True, and take hidden_states[-2].",
            )
        self._check_tokens(input_ids)
        tokens = input_ids.shape[-1]
        read = tokens if attention_mask is None else self._read(attention_mask)
        outputs = {
            name: torch.nn.functional.pad(value, (0, 0, 0, tokens - read))
            for name, value in self._encoded(input_ids[:, :read]).items()
        }
        made = BaseModelOutput(hidden_states=self._states(outputs))
        return made.to_tuple() if return_dict is False else made

    def _read(self, mask: torch.Tensor) -> int:
        """The columns that a mask leaves in some row."""
        kept = mask.bool().int()
        if bool((kept.diff(dim=1) > 0).any()):
            raise UsageError(
                f"the graph of {self.component} takes padding behind the tokens alone",
                hint="Give the tokenizer padding_side='right', or take text_encoder='torch'.",
            )
        return max(1, int(kept.sum(1).max()))


def load_text_encoder(
    path: str | Path, component: str = "text_encoder", **options: Unpack[LoadOptions]
) -> GraphTextEncoder:
    """A text encoder of an exported or optimized pipeline as a torch module.

    Args:
        path: the pipeline's folder.
        component: ``text_encoder``, or ``text_encoder_2`` or ``text_encoder_3`` of families that have these.
        options: as for :func:`sdort.integrations.torch.unet_module.load_unet`.

    Raises:
        BadModelError: there is no such component, it does not load, or a file is not what sdort wrote.
        UsageError: ``component`` is none of these; or as for the UNet.
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
    """The module of an open text encoder; ``reload`` makes it again."""
    known = next((each for each in opened.folder.family.encoders if each.component == component), None)
    model = TEXT_MODELS[known.class_name if known else CLIP]
    masked = bool(known and known.plain and known.plain.masked)
    config = getattr(transformers, model.config_class)(**opened.folder.config(component))
    kind = GraphPenultimateEncoder if model.penultimate else GraphTextEncoder
    encoder = kind(component, config, masked=masked)
    encoder.attach({component: opened.sessions[component]}, reload)
    encoder.eval()
    return encoder
