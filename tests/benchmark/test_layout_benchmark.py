"""scripts/layout_benchmark.py at its smallest: its networks are exported, optimized and right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import layout_benchmark

QUICK = "rrdb,lineart,mobile,segmenter"
"""The networks whose widths --scale divides."""


def test_a_network_has_both_rows(tmp_path: Path) -> None:
    words = ["--work", tmp_path / "work", "--provider", "cpu", "--size", "32", "--scale", "16", "--nets", QUICK]
    command = [sys.executable, layout_benchmark.__file__, *map(str, words), "--json", str(tmp_path / "rows.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["net"], row["layout"]) for row in rows] == [
        (net, layout) for net in QUICK.split(",") for layout in ("as chosen", "channels first")
    ]
    assert all(row["ok"] and row["error"] < 2e-3 for row in rows)
