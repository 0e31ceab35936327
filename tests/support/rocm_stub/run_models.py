"""Runs FOLDER/*.onnx on the ROCm provider, each on its .npz, with the library; writes .out.npz, or .err."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

folder, library = Path(sys.argv[1]), sys.argv[2]
for model in sorted(folder.glob("*.onnx")):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(library)
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=["ROCMExecutionProvider"])
        assert session.get_providers()[0] == "ROCMExecutionProvider", session.get_providers()
        feeds = dict(np.load(model.with_suffix(".npz")))
        names = [output.name for output in session.get_outputs()]
        np.savez(model.with_suffix(".out.npz"), **dict(zip(names, session.run(None, feeds), strict=True)))
    except Exception as error:
        model.with_suffix(".err").write_text(str(error))
