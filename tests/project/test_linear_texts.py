"""Whatever reads a stranger's text takes as many steps as the text is long, times a number."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import onnx
import pytest
from support.counted_steps import CountedPattern, CountedText, count_in_modules, grows_faster

from sdort.adapters.adapter_choice import parse_adapter_choice
from sdort.adapters.adapter_keys import read_keys
from sdort.checkpoints.prediction import prediction_beside
from sdort.errors import SdortError, did_you_mean
from sdort.errors.plain_text import library_reason, one_line
from sdort.files.json_text import parse_json
from sdort.generation.files.comfyui_graph import read_comfyui_graph
from sdort.generation.files.infotext import read_infotext
from sdort.generation.files.output_names import FIELDS
from sdort.generation.prompts.prompt_chunks import Vocabulary, divide
from sdort.generation.prompts.prompt_schedule import Clock, check_prompt, read_schedule
from sdort.generation.prompts.prompt_syntax import named_files, read_prompt
from sdort.generation.requests.prompt_copies import remark_on_schedules
from sdort.generation.requests.typed_options import DrawnOptions
from sdort.onnx_io.check_inference import check_inference
from sdort.options.declared_options import ranges_of
from sdort.samplers.scheduler_names import find_scheduler
from sdort.verification.report.html import environment

GUIDANCE = ranges_of(DrawnOptions)["guidance_scale"]

PROMPT = (
    *("a", " ", "\n", ",", "1", ".", "-", "e", ":", "|", "\\", "(", ")", "[", "]", "<", ">", "(a:1", "[a:b:", "[a|b]"),
    *("BREAK", " AND ", "embedding:", "<lora:", ":1.2)", ":0.5]", "(a)"),
)
INFOTEXT = (
    *(
        "a",
        " ",
        "1",
        ",",
        ":",
        '"',
        "\\",
        "{",
        "[",
        "}",
        "]",
        "\n",
        "/",
        "Steps: 1, ",
        "Seed: ",
        "CFG scale: ",
        "Size: ",
    ),
    *("Negative prompt:", "a: {", "c: {,", 'a: "', "b: [1", "Hires upscale: ", "Sampler: "),
)
JSON = ("{", "[", '"', "\\", ",", ":", "1", "a", '"a":', " ", "\\u", "\\ud800", "-", "e", "]", "}")


class Letters:
    """A tokenizer whose tokens are letters; a word of ``z`` has as many vectors as it is long."""

    length, begin, end, padding = 77, 1, 2, 0
    added: dict[str, int] = {}  # noqa: RUF012 - a protocol's field

    def ids(self, text: str) -> list[int]:
        return [*map(ord, text)]

    def text(self, ids: object) -> str:
        return ""

    def number(self, token: str) -> int | None:
        return ord(",")


def schedule(text: str) -> object:
    read = read_schedule.__wrapped__(text, "a1111")
    remark_on_schedules([(read,)], [(("a",),)])
    return read.texts(Clock(20), 20)


def message_of_onnx(text: str) -> None:
    """A node that cannot take its inputs has the text for a name, which the message repeats."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (y) { y = Add (x, x, x) }'
    )
    model.graph.node[0].name = text
    check_inference(model, [0], {}, "unet")


def config_beside(text: str, folder: Path) -> None:
    (folder / "model.yaml").write_text(text, newline="")
    prediction_beside(folder / "model.safetensors")


BUDGET = 10_000
"""Characters that a reader is given, of half a second or one."""

