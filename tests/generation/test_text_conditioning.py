"""Prompts on their way to the UNet, with encoders that note what they are given; and what a pipeline is made for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.families.known_families import FAMILIES
from sdort.generation.prompts.prompt_schedule import Clock
from sdort.generation.prompts.text_conditioning import EncodedChunk, PromptReader, encode_prompts, joined, weighted
from sdort.generation.requests.default_sampling import Sampling, default_sampling
from sdort.generation.requests.prompt_copies import copy_schedules, negative_is_zero, texts_by_call
from sdort.generation.requests.request import Request
from sdort.generation.requests.tokenizers import remark_on_files, remark_on_prompts
from sdort.graph.signature import TensorSpec


class Letters:
    """A tokenizer whose tokens are words of one letter; a comma is 44."""

    def __init__(self, length: int, begin: int = 1, end: int = 2, padding: int = 0) -> None:
        self.added: dict[str, int] = {}
        self.length, self.begin, self.end, self.padding = length, begin, end, padding

    def ids(self, text: str) -> list[int]:
        return [ord(letter) for letter in text.replace(" ", "")]

    def text(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def number(self, token: str) -> int | None:
        return 44 if token == ",</w>" else None


def reader(length: int = 6, second: int | None = None, fixed: Any = "T") -> PromptReader:
    tokenizers: dict[str, Any] = {"text_encoder": Letters(length)}
    if second:
        tokenizers["text_encoder_2"] = Letters(second, padding=9)
    return PromptReader(tokenizers, TensorSpec("c", np.dtype(np.float32), ("N", fixed, 3)))


def test_chunks_have_begin_end_and_their_own_padding() -> None:
    first, second = reader(second=6).chunks(("abcde", "x"), "a1111", "prompt")
    assert [chunk.ids for chunk in first] == [(1, 97, 98, 99, 100, 2), (1, 101, 2, 0, 0, 0)]
    assert [chunk.ids for chunk in second] == [(1, 120, 2, 9, 9, 9), (1, 2, 9, 9, 9, 9)]
    [[weighed]] = reader().chunks(("a(b:2)",), "a1111", "prompt")
    assert weighed.weights == (1.0, 1.0, 2.0, 1.0, 1.0, 1.0)
    assert weighed.weighted
    assert not first[0].weighted


@pytest.mark.parametrize(("tokens", "chunks"), [("T", None), (6, 1), (12, 2), (17, 2), (5, 1), (None, None)])
def test_a_unet_of_a_fixed_length_takes_as_many_chunks(tokens: Any, chunks: int | None) -> None:
    assert reader(fixed=tokens).fixed == chunks
    assert PromptReader({"text_encoder": Letters(6)}, None).fixed is None
    assert reader(second=5).tokens == 5


def test_what_is_beyond_the_longest_is_told_once_for_each_text(capsys: pytest.CaptureFixture[str]) -> None:
    def told(*texts: str) -> str:
        found = reader(second=6, fixed=6).chunks(texts, "a1111", "negative prompt")
        assert [len(each) for each in found] == [1, 1]
        return " ".join(capsys.readouterr().err.split())

    same = told("abcdefg", "abcdefg")
    assert same.count("has no effect") == 1
    assert "the negative prompt has 7 tokens, and the model reads 4; this part has no effect: efg" in same
    assert told("abcdefg", "abcdxy").count("has no effect") == 2
    assert told("ab", "abcde").count("has no effect: e") == 1
    assert told("abcd", "ab") == ""
    assert told("a" * 4 + "b" * 200, "c").endswith(f": {'b' * 200}")
    assert told("a" * 4 + "b" * 201, "c").endswith(f": {'b' * 200}...")


def test_chunks_stand_side_by_side_and_the_first_is_pooled() -> None:
    rng = np.random.default_rng(0)
    chunks = reader().chunks(("ab(c:2)de(f:0.5)",), "a1111", "prompt")[0]
    parts = [
        EncodedChunk(
            chunk, {"hidden": rng.normal(size=(1, 6, 3)).astype(np.float16), "pooled": rng.normal(size=(1, 3))}
        )
        for chunk in chunks
    ]
    empty = {"hidden": rng.normal(size=(1, 6, 3)).astype(np.float16)}
    assert len(parts) == 2
    for base in ({}, empty):
        found = joined(parts, base)
        assert found["pooled"] is parts[0].values["pooled"]
        assert (found["hidden"].shape, found["hidden"].dtype) == ((1, 12, 3), np.dtype(np.float16))
        for number, part in enumerate(parts):
            values = part.values["hidden"].astype(np.float64)
            weights = np.array(part.chunk.weights)[:, None]
            if base:
                wanted = empty["hidden"] + (values - empty["hidden"]) * weights
            else:
                wanted = values * weights * (values.mean() / (values * weights).mean())
            np.testing.assert_allclose(found["hidden"][:, 6 * number : 6 * number + 6], wanted, rtol=4e-3, atol=4e-3)
    zeros = np.zeros((1, 6, 3), np.float32)
    assert not weighted(zeros, [2.0] * 6, None).any()  # no mean to keep


def test_each_chunk_is_encoded_once_by_its_own_encoder() -> None:
    ran: list[tuple[str, list[Any]]] = []

    def encode(component: str, rows: Any) -> Any:
        ran.append((component, list(rows)))
        return [{"hidden": np.full((1, 6, 1), sum(row) * (1 if component == "text_encoder" else -1))} for row in rows]

    prompts: dict[tuple[str, ...], str] = {("a", "b"): "prompt", ("c", "b"): "negative prompt", ("a", "a"): "prompt"}
    for weighting in ("a1111", "comfyui"):
        ran.clear()
        found = encode_prompts(reader(second=6), prompts, weighting, encode)
        assert [(component, len(rows)) for component, rows in ran] == [("text_encoder", 2), ("text_encoder_2", 2)]
        for texts, parts in found.items():
            first, second = (float(part["hidden"][0, 0, 0]) for part in parts)
            assert first == ord(texts[0]) + 3
            assert second == -(ord(texts[1]) + 3 + 27)
    ran.clear()
    encode_prompts(reader(second=6), {("(a:2)", "b"): "prompt"}, "comfyui", encode)
    assert [len(rows) for _, rows in ran] == [2, 1]  # the empty prompt, where a weight needs it
    assert ran[0][1][-1] == (1, 2, 0, 0, 0, 0)


# Copies

ZERO = [
    ("a1111", False, True, True), ("none", False, True, True), ("comfyui", False, True, False),
    ("a1111", True, True, False), ("a1111", False, False, False),
]  # fmt: skip


@pytest.mark.parametrize(("weighting", "text", "forced", "zero"), ZERO)
def test_an_empty_negative_prompt_is_zeros_where_that_is_forced(
    weighting: str, text: bool, forced: bool, zero: bool
) -> None:
    assert negative_is_zero(weighting, text, forced) is zero
    for name in ("negative_prompt", "negative_prompt_2"):
        request = Request("a", prompt_weighting=weighting, **{name: "b" if text else ""})  # type: ignore[arg-type]
        encoders = ["text_encoder", "text_encoder_2"]
        negative, _ = copy_schedules(request, encoders, guided=True, empty_is_zero=forced)
        assert (negative is None) is zero


def copied(request: Request, encoders: Sequence[str], guided: bool) -> list[list[str]]:
    found = copy_schedules(request, encoders, guided=guided, empty_is_zero=False)
    return [[schedule.text for schedule in schedules or ()] for schedules in found]


def test_each_encoder_has_its_text_of_every_copy() -> None:
    both, second = ["text_encoder", "text_encoder_2"], ["text_encoder_2"]
    request = Request("a AND b:2", "n", prompt_2="p", negative_prompt_2="m")
    assert copied(request, both, True) == [["n", "m"], ["a", "p"], [" b", "p"]]
    assert copied(request, second, True) == [["m"], ["p"], ["p"]]
    assert copied(request, ["text_encoder"], False) == [["a"], [" b"]]
    plain = Request("a", "n")
    assert copied(plain, both, True) == [["n", "n"], ["a", "a"]]
    assert copied(plain, second, True) == [["n"], ["a"]]


def test_texts_change_by_calls_for_every_copy() -> None:
    request = Request("[a:b:2]", "[x|y]", prompt_2="p")
    schedules = copy_schedules(request, ["text_encoder", "text_encoder_2"], guided=True, empty_is_zero=True)
    assert texts_by_call(schedules, Clock(4), 4) == [
        (("x", "x"), ("a", "p")), (("x", "x"), ("a", "p")), (("y", "y"), ("a", "p")), (("x", "x"), ("b", "p")),
    ]  # fmt: skip
    assert texts_by_call([None, *schedules[1:]], Clock(4), 2) == [(None, ("a", "p"))] * 2


@pytest.mark.parametrize(
    ("options", "guided", "words"),
    [
        ({}, True, ""),
        ({"prompt": " "}, True, "the prompt is empty"),
        ({"negative_prompt": "n"}, True, ""),
        ({"negative_prompt": "n", "guidance_scale": 1.0}, False, "--guidance-scale 1 and less turn guidance off"),
        ({"negative_prompt_2": "n", "guidance_scale": 0.5}, False, "--guidance-scale 1 and less turn guidance off"),
        (
            {"negative_prompt": "n", "guidance_scale": 1.5},
            False,
            "no effect: this model takes none",
        ),
    ],
)
def test_what_has_no_effect_is_told(
    options: dict[str, Any], guided: bool, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = Request(**{"prompt": "a", **options})
    other = Request("b", guidance_scale=request.guidance_scale)
    for requests in ([request], [request, other]):
        remark_on_prompts(requests, guided)
        told = " ".join(capsys.readouterr().err.split())
        assert words in told
        assert bool(told) == bool(words)
    remark_on_prompts([other, request], guided)
    assert words in " ".join(capsys.readouterr().err.split())


def test_files_of_every_prompt_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer: Any = SimpleNamespace(added={"known": 5})
    adapters: Any = (AdapterChoice(Path("x/Style.safetensors"), 0.8),)
    first = Request("a <lora:style:0.8> embedding:known embedding:other", lora=adapters)
    second = Request("b <lora:style:0.8>", "embedding:other <lora:STYLE>", prompt_2="<hypernet:h:1>",
                     negative_prompt_2="<lora:missing:0.5>", lora=adapters)  # fmt: skip
    remark_on_files(tokenizer, [first, second])
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("warning:") == 4
    assert "the embedding other, which the model does not have" in told
    assert "<lora:STYLE>, whose scale is that of --lora: 0.8" in told
    assert "<hypernet:h:1>, which is not applied: sdort has no hypernetworks" in told
    assert "--lora missing.safetensors:0.5" in told


# What a pipeline was made for

EULER, ANCESTRAL = "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler"
TRAILING = {"_class_name": EULER, "timestep_spacing": "trailing"}
QUICK = (4, 1.0, None)


BETAS = {"beta_schedule": "scaled_linear"}
USUAL, SLOW, FAST = (25, 7.5, None), (50, 7.5, None), (25, 7.5, "dpm++-2m-karras")


@pytest.mark.parametrize(
    ("config", "embedded", "asked", "wanted"),
    [
        ({"_class_name": EULER}, None, None, USUAL),
        ({"_class_name": EULER}, 256, None, (4, 8.5, None)),
        ({"_class_name": EULER}, None, "lcm", QUICK),
        ({"_class_name": EULER}, None, "ddim", SLOW),
        ({"_class_name": "LCMScheduler"}, None, None, QUICK),
        ({"_class_name": "LCMScheduler"}, 256, None, (4, 8.5, None)),
        ({"_class_name": "TCDScheduler"}, None, None, QUICK),
        ({"_class_name": "LCMScheduler"}, None, "euler", USUAL),
        (TRAILING, None, None, QUICK),
        ({**TRAILING, "_class_name": ANCESTRAL}, None, None, QUICK),
        ({**TRAILING, "_class_name": "DDIMScheduler"}, None, None, SLOW),
        ({**TRAILING, "timestep_spacing": "leading"}, None, None, USUAL),
        ({**TRAILING, "prediction_type": "epsilon"}, None, None, QUICK),
        ({**TRAILING, "prediction_type": "v_prediction"}, None, None, USUAL),
        ({**TRAILING, "rescale_betas_zero_snr": True}, None, None, USUAL),
        (TRAILING, None, "ddim", QUICK),  # the model is what it is, whatever samples it
        *(({"_class_name": f"{name}Scheduler"}, None, None, FAST) for name in ("DDIM", "DDPM", "PNDM")),
        *(({"_class_name": f"{name}Scheduler"}, None, f"{name}Scheduler", SLOW) for name in ("DDIM", "DDPM", "PNDM")),
        ({"_class_name": "DDIMScheduler", "rescale_betas_zero_snr": True}, None, None, SLOW),
        ({"_class_name": "DDIMScheduler", "beta_schedule": None}, None, None, SLOW),
        ({"_class_name": "UniPCMultistepScheduler"}, None, None, USUAL),
        ({"_class_name": "Unknown"}, None, "Unknown", USUAL),
    ],
)
def test_sampler_steps_and_guidance_are_what_the_configs_tell(
    config: dict[str, Any], embedded: int | None, asked: str | None, wanted: tuple[int, float, str | None]
) -> None:
    folder: Any = SimpleNamespace(
        family=FAMILIES["SD 1.x"],
        scheduler=BETAS | config,
        config=lambda name: {"unet": {"time_cond_proj_dim": embedded}}[name],
        denoiser="unet",
    )
    found = default_sampling(folder, asked)
    assert (found.steps, found.guidance_scale, found.scheduler) == wanted
    assert (found.reason is None) is (found.steps >= 25)
    assert math.isclose(Sampling().guidance_scale, 7.5)
