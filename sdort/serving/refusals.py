"""Requests that are refused, with HTTP's status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sdort.errors import SdortError


class Refused(Exception):
    """A request that is not taken.

    Args:
        field: of the request that is wrong.
        retry_after: seconds after which it may be taken.
    """

    def __init__(self, message: str, status: int = 400, field: str | None = None, retry_after: int | None = None):
        super().__init__(message)
        self.message, self.status, self.field, self.retry_after = message, status, field, retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        head = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return {**head, "WWW-Authenticate": "Bearer"} if self.status == 401 else head


def error_body(error: Refused) -> dict[str, Any]:
    """The answer's JSON, with OpenAI's names beside sdort's, and A1111's ``detail``."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    named = {"field": error.field, "param": error.field} if error.field else {}
    return {"error": {"message": error.message, **named, "type": kind, "code": error.status}, "detail": error.message}


def words_of(error: SdortError, places: Mapping[str, str]) -> str:
    """The sentence and the hint of an error.

    Args:
        places: paths of the server -> the words that a client gets in their place.
    """
    text = f"{error.message}. {error.hint}" if error.hint else error.message
    for path, words in places.items():
        text = text.replace(f"{path}/", "").replace(path, words)
    return text


def of_error(
    error: SdortError, status: int = 400, field: str | None = None, places: Mapping[str, str] | None = None
) -> Refused:
    """An error of sdort's, whose words the client gets, by :func:`words_of`."""
    return Refused(words_of(error, places or {}), status, field)
