"""Turns a text file into a C file that holds it.

usage: embed.py IN OUT SYMBOL
"""

import sys
from pathlib import Path


def main() -> int:
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    source, target, symbol = sys.argv[1:]
    lines = Path(source).read_text(encoding="ascii").splitlines()
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    body = "\n".join(f'    "{line}\\n"' for line in escaped)
    Path(target).write_text(
        f"/* Made from {Path(source).name}; do not edit. */\n"
        f"extern const char {symbol}[];\n"
        f"const char {symbol}[] =\n{body};\n", encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
