"""Tokenizers like T5's and Qwen3's, trained from nothing on a few lines, as checkpoints have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
"""As Qwen3's, for one message of a user."""
CORPUS = [
    "a red square above a blue circle", "portrait of an old man, oil on canvas, 35mm", "the the the house houses",
    "don't we'll they've I'm 12345 2024", "漢字 かな 한글 🙂👩‍👩‍👧 café naïve", "<html> & {json: [1, 2]} \\n \t tabs",
]  # fmt: skip


def t5_checkpoint(folder: Path, form: str = "tokenizer.json") -> None:
    """A tokenizer like T5's, as transformers saves it, or with SentencePiece's file alone."""
    from transformers import T5TokenizerFast

    trained = Tokenizer(models.Unigram())
    trained.normalizer = normalizers.NFKC()
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    first = ["<pad>", "</s>", "<unk>"]
    trained.train_from_iterator(
        CORPUS * 8,
        trainers.UnigramTrainer(vocab_size=260, special_tokens=first, unk_token="<unk>", show_progress=False),
    )
    pieces = [tuple(each) for each in json.loads(trained.to_str())["model"]["vocab"]]
    if form == "spiece.model":
        write_sentencepiece(folder / form, pieces)
        config = {"tokenizer_class": "T5Tokenizer", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return
    T5TokenizerFast(vocab=pieces, extra_ids=4, model_max_length=512).save_pretrained(folder)


def write_sentencepiece(path: Path, pieces: list[tuple[str, float]]) -> None:
    from transformers.convert_slow_tokenizer import import_protobuf

    model = import_protobuf().ModelProto()
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    model.trainer_spec.unk_id = 2
    kinds = {"<unk>": 2, "<pad>": 3, "</s>": 3}
    for piece, score in pieces:
        model.pieces.add(piece=piece, score=score, type=kinds.get(piece, 1))
    path.write_bytes(model.SerializeToString())


def qwen_checkpoint(folder: Path, form: str = "tokenizer.json") -> None:
    """A tokenizer like Qwen3's, as transformers saves it, or with the two files of older versions."""
    from transformers import AddedToken, Qwen2Tokenizer

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        CORPUS * 8, trainers.BpeTrainer(vocab_size=420, initial_alphabet=letters, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    made = Qwen2Tokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    made.add_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")])
    made.add_tokens([AddedToken("<think>", special=False)])
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    if form == "vocab.json":
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        entries = {str(number): vars_of(token) for number, token in made.added_tokens_decoder.items()}
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "added_tokens_decoder": entries}))


def vars_of(token: Any) -> dict[str, Any]:
    return json.loads(json.dumps(token.__getstate__()))  # type: ignore[no-any-return]
