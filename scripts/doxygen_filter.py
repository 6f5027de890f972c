"""Mark the plain comments of a C header for Doxygen, and print the result.

usage: doxygen_filter.py HEADER

  /* ... */ before a declaration      becomes  /** ... */
  /* ... */ after one, on its line    becomes  /**< ... */
  /* -- Title ---- */                 becomes  a group of the declarations below it
  the first comment of the file      becomes  its @file comment

Comments are Markdown: text indented by four spaces is code.
"""

import re
import sys
from pathlib import Path

COMMENT = re.compile(r"/\*(?!\*)(.*?)\*/", re.S)
SECTION = re.compile(r"-+ (.+?) -+ *")
# A comment after one of these describes its own line.
TRAILING = re.compile(r"[,;{}\w)]\s*$")


def unstar(body: str) -> str:
    """The text of a comment without the stars of its lines. Doxygen reads
    Markdown: `<` must not begin a tag, nor `@` and `\\` a command."""
    body = re.sub(r"\n[ \t]*\*", "\n", body)
    lines = body.split("\n")
    return "\n".join(line if line.startswith("     ") else escape(line) for line in lines)


def escape(line: str) -> str:
    """Escapes text outside of `code`, where Doxygen needs no escapes."""
    parts = line.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([<>@\\#%])", r"\\\1", parts[i])
        parts[i] = re.sub(r'("[^"]*")', r"`\1`", parts[i])
    return "`".join(parts)


class Filter:
    """Rewrites the comments of one file, in order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_first = True
        self.group_count = 0

    def rewrite(self, match: re.Match[str]) -> str:
        body = match[1]
        if self.is_first:
            self.is_first = False
            return f"/** @file\n{unstar(body)}*/"
        if section := SECTION.fullmatch(body.strip()):
            self.group_count += 1
            close = "/** @} */\n" if self.group_count > 1 else ""
            slug = re.sub(r"\W+", "_", section[1].lower())
            return f"{close}/** @defgroup {slug} {section[1]}\n@{{ */"
        before = self.text[self.text.rfind("\n", 0, match.start()) + 1:match.start()]
        after = self.text[match.end():].lstrip()
        if before.lstrip().startswith("#") or after.startswith("#pragma"):
            return match[0]
        mark = "/**<" if TRAILING.search(before) else "/**"
        return f"{mark}{unstar(body)}*/"

    def run(self) -> str:
        text = COMMENT.sub(self.rewrite, self.text)
        if self.group_count:
            text += "/** @} */\n"
        return text


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    sys.stdout.write(Filter(Path(sys.argv[1]).read_text(encoding="utf-8")).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
