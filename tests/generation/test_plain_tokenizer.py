"""Rows of tokens of T5 and Qwen3: transformers' own ids, from every form of their files, without transformers."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.plain_tokenizers import CORPUS, TEMPLATE, qwen_checkpoint, t5_checkpoint

from sdort import console
from sdort.checkpoints.clip_merges import read_clip_merges
from sdort.checkpoints.clip_tokenizer import write_clip_tokenizer
from sdort.errors import BadModelError, MissingPackageError, UsageError
from sdort.exporter.plain_tokenizers import write_plain_tokenizer
from sdort.families.family import LAST, Encoder, PlainText
from sdort.families.known_families import FAMILIES
from sdort.generation.prompts.plain_tokenizer import PlainTokenizer
from sdort.generation.prompts.text_conditioning import PromptReader
from sdort.generation.requests.request import Request, as_plain_text
from sdort.generation.requests.tokenizers import load_plain_tokenizer, load_tokenizer
from sdort.options.number_ranges import flag_of
from sdort.pipelines.conditioning import encoder_outputs

LIMIT = 24
T5 = PlainText("T5TokenizerFast", LIMIT, padded=True)
QWEN = PlainText(
    "Qwen2Tokenizer",
    LIMIT,
    padded=False,
    before="<|im_start|>user\n",
    after="<|im_end|>\n<|im_start|>assistant\n",
)
SPECIAL = (
    "</s>", "<pad>", "<unk>", "<extra_id_0>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "\u2581",
)  # fmt: skip
PIECES = (
    *CORPUS, *SPECIAL, "", " ", "  ", "\n", "\r\n", "\n\n ", "\t", "\u00a0", "\u2003", "\u200b", "\ufeff",
    "e\u0301", "ﬁ", "Ⅷ", "½", "ﷺ", "İ", "'S", "'ll", "🏳️‍🌈", "عربي", "ไทย", "(word:1.2)", "A", "1", "\u0085", "\x1c",
)  # fmt: skip


def texts(count: int) -> Iterator[str]:
    """Random ones, an empty one, and one that is far too long."""
    rng = random.Random(0)
    yield from ("", " ", "\n", "word " * 400)
    for _ in range(count - 4):
        parts = []
        for _ in range(rng.randrange(7)):
            if rng.random() < 0.7:
                parts.append(rng.choice(PIECES))
            else:
                plane = rng.choice(((0x20, 0x7F), (1, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000)))
                parts += [chr(rng.randrange(*plane)) for _ in range(rng.randrange(1, 6))]
            parts.append(rng.choice(("", " ")))
        yield "".join(parts)


def exported(source: Path, plain: PlainText, folder: Path) -> PlainTokenizer:
    folder.mkdir()
    (folder / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
    write_plain_tokenizer(source, plain, folder)
    return load_plain_tokenizer(folder, plain, None)


@pytest.mark.parametrize("form", ["tokenizer.json", "spiece.model"])
def test_t5_has_transformers_ids(form: str, tmp_path: Path) -> None:
    """As StableDiffusion3Pipeline and FluxPipeline read prompts: padded to a length, cut there."""
    from transformers import T5TokenizerFast

    if form == "spiece.model":
        pytest.importorskip("sentencepiece")
    t5_checkpoint(tmp_path, form)
    ours, theirs = exported(tmp_path, T5, tmp_path / "out"), T5TokenizerFast.from_pretrained(tmp_path)
    for text in texts(1000):
        ids = theirs(text, padding="max_length", max_length=LIMIT, truncation=True, add_special_tokens=True).input_ids
        assert list(ours.row(text).ids) == ids, repr(text)
        whole = theirs(text, add_special_tokens=False, verbose=False).input_ids
        assert list(ours.row(text).lost) == whole[LIMIT - 1 :], repr(text)


@pytest.mark.parametrize("form", ["tokenizer.json", "vocab.json"])
def test_qwen_has_transformers_ids(form: str, tmp_path: Path) -> None:
    """As ZImagePipeline reads prompts: in the chat template, cut at a length; what is padding is left out."""
    from transformers import Qwen2Tokenizer

    qwen_checkpoint(tmp_path, form)
    ours, theirs = exported(tmp_path, QWEN, tmp_path / "out"), Qwen2Tokenizer.from_pretrained(tmp_path)
    for text in texts(1000):
        chat = theirs.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        read = theirs(chat, padding="max_length", max_length=LIMIT, truncation=True)
        ids = [number for number, real in zip(read.input_ids, read.attention_mask, strict=True) if real]
        assert list(ours.row(text).ids) == ids, repr(text)
        assert list(ours.row(text).lost) == theirs(chat, verbose=False).input_ids[LIMIT:], repr(text)


def test_what_has_no_room_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    t5_checkpoint(tmp_path)
    reader = PromptReader({"text_encoder": exported(tmp_path, T5, tmp_path / "out")}, None)
    [[chunk]] = reader.chunks(("the house " * 20 + "café",), "none", "negative prompt")
    assert len(chunk.ids) == LIMIT
    assert not chunk.weighted
    told = " ".join(capsys.readouterr().err.split())
    assert "the negative prompt has" in told
    assert f"and the model reads {LIMIT}; this part has no effect:" in told
    assert told.endswith("café")


def test_another_template_is_refused(tmp_path: Path) -> None:
    qwen_checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE.replace("assistant", "model"))
    with pytest.raises(BadModelError, match=r"is not that of the family: it makes .*model"):
        exported(tmp_path, QWEN, tmp_path / "out")


def test_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(BadModelError, match=r"no tokenizer: none of tokenizer.json, spiece.model, vocab.json with"):
        write_plain_tokenizer(tmp_path, QWEN, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(BadModelError, match=r"tokenizer\.json is missing"):
        load_plain_tokenizer(tmp_path, QWEN, None)


def test_sentencepiece_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library reads the one file that some checkpoints have; nothing else here takes it."""
    t5_checkpoint(tmp_path, "spiece.model")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingPackageError, match=r"reading its spiece\.model needs sentencepiece"):
        write_plain_tokenizer(tmp_path, T5, tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", "", '{"version": "1.0", "model": {"type": "BPE"}}', "\ud800"])
def test_a_broken_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadModelError, match="cannot read the tokenizer"):
        load_plain_tokenizer(tmp_path, T5, None)


