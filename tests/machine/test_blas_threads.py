"""Products of NumPy's in one thread, and the process's setting afterwards."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from sdort.machine.blas_threads import one_blas_thread


def threads() -> list[Any]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_blocks_that_overlap_leave_the_setting_of_before() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        assert set(before) == {2}
        first, second = ExitStack(), ExitStack()
        first.enter_context(one_blas_thread())
        second.enter_context(one_blas_thread())
        assert set(threads()) == {1}
        first.close()
        assert set(threads()) == {1}
        second.close()
        assert threads() == before


def test_an_error_inside_leaves_the_setting_of_before() -> None:
    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(KeyError), one_blas_thread():
            raise KeyError
        assert set(threads()) == {2}
