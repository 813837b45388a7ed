"""Files are there whole or not at all, on any file system, and nothing of others is touched."""

from pathlib import Path

from diglot import whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_others_have_called_by_a_date_is_no_leftover(tmp_path: Path) -> None:
    (tmp_path / ".backup.20251129").mkdir()
    (tmp_path / ".backup.20251129" / "thesis.tex").touch()
    for name in (".out.txt.20251129", ".out.txt.deadbeef", ".out.txt.lock", ".out.txt.tmp", ".out.txt.partial"):
        (tmp_path / name).touch()
    before = names(tmp_path)
    with whole.whole_file(tmp_path / "out.txt") as file:
        file.write(b"whole")
    with whole.scratch_folder(tmp_path / "backup"):
        pass
    whole.remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([*before, "out.txt"])
    assert (tmp_path / ".backup.20251129" / "thesis.tex").exists()
