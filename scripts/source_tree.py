"""Functions that the source checks share: the files of a tree, and C without comments."""

import os
import re
import subprocess
from pathlib import Path
from typing import Iterator

C_SUFFIXES = (".c", ".h", ".cc", ".hh")
# One pattern, so that a quote inside a comment opens no string, and the reverse.
COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""",
    re.DOTALL,
)


def files(root: Path) -> list[Path]:
    """All files that are committed or could be, relative to root, sorted."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard",
               "-z", "--", "."]
    try:
        listed = subprocess.run(command, check=True, capture_output=True).stdout
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):  # An unpacked archive.
        names = [str(path.relative_to(root)) for path in root.rglob("*")]
    return sorted({Path(name) for name in names if (root / name).is_file()})


def c_files(root: Path, folder: str = "") -> list[Path]:
    return [path for path in files(root)
            if path.suffix in C_SUFFIXES and str(path).startswith(folder)]


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def blank_comments(source: str) -> str:
    """The text with comments, strings and characters replaced by spaces. Line
    numbers and columns do not change."""
    return COMMENT_OR_LITERAL.sub(
        lambda match: re.sub(r"[^\n]", " ", match[0]), source)


def numbered(source: str) -> Iterator[tuple[int, str]]:
    return enumerate(source.splitlines(), start=1)
