"""sdort's tokenizer against transformers': the same ids for any text, from every form of the files."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sdort.checkpoints.added_tokens import add_tokens
from sdort.checkpoints.clip_merges import read_clip_merges
from sdort.checkpoints.clip_tokenizer import write_clip_tokenizer
from sdort.engines.torch_prompts import TransformersTokenizer
from sdort.errors import BadModelError
from sdort.families.family import BOS, EOS
from sdort.generation.prompts.prompt_chunks import Vocabulary
from sdort.generation.prompts.prompt_tokenizer import PromptTokenizer
from sdort.generation.requests.tokenizers import load_tokenizer

SIZE = 49408
"""Tokens of CLIP."""
WORDS = (BOS, EOS, "<cat>", "my-style", "My-STYLE_1", "!", "the house", "the \n\u00a0house", "flowering")
LETTERS = (
    "abcdefgh xyz ", "ABC'sntre ' 'll'd 've", "0123456789 .,!?-_()[]{}:;\"<>|\\/", "éèñüßſﬁİıǅ",
    "漢字かなカナ한글🙂👩‍👩‍👧🏳️‍🌈",
    "\t\n\r\x0b\x0c\u00a0\u2003\u3000\u200b\ufeff\x00\x1c\x85", "e\u0301a\u0308\u0323",
    "ªº½Ⅷ①²", "عربيעבריתไทยहिन्दी", "</w>Ġ",
)  # fmt: skip
"""Kinds of letters: those that normalize, split or vanish in ways of their own."""
PLANES = ((0x20, 0x7F), (0, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000))


def texts(count: int) -> Iterator[str]:
    rng = random.Random(0)
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(12)):
            kind = rng.random()
            if kind < 0.3:
                parts.append(rng.choice(WORDS))
            elif kind < 0.8:
                parts += rng.choices(rng.choice(LETTERS), k=rng.randrange(1, 6))
            else:
                parts += [chr(rng.randrange(*rng.choice(PLANES))) for _ in range(rng.randrange(1, 6))]
        yield "".join(parts)


def as_written(folder: Path) -> None:
    """As a single file's export has it, with words of embeddings."""
    write_clip_tokenizer(folder, read_clip_merges())
    add_tokens(folder, {"<cat>": SIZE, "my-style": SIZE + 1, "my-style_1": SIZE + 2, "the house": SIZE + 3})


def second(folder: Path) -> None:
    """SDXL's second, which pads with a token of its vocabulary; one file alone says it."""
    write_clip_tokenizer(folder, read_clip_merges(), pad="!")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": EOS}))


def saved(folder: Path) -> None:
    """As the installed transformers saves it."""
    from transformers import CLIPTokenizer

    as_written(folder)
    CLIPTokenizer.from_pretrained(folder).save_pretrained(folder)
    for name in ("vocab.json", "merges.txt", "added_tokens.json"):
        (folder / name).unlink(missing_ok=True)


def published(folder: Path) -> None:
    """As Stable Diffusion 1.5 has it, of transformers 4.22: special tokens with flags, words in a file of their own."""
    write_clip_tokenizer(folder, read_clip_merges())
    flags = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    special: dict[str, Any] = {
        f"{name}_token": {"content": text, **flags} for name, text in (("bos", BOS), ("eos", EOS))
    }
    special |= {"unk_token": special["eos_token"], "pad_token": EOS}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    typed = {name: {"__type": "AddedToken", **token} for name, token in special.items() if name != "pad_token"}
    config = {"add_prefix_space": False, "do_lower_case": True, "errors": "replace", "model_max_length": 77, **typed}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": EOS, "name_or_path": "clip"}))
    (folder / "added_tokens.json").write_text(json.dumps({"<cat>": SIZE, "my-style": SIZE + 1}))


@pytest.mark.parametrize("form", [as_written, second, saved, published])
def test_ids_are_those_of_transformers(form: Callable[[Path], None], tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    form(tmp_path)
    ours, theirs = load_tokenizer(tmp_path), TransformersTokenizer(CLIPTokenizer.from_pretrained(tmp_path))
    for of_both in ("length", "begin", "end", "padding", "added"):
        assert getattr(ours, of_both) == getattr(theirs, of_both), of_both
    assert [ours.number(token) for token in (",</w>", "<cat>", "none of them")] == [
        theirs.number(token) for token in (",</w>", "<cat>", "none of them")
    ]
    for text in texts(1000):
        ids = theirs.ids(text)
        assert ours.ids(text) == ids, repr(text)
        assert ours.text(ids) == theirs.text(ids), repr(text)


def test_a_token_with_anothers_number_is_refused(tmp_path: Path) -> None:
    """transformers takes it, and gives the prompt another token's embedding."""
    write_clip_tokenizer(tmp_path, ["t h"])
    add_tokens(tmp_path, {"<cat>": 999})
    with pytest.raises(BadModelError, match="'<cat>' has the number 999 in its files, and is token 515"):
        load_tokenizer(tmp_path)


def test_a_special_token_that_is_none_is_refused(tmp_path: Path) -> None:
    write_clip_tokenizer(tmp_path, ["t h"])
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(config | {"pad_token": None, "added_tokens_decoder": {}})
    )
    with pytest.raises(BadModelError, match="it has no pad_token"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("case", [str.lower, str.upper, str.title])
def test_the_word_of_an_embedding_is_a_whole_word(case: Callable[[str], str], tmp_path: Path) -> None:
    """As A1111 finds it, which looks for the tokens of the name; a name in brackets says itself where it ends."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    write_clip_tokenizer(folder, read_clip_merges())
    add_tokens(folder, {"EasyNegative": SIZE, "EasyNegative_1": SIZE + 1, "<cat>": SIZE + 2})
    vocabulary = Vocabulary(PromptTokenizer(folder))
    word = case("easynegative")
    for before, behind in itertools.product(
        ("", "a ", "(", ",", "星 ", "un", "星", "1"), ("", " b", ", bad", ":", "V2", "s")
    ):
        found = [number for number in vocabulary.ids(f"{before}{word}{behind}") if number >= SIZE]
        joined = before[-1:].isalnum() or behind[:1].isalnum()
        assert found == ([] if joined else [SIZE, SIZE + 1]), (before, behind)
    assert [number for number in vocabulary.ids("un<cat>s") if number >= SIZE] == [SIZE + 2]
