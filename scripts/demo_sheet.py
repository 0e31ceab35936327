#!/usr/bin/env python3
"""Images of some of the demo's held-out prompts by an exported or optimized pipeline, side by side on a sheet.

scripts/demo_sheet.py PIPELINE [--provider cuda] [--custom-ops auto] [--count 24] [--columns 12] --output SHEET.png
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from demo_score import sheet
from measuring import Arguments

from sdort.demo.score import score
from sdort.pipelines.folder import open_folder
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.verification.runners import RunConfiguration, open_text_to_image
from sdort.verification.semantic import semantic_requests


def main() -> None:
    parser = Arguments(__doc__, "pipeline --provider --custom-ops", provider="cpu")
    parser.add_argument("--count", type=int, default=24, help="images, evenly chosen from the list")
    parser.add_argument("--columns", type=int, default=12)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    options = RuntimeOptions(args.provider, custom_ops=args.custom_ops)
    pipeline = open_text_to_image(open_folder(args.pipeline), RunConfiguration(choose_provider(options)[0], options))
    every = semantic_requests()
    requests = [every[round(at)] for at in np.linspace(0, len(every) - 1, args.count)]
    images = [(request.prompt, image.pixels) for request in requests for image in pipeline.generate(request)]
    sheet(np.stack([pixels for _, pixels in images]), args.columns).save(args.output, optimize=True)
    print(*(f"{kind} {right}/{of}" for kind, (right, of) in vars(score(images)).items()), sep="  ")


if __name__ == "__main__":
    main()
