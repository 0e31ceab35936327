"""The CUDA path without a GPU: the library's own driver code and choice of a variant, on a stub of libcuda.

The stub records which functions launched what with which arguments. What a GPU makes of a launch it cannot tell.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from support import native

FOLDER = Path(__file__).resolve().parents[1] / "support" / "cuda_stub"


@pytest.fixture(scope="module")
def program() -> Path:
    """A program that runs a GroupNorm (tests/support/cuda_stub/run_group_norm.cpp), and beside it two libraries."""
    build = native.build_folder()
    objects = [
        build / f"CMakeFiles/sdort_ops.dir/{name}.cpp.o"
        for name in ("driver/gpu", "driver/shared_library", "driver/tuning", "driver/variants", "runtime/operator")
    ]
    headers = sorted(native.SOURCE.rglob("*.h"))
    sources = {path.name: path.read_bytes() for path in [*FOLDER.iterdir(), *headers, *objects]}

    def make(folder: Path) -> None:
        for name, flags in (("whole", []), ("old", ["-DNO_COOPERATIVE_LAUNCHES"])):
            (folder / name).mkdir(parents=True, exist_ok=True)
            library = str(folder / name / "libcuda.so.1")
            compile_with("CC", "cc", "-shared", "-fPIC", *flags, "-o", library, str(FOLDER / "cuda.c"))
        folders = [f"-I{native.SOURCE}", f"-I{native.headers_of(build)}"]
        program = [str(FOLDER / "run_group_norm.cpp"), *map(str, objects), "-ldl", "-pthread"]
        compile_with("CXX", "c++", "-std=c++20", *folders, "-o", str(folder / "run"), *program)

    return native.built(sources, make)


def compile_with(variable: str, usual: str, *arguments: str) -> None:
    done = subprocess.run([os.environ.get(variable, usual), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run(program: Path, library: str = "whole", *, told: str = "", **settings: int) -> list[str]:
    """What was called, and the program's errors; ``settings`` are cuda.c's, ``told`` what stderr matches."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SDORT_")}
    extra = {f"SDORT_STUB_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**kept, **extra, "LD_LIBRARY_PATH": str(program / library)}
    done = subprocess.run([str(program / "run")], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(told, done.stderr), done.stderr
    return done.stdout.splitlines()


TOGETHER = "cuLaunchCooperativeKernel group_norm_f16_together_512_8_0 16x8 512 x=4096 stream=64"
"""2 x 64 x 64 x 320 on an H100: eight slabs, each of the sixteen blocks that 132 multiprocessors have for it."""
APART = [
    "cuLaunchKernel group_norm_f16_measure 33x8 256 x=4096 stream=64",
    "cuLaunchKernel group_norm_f16_apply 33x8 256 x=4096 stream=64",
]
"""Two blocks of 256 threads a multiprocessor: 264 for eight slabs."""
LESS_ROOM = r"warning: sdort's operators: this sm_90 has less room .* 132 units .*; a slower form takes less\n"


def test_blocks_that_wait_for_each_other_are_launched_together(program: Path) -> None:
    asked = "cuOccupancyMaxActiveBlocksPerMultiprocessor group_norm_f16_together_512_8_0 512"
    assert run(program) == [asked, TOGETHER, TOGETHER]  # the driver's answer is kept


@pytest.mark.parametrize(
    ("library", "told", "settings"),
    [("whole", LESS_ROOM, {"blocks": 0}), ("whole", "", {"cooperative": 0}), ("old", "", {})],
    ids=["no room", "a device without such launches", "a driver without such launches"],
)
def test_where_they_cannot_be_two_launches_do_not_wait(
    program: Path, library: str, told: str, settings: dict[str, int]
) -> None:
    """Of every variant that needs such a launch, not one is tried. Less room than there should be is told, once."""
    launched = [line for line in run(program, library, told=told, **settings) if "Launch" in line]
    assert launched == [*APART, *APART]


def test_a_question_that_fails_is_told_every_time(program: Path) -> None:
    """An answer that the driver did not give is none: it is not kept."""
    asked = "cuOccupancyMaxActiveBlocksPerMultiprocessor group_norm_f16_together_512_8_0 512"
    error = (
        "error: asking how many blocks of group_norm_f16_together_512_8_0 are resident failed: CUDA_ERROR_STUB (700)"
    )
    assert run(program, fail=700) == [asked, error, asked, error]
