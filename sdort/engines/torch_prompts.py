"""Prompts for diffusers' pipelines, which read the first 75 tokens of a text and take longer ones as embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sdort.families.family import Encoder, Family
from sdort.families.known_families import family_of
from sdort.generation.prompts.prompt_chunks import divide
from sdort.generation.prompts.prompt_syntax import read_prompt
from sdort.generation.prompts.text_conditioning import PromptReader, Texts, encode_prompts, same_length
from sdort.generation.requests.prompt_copies import negative_is_zero
from sdort.generation.requests.request import Request
from sdort.graph.signature import TensorSpec
from sdort.pipelines.conditioning import Conditioning, condition, encoder_outputs


def prompt_arguments(pipeline: Any, request: Request, context: TensorSpec | None = None) -> dict[str, Any]:
    """The arguments of a diffusers pipeline that say the prompts of a request.

    They are texts where the pipeline reads all of them, so that its own reading is what is compared; otherwise
    embeddings of its own text encoders, of the chunks that sdort makes.

    Args:
        context: ``encoder_hidden_states`` of the UNet that is compared with; None if it takes any number of tokens.
    """
    parts = {name: part for name, part in pipeline.components.items() if part is not None}
    family = family_of(parts, lambda name: type(parts[name]).__name__)
    family = family.told_by(lambda: parts[family.denoiser.component].config)
    if family.plain:  # one row
        limit = max(each.plain.limit for each in (*family.encoders, *family.absent) if each.plain)
        texts = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
        return {**texts, "max_sequence_length": limit}
    tokenizers = {each.component: TransformersTokenizer(getattr(pipeline, each.tokenizer)) for each in family.encoders}
    reader = PromptReader(tokenizers, context)
    prompt, negative = ((text,) * len(family.encoders) for text in (request.prompt, request.negative_prompt))
    weighting = request.prompt_weighting
    forced = bool(pipeline.config.get("force_zeros_for_empty_prompt"))
    is_zero = negative_is_zero(weighting, bool(request.negative_prompt), forced)
    if reader.fixed == 1 or (_fits(reader, prompt, weighting) and _fits(reader, negative, weighting)):
        # SDXL's pipeline takes zeros where there is none, and encodes an empty one.
        return {"prompt": request.prompt, "negative_prompt": None if is_zero else request.negative_prompt}
    encode = partial(encode_prompts, reader, weighting=weighting, encode=partial(_encode, pipeline, family))
    conditions = _conditions(family, encode({prompt: "prompt", negative: "negative prompt"}))
    if is_zero:
        conditions[negative] = {name: np.zeros_like(value) for name, value in conditions[negative].items()}
    blank: Texts = ("",) * len(family.encoders)
    same_length(
        list(conditions.values()), reader.tokens, reader.fixed, lambda: _conditions(family, encode({blank: ""}))[blank]
    )
    return {
        f"{prefix}{argument}": _tensor(pipeline, conditions[texts][name])
        for prefix, texts in (("", prompt), ("negative_", negative))
        for name, argument in _ARGUMENTS.items()
        if name in conditions[texts]
    }


_ARGUMENTS = {"encoder_hidden_states": "prompt_embeds", "text_embeds": "pooled_prompt_embeds"}
"""Conditioning input of the UNet -> diffusers' argument."""


class TransformersTokenizer:
    """A :class:`sdort.generation.prompts.prompt_chunks.Tokenizer` of transformers' own."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.length: int = tokenizer.model_max_length
        self.begin: int = tokenizer.bos_token_id
        self.end: int = tokenizer.eos_token_id
        self.padding: int = tokenizer.pad_token_id

    @property
    def added(self) -> dict[str, int]:
        return dict(self._tokenizer.added_tokens_encoder)

    def ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, truncation=False, verbose=False).input_ids)

    def text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def number(self, token: str) -> int | None:
        found: int | None = self._tokenizer.get_vocab().get(token)
        return found


def _fits(reader: PromptReader, texts: Texts, weighting: str) -> bool:
    """Whether a prompt is one chunk to every text encoder."""
    return all(
        len(divide(read_prompt(text, weighting), vocabulary, weighting)) == 1
        for text, vocabulary in zip(texts, reader.chunked, strict=True)
    )


def _conditions(family: Family, parts: dict[Texts, list[Conditioning]]) -> dict[Texts, Conditioning]:
    """By texts the embeddings; sizes are the pipeline's affair."""
    found = {texts: condition(family, part, (0, 0)) for texts, part in parts.items()}
    return {texts: {name: each[name] for name in _ARGUMENTS if name in each} for texts, each in found.items()}


def _encode(pipeline: Any, family: Family, component: str, rows: Sequence[tuple[int, ...]]) -> list[Conditioning]:
    """The conditioning by each row of token ids, by a text encoder in torch."""
    import torch

    encoder: Encoder = next(each for each in family.encoders if each.component == component)
    module = getattr(pipeline, component)
    with torch.no_grad():
        found = module(torch.tensor(rows, device=module.device), output_hidden_states=True)
    named = {name: value for name, value in found.items() if name != "hidden_states"}
    named |= {f"hidden_states.{index}": value for index, value in enumerate(found.hidden_states)}
    outputs = encoder_outputs(encoder, list(named), module.config.to_dict())
    arrays = {name: named[output].float().cpu().numpy() for name, output in outputs.items()}
    return [{name: array[row : row + 1] for name, array in arrays.items()} for row in range(len(rows))]


def _tensor(pipeline: Any, value: Any) -> Any:
    import torch

    return torch.from_numpy(value).to(pipeline.device, pipeline.unet.dtype)
