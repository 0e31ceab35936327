"""Connections whose clients are slow: uvicorn waits for the head of a request without end."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

ANSWER_SECONDS = 120.0
"""Seconds in which a client has to read what is left of an answer when all of it is written."""
HEAD_SECONDS = 20.0
"""Seconds in which the head of a request has to come, from the connection or from the answer before it."""


class Connection(H11Protocol):
    """A connection that is closed where no request comes."""

    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._wait()
        if self._unread is not None:
            self._unread.cancel()
        self._unread = self.loop.call_later(ANSWER_SECONDS, self._abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        for timer in filter(None, (self._late, self._unread)):
            timer.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _abort(self) -> None:
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.transport.abort()

    def _give_up(self) -> None:
        # Uvicorn declares that there is always one; before the first request there is none.
        if getattr(self.cycle, "response_complete", True) and not self.transport.is_closing():
            self.transport.close()
