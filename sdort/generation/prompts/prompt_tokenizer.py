"""The tokens of texts, as transformers' ``CLIPTokenizer`` gives them, from the files that it reads.

It is made of the library ``tokenizers``, and so is this: the library is imported in a hundredth of the time. What a
text goes through is ``CLIPTokenizer.__init__``'s of transformers 5, whichever transformers is installed: NFC, runs of
whitespace as one space, lower case, words and single digits, byte-pair encoding. Added and special tokens are found
before that, in the order and with the flags of ``PreTrainedTokenizerBase._from_pretrained``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdort.checkpoints.configs import read_config
from sdort.checkpoints.tokenizer_files import MAX_TEXT_FILE
from sdort.families.family import BOS, EOS

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import BPE

Listed = tuple[int | None, "AddedToken"]
"""A token and the id that its file gives it, if one does."""

_WORD_END = "</w>"
_UNLIMITED = 10**30
"""Tokens of a text where no file says how many it may have; transformers writes this."""
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_NAMED = {"bos_token": BOS, "eos_token": EOS, "unk_token": EOS, "pad_token": EOS}
"""Special tokens by name -> what they are where no file says it."""
_UNNAMED = ("extra_special_tokens", "additional_special_tokens")
_VOCABULARY, _MERGES, _WHOLE = "vocab.json", "merges.txt", "tokenizer.json"


class PromptTokenizer:
    """A :class:`sdort.generation.prompts.prompt_chunks.Tokenizer` without transformers.

    Args:
        folder: its files, which :func:`sdort.checkpoints.tokenizer_files.check_tokenizer` has taken.

    Raises:
        BadModelError: a file is no JSON object, or too large.
        Exception: of any other kind, where the library does not take what they say.
    """

    def __init__(self, folder: Path) -> None:
        config = _read(folder, "tokenizer_config.json")
        special, listed = _special_and_listed(folder, config)
        self.length = int(config.get("model_max_length") or _UNLIMITED)
        self._tokenizer = _encoder(folder, special["unk_token"])
        self._tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
        self._tokenizer.add_tokens([token for _, token in listed])
        for number, token in listed:
            self._check_number(token.content, number)
        self.begin, self.end, self.padding = (self._special(special, each) for each in ("bos", "eos", "pad"))

    @property
    def added(self) -> dict[str, int]:
        """As :attr:`sdort.generation.prompts.prompt_chunks.Tokenizer.added`."""
        found = self._tokenizer.get_added_tokens_decoder()
        return {found[number].content: number for number in sorted(found)}

    def ids(self, text: str) -> list[int]:
        """The ids of a text's tokens, without begin and end."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        joined: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return joined.replace(_WORD_END, " ").strip()

    def number(self, token: str) -> int | None:
        """The id of a token; None if there is none."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def _special(self, special: Mapping[str, str], name: str) -> int:
        text = special.get(f"{name}_token")
        number = None if text is None else self.number(text)
        if number is None:
            raise ValueError(f"it has no {name}_token")
        return number

    def _check_number(self, token: str, listed: int | None) -> None:
        """The library gives new tokens the next numbers, whatever a file says."""
        if listed not in (None, number := self.number(token)):
            raise ValueError(f"{token!r} has the number {listed} in its files, and is token {number}")


def _encoder(folder: Path, unknown: str) -> Tokenizer:
    """The encoder of texts, without added tokens."""
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

    encoder = Tokenizer(_pair_encoding(folder, unknown))
    encoder.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    encoder.decoder = decoders.ByteLevel()
    return encoder


def _pair_encoding(folder: Path, unknown: str) -> BPE:
    from tokenizers.models import BPE

    settings: dict[str, Any] = {"unk_token": unknown, "end_of_word_suffix": _WORD_END, "fuse_unk": False}
    if os.path.lexists(folder / _VOCABULARY):
        return BPE.from_file(str(folder / _VOCABULARY), str(folder / _MERGES), **settings)
    model = _read(folder, _WHOLE)["model"]
    pairs = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
    return BPE(model["vocab"], pairs, **settings)


def _special_and_listed(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, str], list[Listed]]:
    """The special tokens by name; and all that are added to the vocabulary, in their order."""
    from tokenizers import AddedToken

    entries = config.get("added_tokens_decoder")
    if entries is None:  # as transformers saved it before version 4.34
        config = {**config, **_read(folder, "special_tokens_map.json")}
        entries = _older_entries(folder)
    given = {**_NAMED, **config}
    named = {name: token for name, token in given.items() if name.endswith("_token") and isinstance(token, str | dict)}
    unnamed = [token for name in _UNNAMED for token in given.get(name) or ()]
    numbers = sorted(((int(number), entry) for number, entry in entries.items()), key=lambda each: each[0])
    listed: dict[str, Listed] = {entry["content"]: (number, AddedToken(**entry)) for number, entry in numbers}
    for token in (*named.values(), *unnamed):
        flags: dict[str, Any] = {"content": token} if isinstance(token, str) else {**token}
        flags |= {"special": True}
        flags.pop("__type", None)
        listed.setdefault(flags["content"], (None, AddedToken(**flags)))
    texts = {name: token if isinstance(token, str) else token["content"] for name, token in named.items()}
    return texts, list(listed.values())


def _older_entries(folder: Path) -> dict[int, dict[str, Any]]:
    """Added tokens by id, of files without ``added_tokens_decoder``."""
    table = _read(folder, "added_tokens.json")
    entries = {number: {"content": token, "normalized": True} for token, number in table.items()}
    whole = _read(folder, _WHOLE)
    return entries | {
        entry["id"]: {name: value for name, value in entry.items() if name != "id"}
        for entry in whole.get("added_tokens") or ()
    }


def _read(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of the tokenizer, empty where there is none."""
    path = folder / name
    return read_config(path, limit=MAX_TEXT_FILE) if os.path.lexists(path) else {}
