"""The language of prompts: weights, chunks and their embeddings, held against formulas of A1111's and ComfyUI's.

The formulas here are written from their descriptions, in torch and numpy, on transformers' own text encoder:
https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/Features#attentionemphasis (and modules/sd_emphasis.py)
https://github.com/comfyanonymous/ComfyUI, comfy/sd1_clip.py
"""

from __future__ import annotations

import itertools
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.conditioning import first_conditions
from support.relisted import relist
from support.tiny_pipeline import Tiny

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.engines.torch_runners import PipelineRunner
from sdort.errors import UsageError
from sdort.generation.pipeline import TextToImage, load_pipeline
from sdort.generation.prompts.prompt_chunks import Vocabulary, divide
from sdort.generation.prompts.prompt_syntax import Segment, read_prompt
from sdort.generation.prompts.prompt_tokenizer import PromptTokenizer
from sdort.generation.prompts.text_conditioning import MAX_REPEATED, same_length
from sdort.generation.requests.request import Request
from sdort.generation.requests.tokenizers import remark_on_files
from sdort.graph.signature import TensorSpec
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.metrics import psnr

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIZE = (64, 64)
ROUND, SQUARE = 1.1, 1 / 1.1


@cache
def opened(folder: Path) -> TextToImage:
    return load_pipeline(folder, RuntimeOptions("cpu"))


def read(text: str, weighting: str = "a1111") -> list[list[tuple[str, float]]]:
    return [[(each.text, each.weight) for each in part] for part in read_prompt(text, weighting).parts]


# Reading


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a cat, plain", [[("a cat, plain", 1)]]),
        ("", [[("", 1)]]),
        ("a (red) cat", [[("a ", 1), ("red", ROUND), (" cat", 1)]]),
        ("a (red:1.3) cat", [[("a ", 1), ("red", 1.3), (" cat", 1)]]),
        ("(a: 0.5 )(b:.5)(c:-1)", [[("ab", 0.5), ("c", -1)]]),
        ("[a] [[b]]", [[("a", SQUARE), (" ", 1), ("b", SQUARE * SQUARE)]]),
        ("((a) b:1.2)", [[("a", ROUND * 1.2), (" b", 1.2)]]),
        ("(a [b:1.5) c]", [[("a ", 1.5), ("b", 1.5 * SQUARE), (" c", SQUARE)]]),
        (r"a \(b\) \[c\] \\ d", [[(r"a (b) [c] \ d", 1)]]),
        ("(open", [[("open", ROUND)]]),
        ("a) b] :1.2)", [[("a) b] :1.2)", 1)]]),
        ("a: b", [[("a: b", 1)]]),
        ("a BREAK b", [[("a", 1)], [("b", 1)]]),
        ("(a BREAK b:2)\nBREAK\n BREAKER", [[("a", 2), ("BREAK", -2), ("b", 2)], [("BREAKER", 1)]]),
        ("(a) BREAK [b]", [[("a", ROUND)], [("b", SQUARE)]]),
        ("(a BREAK b:1)", [[("a", 1)], [("b", 1)]]),
        ("(open BREAK b", [[("open", ROUND), ("BREAK", -ROUND), ("b", ROUND)]]),
        ("(a:1.2.3)", [[("a:1.2.3", ROUND)]]),
        ("<lora:a b:0.8>a <lora:c:1>", [[("a ", 1)]]),
        ("(embedding:bad-hands:1.2), x", [[("bad-hands", 1.2), (", x", 1)]]),
    ],
)
def test_weights_are_read_as_a1111_reads_them(text: str, parts: list[list[tuple[str, float]]]) -> None:
    near: list[Any] = [[(text, pytest.approx(weight)) for text, weight in part] for part in parts]
    assert read(text) == near


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("a (red) [cat] BREAK |", [("a ", 1), ("red", ROUND), (" [cat] BREAK |", 1)]),
        ("((a:1.2) b)", [("a", 1.2), (" b", ROUND)]),
        ("((a) b:1.2)", [("a", 1.2 * ROUND), (" b", 1.2)]),
        (r"a \(b\) \\", [(r"a (b) \\", 1)]),
        ("a (open", [("a (open", 1)]),
        ("(a:b)(:2)", [("a:b:2", ROUND)]),
        ("embedding:x.pt,", [("x.pt,", 1)]),
        ("a :) (b:1.5) c", [("a :) (b:1.5) c", 1)]),
        ("a :) (b (c:1.5) d)", [("a :) (b ", 1), ("c", 1.5), (" d)", 1)]),
        ("(a :) b) (c:2)", [("a :", ROUND), (" b) (c:2)", 1)]),
        (r"a :\) (b:1.5)", [("a :) ", 1), ("b", 1.5)]),
        ("(a (b)", [("a (b", ROUND)]),
        (r"(a\)", [("(a)", 1)]),
        ("(a:1e-1) (b:1.5 )(:2)", [("a", 0.1), (" ", 1), ("b", 1.5), (":2", ROUND)]),
    ],
)
def test_weights_are_read_as_comfyui_reads_them(text: str, segments: list[tuple[str, float]]) -> None:
    near: list[Any] = [[(text, pytest.approx(weight)) for text, weight in segments]]
    assert read(text, "comfyui") == near


