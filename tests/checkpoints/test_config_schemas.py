"""The schemas of JSON files: what is published passes, what a stranger makes of it is refused with a reason."""

from __future__ import annotations

import inspect
import json
import random
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import published_configs as published
from support.config_mutations import mutations

import sdort.demo
from sdort.checkpoints.config_schemas import (
    PIPELINE_INDEX,
    PROCESSOR_FILES,
    REQUIRED,
    SCHEDULER,
    TEXT_ENCODER,
    TOKENIZER,
    UNET,
    VAE,
    contradiction,
)
from sdort.checkpoints.json_schema import Kind
from sdort.errors import BadModelError, SdortError
from sdort.exporter.source import check_processors, read_source, select_components
from sdort.exporter.trace_cache import TraceCache
from sdort.files.json_text import MAX_DEPTH, parse_json
from sdort.generation.schedules.recurrence import find_recurrence
from sdort.generation.schedules.schedulers import load_sampler
from sdort.pipelines.folder import PipelineFolder

DEMO = Path(sdort.demo.__file__).parent / "model"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "-Infinity is no number"),
        (b'{"a": 1e999}', "1e999 is larger than any number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number has 5000 digits"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', 'the key "c" is there twice'),
        (b'{"a": "\\ud800"}', "half a surrogate pair"),
        (b"\xef\xbb\xbf{}", "begins with a byte order mark"),
        ("{}".encode("utf-16"), "is in UTF-16"),
        ("{}".encode("utf-32"), "is in UTF-32"),
        (b'{"a": "\xe9"}', "byte 0xe9 at 7 is not UTF-8"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "more than 32 levels"),
        (b"[" * 100_000, "more than 32 levels"),
        (b"{}{}", "Extra data"),
    ],
)
def test_json_that_others_read_otherwise_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(content)


def test_brackets_within_strings_are_no_levels() -> None:
    text = '{"a": "' + '[\\"{' * 100 + '", "b": ["\N{GRINNING FACE}"]}'
    assert parse_json(text.encode()) == json.loads(text)
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) is not None
    assert parse_json(b'{"a": -Infinity}', infinity=True) == {"a": float("-inf")}
    assert parse_json(b'["\\ud83d\\ude00"]') == ["\N{GRINNING FACE}"]


def test_an_open_string_of_escapes_takes_linear_time() -> None:
    """A search that starts over at each quote would take hours."""
    with pytest.raises(ValueError, match="Unterminated string"):
        parse_json(b"[" + b"[]," * MAX_DEPTH + b'"' + b'\\"' * 500_000)


@pytest.mark.parametrize(
    ("schema", "configs", "architecture"),
    [
        (UNET, published.UNETS, "UNet2DConditionModel"),
        (VAE, published.VAES, "AutoencoderKL"),
        (TEXT_ENCODER, published.TEXT_ENCODERS, "CLIPTextModel"),
        (SCHEDULER, published.SCHEDULERS, None),
        (PIPELINE_INDEX, published.INDEXES, None),
        (TOKENIZER, published.TOKENIZERS, None),
    ],
)
def test_published_configs_pass(
    schema: Kind, configs: Mapping[str, Mapping[str, Any]], architecture: str | None
) -> None:
    for name, config in configs.items():
        assert schema.problem(config, "") is None, name
        assert architecture is None or contradiction(architecture, config) is None, name
        assert set(REQUIRED.get(architecture or "", ())) <= config.keys(), name


def test_every_schedulers_defaults_pass() -> None:
    import diffusers.schedulers

    names = {name for group in diffusers.schedulers._import_structure.values() for name in group}
    seen = 0
    for name in sorted(name for name in names if name.endswith("Scheduler") and not name.startswith("Flax")):
        parameters = inspect.signature(getattr(diffusers.schedulers, name).__init__).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        written = json.loads(json.dumps(defaults, default=str))  # tuples become lists, as in a file
        assert SCHEDULER.problem(written, "") is None, name
        seen += bool(written)
    assert seen > 30


