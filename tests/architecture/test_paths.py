"""No file names a place on the machine it was written on."""

from __future__ import annotations

import re
import subprocess

import pytest

# Written in pieces, so that this file does not match itself.
PLACES = ["/" + "root/", "/" + r"home/\w+/", "/" + r"Users/\w+/", "/" + r"work/\w+", r"[A-Z]:\\" + "Users"]
HOMES = re.compile(rf"(?<![\w.~-])({'|'.join(PLACES)})")


def test_no_path_of_a_machine(root):
    if not (root / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the project is not known")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    paths = [path for path in map(root.joinpath, listed) if path.is_file()]
    assert paths
    wrong = [str(path.relative_to(root)) for path in paths if HOMES.search(path.read_text("utf-8", errors="ignore"))]
    assert wrong == []


@pytest.mark.parametrize("place", ["/" + "root/x", "/" + "home/me/x", "/" + "Users/me/x", "C:\\" + "Users"])
def test_the_check_sees_them(place):
    assert HOMES.search(f"read {place}")


def test_relative_paths_and_addresses_pass():
    assert not HOMES.search("shared/data, ~/.cache/lydian, https://example.org/home/, docs/work/main.md")
