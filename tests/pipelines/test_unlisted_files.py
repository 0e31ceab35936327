"""Files that are read of a pipeline whether its list names them or not, and what a list is compared with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import sdort.pipelines.content_check
from sdort.checkpoints.clip_tokenizer import write_clip_tokenizer
from sdort.errors import BadModelError, OutputError, UsageError
from sdort.pipelines.content_check import checked
from sdort.pipelines.manifest import ListedFile, is_inside, is_plain, listed_files, named, places_in, write_listed_files

FILES = {
    "model_index.json": b"{}",
    "unet/model.onnx": b"graph",
    "unet/model.onnx.data": bytes(5000),
    "vae_decoder/model.onnx": b"graph",
    "vae_decoder/model.onnx.data": bytes(6000),
    "scheduler/scheduler_config.json": b"{}",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sdort.pipelines.content_check, "SMALL", 4096)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "out"
    for place, content in FILES.items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        (out / place).write_bytes(content)
    write_listed_files(out, {}, {})
    return out


COMPONENTS = ("text_encoder", "text_encoder_2", "unet", "vae_encoder", "vae_decoder", "controlnet", "t2i_adapter",
              "image_encoder", "safety_checker")  # fmt: skip
READ = [
    "config.json", "scheduler_config.json",
    *(f"{part}/{name}" for part in (*COMPONENTS, "vae", "scheduler") for name in ("config.json",)),
    "unet/scheduler_config.json", "vae/model_index.json", "feature_extractor/preprocessor_config.json",
    *(f"{part}/{name}" for part in ("tokenizer", "tokenizer_2") for name in ("vocab.json", "merges.txt", "any")),
]  # fmt: skip
NOT_READ = [
    "README.md", "unet/notes.json", "unet/other.onnx.data", "tokenizer/.hidden", "feature_extractor/config.json",
    "other/config.json", "unet/deep/config.json", "preprocessor_config.json",
]  # fmt: skip


@pytest.mark.parametrize("place", [*READ, *NOT_READ])
def test_what_is_read_has_to_be_on_the_list(folder: Path, place: str) -> None:
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_bytes(b"{}")
    if place in NOT_READ:
        with checked(folder) as content:
            content.reads([folder / "unet" / "model.onnx"])
        return
    with pytest.raises(BadModelError, match=f"{place} is not on .*list of what sdort wrote"), checked(folder):
        pass
    with checked(folder, False) as content:
        content.reads([folder / "other.onnx"])


@pytest.mark.parametrize("place", FILES)
@pytest.mark.parametrize("change", ["gone", "longer", "other"])
def test_each_file_is_compared(folder: Path, place: str, change: str) -> None:
    path = folder / place
    if change == "gone":
        path.unlink()
    else:
        content = FILES[place]
        path.write_bytes(content + b"x" if change == "longer" else b"x" * len(content))
    words = {
        "gone": "is missing",
        "longer": f"has {len(FILES[place]) + 1:,} bytes, and sdort wrote {len(FILES[place]):,}",
        "other": "was changed or damaged",
    }[change]

    def use(*components: str) -> None:
        with checked(folder) as content:
            for name in ("unet", *components):
                content.reads([folder / name / "model.onnx"])

    if (place, change) == ("vae_decoder/model.onnx.data", "other"):
        use()  # weights that nobody reads
        with pytest.raises(BadModelError, match=words):
            use("vae_decoder")
        return
    with pytest.raises(BadModelError, match=f"{place} {words}") as caught:
        use()
    assert "made anew" in str(caught.value.hint) or "make it anew with sdort export" in str(caught.value.hint)


def test_one_component_is_compared_by_the_list_of_its_pipeline(folder: Path) -> None:
    (folder / "vae_decoder" / "model.onnx").write_bytes(b"other")
    for path in (folder / "unet", folder / "unet" / "model.onnx"):
        with checked(path) as content:
            content.reads([folder / "unet" / "model.onnx"])
    (folder / "unet" / "model.onnx").write_bytes(b"xxxxx")
    for path in (folder / "unet", folder / "unet" / "model.onnx"):
        with pytest.raises(BadModelError, match="was changed or damaged"), checked(path):
            pass


def test_a_component_of_which_nothing_is_there_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("model.onnx", "model.onnx.data"):
        (folder / "vae_decoder" / name).unlink()
    with pytest.raises(BadModelError, match="is missing"), checked(folder):
        pass
    (folder / "vae_decoder").rmdir()
    with checked(folder):
        pass
    assert "lists vae_decoder, of which nothing is there" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("error", "kept"),
    [(UsageError("x"), True), (OutputError("x"), True), (BadModelError("x"), False), (ValueError(), False)],
)
def test_damage_explains_an_error_unless_it_is_the_users(folder: Path, error: Exception, kept: bool) -> None:
    (folder / "unet" / "model.onnx.data").write_bytes(b"x" * 5000)

    def use() -> None:
        with checked(folder) as content:
            content.reads([folder / "unet" / "model.onnx"])
            raise error

    with pytest.raises(type(error) if kept else BadModelError) as caught:
        use()
    assert (caught.value is error) == kept
    assert kept or "was changed or damaged" in str(caught.value)


def test_names_of_places() -> None:
    for place in ("a", "a/b", ".a", "a.b/c"):
        assert is_inside(place)
    for place in ("", "/", "/a", "..", "a/../b", "a/..", "./a", "a//b", "a/", "."):
        assert not is_inside(place), place
    assert [named(list(text)) for text in ("a", "abc", "abcd", "abcdef")] == [
        "a", "a, b, c", "a, b, c and 1 more", "a, b, c and 3 more",
    ]  # fmt: skip


def test_places_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / ".d").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    assert sorted(places_in(tmp_path)) == [".d", "a/b/c", "link", "pipe"]
    assert [is_plain(tmp_path / name) for name in (".d", "link", "pipe", "a")] == [True, False, False, False]


def test_a_list_has_every_file_but_itself(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"abc")
    (tmp_path / "sdort.json").write_text("old")
    write_listed_files(tmp_path, {"source": "x", "files": "replaced"}, {tmp_path / "a": "0" * 32})
    written = json.loads((tmp_path / "sdort.json").read_text())
    assert written.keys() == {"source", "files"}
    found = listed_files(tmp_path)
    assert found == {"a/b/c": ListedFile(3, written["files"]["a/b/c"]["xxh128"])}
    (tmp_path / "sdort.json").write_text('{"source": "x"}')
    assert listed_files(tmp_path) is None


def test_a_tokenizer_of_merges(tmp_path: Path) -> None:
    assert write_clip_tokenizer(tmp_path / "a" / "b", ["h e", "he l</w>"], "!") == 512 + 4
    found = tmp_path / "a" / "b"
    vocabulary = json.loads((found / "vocab.json").read_text())
    assert sorted(vocabulary.values()) == list(range(516))
    assert [vocabulary[token] for token in ("!", "!</w>", "he", "hel</w>", "<|startoftext|>", "<|endoftext|>")] == [
        0, 256, 512, 513, 514, 515,
    ]  # fmt: skip
    assert (found / "merges.txt").read_text() == "#version: 0.2\nh e\nhe l</w>\n"
    specials = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "!",
    }
    assert json.loads((found / "special_tokens_map.json").read_text()) == specials
    assert json.loads((found / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True, **specials,
    }  # fmt: skip
    write_clip_tokenizer(found, [])
    assert json.loads((found / "special_tokens_map.json").read_text())["pad_token"] == "<|endoftext|>"
