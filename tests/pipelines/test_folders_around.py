"""What is said of a path by what lies above it, below it and in it; and how far a check of content looks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.checkpoints.weight_names import Kind
from sdort.errors import BadModelError, UsageError
from sdort.families.known_families import COMPONENTS
from sdort.files.user_folders import models_folder
from sdort.pipelines import content_check, explain_path
from sdort.pipelines.content_check import ContentCheck, _open_check
from sdort.pipelines.explain_path import expect_onnx, no_diffusers_pipeline
from sdort.pipelines.manifest import ListedFile, write_listed_files

OLD, NEW = "0" * 40, "abcdef0"


def make(root: Path, *places: str) -> Path:
    """Files, and folders where a name ends in a slash."""
    for place in places:
        path = root / place
        path.mkdir(parents=True) if place.endswith("/") else path.parent.mkdir(parents=True, exist_ok=True)
        if not place.endswith("/"):
            path.write_text("{}")
    return root


def said(error: Any) -> Any:
    return (error.message, error.hint) if error else None


@pytest.mark.parametrize(
    ("given", "above"),
    [("p", None), ("p/unet", "p"), ("p/unet/deep", "p"), ("p/a/b/c", None), ("elsewhere", None)],
)
@pytest.mark.parametrize("command", ["export", "optimize"])
def test_the_pipeline_above(given: str, above: str | None, command: str, tmp_path: Path) -> None:
    make(tmp_path, "p/model_index.json", "p/unet/deep/", "p/a/b/c/", "elsewhere/")
    found = explain_path._higher(tmp_path / given, command)
    assert said(found) == (above and (
        f"{tmp_path / given} is a part of the pipeline {tmp_path / above}",
        f"Give the whole pipeline:\n    sdort {command} {tmp_path / above} OUT",
    ))  # fmt: skip


def test_a_path_is_named_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "p/model_index.json", "p/unet/", "outer/in ner/model_index.json")
    monkeypatch.chdir(tmp_path / "p")
    assert said(explain_path._higher(Path("unet"), "export"))[0] == (
        f"{tmp_path}/p/unet is a part of the pipeline {tmp_path}/p"
    )
    monkeypatch.chdir(tmp_path)
    for command, words in (
        ("export", f"sdort export '{tmp_path}/outer/in ner' OUT"),
        (None, f"'{tmp_path}/outer/in ner'"),
    ):
        assert said(explain_path._deeper(Path("outer"), command)) == (
            f"{tmp_path}/outer is no pipeline, but in ner in it is one", f"Give that:\n    {words}",
        )  # fmt: skip


CACHE = "models--owner--name--x"
SNAPSHOTS = (f"snapshots/{OLD}/model_index.json", f"snapshots/{NEW}/model_index.json")
SNAPSHOT = "{} is a folder of the hub's cache, whose pipeline is a snapshot"


@pytest.mark.parametrize(
    ("places", "refs", "message", "hint"),
    [
        ((), None, None, None),
        (("a/b/c/model_index.json",), None, None, None),
        ((".hidden/model_index.json",), None, None, None),
        (("a/model_index.json",), None, "{} is no pipeline, but a in it is one", "Give that:\n    sdort go {}/a OUT"),
        (("a/b/model_index.json",), None, "{} is no pipeline, but b in it is one",
         "Give that:\n    sdort go {}/a/b OUT"),
        (("a/model_index.json", "c/b/model_index.json"), None, "{} is no pipeline, but a in it is one",
         "Give that:\n    sdort go {}/a OUT"),
        (("b/model_index.json", "a/model_index.json"), None, "{} holds several pipelines: a, b", "Give one of them."),
        (("c/b/model_index.json", "a/d/model_index.json"), None, "{} holds several pipelines: a/d, c/b",
         "Give one of them."),
        (tuple(f"{n}/model_index.json" for n in range(7)), None, "{} holds several pipelines: 0, 1, 2, 3, 4",
         "Give one of them."),
        (SNAPSHOTS[:1], None, SNAPSHOT, f"Give the snapshot:\n    sdort go {{}}/snapshots/{OLD} OUT"),
        (SNAPSHOTS, NEW, SNAPSHOT, f"Give the snapshot:\n    sdort go {{}}/snapshots/{NEW} OUT"),
        (SNAPSHOTS, f"{OLD}\n", SNAPSHOT, f"Give the snapshot:\n    sdort go {{}}/snapshots/{OLD} OUT"),
        (SNAPSHOTS, "1" * 40, "{} holds several pipelines: " + f"snapshots/{OLD}, snapshots/{NEW}",
         "Give one of them."),
        ((*SNAPSHOTS, "snapshots/abc/model_index.json"), "abc", "{} holds several pipelines: "
         + f"snapshots/{OLD}, snapshots/abc, snapshots/{NEW}", "Give one of them."),
        ((f"{CACHE}/", "a/model_index.json"), None, "{} is the hub's cache, with owner/name--x",
         "Give a hub id; what is in the cache is not downloaded again:\n    sdort export owner/name--x OUT"),
        (("models--b--c/", "models--a--d/", "models--e/"), None, "{} is the hub's cache, with a/d, b/c",
         "Give a hub id; what is in the cache is not downloaded again."),
        (tuple(f"models--a--{n}/" for n in range(7)), None, "{} is the hub's cache, with a/0, a/1, a/2, a/3, a/4",
         "Give a hub id; what is in the cache is not downloaded again."),
    ],
    ids=str,
)  # fmt: skip
def test_pipelines_below(
    places: tuple[str, ...], refs: str | None, message: str | None, hint: str | None, tmp_path: Path
) -> None:
    make(tmp_path, *places, "file")
    if refs is not None:
        make(tmp_path, "refs/main")
        (tmp_path / "refs" / "main").write_text(refs)
    expected = message and (message.format(tmp_path), str(hint).format(tmp_path))
    assert said(explain_path._deeper(tmp_path, "go")) == expected


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ((), None), (("a.txt", "b.json"), None), (("a.safetensors", "b.bin"), None), (("a.safetensors/",), None),
        *(((f"a{end}", "b.txt", "c.bin/"), f"a{end}")
          for end in (".safetensors", ".CKPT", ".pt", ".pth", ".bin", ".gguf", ".engine", ".plan", ".crdownload",
                      ".part")),
    ],
    ids=str,
)  # fmt: skip
def test_the_one_file_of_a_folder(
    places: tuple[str, ...], found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Any = list[Path]()
    monkeypatch.setattr(
        explain_path, "recognise_file", lambda path: asked.append(path) or SimpleNamespace(what="a thing", advice="So.")
    )
    make(tmp_path, *places)
    error = explain_path._lone_file(tmp_path)
    assert said(error) == (found and (f"{tmp_path} holds {found}, a thing, and no pipeline", "So."))
    assert asked == ([tmp_path / found] if found else [])


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("owner/name", "owner/name does not exist",
         "If it is a hub id, export it first:\n    sdort export owner/name OUT"),
        ("here/name", "here/name does not exist", "Make a pipeline with:\n    sdort export MODEL OUT"),
        ("a/b/c", "a/b/c does not exist", "Make a pipeline with:\n    sdort export MODEL OUT"),
        ("nowhere", "nowhere does not exist", "Make a pipeline with:\n    sdort export MODEL OUT"),
        ("hereabout", "hereabout does not exist", "Is it hereabouts?"),
        ("link", "link is a link to gone, which does not exist",
         "What it points to was moved or removed: make the link again."),
    ],
)  # fmt: skip
def test_where_no_graphs_are(
    text: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(make(tmp_path, "here/", "hereabouts"))
    Path("link").symlink_to("gone")
    with pytest.raises(UsageError) as caught:
        expect_onnx(Path(text))
    assert said(caught.value) == (message, hint)


def test_paths_of_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/the/home")
    for text, path in (("~/a", "/the/home/a"), ("~", "/the/home"), ("a/~", "a/~"), ("~nobody-of-that-name/a", None)):
        assert explain_path.in_home(text) == Path(path or text)
    assert str(explain_path.in_home("~\0/a")) == "~\0/a"
    assert explain_path._entries(Path("a\0b")) == []


def test_entries_are_sorted_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert explain_path._entries(make(tmp_path, "c", "a/", "b")) == [tmp_path / name for name in "abc"]
    assert explain_path._entries(tmp_path / "c") == explain_path._entries(tmp_path / "nowhere") == []
    monkeypatch.setattr(explain_path, "_ENTRIES", 2)
    assert len(explain_path._entries(tmp_path)) == 2


@pytest.mark.parametrize(
    ("places", "nested", "taken"),
    [
        (("model.onnx",), False, True),
        (("unet/model.onnx",), False, True),
        (("a/unet/model.onnx", "a/model_index.json"), False, False),
        (("a/unet/model.onnx", "a/model_index.json"), True, True),
        (("a/unet/model.onnx", "a/model_index.json", "b.onnx"), False, True),
        (("a/unet/model.onnx", "model_index.json"), False, True),
        (("a/unet/model.onnx",), False, True),  # of no known kind: whoever reads it says so
        (("model_index.json", "unet/config.json"), True, False),
        ((), True, True),
    ],
    ids=str,
)
def test_where_graphs_may_lie(places: tuple[str, ...], nested: bool, taken: bool, tmp_path: Path) -> None:
    make(tmp_path, *places)
    if taken:
        expect_onnx(tmp_path, nested=nested)
    else:
        with pytest.raises(BadModelError):
            expect_onnx(tmp_path, nested=nested)


def test_a_pipeline_in_a_folder_of_its_own_is_given_to_the_same_command(tmp_path: Path) -> None:
    make(tmp_path, "a/unet/model.onnx", "a/model_index.json")
    with pytest.raises(BadModelError) as caught:
        expect_onnx(tmp_path)
    assert caught.value.hint == f"Give that:\n    {tmp_path}/a"
    (tmp_path / "a" / "unet" / "model.onnx").unlink()
    with pytest.raises(BadModelError) as caught:
        expect_onnx(tmp_path)
    assert caught.value.hint == f"Give that:\n    sdort export {tmp_path}/a OUT"


@pytest.mark.parametrize(
    ("places", "message", "hint"),
    [
        ((), "{} is empty", "Give the folder that holds model_index.json"),
        (("x",), "{} is no diffusers pipeline: it has no model_index.json", "Give the folder that holds model_index"),
        (("a/model_index.json", "unet/model.onnx"), "{} is no pipeline, but a in it is one", "Give that"),
        (("unet/model.onnx", "a.gguf"), "{} holds ONNX graphs, and no weights to export", "The next step:\n"),
    ],
    ids=str,
)  # fmt: skip
def test_a_folder_that_is_no_pipeline(places: tuple[str, ...], message: str, hint: str, tmp_path: Path) -> None:
    error = no_diffusers_pipeline(make(tmp_path, *places))
    assert error.message == message.format(tmp_path)
    assert str(error.hint).startswith(hint)
    if not places:
        (tmp_path.parent / "model_index.json").write_text("{}")
        try:
            assert "is a part of the pipeline" in no_diffusers_pipeline(tmp_path).message
        finally:
            (tmp_path.parent / "model_index.json").unlink()


@pytest.mark.parametrize("kind", [Kind.UNKNOWN, Kind.GGUF])
@pytest.mark.parametrize("name", ["a.onnx", "a.bin"])
def test_a_file_that_may_be_a_graph(kind: Kind, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(kind=kind, what="a thing", advice="So.")
    monkeypatch.setattr(explain_path, "recognise_file", lambda path: found)
    make(tmp_path, name)
    if name == "a.onnx" or kind is Kind.UNKNOWN:
        expect_onnx(tmp_path / name)
    else:
        with pytest.raises(BadModelError, match=r"a.bin is a thing, not an ONNX model") as caught:
            expect_onnx(tmp_path / name)
        assert caught.value.hint == "So."


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A pipeline with a list; ``deep`` has one of its own, that is none."""
    root = make(tmp_path / "p", "unet/model.onnx", "unet/deep/er/a.onnx", "unetx/b.onnx", "c.onnx", "empty/")
    write_listed_files(root, {"optimized": {"from": "a"}}, {})
    make(root, "unet/deep/sdort.json")
    return root