def test_no_weighting_takes_everything_as_text() -> None:
    text = r"(a:2) [b|c] BREAK \( AND <lora:x:1>"
    assert read_prompt(text, "none").parts == ((Segment(text),),)


def test_weights_and_depth_have_bounds() -> None:
    for text in ("(a:101)", "((a:20):20)", "(a:-200)"):
        with pytest.raises(UsageError, match="weights are from -100 to 100"):
            Request(text)
    for weighting in ("a1111", "comfyui"):
        read("(" * 30 + "a:0" + ")" * 30, weighting)
        with pytest.raises(UsageError, match="more than 64 brackets"):
            read("(" * 65 + "a" + ")" * 65, weighting)
    with pytest.raises(UsageError, match="no prompt weighting 'a111'"):
        Request("a", prompt_weighting="a111")


# Chunks


def chunks(tiny: Tiny, text: str, weighting: str = "a1111") -> list[str]:
    """The texts of a prompt's chunks; the tiny tokenizer has a token for each letter."""
    tokenizer = opened(tiny.onnx).tokenizers["text_encoder"]
    assert isinstance(tokenizer, PromptTokenizer)
    vocabulary = Vocabulary(tokenizer)
    divided = divide(read_prompt(text, weighting), vocabulary, weighting)
    return ["".join(vocabulary.text([token]).strip() for token, _ in chunk) for chunk in divided]


@pytest.mark.parametrize(
    ("text", "weighting", "expected"),
    [
        ("x" * 75, "a1111", ["x" * 75]),
        ("x" * 76, "a1111", ["x" * 75, "x"]),
        ("x" * 60 + "," + "y" * 20, "a1111", ["x" * 60 + ",", "y" * 20]),
        ("x" * 54 + "," + "y" * 26, "a1111", ["x" * 54 + "," + "y" * 20, "y" * 6]),
        ("x" * 55 + "," + "y" * 26, "a1111", ["x" * 55 + ",", "y" * 26]),
        ("x" * 75 + ",y", "a1111", ["x" * 75, ",y"]),
        ("a BREAK b", "a1111", ["a", "b"]),
        ("a BREAK BREAK b BREAK", "a1111", ["a", "", "b"]),
        ("x" * 60 + "," + "y" * 20, "none", ["x" * 60 + "," + "y" * 14, "y" * 6]),
        ("x" * 70 + " " + "y" * 7, "comfyui", ["x" * 70, "y" * 7]),
        ("x" * 70 + " " + "y" * 8, "comfyui", ["x" * 70 + "y" * 5, "y" * 3]),
        ("x" * 160, "comfyui", ["x" * 75, "x" * 75, "x" * 10]),
        ("", "comfyui", [""]),
    ],
)
def test_chunks_are_divided_as_in_the_program(tiny: Tiny, text: str, weighting: str, expected: list[str]) -> None:
    assert chunks(tiny, text, weighting) == expected


# Embeddings


def encode(tiny: Tiny, ids: list[int]) -> Any:
    """The last hidden state [tokens, width] by transformers."""
    import torch

    with torch.no_grad():
        return tiny.pipeline.text_encoder(torch.tensor([ids]))[0][0]


def theirs(tiny: Tiny, tokens: list[tuple[str, float]], weighting: str) -> Any:
    """The embeddings of one chunk of (text, weight), by the formulas."""
    import torch

    tokenizer = tiny.pipeline.tokenizer
    ids, weights = [tokenizer.bos_token_id], [1.0]
    for text, weight in tokens:
        found = tokenizer(text, add_special_tokens=False).input_ids
        ids, weights = ids + found, weights + [weight] * len(found)
    missing = 77 - len(ids)
    z = encode(tiny, ids + [tokenizer.eos_token_id] + [tokenizer.pad_token_id] * (missing - 1))
    multipliers = torch.tensor(weights + [1.0] * missing)[:, None]
    if weighting == "a1111":
        scaled = z * multipliers
        return scaled * (z.mean() / scaled.mean())
    empty = encode(tiny, [tokenizer.bos_token_id, tokenizer.eos_token_id] + [tokenizer.pad_token_id] * 75)
    return empty + (z - empty) * multipliers


