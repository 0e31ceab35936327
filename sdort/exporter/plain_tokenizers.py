"""Tokenizers of text encoders that read plain text, in the one form that ``sdort run`` reads.

Checkpoints have ``tokenizer.json``, SentencePiece's ``spiece.model`` or ``vocab.json`` with ``merges.txt``, and
transformers changes what the first says. What it makes of them is written once, so that runs need no transformers and
have its tokens.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sdort.errors import BadModelError, MissingPackageError
from sdort.errors.plain_text import library_reason
from sdort.exporter.component_configs import DOWNLOAD_AGAIN
from sdort.families.family import PlainText
from sdort.machine.optional_packages import is_installed, need_packages

_FORMS = (("tokenizer.json",), ("spiece.model",), ("vocab.json", "merges.txt"))
"""The files that transformers makes a tokenizer of, any one of these; the second takes SentencePiece's library."""
_PIECES = "sentencepiece"
_PROMPTS = ("a", "b c\n")


def read_plain_tokenizer(source: Path, plain: PlainText) -> Any:
    """Transformers' tokenizer of a checkpoint's files.

    Args:
        source: the files.
        plain: how the encoder reads prompts.

    Raises:
        BadModelError: files are missing, transformers does not take them, or their chat template is another one.
        MissingPackageError: SentencePiece's file is the only one, and its library is not installed.
    """
    if not any(all(os.path.lexists(source / name) for name in form) for form in _FORMS):
        forms = ", ".join(" with ".join(form) for form in _FORMS)
        raise BadModelError(f"{source} has no tokenizer: none of {forms}", hint=DOWNLOAD_AGAIN)
    if not any(os.path.lexists(source / name) for name in (_FORMS[0][0], _FORMS[2][0])) and not is_installed(_PIECES):
        raise MissingPackageError(
            f"{source} has no tokenizer.json, and reading its {_FORMS[1][0]} needs {_PIECES}, which is not installed",
            hint=f"pip install {_PIECES}",
        )
    tokenizer = _load(source, plain.tokenizer)
    if plain.before:
        _check_template(tokenizer, plain, source)
    return tokenizer


def write_plain_tokenizer(source: Path, plain: PlainText, folder: Path) -> None:
    """Write ``tokenizer.json`` of :func:`read_plain_tokenizer`.

    Args:
        folder: where the other files of the tokenizer are.

    Raises:
        BadModelError: as there.
    """
    backend = read_plain_tokenizer(source, plain).backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    backend.save(str(folder / "tokenizer.json"))


def _load(source: Path, class_name: str) -> Any:
    need_packages("transformers", what="reading a tokenizer")
    import transformers

    try:
        return getattr(transformers, class_name).from_pretrained(source, local_files_only=True)
    except Exception as error:  # broken vocabularies end in errors of any kind
        raise BadModelError(
            f"transformers cannot load the tokenizer in {source}: {library_reason(error)}", hint=DOWNLOAD_AGAIN
        ) from error


def _check_template(tokenizer: Any, plain: PlainText, source: Path) -> None:
    """The chat template of a checkpoint says what its family says, whatever the prompt."""
    for prompt in _PROMPTS:
        try:
            made = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=True
            )
        except Exception as error:  # a template is a program
            raise BadModelError(
                f"the chat template in {source} does not work: {library_reason(error)}", hint=DOWNLOAD_AGAIN
            ) from error
        if made != f"{plain.before}{prompt}{plain.after}":
            raise BadModelError(
                f"the chat template in {source} is not that of the family: it makes {made[:200]!r} of {prompt!r}",
                hint="Copy or download the tokenizer of the family's own checkpoint.",
            )
