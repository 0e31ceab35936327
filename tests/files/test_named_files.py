"""Files of a folder by their suffix: whatever its case, through links, each folder once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdort.errors import UsageError
from sdort.files import named_files
from sdort.files.named_files import files_below


def test_suffixes_have_no_case_and_files_stand_in_order(tmp_path: Path) -> None:
    """Windows and cameras write capitals."""
    (tmp_path / "b").mkdir()
    names = (
        "b/z.txt",
        "A.SAFETENSORS",
        "a.safetensors",
        "b/C.SafeTensors",
        "safetensors",
        "d.safetensors.part",
        "e.TXT",
    )
    for name in names:
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path, (".safetensors", ".txt"))]
    assert found == ["A.SAFETENSORS", "a.safetensors", "b/C.SafeTensors", "b/z.txt", "e.TXT"]


def test_links_are_followed_and_no_folder_is_looked_through_twice(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    for folder in (inside, inside / "deep", outside):
        (folder / "x.txt").touch()
    (inside / "elsewhere").symlink_to(outside)
    (inside / "deep" / "above").symlink_to(inside)
    (outside / "back").symlink_to(inside / "deep")
    found = [path.resolve() for path in files_below(inside, (".txt",))]
    assert sorted(found) == sorted(folder / "x.txt" for folder in (inside, inside / "deep", outside))


@pytest.mark.parametrize("count", [3, 4])
def test_files_of_all_suffixes_count(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "MOST_FILES", 3)
    for number in range(count):
        (tmp_path / f"{number}.bin").touch()
    if count == 3:
        assert files_below(tmp_path, (".txt",)) == []
    else:
        with pytest.raises(UsageError, match="has more than 3 files"):
            files_below(tmp_path, (".txt",))
