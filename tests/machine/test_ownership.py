"""A file whose code is to run is the account's own, or root's."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sdort.machine.ownership import why_foreign


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir(mode=0o755)
    path = tmp_path / "folder" / "file"
    path.write_bytes(b"code")
    path.chmod(0o755)
    return path


def test_ones_own_file_is_trusted(file: Path) -> None:
    assert why_foreign(file) is None


@pytest.mark.parametrize("mode", [0o757, 0o666, 0o702])
def test_a_file_that_all_can_write(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert why_foreign(file) == "other accounts can write it"


def test_a_folder_that_all_can_write_but_for_a_sticky_one(file: Path, tmp_path: Path) -> None:
    for folder in (file.parent, tmp_path):
        folder.chmod(0o777)
        assert why_foreign(file) == f"other accounts can write {folder}"
        folder.chmod(0o1777)
        assert why_foreign(file) is None


def test_a_link_is_what_it_leads_to(file: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(file)
    assert why_foreign(tmp_path / "link") is None
    file.chmod(0o666)
    assert why_foreign(tmp_path / "link") == "other accounts can write it"


def test_a_file_of_another_account(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(file, 54321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert str(why_foreign(file)).startswith("it belongs to ")


GROUPS = {
    "the account's own": ("anna", 7, "anna", [], None),
    "with itself as a member": ("anna", 7, "anna", ["anna"], None),
    "with others": ("anna", 7, "anna", ["anna", "ben"], "other accounts can write it"),
    "of all": ("anna", 7, "users", [], "other accounts can write it"),
    "another one": ("anna", 8, "anna", [], "other accounts can write it"),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_file_that_a_group_can_write(file: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each account has a group of its own, the usual umask lets the group write."""
    account, primary, group, members, expected = GROUPS[kind]
    file.chmod(0o775)
    status = file.stat()
    changed = SimpleNamespace(st_uid=os.geteuid(), st_gid=7, st_mode=status.st_mode)
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path: changed if path == file else stat(path))
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name=account, pw_gid=primary))
    monkeypatch.setattr("grp.getgrgid", lambda gid: SimpleNamespace(gr_name=group, gr_mem=members))
    assert why_foreign(file) == expected
