"""The base of bodies in JSON: few fields, and no number that is none."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

_FIELDS = 128
"""Fields of a body: clients of A1111 send 60. An error for each of a million would fill the memory."""


class Body(BaseModel):
    """A body of a request, or a part of one; unknown fields are refused."""

    model_config = ConfigDict(allow_inf_nan=False, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > _FIELDS:
            raise ValueError(f"there are more than {_FIELDS} fields")
        return value


class OpenBody(Body):
    """A body of which other fields are left out of account."""

    model_config = ConfigDict(extra="ignore")
