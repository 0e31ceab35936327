#!/usr/bin/env python3
"""Takes the picture of docs/guide/comfyui.md: sdort's nodes in ComfyUI, and an image that they drew.

    python scripts/comfyui_picture.py COMFYUI WORK [OUT.png]

COMFYUI and WORK are as for scripts/check_comfyui.py; playwright and Chromium are needed too. The checkpoint is the demo
model in SD 1.x's widths (scripts/demo_as_sd1.py), the workflow that of docs/images/comfyui-workflow.json with this
checkpoint. ComfyUI's server runs on the CPU; its page runs the workflow, and is photographed when the image is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from check_comfyui import copied, server  # makes tests/ importable
from measuring import Arguments
from playwright.sync_api import Page
from support.browser import opened_browser

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHECKPOINT = "demo-shapes.safetensors"
PROMPT = "a small red circle left of a large blue square on white"
SIDE = 128
"""ComfyUI takes latents of an eighth; the demo's VAE has a factor of 4, so images have half of it."""
VELOCITY = 10
"""Number of the node that says that the UNet predicts the velocity."""


def workflow() -> dict[str, Any]:
    """The published workflow with the demo's checkpoint, prompt and size."""
    graph: dict[str, Any] = json.loads((IMAGES / "comfyui-workflow.json").read_text())
    nodes = {node["id"]: node for node in graph["nodes"]}
    values: dict[int, list[Any]] = {
        1: [CHECKPOINT, "cpu", "fp32", ""], 2: [CHECKPOINT, "cpu", "fp32", ""], 3: [PROMPT], 4: [""],
        5: [SIDE, SIDE, 1], 6: [11, "fixed", 20, 5.0, "euler", "normal", 1.0], 9: [SIDE, SIDE, 1],
    }  # fmt: skip
    for number, node_values in values.items():
        nodes[number]["widgets_values"] = node_values
    nodes[2]["pos"], nodes[5]["pos"] = [20, 390], [20, 610]
    nodes[8]["size"] = [300, 430]
    _predict_velocity(graph, nodes)
    return graph


def _predict_velocity(graph: dict[str, Any], nodes: dict[int, dict[str, Any]]) -> None:
    """Put ModelSamplingDiscrete between the checkpoint and the warm-up."""
    into = next(link for link in graph["links"] if link[1] == 1 and link[5] == "MODEL")
    link = graph["last_link_id"] + 1
    graph["links"].append([link, VELOCITY, 0, into[3], into[4], "MODEL"])
    nodes[into[3]]["inputs"][into[4]]["link"] = link
    into[3], into[4] = VELOCITY, 0
    graph["nodes"].append({
        "id": VELOCITY, "type": "ModelSamplingDiscrete", "pos": [20, 260], "size": [330, 82], "flags": {}, "order": 2,
        "mode": 0, "properties": {}, "widgets_values": ["v_prediction", False],
        "inputs": [{"name": "model", "type": "MODEL", "link": into[0]}],
        "outputs": [{"name": "MODEL", "type": "MODEL", "links": [link]}],
    })  # fmt: skip
    graph["last_node_id"], graph["last_link_id"] = VELOCITY, link


def photograph(page: Page, address: str, out: Path) -> None:
    """Load the workflow in ComfyUI's page, run it, and take the picture."""
    page.goto(address)
    page.wait_for_function("!!window.LiteGraph?.registered_node_types?.SdortLoadCheckpoint", timeout=120_000)
    page.wait_for_timeout(5000)
    page.evaluate("graph => window.app.loadGraphData(graph, true, true, 'sdort')", workflow())
    page.wait_for_timeout(1000)
    page.evaluate("window.app.queuePrompt(0)")
    page.wait_for_function("window.app.graph.getNodeById(8).imgs?.length > 0", timeout=1_800_000)
    page.wait_for_timeout(2000)
    page.screenshot(path=out)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("comfyui", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=IMAGES / "comfyui.png")
    given = parser.parse_args()
    home = copied(given.comfyui, given.work)
    checkpoint = home / "models" / "checkpoints" / CHECKPOINT
    if not checkpoint.is_file():
        subprocess.run([sys.executable, ROOT / "scripts" / "demo_as_sd1.py", checkpoint], check=True)
    with server(home, given.work) as address, opened_browser() as browser:
        page = browser.new_page(viewport={"width": 1480, "height": 800}, color_scheme="dark")
        photograph(page, address, given.out)


if __name__ == "__main__":
    main()