@pytest.mark.parametrize(
    ("given", "scope", "root", "places"),
    [
        ("p", "p", "p", {"unet/model.onnx", "unet/deep/er/a.onnx", "unetx/b.onnx", "c.onnx"}),
        ("p/c.onnx", "p", "p", {"unet/model.onnx", "unet/deep/er/a.onnx", "unetx/b.onnx", "c.onnx"}),
        ("p/unet", "p/unet", "p", {"model.onnx", "deep/er/a.onnx"}),
        ("p/unet/model.onnx", "p/unet", "p", {"model.onnx", "deep/er/a.onnx"}),
        ("p/unet/deep", "p/unet/deep", "p", {"er/a.onnx"}),
        ("p/unet/deep/er", "p/unet/deep/er", None, set()),
        ("p/empty", "p/empty", None, set()),
        ("elsewhere", "elsewhere", None, set()),
    ],
)
@pytest.mark.parametrize("optimized", [False, True])
def test_the_list_that_a_path_is_on(
    given: str, scope: str, root: str | None, places: set[str], optimized: bool, listed: Path, tmp_path: Path
) -> None:
    """That of its folder, or of one of the two folders above, if it names anything there."""
    make(tmp_path, "elsewhere/")
    manifest = json.loads((listed / "sdort.json").read_text())
    if not optimized:
        del manifest["optimized"]
    (listed / "sdort.json").write_text(json.dumps(manifest))
    found = _open_check(tmp_path / given)
    assert (found._scope, found._root) == (tmp_path / scope, tmp_path / (root or scope))
    assert set(found._listed) == places
    assert found._optimized is (optimized if root else None)


