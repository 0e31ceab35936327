"""Commands where torch, diffusers, transformers and onnxscript are not installed: they work, or say what they need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import without

from sdort.errors import MissingPackageError

if TYPE_CHECKING:
    from support.tiny_pipeline import Tiny

OPTIONAL = ("torch", "diffusers", "transformers", "onnxscript")

RUN = """
from click.testing import CliRunner
from sdort.cli import cli

done = []
for arguments in {commands!r}:
    result = CliRunner().invoke(cli, arguments)
    done.append([result.exit_code, result.stdout, result.stderr])
json.dump([done, sorted(set(PACKAGES) & sys.modules.keys())], sys.stdout)
"""


def run_without(packages: tuple[str, ...], commands: list[list[str]], folder: Path) -> list[tuple[int, str, str]]:
    """The exit code, stdout and stderr of commands, in one process to which these packages are not installed."""
    result = without.run_code(RUN.format(commands=commands), packages, folder)
    assert result.returncode == 0, result.stderr
    done, imported = json.loads(result.stdout)
    assert imported == []
    return [(code, out, err) for code, out, err in done]


def test_what_needs_no_torch_works_without_it(tiny: Tiny, tmp_path: Path) -> None:
    cpu = ["--provider", "cpu"]
    commands = [
        ["optimize", str(tiny.onnx), "fast", *cpu, "--allow-misses"],
        ["bench", "fast", "--baseline", str(tiny.onnx), *cpu, "--component", "unet", "--repeat", "2", "--warmup", "1"],
        ["run", "fast", *cpu, "--prompt", "a b", "--steps", "2", "--seed", "7", "-o", "a.png"],
        ["verify", "fast", "--against", str(tiny.onnx), *cpu, "--seeds", "1", "--steps", "1"],
        ["inspect", "fast"],
        ["inspect", "--diff", str(tiny.onnx), "fast"],
        ["doctor", *cpu],
        ["fusions"],
        ["cache", "list"],
        ["cache", "size"],
        ["tuning", "list"],
        ["ops", "build", "--help"],
    ]
    done = run_without(OPTIONAL, commands, tmp_path)
    failed = [(*command[:2], code, err) for command, (code, _, err) in zip(commands, done, strict=True) if code]
    assert failed == []
    assert (tmp_path / "a.png").is_file()


@pytest.mark.parametrize("missing", [OPTIONAL, ("diffusers", "onnxscript")], ids="+".join)
def test_what_needs_them_says_so_and_how_to_install_them(missing: tuple[str, ...], tiny: Tiny, tmp_path: Path) -> None:
    commands = [
        ["export", "demo", "out"],
        ["export", str(tiny.diffusers), "out", "--dry-run"],
        ["export", "somebody/model", "out", "--json"],
        ["run", str(tiny.diffusers), "--prompt", "a b", "--provider", "cpu", "-o", "out.png"],
        ["bench", str(tiny.onnx), "--engine", "torch", "--checkpoint", str(tiny.diffusers), "--provider", "cpu"],
        ["verify", str(tiny.onnx), "--against", str(tiny.diffusers), "--provider", "cpu"],
    ]
    for command, (code, _, err) in zip(commands, run_without(missing, commands, tmp_path), strict=True):
        assert code == MissingPackageError.exit_code, (command, err)
        named = [name for name in missing if f"pip install '{name}>=" in err or f" '{name}>=" in err]
        assert named, (command, err)
        assert ("whl/rocm" in err and "whl/cpu" in err) == ("torch" in named)
        assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
