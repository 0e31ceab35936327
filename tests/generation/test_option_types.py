"""Options of another type than they have: refused in Python and in files of prompts, which name the line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from support.tiny_pipeline import Tiny

from sdort.errors import UsageError
from sdort.first_use.command import load, run
from sdort.generation.files.prompts_file import OF_A_LINE
from sdort.generation.job import plan_jobs
from sdort.generation.requests.request import MAX_PROMPT
from sdort.generation.requests.typed_options import GenerationOptions, annotations_of
from sdort.generation.run_summary import summarize
from sdort.providers.runtime_options import LoadOptions

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

WRONG: Mapping[str, tuple[object, ...]] = {
    "bool": ("no", "", 0, 1, 1.0, [], [True], {}),
    "int": ("5", 2.5, True, float("nan"), float("inf"), [], [5], {}, 10**400),
    "float": ("0.5", True, float("nan"), float("inf"), -float("inf"), [], [0.5], {}, 10**400),
    "str": (5, 0.5, True, ["a"], {"a": 1}, b"a"),
}
"""Type -> values that are not of it."""


def _values(options: type, name: str) -> list[object]:
    """Values of other types than an option has, by what its annotation says."""
    kind = annotations_of(options)[name]
    known = [each.__name__ for each in get_args(kind) or (kind,) if each in (bool, int, float, str)]
    return [value for each in known for value in WRONG[each] if not _may_be(value, kind)]


def _may_be(value: object, kind: Any) -> bool:
    """Whether a value is right after all, as another of the types that an option may have."""
    kinds = get_args(kind) or (kind,)
    if isinstance(value, list):
        parts = [get_args(each)[0] for each in kinds if get_origin(each) is Sequence]
        return any(value and all(type(each) is part for each in value) for part in parts)
    return type(value) in (bool, int, str, dict) and type(value) in [
        {Mapping: dict}.get(get_origin(k), k) for k in kinds
    ]


@pytest.mark.parametrize("name", sorted(OF_A_LINE - {"prompt"}))
def test_a_line_is_held_to_the_types_of_its_options(name: str, tmp_path: Path) -> None:
    """Of all options that lines have, so that a new one cannot be missed."""
    file = tmp_path / "prompts.jsonl"
    values = [value for value in _values(GenerationOptions, name) if not isinstance(value, bytes)]
    assert len(values) > 2
    for value in values:
        file.write_text('{"prompt": "a"}\n\n' + json.dumps({"prompt": "b", name: value}))
        with pytest.raises(UsageError, match=r"line 3 of .*prompts\.jsonl"):
            plan_jobs((), {"prompts": file})


_TEXTS = ("prompt", "negative_prompt", "prompt_2", "negative_prompt_2")
_SPECIAL: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("lora", "control", "ip_adapter_image"), ("a.safetensors", 5, [5], {})),
    **dict.fromkeys(("on_progress", "on_preview", "cancel"), ("print", 5, [])),
    **dict.fromkeys(_TEXTS, (5, [5], {"a": 1}, b"a", True)),
    **dict.fromkeys(("init_image", "mask"), (5, True, ["a.png"], {})),
}


@pytest.mark.parametrize("name", ["prompt", *GenerationOptions.__annotations__])
def test_python_is_held_to_the_types_of_its_options(name: str) -> None:
    values = [*_SPECIAL.get(name, ()), *(_values(GenerationOptions, name) if name != "prompt" else ())]
    assert values
    for value in values:
        options: Any = {"prompt": "a", name: value}
        if name == "mask":
            options["init_image"] = np.zeros((64, 64, 3), np.uint8)
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} "):
            plan_jobs(options.pop("prompt"), options)


@pytest.mark.parametrize("name", LoadOptions.__annotations__)
def test_loading_is_held_to_the_types_of_its_options(name: str) -> None:
    values = [
        *_values(LoadOptions, name),
        *(dict.fromkeys(("ep_libraries", "provider_options"), ("a", [], {"a": 1})).get(name, ())),
    ]
    assert values
    for value in values:
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} "):
            run("nothing", "a", **{name: value})


def test_numpys_numbers_are_numbers() -> None:
    options: Any = {
        "steps": np.int64(3), "guidance_scale": 4, "eta": np.float32(0.5), "seed": np.array([1, 2]),
        "overwrite": np.bool_(False),
    }  # fmt: skip
    [job] = plan_jobs(["a", "b"], options)
    assert [(one.seed, one.guidance_scale) for one in job.requests] == [(1, 4.0), (2, 4.0)] * 2


def test_what_the_pipeline_cannot_do_names_its_line(tiny: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines: list[dict[str, object]] = [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c", "width": 65}]
    file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UsageError, match=r"line 3 of .*: --width 65 is not a multiple of"):
        run(tiny.onnx, prompts=file, provider="cpu", output=tmp_path / "{index}.png")
    with pytest.raises(UsageError, match=r"line 3 of .*: --width 65 is not a multiple of"):
        load(tiny.onnx, provider="cpu").generate(prompts=file)


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_a_prompt_that_is_refused_names_its_line(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"prompts.{suffix}"
    texts = ["a", "b", "c" * (MAX_PROMPT + 1), "d"]
    file.write_text("\n".join(texts if suffix == "txt" else [json.dumps({"prompt": text}) for text in texts]))
    with pytest.raises(UsageError, match=r"line 3 of .*: --prompt has"):
        plan_jobs((), {"prompts": file})


def test_the_last_lines_name_every_size_and_number_of_steps(tiny: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    sizes = [(64, 64, 1), (96, 64, 2), (96, 64, 2)]
    file.write_text("\n".join(json.dumps({"prompt": "a", "width": w, "height": h, "steps": s}) for w, h, s in sizes))
    result = run(tiny.onnx, prompts=file, provider="cpu", output=tmp_path / "{index}.png")
    assert ", 64x64 (1) and 96x64 (2), 1 (1) and 2 (2) steps of DDIM on cpu" in summarize(result)
