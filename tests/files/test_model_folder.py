"""What belongs to a model: its folder's regular files, and links that stay there or lead to blobs of its snapshot."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sdort.errors import BadModelError
from sdort.files.model_folder import check_model_folder, check_own_file


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "vae").mkdir(parents=True)
    (folder / "vae" / "config.json").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    return folder


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(BadModelError) as caught:
        check_model_folder(folder)
    text = str(caught.value)
    assert [word for word in words if word not in text] == []


def test_links_that_stay_are_followed(model: Path, tmp_path: Path) -> None:
    (model / "unet").symlink_to("vae")
    (model / "a.json").symlink_to("b.json")
    (model / "b.json").symlink_to("vae/config.json")
    (model / "round").symlink_to(".")
    (model / ".git").symlink_to("/dev")  # hidden: nothing reads it
    check_model_folder(model)
    (tmp_path / "alias").symlink_to("model")
    check_model_folder(tmp_path / "alias")


def test_links_that_lead_out_are_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "model-2").mkdir()  # begins as the model's own name does
    (model / "chain.json").symlink_to("last.json")
    for target in (tmp_path / "other" / "config.json", tmp_path / "other", tmp_path / "model-2", Path("/dev/zero")):
        (model / "last.json").symlink_to(target)
        refused(model, f"is a link to {target}, outside of the model's folder", "cp -rL")
        (model / "last.json").unlink()
    (model / "last.json").symlink_to("gone")
    refused(model, "is a link to", "No such file")
    (model / "chain.json").unlink()
    (model / "last.json").unlink()
    (model / "circle").symlink_to("circle")
    refused(model, "circle is a link to circle, which cannot be read")


def test_blobs_of_the_same_snapshot_belong_to_it(tmp_path: Path) -> None:
    caches = [tmp_path / name for name in ("models--a--one", "models--b--two")]
    for cache in caches:
        (cache / "blobs").mkdir(parents=True)
        (cache / "blobs" / ("0" * 40)).write_text("{}")
        (cache / "blobs" / "notes").write_text("{}")
    snapshot = caches[0] / "snapshots" / "main"
    (snapshot / "vae").mkdir(parents=True)
    (snapshot / "vae" / "config.json").symlink_to(f"../../../blobs/{'0' * 40}")
    check_model_folder(snapshot)
    check_model_folder(snapshot / "vae")
    for target in (caches[1] / "blobs" / ("0" * 40), caches[0] / "blobs" / "notes", caches[0] / "blobs"):
        (snapshot / "linked").symlink_to(target)
        refused(snapshot, "outside of the model's folder")
        (snapshot / "linked").unlink()


def test_what_is_no_file_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(model / "vae" / "pipe")
    refused(model, "pipe is a named pipe")
    (model / "vae" / "pipe").unlink()
    monkeypatch.chdir(model)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        refused(model, "s is a socket")
    (model / "s").unlink()
    (model / "vae" / "merges.txt").mkdir()
    refused(model, "merges.txt is a folder, and a file has to be there")


@pytest.mark.parametrize("name", ["a.json", "a.txt", "a.jinja", "a.safetensors", "a.bin", "a.data", "model.onnx"])
def test_a_folder_with_the_name_of_each_file_is_refused(name: str, model: Path) -> None:
    (model / "unet").mkdir()
    (model / "unet" / name.replace(".", "-")).mkdir()
    check_model_folder(model)
    (model / "unet" / name).mkdir()
    refused(model, f"{name} is a folder, and a file has to be there")


@pytest.mark.parametrize(("digits", "own"), [("0" * 40, True), ("a1" * 32, True), ("0" * 41, False), ("A" * 40, False)])
def test_a_blob_is_named_by_a_hash_and_lies_beside_the_snapshots(digits: str, own: bool, tmp_path: Path) -> None:
    cache = tmp_path / "models--a"
    (cache / "snapshots" / "main" / "vae").mkdir(parents=True)
    for folder in ("blobs", "blobs/deeper", "other"):
        (cache / folder).mkdir()
        (cache / folder / digits).write_text("{}")
    file = cache / "snapshots" / "main" / "vae" / "config.json"
    for folder, belongs in (("blobs", own), ("blobs/deeper", False), ("other", False)):
        file.symlink_to(cache / folder / digits)
        for snapshot in (cache / "snapshots" / "main", cache / "snapshots" / "main" / "vae"):
            if belongs:
                check_own_file(file, snapshot)
                check_model_folder(snapshot)
            else:
                refused(snapshot, "outside of the model's folder")
                with pytest.raises(BadModelError, match="outside of the model's folder"):
                    check_own_file(file, snapshot)
        file.unlink()


def test_a_file_is_a_models_own_by_where_its_links_lead(model: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to("model")
    for folder in (model, tmp_path / "alias"):
        check_own_file(folder / "vae" / "config.json", folder)
        check_own_file(folder / "none.json", folder)  # whoever opens it says so
        with pytest.raises(BadModelError, match=r"is a link to .*other/config\.json"):
            check_own_file(folder / ".." / "other" / "config.json", folder)
    (model / "deep").symlink_to(tmp_path / "other")
    with pytest.raises(BadModelError, match="outside of the model's folder"):
        check_own_file(model / "deep" / "config.json", model)
