"""A file whose code is to run is the account's own, or root's."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from sdort.files.ownership import why_foreign


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir(mode=0o755)
    path = tmp_path / "folder" / "file"
    path.write_bytes(b"code")
    path.chmod(0o755)
    return path


def test_ones_own_file_is_trusted(file: Path) -> None:
    assert why_foreign(file) is None


@pytest.mark.parametrize("mode", [0o757, 0o666, 0o702, 0o1757, 0o1666])
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


NOBODY = 65534


def way_to_a_file(folder: Path, chance: random.Random) -> tuple[Path, list[Path]]:
    """A path of folders and links that leads to a file, and all that it passes through below ``folder``."""
    place, passed = folder, []
    for depth in range(chance.randint(1, 4)):
        step = place / f"step{depth}"
        if chance.random() < 0.5:
            real = folder / f"other{depth}" / "inner"
            real.mkdir(parents=True)
            target = real if chance.random() < 0.5 else Path(os.path.relpath(real, os.path.realpath(place)))
            step.symlink_to(target)
            passed += [step, real.parent, real]
        else:
            step.mkdir()
            passed.append(step)
        place = step
    file = place / "file"
    if chance.random() < 0.3:
        (folder / "target").write_bytes(b"code")
        file.symlink_to(folder / "target")
        passed.append(folder / "target")
    else:
        file.write_bytes(b"code")
    return file, [*passed, file]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders and links away, which only root can do")
@pytest.mark.parametrize("seed", range(20))
def test_whoever_owns_any_place_on_the_way_can_exchange_the_file(seed: int, tmp_path: Path) -> None:
    """Of each generated layout each place is given away in turn; another one beside it is nobody's business."""
    file, passed = way_to_a_file(tmp_path, random.Random(seed))
    (beside := tmp_path / "beside").mkdir()
    os.chown(beside, NOBODY, NOBODY)
    assert why_foreign(file) is None
    for place in passed:
        os.chown(place, NOBODY, -1, follow_symlinks=False)
        assert "belongs to " in str(why_foreign(file)), place
        os.chown(place, 0, 0, follow_symlinks=False)
    for place in passed:
        if not place.is_symlink():
            mode = place.stat().st_mode
            place.chmod(0o777)
            assert "other accounts can write" in str(why_foreign(file)), place
            place.chmod(mode)
    assert why_foreign(file) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another account, which only root can")
def test_a_folder_of_the_account_itself_below_roots_is_trusted(tmp_path: Path) -> None:
    """As the account ``nobody``: its own folder is, and one of a third account is not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        for owner in (NOBODY, 54321):
            (Path(name) / str(owner)).mkdir()
            (Path(name) / str(owner) / "file").write_bytes(b"code")
            for path in (Path(name) / str(owner), Path(name) / str(owner) / "file"):
                os.chown(path, owner, owner)
        os.seteuid(NOBODY)
        try:
            assert why_foreign(Path(name) / str(NOBODY) / "file") is None
            assert "belongs to " in str(why_foreign(Path(name) / "54321" / "file"))
        finally:
            os.seteuid(0)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        why_foreign(tmp_path / "a")
