"""The web application: endpoints, and answers to what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from sdort.machine.version import __version__
from sdort.serving import openai_api
from sdort.serving.refusals import Refused
from sdort.serving.service import Service


def application(service: Service) -> FastAPI:
    """The application that serves ``service``."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield

    # The pages of documentation that FastAPI has ask other hosts for their scripts.
    app = FastAPI(title="sdort", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.include_router(openai_api.routes(service))

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        is_ready = service.worker.is_ready.is_set()
        return JSONResponse({"status": "ready" if is_ready else "warming up"}, 200 if is_ready else 503)

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return _error(error.message, error.status, error.field, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"][1:]))
        return _error(f"{field or 'the body'}: {first['msg']}", 422, field or None)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        return _error(str(error.detail), error.status_code, None, dict(error.headers or {}))

    return app


def _error(message: str, status: int, field: str | None, headers: dict[str, str] | None = None) -> Response:
    error: dict[str, Any] = {"message": message}
    if field:
        error |= {"field": field, "param": field}
    error["type"] = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": error}, status, headers)
