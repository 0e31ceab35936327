"""Requests that are refused, with HTTP's status."""

from __future__ import annotations

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


def of_error(error: SdortError, status: int = 400, field: str | None = None) -> Refused:
    """An error of sdort's, whose sentence the client gets."""
    return Refused(f"{error.message}. {error.hint}" if error.hint else error.message, status, field)
