"""The download of ONNX Runtime's headers is told before it happens, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdort.operator_library import build


@pytest.mark.parametrize("place", ["", "onnxruntime", "onnxruntime/core/session"])
def test_headers_that_are_there_are_not_downloaded(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "_INCLUDES", (str(tmp_path / "none"), str(tmp_path)))
    build._tell_download(build.BuildOptions(ort_include="mine"))
    assert capsys.readouterr().err == ""
    build._tell_download(build.BuildOptions())
    told = " ".join(capsys.readouterr().err.split())
    assert "apt-get downloads them now" in told
    assert "--ort-include FOLDER" in told
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / place / "onnxruntime_c_api.h").touch()
    build._tell_download(build.BuildOptions())
    assert capsys.readouterr().err == ""


def test_the_places_are_those_that_cmake_looks_in() -> None:
    rule = (Path(build.__file__).parents[2] / "custom_ops" / "cmake" / "headers.cmake").read_text()
    assert "onnxruntime_c_api.h PATH_SUFFIXES onnxruntime onnxruntime/core/session)" in rule
