"""Clip skip: the conditioning by an earlier layer of the text encoder, held against transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.conditioning import first_conditions
from support.pipelines import Exported, export_family, trace_folder
from support.tiny_pipeline import Tiny

from sdort.errors import UsageError
from sdort.families.data.sd1 import FAMILY as SD1
from sdort.families.data.sdxl import FAMILY as SDXL
from sdort.first_use.command import run
from sdort.generation.pipeline import load_pipeline
from sdort.generation.requests.request import Request
from sdort.optimizer.command import optimize
from sdort.pipelines.conditioning import encoder_outputs
from sdort.providers.runtime_options import RuntimeOptions

PROMPT = "a red cat"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Exported:
    return export_family("sd1", tmp_path_factory.mktemp("sd1"), trace_folder(request.config))


@pytest.fixture(scope="module")
def in_fp16(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fp16") / "fast"
    optimize(exported.out, out, provider="cpu", fp16=True, components=["text_encoder"])
    return out


def conditioned(folder: Path, clip_skip: int) -> Any:
    pipeline = load_pipeline(folder, RuntimeOptions("cpu"))
    ((condition,),) = first_conditions(pipeline, [Request(PROMPT, guidance_scale=1.0, clip_skip=clip_skip)])
    return condition["encoder_hidden_states"][0]


def decibels(values: Any, expected: Any) -> float:
    error = np.mean((np.asarray(values, np.float64) - np.asarray(expected)) ** 2)
    return float(10 * np.log10(np.var(np.asarray(expected)) / error))


def theirs(exported: Exported) -> tuple[Any, Any]:
    """The last hidden state, and the final norm of the penultimate one, by transformers."""
    import torch
    from transformers import CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(exported.checkpoint / "tokenizer")
    ids = tokenizer(PROMPT, padding="max_length", max_length=77).input_ids
    encoder = exported.load("text_encoder")
    with torch.no_grad():
        found = encoder(torch.tensor([ids]), output_hidden_states=True)
        norm = getattr(encoder, "text_model", encoder).final_layer_norm
        return found.last_hidden_state[0].numpy(), norm(found.hidden_states[-2])[0].numpy()


def test_the_layer_before_conditions_through_the_final_norm(exported: Exported) -> None:
    last, penultimate = theirs(exported)
    assert decibels(conditioned(exported.out, 1), last) >= 100
    assert decibels(conditioned(exported.out, 2), penultimate) >= 100
    assert decibels(last, penultimate) < 30, "both are alike, so that nothing is shown"


def test_it_works_in_fp16(exported: Exported, in_fp16: Path) -> None:
    from sdort.onnx_io.component_file import read_component

    file = read_component(in_fp16 / "text_encoder" / "model.onnx", "text_encoder")
    assert file.dtype == "float16"
    assert "clip_skip.2" in file.signature.outputs


def test_a_pipeline_without_it_is_told(tiny: Tiny, exported: Exported) -> None:
    with pytest.raises(UsageError, match="text_encoder was exported without clip skip") as caught:
        run(tiny.onnx, "a", clip_skip=2, provider="cpu")
    assert "Export the checkpoint again" in str(caught.value.hint)
    with pytest.raises(UsageError, match=r"--clip-skip 12 is more than text_encoder can skip: it has \d layers"):
        run(exported.out, "a", clip_skip=12, provider="cpu")
    with pytest.raises(UsageError, match="--clip-skip 0 is not"):
        run(exported.out, "a", clip_skip=0, provider="cpu")


def test_sdxl_begins_with_the_penultimate_layer() -> None:
    names = ["text_embeds", *(f"hidden_states.{index}" for index in range(13))]
    for encoder in SDXL.encoders:
        layers = [
            encoder_outputs(encoder, names, {"num_hidden_layers": 12}, skip)["encoder_hidden_states"]
            for skip in (1, 2, 3)
        ]
        assert layers == ["hidden_states.11", "hidden_states.11", "hidden_states.10"]
        with pytest.raises(UsageError, match="it has 12 layers"):
            encoder_outputs(encoder, names, {"num_hidden_layers": 12}, 13)
    [encoder] = SD1.encoders
    assert encoder_outputs(encoder, ["last_hidden_state"], {}) == {"encoder_hidden_states": "last_hidden_state"}
