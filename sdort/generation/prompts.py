"""Token ids of a prompt, as diffusers' Stable Diffusion pipeline tokenizes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdort.console import say, warn
from sdort.errors import BadModelError
from sdort.errors.plain_text import library_reason
from sdort.generation.request import Request
from sdort.model.signature import Array
from sdort.pipelines.configs import check_processor
from sdort.pipelines.tokenizer_files import TABLES, check_tokenizer

_LONGEST = 4096
"""The most tokens of a prompt; CLIP has 77, its longer descendants 248 and more."""
_SHOWN = 200
"""Characters of a prompt's lost part that a message repeats."""


def load_tokenizer(folder: Path) -> Any:
    """The pipeline's CLIP tokenizer, from files of its own.

    Raises:
        BadModelError: ``folder`` has no tokenizer that loads, or its files do not belong together.
    """
    if not folder.is_dir():
        raise BadModelError(f"{folder} is missing", hint="Export the pipeline again: its tokenizer belongs to it.")
    check_tokenizer(folder)
    check_processor(folder, besides=TABLES)
    from transformers import CLIPTokenizer

    try:
        tokenizer = CLIPTokenizer.from_pretrained(str(folder), local_files_only=True)
        length = tokenizer.model_max_length
        if 2 <= length <= _LONGEST:
            tokenize(tokenizer, "")
    except Exception as error:  # broken vocabularies end in KeyError, json and tokenizers errors alike
        raise BadModelError(f"cannot read the tokenizer in {folder}: {library_reason(error)}") from error
    if not 2 <= length <= _LONGEST:
        raise BadModelError(
            f"the tokenizer in {folder} pads prompts to {length:.6g} tokens, not 2 to {_LONGEST}",
            hint="model_max_length in its tokenizer_config.json is the text encoder's max_position_embeddings: 77.",
        )
    return tokenizer


def tokenize(tokenizer: Any, prompt: str) -> Array:
    """Token ids [1, model_max_length], padded and cut to CLIP's length."""
    length = tokenizer.model_max_length
    ids = tokenizer(prompt, padding="max_length", max_length=length, truncation=True).input_ids
    return np.asarray([ids], np.int64)


def remark_on_prompts(tokenizer: Any, requests: Sequence[Request], guided: bool) -> None:
    """Say what of the prompts has no effect: what CLIP cuts off, and negative prompts without guidance.

    Args:
        guided: whether there is classifier-free guidance.
    """
    prompts = dict.fromkeys(request.prompt for request in requests)
    negative = dict.fromkeys(request.negative_prompt for request in requests if request.negative_prompt)
    for prompt in prompts:
        _warn_of_cut(tokenizer, prompt, "prompt")
    if not all(prompt.strip() for prompt in prompts):
        say("the prompt is empty: the image shows what the model makes up")
    for prompt in negative if guided else ():
        _warn_of_cut(tokenizer, prompt, "negative prompt")
    if negative and not guided:
        off = requests[0].guidance_scale <= 1
        warn(
            "the negative prompt has no effect: "
            + ("--guidance-scale 1 and less turn guidance off" if off else "the UNet of this model takes none")
        )


def _warn_of_cut(tokenizer: Any, prompt: str, kind: str) -> None:
    """Say which part of a prompt is beyond CLIP's length."""
    length = tokenizer.model_max_length
    # Truncation off: this only looks for what was lost.
    whole = tokenizer(prompt, truncation=False, verbose=False).input_ids
    if len(whole) > length:
        # As many tokens as are shown at most: a prompt of 100,000 characters is no message.
        lost = tokenizer.decode(whole[length - 1 : -1][:_SHOWN])
        lost = lost if len(lost) <= _SHOWN and len(whole) - length <= _SHOWN else f"{lost[:_SHOWN]}..."
        warn(
            f"the {kind} has {len(whole) - 2} tokens, and the model reads {length - 2}; this part has no effect: {lost}"
        )
