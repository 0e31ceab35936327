"""ONNX Runtime's threads sleep while they wait for work in test processes.

By default they spin between the nodes of a run, which costs tiny models half of their processor time: time that the
other test processes lack, as there are as many of them as there are cores.
"""

from __future__ import annotations

from typing import Any


def stop_spinning() -> None:
    """Change the settings with which this process opens sessions."""
    import onnxruntime  # not before the tests have a home of their own: it keeps files there

    made, opened = onnxruntime.SessionOptions.__init__, onnxruntime.InferenceSession.__init__

    def settings(self: Any) -> None:
        made(self)
        self.add_session_config_entry("session.intra_op.allow_spinning", "0")

    def session(self: Any, model: Any, sess_options: Any = None, *rest: Any, **more: Any) -> None:
        opened(self, model, sess_options or onnxruntime.SessionOptions(), *rest, **more)

    onnxruntime.SessionOptions.__init__ = settings
    onnxruntime.InferenceSession.__init__ = session
