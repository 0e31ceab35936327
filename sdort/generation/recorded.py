"""Sessions that record what they are fed while images are generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sdort.generation.device_loop import Batch, Loop
from sdort.generation.recurrence import Recurrence
from sdort.model.signature import Array
from sdort.runtime.session import Session


class Recorder(Session):
    """A session that keeps what it is fed."""

    def __init__(self, session: Session) -> None:
        self.__dict__.update(session.__dict__)
        self.fed: list[dict[str, Array]] = []

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        self.fed.append({name: np.array(value) for name, value in feeds.items()})
        return super().run(feeds)


class HostLoop(Loop):
    """Sends every step through the host, where a :class:`Recorder` sees it."""

    def fits(self, recurrence: Recurrence, batch: Batch) -> bool:
        return False
