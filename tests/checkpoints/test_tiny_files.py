"""Small files of strangers whose tensors are nearly right: taken, or refused in words, by all who read them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.fuzzing import tiny_files
from support.fuzzing.tiny_files import Tensors, changed_file, readers, whole_files, write_sparse

from sdort.adapters.adapter_file import read_adapter
from sdort.adapters.embedding_file import EmbeddingChoice, read_embedding
from sdort.adapters.ip_adapter_file import attention_tensors, read_ip_adapter
from sdort.checkpoints import safetensors
from sdort.checkpoints.safetensors import read_header
from sdort.errors import BadModelError, SdortError
from sdort.exporter.component_configs import class_defaults
from sdort.exporter.trace_cache import TraceCache

SEEDS = 80
"""Files of the quick slice; scripts/fuzz.py goes on from there."""

_defaults = cache(class_defaults)


class _Cache(TraceCache):
    """Without its hashes of libraries, which take a second for each new folder."""

    def defaults(self, class_name: str, compute: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        return dict(_defaults(class_name))


def _outcomes(folder: Path, tensors: Tensors) -> dict[str, str]:
    """The readers, and what each says of a file; empty where it takes it."""
    path = folder / "small.safetensors"
    write_sparse(path, tensors)
    said = {}
    for name, read in readers(_Cache(folder / "cache")).items():
        try:
            read(path)
            said[name] = ""
        except SdortError as error:
            said[name] = str(error)
    return said


@pytest.mark.parametrize("number", range(len(whole_files())))
def test_a_whole_file_is_taken(number: int, tmp_path: Path) -> None:
    """Else the changed ones would be refused for another reason."""
    taken = {name for name, said in _outcomes(tmp_path, whole_files()[number]).items() if not said}
    text_encoder, t2i = len(whole_files()) - 2, len(whole_files()) - 1
    assert taken or number in (text_encoder, t2i)


def test_changed_files_are_taken_or_refused_in_words(tmp_path: Path) -> None:
    """By each reader; what is no SdortError is a bug. A failure is repeated by the seed."""
    for seed in range(SEEDS):
        try:
            said = _outcomes(tmp_path, changed_file(random.Random(seed)))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert all(len(text) < 25_000 and "bug in sdort" not in text for text in said.values()), seed


UNET, VAE, TAESD, CONTROL, PLAIN, PLUS, VISION = 0, 4, 5, 6, 8, 9, 10


@pytest.mark.parametrize(
    ("number", "reader", "name", "shape", "words"),
    [
        (UNET, "export", "model.diffusion_model.out.2.weight", (), r"conv_out.weight' has the shape \[\]"),
        (UNET, "export", "model.diffusion_model.input_blocks.0.0.weight", (32,), r"conv_in.weight' has the shape"),
        (UNET, "export", "model.diffusion_model.input_blocks.03.0.in_layers.2.weight", (64, 32, 3, 3), "twice"),
        (UNET, "export", f"model.diffusion_model.input_blocks.{'9' * 5000}.0.op.weight", (4, 4), "5,0.. characters"),
        (UNET, "export", "model.diffusion_model.input_blocks.00.0.op.weight", (4, 4), ""),
        (VAE, "--vae", "decoder.conv_in.weight", (4,), "decoder.conv_in.weight' has the shape"),
        (VAE, "--vae", "encoder.down.0.block.0.conv1.weight", (0, 4), "has the shape"),
        (TAESD, "export", "decoder.1.weight", (8,), "has the shape"),
        (CONTROL, "export", "control_model.input_hint_block.0.weight", (), "has the shape"),
        (2, "export", "cond_stage_model.model.transformer.resblocks.0.attn.in_proj_weight", (3071, 1024), "3 equal"),
        (2, "export", "cond_stage_model.model.transformer.resblocks.0.attn.in_proj_bias", (), "3 equal parts"),
        (PLUS, "--ip-adapter", "image_proj.layers.0.0.to_kv.weight", (1535, 768), "2 equal parts"),
        (PLUS, "--ip-adapter", "image_proj.layers.0.0.to_q.weight", (63, 768), "is damaged"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    number: int, reader: str, name: str, shape: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "small.safetensors"
    write_sparse(path, whole_files()[number] | {name: ("F16", shape)})
    read = readers(_Cache(tmp_path / "cache"))[reader]
    if not words:
        read(path)
        return
    with pytest.raises(BadModelError, match=words):
        read(path)


def test_keys_and_values_of_an_ip_adapter_have_one_shape(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    write_sparse(path, whole_files()[PLAIN] | {"ip_adapter.3.to_v_ip.weight": ("F16", (32, 767))})
    with pytest.raises(BadModelError, match=r"keys of the shape \[32, 768\] stand beside values of \[32, 767\]"):
        attention_tensors([read_ip_adapter(path)], {}, "a model")


@pytest.mark.parametrize("rank", [1 << 20, 1 << 30])
@pytest.mark.parametrize("form", ["lora", "core", "hada", "lokr"])
def test_factors_that_claim_gigabytes_are_not_read(form: str, rank: int, tmp_path: Path) -> None:
    """The file takes no room on the disk: its values are holes."""
    key = "lora_unet_input_blocks_0_0"
    forms: dict[str, dict[str, tuple[int, ...]]] = {
        "lora": {"lora_up.weight": (4, rank), "lora_down.weight": (rank, 18)},
        "core": {"lora_up.weight": (4, rank), "lora_down.weight": (1, 2), "lora_mid.weight": (rank, 1, 3, 3)},
        "hada": {f"hada_w{n}_{p}": (4, rank) if p == "a" else (rank, 18) for n in (1, 2) for p in "ab"},
        "lokr": {"lokr_w1": (1, 1), "lokr_w2_a": (4, rank), "lokr_w2_b": (rank, 18)},
    }
    path = tmp_path / "style.safetensors"
    write_sparse(path, {f"{key}.{part}": ("F16", shape) for part, shape in forms[form].items()})
    with pytest.raises(BadModelError, match="far more values than a weight of"):
        read_adapter(path, tiny_files.ADAPTED)


@pytest.mark.parametrize("shape", [(1 << 32, 6), (76, 6), (0, 6), (2, 2, 6)])
def test_an_embedding_of_many_vectors_is_not_read(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "word.safetensors"
    write_sparse(path, {"emb_params": ("F32", shape)})
    with pytest.raises(BadModelError, match="no embedding of 1 to 75 vectors"):
        read_embedding(EmbeddingChoice(path), {"text_encoder": 6})


@pytest.mark.parametrize("dtype", ["BOOL", "I64", "U8"])
def test_an_embedding_has_floating_point_numbers(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "word.safetensors"
    write_sparse(path, {"emb_params": (dtype, (2, 6))})
    with pytest.raises(BadModelError, match="not floating-point numbers"):
        read_embedding(EmbeddingChoice(path), {"text_encoder": 6})


def test_headers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are searched many times, and parsed JSON takes ten times its size."""
    path = tmp_path / "many.safetensors"
    monkeypatch.setattr(safetensors, "_MOST_TENSORS", 10)
    write_sparse(path, {f"t{number}": ("F16", (1,)) for number in range(10)})
    assert len(read_header(path).entries) == 10
    for count in (11, 1000):
        write_sparse(path, {f"t{number}": ("F16", (1,)) for number in range(count)})
        with pytest.raises(BadModelError, match="more than 10"):
            read_header(path)
    monkeypatch.setattr(safetensors, "_MAX_HEADER", 100)
    with pytest.raises(BadModelError, match=r"its header has .*, and one has at most 100 B"):
        read_header(path)
