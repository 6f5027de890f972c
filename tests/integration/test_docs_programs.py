"""The blocks of docs/programs.md print the output that the page shows."""

import re

import pytest

from jax_script import BUILD, NEEDS_THE_PLUGIN, ROOT, finish, start_python

pytest.importorskip("jax", reason="skipped: JAX is not installed")

FILTER = BUILD / "examples" / "c" / "filter.so"
pytestmark = [*NEEDS_THE_PLUGIN,
              pytest.mark.skipif(not FILTER.exists(), reason="skipped: the examples are not built")]

PAGE = ROOT / "docs" / "programs.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n```text\n(.*?)^```\n", re.M | re.S)
BORDER = "---- next block"
# Lines of nodes are those of their block, so that they do not change with the text around it.
RUN = """
import sys
names = {"filter_so": sys.argv[2]}
for block in open(sys.argv[1]).read().split("\\0"):
    exec(compile(block, "script.py", "exec"), names)
    print(%r)
""" % BORDER


def test_every_block_prints_the_output_on_the_page(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    found = BLOCK.findall(text)
    assert len(found) == text.count("```python") > 8
    blocks = tmp_path / "blocks"
    blocks.write_text("\0".join(code for code, _ in found))
    done = finish(start_python(["-c", RUN, str(blocks), str(FILTER)], TOW_LOCAL="workers=1,devices=8"))
    printed = done.stdout.split(f"{BORDER}\n")
    for (code, wanted), got in zip(found, printed):
        assert got == wanted, (code, done.stderr[-2000:])
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(printed) == len(found) + 1
