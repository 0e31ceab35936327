#!/usr/bin/env python3
"""Writes sdort/checkup/graphs/*.trace.xz: the graphs that `sdort doctor --measure` runs, without weights.

    python scripts/checkup_graphs.py

The exporter traces the demo and Stable Diffusion 1.5's shape, which takes torch and a minute. With what it writes, a
machine without torch measures in seconds.
"""

from __future__ import annotations

import lzma
import os
import sys
import tempfile
from pathlib import Path

from generated_files import REPOSITORY
from measuring import Arguments

from sdort.checkup.graphs import COMPONENTS, MODELS, graph_file
from sdort.exporter.command import export
from sdort.exporter.template import pack, unpack

SOURCES = {"demo": "demo", "sd15": "random:sd15"}


def main() -> int:
    Arguments(__doc__).parse_args()
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            export(SOURCES[name], Path(folder) / "model", components=COMPONENTS)
            for component in COMPONENTS:
                [trace] = Path(folder).glob(f"sdort/traces/{component}-*.trace")
                content = trace.read_bytes().split(b"\n", 2)[2]  # behind the cache's hash and key
                path = graph_file(name, component)
                path.write_bytes(lzma.compress(pack(unpack(content, component)), preset=9))
                print(f"wrote: {path.relative_to(REPOSITORY)}, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