def test_a_list_is_found_behind_a_link(listed: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(listed / "unet")
    found = _open_check(tmp_path / "link")
    assert (found._scope, found._root) == (tmp_path / "link", listed)
    assert set(found._listed) == {"model.onnx", "deep/er/a.onnx"}


def test_files_that_are_read_unasked(tmp_path: Path) -> None:
    names = ("config.json", "scheduler_config.json", "model_index.json")
    parts = (*COMPONENTS, "vae", "scheduler")
    read = {*names, *(f"{part}/{name}" for part in parts for name in names)}
    read |= {f"{part}/{name}" for part in ("tokenizer", "tokenizer_2") for name in ("a", "b.json")}
    others = ("other/config.json", "tokenizer/.a", "tokenizer/deep/a", "unet/x.json", "README", "unet/deep/config.json")
    make(tmp_path, *sorted(read), *others)
    assert sorted(content_check._read_unasked(tmp_path)) == sorted(tmp_path / place for place in read)
    for place in ("config.json", "unet/config.json", "tokenizer/a"):
        (tmp_path / place).unlink()
        (tmp_path / place).mkdir()
        assert tmp_path / place not in content_check._read_unasked(tmp_path)


@pytest.mark.parametrize("optimized", [False, True, None])
@pytest.mark.parametrize("cached", [False, True])
def test_what_to_do_with_a_file_that_is_another(optimized: bool | None, cached: bool, tmp_path: Path) -> None:
    root = models_folder() / "a b" / "model" if cached else tmp_path
    error = ContentCheck(tmp_path, root, {}, optimized)._wrong(Path("x"), "is gone")
    command = "sdort optimize" if optimized else "sdort export"
    hint = f"remove it and make it anew with {command}. If" if not cached else f"anew:\n    rm -r '{root.parent}'"
    assert error.message == "x is gone"
    assert hint in str(error.hint)


@pytest.mark.parametrize("size", [9, 10, 11, None])
def test_sizes_are_compared_exactly(size: int | None, tmp_path: Path) -> None:
    check = ContentCheck(tmp_path, tmp_path, {"a": ListedFile(10, "0" * 32)}, True)
    if size is not None:
        (tmp_path / "a").write_bytes(bytes(size))
    if size == 10:
        check._compare_size("a")
        return
    words = "a is missing" if size is None else f"a has {size} bytes, and sdort wrote 10"
    with pytest.raises(BadModelError, match=words):
        check._compare_size("a")
    (tmp_path / "loop").symlink_to("loop")
    check = ContentCheck(tmp_path, tmp_path, {"loop": ListedFile(10, "0" * 32)}, True)
    with pytest.raises(BadModelError, match=r"loop cannot be read \(Too many levels"):
        check._compare_size("loop")


@pytest.mark.parametrize("gone", [False, True])
def test_small_files_are_compared_at_once(
    gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All sizes first; content up to the bound, that included; a component that is not there is told."""
    monkeypatch.setattr(content_check, "SMALL", 10)
    sizes = {"unet/a": 10, "unet/b": 11, "c": 3, "vae_decoder/d": 2, "vae_encoder/e": 2, "other/f": 2}
    files = {place: ListedFile(size, "") for place, size in sizes.items()}
    for place in sizes:
        if not gone or not place.startswith("vae_"):
            make(tmp_path, place)
    check, calls = ContentCheck(tmp_path, tmp_path / "root", files, True), list[Any]()
    monkeypatch.setattr(content_check, "check_own_file", lambda path, root: calls.append(("own", path, root)))
    monkeypatch.setattr(check, "_compare_size", lambda place: calls.append(("size", place)))
    monkeypatch.setattr(check, "_compare", lambda place: calls.append(("content", place)))
    monkeypatch.setattr(check, "_refuse_unlisted", lambda paths: calls.append(("unlisted", list(paths))))
    make(tmp_path, "unet/config.json")
    check.compare_small()
    present = [place for place in sizes if not gone or not place.startswith("vae_")]
    looked = [call for place in present
              for call in (("own", tmp_path / place, tmp_path / "root"), ("size", place))]  # fmt: skip
    small = [("content", place) for place in present if place != "unet/b"]
    assert calls == [*looked, *small, ("unlisted", [tmp_path / "unet" / "config.json"])]
    said = " ".join(capsys.readouterr().err.split())
    words = f"{tmp_path}/root/sdort.json lists vae_decoder, vae_encoder, of which nothing is there"
    assert (words in said) == gone


def test_large_files_that_are_remembered_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is remembered with the identity that it had before it was read; all are kept, also after an error."""
    kept: list[Any] = []
    remembered = SimpleNamespace(
        find={"a": "1", "b": "9", "c": None}.get,
        add=lambda *given: kept.append(given),
        keep=lambda: kept.append("keep"),
    )
    asked: Any = list[Any]()
    monkeypatch.setattr(content_check, "RememberedHashes", lambda *given: asked.append(given) or remembered)
    monkeypatch.setattr(content_check, "file_identity", lambda path: f"of {path.name}")
    files = {place: ListedFile(1, number) for place, number in (("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"))}
    check, answers = ContentCheck(tmp_path, tmp_path, files, True), {"b": "2", "c": None}
    monkeypatch.setattr(check, "_compare", lambda place: answers[place])
    check._compare_large(["a", "b", "c"])
    assert asked == [(tmp_path, "xxh128")]
    assert kept == [("b", "of b", "2"), "keep"]
    kept.clear()
    with pytest.raises(KeyError):
        check._compare_large(["b", "d"])
    assert kept == [("b", "of b", "2"), "keep"]
    assert os.listdir(tmp_path) == []
