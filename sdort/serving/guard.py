"""The gate before all endpoints: who may ask, how large and how slow requests may be, and a line of the log of each."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from sdort.serving.keys import Keys, is_loopback, own_names
from sdort.serving.logs import log, request_id
from sdort.serving.refusals import Refused, error_body
from sdort.serving.serve_options import ServeOptions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 60.0
"""Seconds in which the body of a request has to come."""
BODIES = 8
"""Requests of the largest size whose bodies are in memory at the same time."""
_OPEN = frozenset({"/health", "/"})
"""Paths that need no key: whether the process lives, and the page, which asks for the key."""


class Guard:
    """The application behind its gate.

    Args:
        keys: None where everybody may ask.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions, keys: Keys | None) -> None:
        self._app, self._options, self._keys = app, options, keys
        local = keys is None and is_loopback(options.host)
        self._names = own_names(options.host, options.allow_host) if local else None
        self._held = 0
        """Bytes of bodies that are in memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        token = request_id.set(secrets.token_hex(8))
        started, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                head = (b"x-request-id", request_id.get().encode()), (b"x-content-type-options", b"nosniff")
                message = {**message, "headers": [*message.get("headers", []), *head]}
            await send(message)

        try:
            await self._let_in(scope, receive, answer)
        finally:
            seconds = round(time.perf_counter() - started, 4)
            level = logging.DEBUG if scope["path"] in ("/health", "/ready", "/metrics") else logging.INFO
            log(
                "request", level=level, method=scope["method"], path=scope["path"][:200], status=status, seconds=seconds
            )
            request_id.reset(token)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = 0
        try:
            headers = Headers(scope=scope)
            self._check(scope["path"], headers)
            held = self._reserve(headers)
            body = await self._body(receive)
        except Refused as error:
            await _refuse(error, send)
            return
        except asyncio.TimeoutError:
            await _refuse(Refused(f"the request did not come within {BODY_SECONDS:g} seconds", 408), send)
            return
        else:
            if body is not None:
                await self._app(scope, _replayed(body, receive), send)
        finally:
            self._held -= held

    def _check(self, path: str, headers: Headers) -> None:
        """Refuse who has no key, and pages of other sites that a browser of this machine shows.

        Raises:
            Refused: so.
        """
        if self._keys is not None:
            if path not in _OPEN and not self._keys.accept(headers.get("authorization", "")):
                raise Refused("a key is needed: Authorization: Bearer KEY", 401)
            return
        host = headers.get("host", "")
        if self._names is not None and _name(host) not in self._names:
            raise Refused("the server is not asked for by this name: sdort serve --allow-host NAME", 403)
        if (origin := headers.get("origin")) and urlsplit(origin).netloc.lower() != host.lower():
            raise Refused("pages of other sites may not ask this server", 403)

    def _reserve(self, headers: Headers) -> int:
        """Take memory for the body of a request; the bytes that are taken.

        Raises:
            Refused: it is too large, or too much is in memory already.
        """
        most, length = self._options.upload_bytes, headers.get("content-length", "")
        chunked = "transfer-encoding" in headers
        size = int(length) if length.isdecimal() and len(length) < 20 else most if chunked else 0
        if size > most:
            raise self._too_large()
        if self._held + size > BODIES * most:
            raise Refused("too many large requests at once", 503, retry_after=5)
        self._held += size
        return size

    async def _body(self, receive: Receive) -> bytes | None:
        """The body of a request; None where its client has gone."""
        return await asyncio.wait_for(self._read(receive), BODY_SECONDS)

    async def _read(self, receive: Receive) -> bytes | None:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > self._options.upload_bytes:
                raise self._too_large()
            if not message.get("more_body"):
                return b"".join(parts)

    def _too_large(self) -> Refused:
        return Refused(f"a request has at most {self._options.max_upload} MB here", 413)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A client whose body was read: it gives that, and then what comes behind it."""
    left = [body]

    async def replay() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replay


async def _refuse(error: Refused, send: Send) -> None:
    body = json.dumps(error_body(error)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    if error.status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    listed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": listed})
    await send({"type": "http.response.body", "body": body})


def _name(host: str) -> str:
    """The name of a header ``Host`` without its port."""
    return (urlsplit(f"//{host}").hostname or "") if "@" not in host else ""
