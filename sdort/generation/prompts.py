"""Token ids of a prompt, as diffusers' Stable Diffusion pipeline tokenizes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sdort.console import warn
from sdort.errors import BadModelError
from sdort.model.signature import Array


def load_tokenizer(folder: Path) -> Any:
    """The pipeline's CLIP tokenizer, from files of its own.

    Raises:
        BadModelError: ``folder`` has no tokenizer that loads.
    """
    if not folder.is_dir():
        raise BadModelError(f"{folder} is missing", hint="Export the pipeline again: its tokenizer belongs to it.")
    from transformers import CLIPTokenizer

    try:
        return CLIPTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # broken vocabularies end in KeyError, json and tokenizers errors alike
        raise BadModelError(f"cannot read the tokenizer in {folder}: {error}") from error


def tokenize(tokenizer: Any, prompt: str) -> Array:
    """Token ids [1, model_max_length], padded and cut to CLIP's length."""
    length = tokenizer.model_max_length
    ids = tokenizer(prompt, padding="max_length", max_length=length, truncation=True).input_ids
    return np.asarray([ids], np.int64)


def warn_of_cut(tokenizer: Any, prompt: str) -> None:
    """Say which part of a prompt is beyond CLIP's length."""
    length = tokenizer.model_max_length
    # Truncation off: this only looks for what was lost.
    whole = tokenizer(prompt, truncation=False, verbose=False).input_ids
    if len(whole) > length:
        lost = tokenizer.decode(whole[length - 1 : -1])
        warn(f"the prompt is longer than {length - 2} tokens; this part has no effect: {lost}")
