"""Check that each external name belongs to one module.

usage: check_symbols.py [ROOT]

- A function that the linker sees is defined by one module (a folder directly
  below src/).
- A type or a macro of a header is defined by one module. Names without the
  prefix tow_ in NAME_impl.h are private to a folder, and do not count.

Test files (NAME_test.c, NAME_testing*, testing.*) do not count either: fixtures
of two modules are never linked together. Prints one line per fault and exits 1
if there is any.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from source_tree import blank_comments, c_files, text

# The brace of a function stands on a line of its own (.clang-format).
FUNCTION = re.compile(
    r"^(?!static\b|typedef\b|struct\b[^()]*\{|#)[A-Za-z_][\w \t*\n]*?\b(\w+)"
    r"\([^;{}]*\)\s*\n\{", re.MULTILINE)
TAGGED = re.compile(r"^(?:typedef )?(?:struct|union|enum) (\w+)\s*\{", re.MULTILINE)
ALIAS = re.compile(r"^\}\s*(\w+)\s*;", re.MULTILINE)
TYPEDEF = re.compile(r"^typedef\s[^;{}]*?(?:\(\*(\w+)\)[^;{}]*|\b(\w+))\s*;", re.MULTILINE)
MACRO = re.compile(r"^#\s*define\s+(\w+)", re.MULTILINE)
TESTING = re.compile(r"(_test\.c|_testing\w*\.[ch]|/testing\.[ch]|_bench\.c)$")
PREFIX = re.compile(r"tow_", re.IGNORECASE)


def header_names(source: str) -> Iterator[str]:
    yield from TAGGED.findall(source)
    yield from ALIAS.findall(source)
    yield from (one or other for one, other in TYPEDEF.findall(source))
    yield from MACRO.findall(source)


def external_names(path: Path, source: str) -> list[str]:
    source = blank_comments(source)
    if path.suffix == ".c":
        return [name for name in FUNCTION.findall(source) if name != "main"]
    private = path.stem.endswith("_impl")
    return [name for name in header_names(source)
            if not private or PREFIX.match(name)]


def module_of(path: Path) -> str:
    return path.parts[1] if len(path.parts) > 2 else "."


def places(root: Path) -> dict[str, dict[str, Path]]:
    """For each name, the modules that define it, with one file each."""
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    for path in c_files(root, "src/"):
        if path.suffix not in (".c", ".h") or TESTING.search(str(path)):
            continue
        for name in external_names(path, text(root / path)):
            found[name].setdefault(module_of(path), path)
    return found


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    faults = [f"{name}: defined by {' and '.join(map(str, by.values()))}; "
              "give each its module's prefix"
              for name, by in sorted(places(root).items())
              if len(by) > 1]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