def test_a_tokenizer_of_another_encoder_is_refused(tmp_path: Path) -> None:
    t5_checkpoint(tmp_path)
    tokenizer = exported(tmp_path, T5, tmp_path / "out")
    load_plain_tokenizer(tmp_path / "out", T5, tokenizer.size)
    with pytest.raises(BadModelError, match=f"has {tokenizer.size} tokens, and its text encoder has embeddings for"):
        load_plain_tokenizer(tmp_path / "out", T5, tokenizer.size - 1)


# Families with such an encoder

CLIP = Encoder("text_encoder", {"pooled": "pooler_output"})
PLAIN = Encoder("text_encoder_2", {"words": LAST}, class_name="T5EncoderModel", plain=T5)
FAMILY = replace(FAMILIES["SD 1.x"], encoders=(CLIP, PLAIN))


def test_beside_plain_text_clip_reads_one_chunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As diffusers' pipelines: 77 tokens, whatever the other encoder reads; brackets are text."""
    t5_checkpoint(tmp_path)
    (tmp_path / "clip").mkdir()
    write_clip_tokenizer(tmp_path / "clip", read_clip_merges())
    clip = load_tokenizer(tmp_path / "clip")
    reader = PromptReader({"text_encoder": clip, "text_encoder_2": exported(tmp_path, T5, tmp_path / "out")}, None)
    text = "(word) " * 40
    console.set_verbosity(console.VERBOSE)
    try:
        [[first], [second]] = reader.chunks((text, "a"), "a1111", "prompt")
    finally:
        console.set_verbosity(console.NORMAL)
    assert first.ids == (clip.begin, *clip.ids(text)[:75], clip.end)
    assert {*first.weights, *second.weights} == {1.0}
    assert len(second.ids) == LIMIT
    assert "CLIP's text encoder reads 75 of the 120 tokens of the prompt" in " ".join(capsys.readouterr().err.split())


def test_weights_are_refused_and_brackets_are_text() -> None:
    read = as_plain_text(FAMILY, Request("a (cat), [x:y:3] AND {b} (1:a)"))
    assert (read.prompt_weighting, read.parts) == ("none", [("a (cat), [x:y:3] AND {b} (1:a)", 1.0)])
    assert as_plain_text(FAMILY, Request("(a:1.2)", prompt_weighting="none")).prompt == "(a:1.2)"
    assert as_plain_text(FAMILIES["SD 1.x"], Request("(a:1.2)")).prompt_weighting == "a1111"
    for name in ("prompt", "negative_prompt", "prompt_2"):
        heavy: Any = {name: "a (word: 1.2 ) b"}
        with pytest.raises(UsageError, match=rf"{flag_of(name)} has the weight \(word: 1\.2 \), .*T5EncoderModel"):
            as_plain_text(FAMILY, replace(Request("a"), **heavy))
    with pytest.raises(UsageError, match="--prompt-weighting comfyui is for CLIP's text encoders"):
        as_plain_text(FAMILY, Request("a", prompt_weighting="comfyui"))


def test_clip_skip_is_refused() -> None:
    assert encoder_outputs(PLAIN, ["last_hidden_state"], {}) == {"words": "last_hidden_state"}
    with pytest.raises(UsageError, match="--clip-skip is for CLIP's text encoders, and text_encoder_2 is a T5EncoderM"):
        encoder_outputs(PLAIN, ["last_hidden_state"], {}, 2)