@pytest.mark.parametrize(
    ("architecture", "config", "words"),
    [
        ("UNet2DConditionModel", {**published.SD1, "up_block_types": ["UpBlock2D"]}, "1 entries for 4"),
        ("UNet2DConditionModel", {**published.SD1, "attention_head_dim": 3}, "do not divide into 3 heads"),
        ("UNet2DConditionModel", {**published.SD1, "norm_num_groups": 7}, "do not divide into 7 norm_num_groups"),
        ("UNet2DConditionModel", {**published.SD2, "attention_head_dim": [5]}, "has 1 entries for 4"),
        ("UNet2DConditionModel", {**published.SDXL, "addition_time_embed_dim": None}, "is text_time, and"),
        ("AutoencoderKL", {**published.VAE, "latents_std": [1.0]}, "latents_std has 1 entries for 4"),
        ("CLIPTextModel", {**published.TEXT, "num_attention_heads": 7}, "768 does not divide into 7"),
    ],
)
def test_keys_that_contradict_each_other(architecture: str, config: dict[str, Any], words: str) -> None:
    assert words in (contradiction(architecture, config) or "")


@pytest.mark.parametrize(
    ("schema", "key", "value", "words"),
    [
        (UNET, "in_channels", 4.0, "in_channels is 4.0, not a whole number from 1 to 65536"),
        (UNET, "in_channels", True, "is true, not a whole number"),
        (UNET, "sample_size", 10**9, "is 1000000000, not null or a whole number from 1 to 8192 or a list of 2 times"),
        (UNET, "block_out_channels", [], "is [], not a list of 1 to 16 times"),
        (UNET, "block_out_channels", [320, "a"], 'block_out_channels[1] is "a", not'),
        (UNET, "act_fn", "\x1b[2J", 'is "\\u001b[2J", not null or a text'),
        (VAE, "scaling_factor", "0.18", 'scaling_factor is "0.18", not a number above 0.001, up to 1000'),
        (VAE, "scaling_factor", 1e308, "is 1e+308, not"),
        (SCHEDULER, "beta_start", float("nan"), "is NaN, not"),
        (SCHEDULER, "beta_end", 0, "is 0, not a number above 0, up to 0.9999"),
        (PIPELINE_INDEX, "force_zeros_for_empty_prompt", 7, "is 7, not true or false or null"),
        (PIPELINE_INDEX, "unet", "text", "not null or a list of 2"),
        (TOKENIZER, "pad_token", {"content": 3}, "pad_token is"),
        (PROCESSOR_FILES["vocab.json"], "a", -1, "a is -1, not a whole number"),
    ],
)
def test_a_refusal_names_key_value_and_range(schema: Kind, key: str, value: Any, words: str) -> None:
    assert words in (schema.problem({key: value}, "") or "")
    assert schema.problem({"a key of a later version": value}, "") is None or schema is PROCESSOR_FILES["vocab.json"]


def _export(folder: Path, cache: TraceCache) -> None:
    source = read_source(folder, "x")
    select_components(source, (), cache)
    check_processors(source)


def _use(folder: Path) -> None:
    """All that running a pipeline computes from its configs."""
    pipeline = PipelineFolder(folder, {})
    assert 1 <= min(pipeline.default_size) <= max(pipeline.default_size) <= 1 << 20
    scaled = pipeline.unscaled(np.ones((1, pipeline.vae.get("latent_channels", 4), 2, 2), np.float32))
    assert np.isfinite(scaled).all()
    assert isinstance(pipeline.empty_is_zero, bool)


def _schedule(folder: Path) -> None:
    find_recurrence(lambda: load_sampler(folder / "scheduler", 2, None))


SAMPLE = 0.08
"""Share of the mutations that a run of the tests tries; scripts/fuzz.py tries the others."""


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> TraceCache:
    return TraceCache(tmp_path_factory.mktemp("traces"))


@pytest.mark.parametrize(
    "file",
    [
        "model_index.json",
        "unet/config.json",
        "vae/config.json",
        "text_encoder/config.json",
        "scheduler/scheduler_config.json",
        "tokenizer/tokenizer_config.json",
        "tokenizer/special_tokens_map.json",
    ],
)
def test_mutations_are_used_or_refused_in_a_sentence(file: str, tmp_path: Path, classes: TraceCache) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    document = json.loads((folder / file).read_bytes())
    steps: list[Callable[[Path], None]] = [partial(_export, cache=classes), _use]
    steps += [_schedule] if file.startswith("scheduler") else []
    rng, refused = random.Random(file), 0
    for name, content in mutations(document, large=False):
        if rng.random() > SAMPLE:
            continue
        (folder / file).write_bytes(content)
        try:
            for step in steps:
                step(folder)
        except SdortError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{file}: {name}") from error
    assert refused > 10


def test_a_config_of_50_mb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    with open(folder / "unet/config.json", "ab") as file:
        file.truncate(50_000_000)
    with pytest.raises(BadModelError, match=r"has 50\.0 MB, and such a file has at most 1\.0 MB"):
        _use(folder)
