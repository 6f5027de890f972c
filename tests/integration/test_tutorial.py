"""Tests of documents: the tutorial's Python blocks print the output that it shows, README's
script and the gang example run, and every message in troubleshooting.md is in the source."""

import re

import pytest

from jax_script import NEEDS_THE_PLUGIN, ROOT, finish, start_python

pytest.importorskip("jax", reason="skipped: JAX is not installed")

pytestmark = NEEDS_THE_PLUGIN

TUTORIAL = ROOT / "docs" / "jax_tutorial.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.M | re.S)
BORDER = "---- next block"


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(TUTORIAL.read_text(encoding="utf-8"))


def test_every_block_prints_the_output_in_the_tutorial():
    found = blocks()
    assert len(found) >= 8
    script = f"print({BORDER!r})\n".join(code for code, _ in found)
    done = finish(start_python(["-c", script], TOW_LOCAL="workers=2,devices=4"))
    printed = done.stdout.split(f"{BORDER}\n")
    for (code, wanted), got in zip(found, printed):
        assert got == wanted, (code, done.stderr[-2000:])
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(printed) == len(found)


# ---- README ----


def test_the_ten_lines_of_readme_run():
    [(script, _)] = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    done = finish(start_python(["-c", script]))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith(" 8 devices\n")


def test_gangs_of_two_threads_do_not_deadlock():
    done = finish(start_python([str(ROOT / "examples/jax/gang.py")]))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "gang 1000 1000\n"


# ---- troubleshooting ----

MESSAGE = re.compile(r"^\| (?!JAX:|pip:|message|---)(.*?) \| ", re.M)
SOURCES = ("src", "python/towpath")


def messages() -> list[str]:
    """The messages without Markdown's quotes; a message may itself quote a command."""
    rows = MESSAGE.findall((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))
    return [phrase.strip("`") for row in rows for phrase in row.split("` or `")]


def source_text() -> str:
    """All sources, with adjacent string literals joined."""
    files = [path for folder in SOURCES for kind in ("*.c", "*.h", "*.py")
             for path in sorted((ROOT / folder).rglob(kind))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return re.sub(r'"\s*\n\s*f?"', "", text).replace("{LIBRARY}", "libtowpath_pjrt.so")


def test_every_explained_message_exists():
    source, found = source_text(), messages()
    assert len(found) > 20
    for message in found:
        for piece in filter(None, (piece.strip() for piece in message.split("..."))):
            assert piece in source, (message, piece)