def decibels(values: Any, expected: Any) -> float:
    error = np.mean((np.asarray(values, np.float64) - np.asarray(expected)) ** 2)
    return float(10 * np.log10(np.var(np.asarray(expected)) / error))


LONG = "a (red:1.4) [cat], " + "on a mat, " * 12 + "((by a) house:0.6)"


@pytest.mark.parametrize("weighting", ["a1111", "comfyui"])
def test_weighted_embeddings_are_those_of_the_formula(tiny: Tiny, weighting: str) -> None:
    nested = 0.6 * ROUND
    cat = [("cat", SQUARE), (",", 1.0)] if weighting == "a1111" else [("[cat],", 1.0)]
    begun = "on" if weighting == "comfyui" else ""  # A1111 takes it into the next chunk, with what follows the comma
    first = [("a", 1.0), ("red", 1.4), *cat, ("on a mat," * 9 + begun, 1.0)]
    second = [(("on a mat," * 3).removeprefix(begun), 1.0), ("by a", nested), ("house", 0.6)]
    expected = [theirs(tiny, chunk, weighting) for chunk in (first, second)]
    request = Request(LONG, guidance_scale=1.0, prompt_weighting=weighting)
    ((condition,),) = first_conditions(opened(tiny.onnx), [request])
    assert condition["encoder_hidden_states"].shape == (1, 154, 32)
    assert decibels(condition["encoder_hidden_states"][0], np.concatenate(expected)) >= 100
    unweighted = Request(LONG, guidance_scale=1.0, prompt_weighting="none")
    plain = first_conditions(opened(tiny.onnx), [unweighted])[0][0]
    assert decibels(plain["encoder_hidden_states"][0][:77], expected[0]) < 30, "weights change nothing"


def test_a_plain_prompt_is_what_the_encoder_gives_bit_for_bit(tiny: Tiny) -> None:
    tokenizer, pipeline = tiny.pipeline.tokenizer, opened(tiny.onnx)
    for text in ("a red cat", "", "x" * 75):
        ids = tokenizer(text, padding="max_length", max_length=77, truncation=True).input_ids
        expected = pipeline.sessions["text_encoder"].run({"input_ids": np.asarray([ids])})["last_hidden_state"]
        for weighting in ("a1111", "comfyui", "none"):
            request = Request(text, guidance_scale=1.0, prompt_weighting=weighting)
            ((condition,),) = first_conditions(pipeline, [request])
            np.testing.assert_array_equal(condition["encoder_hidden_states"], expected)


def test_a_long_prompt_makes_the_image_that_diffusers_makes_of_its_embeddings(tiny: Tiny) -> None:
    import torch

    text, negative = "o " * 40 + "," + "u " * 60, "fog"
    embeddings = [theirs(tiny, [(part, 1.0)], "a1111") for part in ("o " * 40 + "," + "u " * 34, "u " * 26)]
    unwanted = theirs(tiny, [(negative, 1.0)], "a1111")
    drawn = tiny.pipeline(
        prompt_embeds=torch.cat(embeddings)[None], negative_prompt_embeds=torch.cat([unwanted] * 2)[None],
        num_inference_steps=2, generator=torch.Generator().manual_seed(3), output_type="np",
    ).images[0]  # fmt: skip
    request = Request(text, negative, steps=2, seed=3)
    tiny.pipeline.scheduler = type(tiny.pipeline.scheduler).from_pretrained(tiny.diffusers / "scheduler")
    [image] = opened(tiny.onnx).generate(request)
    assert image.pixels.std() > 20
    assert psnr(image.pixels, (drawn * 255).round().astype(np.uint8)) >= 60


def test_diffusers_is_given_the_embeddings_of_long_prompts(tiny: Tiny) -> None:
    request = Request("o" * 70 + "," + "u" * 60, "fog", steps=2, seed=3, prompt_weighting="none")
    [image] = opened(tiny.onnx).generate(request)
    tiny.pipeline.scheduler = type(tiny.pipeline.scheduler).from_pretrained(tiny.diffusers / "scheduler")
    one_chunk = TensorSpec("encoder_hidden_states", np.dtype("float32"), ("batch", 77, 32))
    for context, alike in ((None, True), (one_chunk, False)):
        runner = PipelineRunner(tiny.pipeline, request, SIZE, lambda call: call(), context)
        runner()
        assert (psnr(image.pixels, runner.result()[0].pixels) >= 60) == alike


