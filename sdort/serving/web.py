"""The web application: endpoints, and answers to what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from sdort.machine.version import __version__
from sdort.serving import a1111_api, openai_api, own_api
from sdort.serving.guard import Guard
from sdort.serving.keys import Keys
from sdort.serving.page import page
from sdort.serving.refusals import Refused, error_body
from sdort.serving.service import Service


def application(service: Service, keys: Keys | None = None) -> Guard:
    """The application that serves ``service``.

    Args:
        keys: of those who may ask; None for everybody.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield

    # The pages of documentation that FastAPI has ask other hosts for their scripts.
    app = FastAPI(title="sdort", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.include_router(own_api.routes(service))
    app.include_router(openai_api.routes(service))
    app.include_router(a1111_api.routes(service))

    @app.get("/", response_class=HTMLResponse)
    async def front() -> Response:
        text, headers = page()
        return HTMLResponse(text, headers=headers)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        if service.worker.sound:
            return JSONResponse({"status": "ready"})
        trouble = service.worker.trouble
        return JSONResponse({"status": "failing", "reason": trouble} if trouble else {"status": "warming up"}, 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        return JSONResponse(error_body(error), error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"][1:]))
        return await refused(request, Refused(f"{field or 'the body'}: {first['msg']}", 422, field or None))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        answer = await refused(request, Refused(str(error.detail), error.status_code))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return await refused(request, Refused("this went wrong in sdort: the server's log says where", 500))

    return Guard(app, service.options, keys)
