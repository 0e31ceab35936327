"""Variables of the environment that are set for a while."""

from __future__ import annotations

import os

import pytest

from sdort.machine.process_settings import variables

SET, UNSET = "SDORT_TEST_SET", "SDORT_TEST_UNSET"


@pytest.mark.parametrize("fails", [False, True])
def test_they_are_as_before_whatever_happens(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SET, "theirs")
    monkeypatch.delenv(UNSET, raising=False)
    with pytest.raises(KeyError) if fails else variables({}), variables({SET: "a", UNSET: "b"}):
        assert (os.environ[SET], os.environ[UNSET]) == ("a", "b")
        if fails:
            raise KeyError
    assert (os.environ[SET], os.environ.get(UNSET)) == ("theirs", None)


def test_what_the_block_takes_away_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SET, "theirs")
    with variables({SET: "a", UNSET: "b"}):
        os.environ.pop(SET)
        os.environ.pop(UNSET)
    assert (os.environ[SET], UNSET in os.environ) == ("theirs", False)