READERS: dict[str, tuple[tuple[str, ...], Callable[[str, Path], object]]] = {
    "prompt of A1111": (PROMPT, lambda text, _: read_prompt(text, "a1111")),
    "prompt of ComfyUI": (PROMPT, lambda text, _: read_prompt(text, "comfyui")),
    "prompt that changes": (PROMPT, lambda text, _: schedule(text)),
    "parts of a prompt": (PROMPT, lambda text, _: check_prompt(f"b AND {text}", "a1111", 4, divided=True)),
    "files of a prompt": (PROMPT, lambda text, _: named_files(text, "a1111")),
    "chunks of A1111": (
        ("a", " ", ",", "BREAK", "(a)", ":"),
        lambda text, _: divide(read_prompt(text, "a1111"), Vocabulary(Letters()), "a1111"),
    ),
    "chunks of ComfyUI": (
        ("a", " ", ","),
        lambda text, _: divide(read_prompt(text, "comfyui"), Vocabulary(Letters()), "comfyui"),
    ),
    "infotext": (INFOTEXT, lambda text, _: read_infotext(f"a\nSteps: 1, Sampler: Euler, Seed: 1, {text}")),
    "infotext of any form": (INFOTEXT, lambda text, _: read_infotext(text)),
    "graph of ComfyUI": (JSON, lambda text, _: read_comfyui_graph(text)),
    "JSON": (JSON, lambda text, _: parse_json(text.encode())),
    "number": (
        ("1", ".", "e", "+", "-", " ", "x"),
        lambda text, _: GUIDANCE.parse(text),
    ),
    "sampler": (("a", " ", "+", "dpm", "karras"), lambda text, _: find_scheduler(text)),
    "config of a training": (
        ("\n", " ", "\t", "a", ":", "parameterization:", "v", '"', "#"),
        config_beside,
    ),
    "keys of an adapter": (
        ("a", ".", "_", "1", ".lora_A", "_lora.up", ".weight", ".lora_magnitude_vector", ".alpha", ".diff", "_lora"),
        lambda text, _: read_keys([text[:1000]]),
    ),
    "adapter with a scale": (("1", ".", ":", "e", "-", "a"), lambda text, _: parse_adapter_choice(f"a:{text}")),
    "name of a node": (
        ("a", "\n", " ", "(op_type:A, node name: ", "): ", "[a] "),
        lambda text, _: message_of_onnx(text),
    ),
    "message of a library": (("a", ".", " ", "A", "\n", "`"), lambda text, _: library_reason(ValueError(text))),
    "cell of a table": (("1", ".", "e", "-", "a"), lambda text, _: environment().filters["numbers"](text)),
    "misspelled name": (("a", "s", "e"), lambda text, _: did_you_mean(text, FIELDS)),
    "line of a message": (("a", "\n", "\x1b", "\u202e"), lambda text, _: one_line(text)),
}
"""What reads texts -> tokens of its language, and the reader."""


@pytest.mark.parametrize("name", READERS)
def test_twice_the_text_takes_twice_the_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each token alone, repeated, and then parts of two between others that begin a form and do not end it."""
    tokens, reader = READERS[name]
    count_in_modules(monkeypatch)
    left = BUDGET

    def read(text: CountedText) -> object:
        nonlocal left
        left -= len(text)
        try:
            return reader(text, tmp_path)
        except (SdortError, ValueError) as error:
            return error

    for begin, unit, end in texts_of(tokens):
        faster = grows_faster(read, lambda size: f"{begin}{unit * size}{end}")  # noqa: B023 - called at once
        assert not faster, f"{begin!r} {unit!r} * n {end!r}: {faster}"
        if left < 0:
            break


def texts_of(tokens: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """A beginning, what is repeated, and an end."""
    chance = random.Random(7)
    yield from (("", token, end) for end in ("", "x", "\n") for token in tokens)
    yield from ((form, token, "x") for form in tokens if len(form) > 1 for token in tokens if len(token) == 1)
    while True:
        begin, first, second, end = (chance.choice(["", *tokens]) for _ in range(4))
        yield begin, f"{first}{second}" or "a", end


@pytest.mark.parametrize(
    ("pattern", "unit", "end"),
    [
        (r"\s*\bBREAK\b\s*", " ", "b"),
        (r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)\)", "1", "x"),
        (r"(?m)^\s*parameterization:", "\n", ""),
        (r"\[[^\]]*[|:][^\]]*\]", "[", "|"),
        (r"(a+)+b", "a", "c"),
    ],
)
def test_a_quadratic_expression_is_seen(pattern: str, unit: str, end: str) -> None:
    counted = CountedPattern(re.compile(pattern))
    sizes = (3, 6, 12) if "+)+" in pattern else (12, 24, 48)  # the last one is exponential
    assert grows_faster(lambda text: counted.search(text), lambda size: unit * size + end, sizes)
