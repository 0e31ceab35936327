"""The scripts that time a run: its start (cold_start.py), what it takes beside its stages (own_time.py),
what it saves by computing the deep part of the UNet seldom (deep_cache.py), and what several devices gain
(shared_images.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.script_modules import SCRIPTS
from support.tiny_pipeline import Tiny

pytestmark = pytest.mark.long


def said(script: str, *arguments: object) -> tuple[int, str]:
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_phases_of_a_start_add_up(tiny: Tiny, tmp_path: Path) -> None:
    code, words = said("cold_start.py", tiny.onnx, "--processes", 1, "--json", tmp_path / "found.json")
    assert code == 0, words
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert sum(found["phases"].values()) == pytest.approx(found["whole"])
    expected = {"imports", "reading of graphs", "sessions", "first step", "decoder", "image files"}
    assert expected <= found["phases"].keys()
    assert all(seconds > 0 for seconds in found["phases"].values())
    assert found["bytes"] == sum(file.stat().st_size for file in tiny.onnx.glob("*/model.onnx*"))


def test_a_later_image_starts_no_process_and_opens_no_file(tiny: Tiny, tmp_path: Path) -> None:
    options = ("--images", 2, "--steps", 2, "--most", 1e9, "--diffusers", "--beside", "--json", tmp_path / "found.json")
    code, words = said("own_time.py", tiny.onnx, *options)
    assert code == 0, words
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert found["processes"] == []
    assert found["files"] == []
    assert all(seconds > 0 for seconds in found["beside"].values())
    assert 0 < found["seconds"]["stages"] < found["seconds"]["generate"]
    code, words = said("own_time.py", tiny.onnx, "--images", 1, "--steps", 1, "--most", 0.5)
    assert code == 1
    assert "at most 0.5" in words


def test_fewer_whole_steps_are_timed_and_their_images_compared(tiny: Tiny, tmp_path: Path) -> None:
    options = ("--images", 1, "--steps", 3, "--every", 3, "--depth", 1, 2, "--judge", "--json", tmp_path / "found.json")
    code, words = said("deep_cache.py", tiny.onnx, *options)
    assert code == 0, words
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert found["same"]
    plain, *cached = found["rows"]
    assert (plain["every"], plain["speed"], plain["psnr"]) == (1, 1.0, float("inf"))
    assert [(row["every"], row["depth"]) for row in cached] == [(3, 1), (3, 2)]
    assert all(0 < row["least_psnr"] <= row["psnr"] < 100 for row in cached)
    # A model of random weights shows nothing that the judge knows.
    few = ("--images", 1, "--steps", 2, "--every", 3)
    assert said("deep_cache.py", tiny.onnx, *few, "--judge", "--right", 0.9)[0] == 1
    assert said("deep_cache.py", tiny.onnx, *few, "--least", 1000)[0] == 1


def test_images_of_several_devices_are_timed_and_compared(tiny: Tiny, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    options = ("--images", 1, "--steps", 2, "--devices", "0,1", "0,1,2", "--sizes", "64x64", "96x64", "--tiling")
    code, words = said("shared_images.py", tiny.onnx, *options, "--psnr", 60, "--json", found)
    assert code == 0, words
    rows = json.loads(found.read_text())["rows"]
    named = [(row["size"], row["devices"], row["tiling"]) for row in rows]
    assert named == [
        (size, devices, tiling)
        for size in ("64x64", "96x64")
        for devices in ("0", "0,1", "0,1,2")
        for tiling in (False, True)
    ]
    assert all(row["step_seconds"][0] > 0 and row["decode_seconds"][0] > 0 for row in rows)
    assert [each["bytes"] for each in json.loads(found.read_text())["exchanges"]] == [4 * 4 * 16 * 16, 4 * 4 * 16 * 24]
    assert said("shared_images.py", tiny.onnx, "--images", 1, "--steps", 1, "--sizes", "64x64", "--least", 1000)[0] == 1


def test_patches_are_timed_and_compared(tiny: Tiny, tmp_path: Path) -> None:
    import sdort

    sdort.optimize(tiny.onnx, tmp_path / "fast", provider="cpu")
    found = tmp_path / "found.json"
    options = ("--images", 1, "--steps", 3, "--devices", "0,1", "0,1", "--patches", 0, 2, "--exact-steps", 2)
    code, words = said("shared_images.py", tmp_path / "fast", *options, "--sizes", "64x64", "--json", found)
    assert code == 0, words
    read = json.loads(found.read_text())
    assert [row["devices"] for row in read["rows"]] == ["0", "0,1", "0,1 in 2"]
    assert [row["psnr"] == [float("inf")] for row in read["rows"]] == [True, True, False]
    [given] = read["patches"]
    assert (given["latents"], given["devices"]) == ("16x16", "0,1 in 2")
    assert given["bytes"] > 1000
    assert given["seconds"] > 0
    code, words = said("shared_images.py", tmp_path / "fast", "--devices", "0,1", "--patches", 0, 2)
    assert (code, "--patches has 2 numbers, and --devices 1 lists" in words) == (2, True)
