"""``<lora:name:0.8>`` in prompts: which file and scales it names, what becomes of it, and the images that it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.adapter_files import make_lora
from support.tiny_pipeline import Tiny

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.checkpoints.safetensors import Header, read_header
from sdort.errors import UsageError
from sdort.exporter.baked_adapters import apply_adapters
from sdort.generation.job import plan_jobs
from sdort.generation.prompts.prompt_syntax import plain_names
from sdort.generation.requests import lora_tags
from sdort.generation.requests.lora_tags import LoraFolder

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("loras")
    for name, seed in (("style", 1), ("sub/Detail v1.5", 2), ("sub/twice", 3), ("other/twice", 4)):
        path = place / f"{name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        make_lora(tiny.diffusers, path, seed)
    (place / "old.pt").touch()
    (place / "broken.safetensors").write_text("no header")
    save_file({"x": np.zeros(1, np.float32)}, place / "file-123.safetensors", {"ss_output_name": "alias"})
    return place


def asked(folder: Path | None, prompt: str, **options: Any) -> list[tuple[str, float, float]]:
    """Name and scales, of the UNet and of the text encoders, of each adapter."""
    given: Any = {"lora_folder": folder, **options}
    [job] = plan_jobs(prompt, given)
    assert all(choice.path.is_file() for choice in job.requests[0].lora)
    return [(choice.path.name, choice.scale, choice.of_text) for choice in job.requests[0].lora]


@pytest.mark.parametrize(
    ("tag", "found"),
    [
        ("<lora:style>", ("style", 1, 1)), ("<lora:style:0.8>", ("style", 0.8, 0.8)),
        ("<lora: style : -.5 >", ("style", -0.5, -0.5)), ("<lyco:style:1>", ("style", 1, 1)),
        ("<lora:style:0.5:2>", ("style", 2, 0.5)), ("<lora:style:te=0.5>", ("style", 0.5, 0.5)),
        ("<lora:style:unet=0.5>", ("style", 0.5, 1)), ("<lora:style:0.2:unet=0.5>", ("style", 0.5, 0.2)),
        ("<lora:style:0.2:0.3:te=0.1>", ("style", 0.3, 0.1)), ("<lora:STYLE:1>", ("style", 1, 1)),
        ("<lora:Detail v1.5:1>", ("Detail v1.5", 1, 1)), ("<lora:sub/twice:1>", ("twice", 1, 1)),
        ("<lora:alias:0.3>", ("file-123", 0.3, 0.3)), ("<lora:style:0>", ("style", 0, 0)),
    ],
)  # fmt: skip
def test_the_file_and_the_scales_that_a_tag_names(tag: str, found: tuple[str, float, float], folder: Path) -> None:
    name, *scales = found
    assert asked(folder, f"a cat {tag}, dusk") == [(f"{name}.safetensors", *scales)]
    assert plain_names(f"a cat {tag}, dusk") == "a cat , dusk"


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("<lora:stile>", "asks for <lora:stile>, and .* has no such adapter"), ("<lora:twice>", "any of 2 files"),
        ("<lora:old>", "old.pt, which sdort does not read"), ("<lora:../style>", "has no such adapter"),
        ("<lora:style:x>", "whose scale .x. is not a number"),
        ("<lora:style:1000>", "1000.0 is not a number from -100"),
        ("<lora:style:1:1:64>", "cuts an adapter to a smaller rank"), ("<lora:style:dyn=8>", "smaller rank"),
        ("<lora:style> <lora:Style:0.5>", "asks for Style twice"), ("<lora:style:nan>", "is not a number"),
        ("<lora:/etc/passwd>", "has no such adapter"), ("<lora::1>", "no such adapter"),
    ],
)  # fmt: skip
def test_what_a_folder_does_not_have_is_refused(tag: str, words: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        asked(folder, f"a {tag}")
    if tag == "<lora:stile>":
        assert "Did you mean 'style'" in (refused.value.hint or "")
        assert "sub/Detail v1.5" in (refused.value.hint or "")


def test_a_folder_may_be_missing_or_come_from_the_environment(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"--lora-folder .* is no folder"):
        asked(tmp_path / "missing", "<lora:style>")
    assert asked(tmp_path / "missing", "no tag") == []
    assert asked(None, "a <lora:style>") == []
    monkeypatch.setenv("SDORT_LORA_FOLDER", str(folder))
    assert asked(None, "a <lora:style>") == [("style.safetensors", 1, 1)]
    assert asked(tmp_path, "no tag") == []
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="has no such adapter") as refused:
        asked(tmp_path, "<lora:style>")
    assert refused.value.hint == "It has none."


def test_an_adapter_that_is_given_as_a_file_keeps_its_scale(folder: Path) -> None:
    file = folder / "style.safetensors"
    assert asked(folder, "<lora:style:0.2> <lora:alias>", lora=[f"{file}:0.7"]) == [
        ("style.safetensors", 0.7, 0.7), ("file-123.safetensors", 1, 1)
    ]  # fmt: skip
    for options in ({"negative_prompt": "<lora:style>"}, {"prompt_2": "<lora:style>"}):
        assert asked(folder, "a", **options) == []
    for weighting in ("comfyui", "none"):
        assert asked(folder, "<lora:style>", prompt_weighting=weighting) == []


def test_prompts_of_other_adapters_are_jobs_of_their_own_in_their_order(folder: Path) -> None:
    prompts = ["a", "b <lora:style>", "c <lora:style>", "d <lora:style:0.5>", "e"]
    jobs = plan_jobs(prompts, {"lora_folder": folder, "seed": 1})
    assert [[each.prompt[0] for each in job.requests] for job in jobs] == [["a"], ["b", "c"], ["d"], ["e"]]
    drawn = plan_jobs("<lora:{style|alias}>", {"lora_folder": folder, "seed": 1, "num_images": 9})
    assert {job.requests[0].lora[0].path.stem for job in drawn} == {"style", "file-123"}


def test_a_run_reads_each_header_once_and_looks_for_each_name_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    looked: list[str] = []
    called = LoraFolder._is_called

    def counted(path: Path) -> Header:
        read.append(path.name)
        return read_header(path)

    def is_called(self: LoraFolder, path: Path, name: str) -> bool:
        looked.append(name)
        return called(self, path, name)

    monkeypatch.setattr(lora_tags, "read_header", counted)
    monkeypatch.setattr(LoraFolder, "_is_called", is_called)
    [job] = plan_jobs("<lora:alias:0.5>", {"lora_folder": folder, "seed": "1-9"})
    assert {each.lora[0].path.stem for each in job.requests} == {"file-123"}
    assert sorted(read) == sorted(path.name for path in folder.rglob("*.safetensors"))
    assert looked == ["alias"] * len([path for path in folder.rglob("*") if path.is_file()])
    place = LoraFolder(folder)
    for _ in range(2):
        with pytest.raises(UsageError, match="no such adapter"):
            place.find(lora_tags.read_networks("<lora:missing>")[0])
    assert len(read) == 2 * len(list(folder.rglob("*.safetensors")))


def test_an_export_takes_one_scale(folder: Path) -> None:
    with pytest.raises(UsageError, match="one scale for the UNet and the text encoders"):
        apply_adapters([AdapterChoice(folder / "style.safetensors", 2.0, 0.5)], {})
