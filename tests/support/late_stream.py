"""A stream of a device whose work is put off until it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sdort.runtime import session as session_module
from sdort.runtime.session import Session

run_bound = Session.run_bound


class LateStream:
    """A stream that computes when somebody waits for it, no earlier."""

    address = 0
    marks = (0, 1)

    def __init__(self) -> None:
        self.asked: list[Callable[[], None] | int] = []
        self.most = 0
        """The most runs that were asked for at once."""

    def set_mark(self, mark: int) -> None:
        self.asked.append(mark)

    def reach(self, mark: int) -> None:
        last = max((index for index, each in enumerate(self.asked) if each == mark), default=-1)
        self._do(last + 1)  # nothing where it was reached already

    def wait(self) -> None:
        self._do(len(self.asked))

    def _do(self, count: int) -> None:
        self.most = max(self.most, sum(callable(each) for each in self.asked))
        begun, self.asked = self.asked[:count], self.asked[count:]
        for each in begun:
            if callable(each):
                each()

    def run(self, session: Session, binding: Any, graph: int, wait: bool) -> None:
        self.asked.append(partial(run_bound, session, binding, graph))
        if wait:
            self.wait()


def install(monkeypatch: pytest.MonkeyPatch) -> LateStream:
    """The stream of every UNet that is opened from now on on the first device; further ones have one each."""
    stream = LateStream()
    streams = {0: stream}

    def run(self: Session, binding: Any, graph: int = 1, *, wait: bool = True) -> None:
        if isinstance(self.stream, LateStream):
            self.stream.run(self, binding, graph, wait)
        else:
            run_bound(self, binding, graph)

    def opened(_: Any, options: Any) -> LateStream:
        return streams.setdefault(options.device_id, LateStream())

    monkeypatch.setattr(session_module, "open_stream", opened)
    monkeypatch.setattr(Session, "run_bound", run)
    return stream
