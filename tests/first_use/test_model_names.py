"""Names for models: a file that stays whole, names that are no paths, and paths that come first."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sdort
from sdort.checkpoints.configs import INDEX
from sdort.errors import BadModelError, UsageError
from sdort.files.user_folders import data_folder
from sdort.first_use.find_pipeline import is_checkpoint, named_path, pipeline_folder
from sdort.first_use.model_names import path_of_name
from sdort.providers.runtime_options import RuntimeOptions

FILE = "names.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A diffusers folder, and a data folder without names."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    made = tmp_path / "dream"
    made.mkdir()
    (made / INDEX).write_text("{}")
    return made


def test_a_name_is_given_found_listed_and_taken_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert sdort.add_model("dream").name == "dream"
    assert sdort.add_model("dream", "d.1").path == folder, "absolute"
    assert [(each.name, each.path, each.exists) for each in sdort.list_models().models] == [
        ("d.1", folder, True),
        ("dream", folder, True),
    ]
    assert path_of_name("d.1") == folder
    assert sdort.remove_model("d.1").path == folder
    assert [each.name for each in sdort.list_models().models] == ["dream"]
    with pytest.raises(UsageError, match=r"no model has the name d\.1"):
        sdort.remove_model("d.1")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "-x",
        "a/b",
        "../a",
        "a b",
        "a\nb",
        "a\x1b[2J",
        "a\0b",
        "demo",
        "x.safetensors",
        "x.onnx",
        "a" * 101,
    ],
    ids=ascii,
)
def test_what_cannot_be_a_name(name: str, folder: Path) -> None:
    with pytest.raises(UsageError, match="the name ") as refused:
        sdort.add_model(folder, name)
    assert "\x1b" not in str(refused.value)
    assert not (data_folder() / FILE).exists()


def test_a_taken_name_stays_unless_it_is_overwritten(folder: Path) -> None:
    other = folder.with_name("other")
    other.mkdir()
    (other / INDEX).write_text("{}")
    sdort.add_model(folder, "a")
    sdort.add_model(folder, "a")
    with pytest.raises(UsageError, match=f"the name a is taken, by {folder}"):
        sdort.add_model(other, "a")
    assert path_of_name("a") == folder
    sdort.add_model(other, "a", overwrite=True)
    assert path_of_name("a") == other


def test_a_model_that_was_moved_is_told(folder: Path) -> None:
    sdort.add_model(folder, "a")
    folder.rename(folder.with_name("moved"))
    with pytest.raises(
        UsageError, match=rf"a is the name of {folder}, which is not there(.|\n)*sdort add PATH a --over"
    ):
        pipeline_folder("a", RuntimeOptions())
    assert [each.exists for each in sdort.list_models().models] == [False]


def test_a_path_comes_before_a_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sdort.add_model(folder, "a")
    monkeypatch.chdir(folder.parent)
    assert named_path("a") == folder
    assert not capsys.readouterr().err
    Path("a").mkdir()
    Path("a/model.onnx").touch()
    assert named_path("a") == "a"
    assert f"not the model of that name ({folder})" in capsys.readouterr().err
    assert pipeline_folder("a", RuntimeOptions()) == Path("a")


def test_many_at_once_lose_no_name(folder: Path) -> None:
    names = [f"n{number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: sdort.add_model(folder, name), names))
    assert {each.name for each in sdort.list_models().models} == set(names)
    assert [path.name for path in data_folder().iterdir()] == [FILE]


@pytest.mark.parametrize(
    "content",
    [
        "[]", "{", '{"names": []}', '{"names": {"a": 1}}', '{"names": {"a": "relative"}}', '{"names": {"../a": "/x"}}',
        '{"names": {"a\\u001b": "/x"}}', '{"names": {"a": "/x\\u0000"}}',
    ],
)  # fmt: skip
def test_a_broken_file_of_names_is_told_and_not_replaced(content: str, folder: Path) -> None:
    data_folder().mkdir(parents=True)
    (data_folder() / FILE).write_text(content)
    for call in (sdort.list_models, lambda: sdort.add_model(folder), lambda: path_of_name("a")):
        with pytest.raises(BadModelError, match=r"the file of names(.|\n)*rm "):
            call()
    assert (data_folder() / FILE).read_text() == content


def test_what_is_not_a_model_gets_no_name(folder: Path) -> None:
    (folder.parent / "a.txt").write_text("a")
    empty = folder.parent / "empty"
    empty.mkdir()
    for path, message in ((folder.parent / "a.txt", "not a model that sdort runs"), (empty, "is no pipeline")):
        with pytest.raises(BadModelError, match=message):
            sdort.add_model(path)
    with pytest.raises(UsageError, match="does not exist"):
        sdort.add_model(folder.parent / "nothing")


def test_a_misspelt_name_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    sdort.add_model(folder, "nightmare")
    for text, name in (("nigtmare", "nightmare"), ("demoo", "demo")):
        with pytest.raises(UsageError, match=f"{text} does not exist(.|\n)*Is it {name}"):
            pipeline_folder(text, RuntimeOptions())


def test_what_is_exported_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert is_checkpoint(folder)
    assert is_checkpoint("demo")
    assert is_checkpoint("owner/name")
    assert not is_checkpoint("nothing")
    with pytest.raises(UsageError, match=r"models/x\.safetensors does not exist"):
        pipeline_folder("models/x.safetensors", RuntimeOptions())
    assert not is_checkpoint("dream/nothing"), "a folder's, not a hub id"
    (folder / "model.onnx").touch()
    assert not is_checkpoint(folder), "it holds ONNX models"
    assert json.loads((folder / INDEX).read_text()) == {}