def test_a_repeated_prompt_is_the_prompt_to_the_unet(tiny: Tiny) -> None:
    numbers = np.random.default_rng(0)
    sample, context = numbers.normal(size=(1, 4, 16, 16)), numbers.normal(size=(1, 77, 32))
    unet = opened(tiny.onnx).sessions["unet"]
    once, thrice = (
        unet.run(
            {"sample": sample, "timestep": np.asarray(5.0), "encoder_hidden_states": np.tile(context, (1, times, 1))}
        )
        for times in (1, 3)
    )
    assert decibels(thrice["out_sample"], once["out_sample"]) >= 100


def test_each_prompt_gets_its_image_beside_longer_ones(tiny: Tiny) -> None:
    requests = [Request(text, "fog", steps=2, seed=5) for text in ("a cat", "a cat BREAK by night", "x" * 160)]
    together = list(opened(tiny.onnx).generate_all(requests))
    for request, image in zip(requests, together, strict=True):
        [alone] = opened(tiny.onnx).generate(request)
        assert psnr(image.pixels, alone.pixels) >= 60
    for one, other in itertools.combinations(together, 2):
        assert psnr(one.pixels, other.pixels) < 60


def test_an_encoder_of_a_static_batch_reads_any_number_of_chunks(tiny: Tiny, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny.onnx, tmp_path / "static"))
    path = folder / "text_encoder" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    path.write_bytes(model.SerializeToString())
    relist(folder)
    requests = [Request("a cat BREAK by night", "fog"), Request("a house", "fog", seed=1)]
    found, wanted = (first_conditions(opened(each), requests) for each in (folder, tiny.onnx))
    for one, other in zip(found, wanted, strict=True):
        for mine, theirs_ in zip(one, other, strict=True):
            name = "encoder_hidden_states"
            np.testing.assert_allclose(mine[name], theirs_[name], atol=1e-5)


def condition(chunks: int) -> dict[str, Any]:
    return {"encoder_hidden_states": np.full((1, 3 * chunks, 2), float(chunks)), "text_embeds": np.zeros((1, 4))}


@pytest.mark.parametrize(
    ("counts", "target", "length", "padded"),
    [((1, 1), None, 1, False), ((1, 2), None, 2, False), ((2, 3), None, 6, False), ((1, 1), 2, 2, False),
     ((3, 5), None, 5, True), ((13, 13), None, 13, False), ((13, 1), None, 13, False), ((2, 3), 3, 3, True)],
)  # fmt: skip
def test_prompts_are_brought_to_one_length(
    counts: tuple[int, ...], target: int | None, length: int, padded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAX_REPEATED == 12
    conditions = [condition(count) for count in counts]
    same_length(conditions, 3, target, lambda: {"encoder_hidden_states": np.full((1, 3, 2), -1.0)})
    for count, made in zip(counts, conditions, strict=True):
        values = made["encoder_hidden_states"][0, :, 0]
        assert values.tolist() == [count] * 3 * (count if padded else length) + [-1] * 3 * (length - count) * padded
        assert made["text_embeds"].shape == (1, 4)
    assert ("padded with empty chunks" in capsys.readouterr().err) == padded


# What is told


def test_files_that_a_prompt_asks_for_are_told(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    first_conditions(opened(tiny.onnx), [Request("a <lora:mine:0.8>", "embedding:bad, fog")])
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "asks for <lora:mine:0.8>, which is not applied: no --lora-folder is given. Give the file: --lora mine" in told
    )
    assert "asks for the embedding bad, which the model does not have" in told


def test_scales_that_a_prompt_asks_for_are_told(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    adapters = (AdapterChoice(Path("Mine.safetensors"), 0.5), AdapterChoice(Path("other.safetensors")))
    prompt = "a <lora:mine:0.8> <lora:mine:.50> <lora:other> <hypernet:mine:0.5>"
    remark_on_files(opened(tiny.onnx).tokenizers["text_encoder"], [Request(prompt, lora=adapters)])
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("the prompt ")[2] for line in told] == [
        "asks for <lora:mine:0.8>, whose scale is that of --lora: 0.5",
        "asks for <hypernet:mine:0.5>, which is not applied: sdort has no hypernetworks",
    ]


def test_a_second_prompt_needs_a_second_encoder(tiny: Tiny) -> None:
    from sdort.first_use.command import run

    with pytest.raises(UsageError, match="--prompt-2 is for SDXL's second text encoder"):
        run(tiny.onnx, "a", prompt_2="b", provider="cpu")
    with pytest.raises(UsageError, match="--prompt is given 3 times, --negative-prompt-2 2 times"):
        run(tiny.onnx, ["a"] * 3, negative_prompt_2=["b", "c"], provider="cpu")
