"""Makes messages.h, the C names of all messages, from towpath.proto.

usage: make_messages.py SCHEMA OUTPUT
       make_messages.py --check-docs SCHEMA DOCUMENT

The schema is the one list of messages: `enum MessageType` gives numbers, a
`message` of the same name (SESSION_RESUME, SessionResume) gives the fields.
--check-docs compares it with the rows "| NUMBER | NAME |" of a document.
"""

import re
import sys
from pathlib import Path

TYPE = re.compile(r"^\s*MESSAGE_TYPE_(\w+)\s*=\s*(\d+)\s*;", re.M)
MESSAGE = re.compile(r"^message (\w+) \{", re.M)
ROW = re.compile(r"^\|\s*(\d+)\s*\|\s*([A-Z]\w*)\s*\|", re.M)


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def read(schema: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """Types (SESSION_RESUME, 32) in the order of their numbers, and messages
    (SessionResume) in the order of the schema."""
    text = schema.read_text(encoding="utf-8")
    types = [(name, int(number)) for name, number in TYPE.findall(text)
             if name != "NONE"]
    messages = MESSAGE.findall(text)
    known = {snake(message) for message in messages}
    for name, _ in types:
        if name.lower() not in known:
            sys.exit(f"{schema}: MESSAGE_TYPE_{name} has no message")
    return sorted(types, key=lambda pair: pair[1]), messages


def header(types: list[tuple[str, int]], messages: list[str]) -> str:
    lines = ["/* Made from towpath.proto by make_messages.py. */",
             "#ifndef TOW_WIRE_MESSAGES_H_",
             "#define TOW_WIRE_MESSAGES_H_",
             "",
             '#include "wire/towpath.pb-c.h"',
             "",
             "/* The type of a frame. */",
             "typedef enum tow_message_type {"]
    lines += [f"    TOW_MESSAGE_{name} = {number}," for name, number in types]
    lines += ["    TOW_MESSAGE_TYPE_COUNT,", "} tow_message_type_t;", ""]
    for message in messages:
        name = snake(message)
        lines += [f"typedef Tow__{message} tow_msg_{name}_t;",
                  f"#define TOW_MSG_{name.upper()}_INIT "
                  f"TOW__{name.upper()}__INIT"]
    lines += ["", "/* ROW(NAME, name) for each message that has a type. */",
              "#define TOW_MESSAGES(ROW) \\"]
    lines += [f"    ROW({name}, {name.lower()}) \\" for name, _ in types]
    lines += ["", "#endif", ""]
    return "\n".join(lines)


def check_docs(types: list[tuple[str, int]], document: Path) -> int:
    documented = {(snake(name).upper(), int(number)) for number, name in
                  ROW.findall(document.read_text(encoding="utf-8"))}
    missing = sorted(set(types) - documented, key=lambda pair: pair[1])
    unknown = sorted(documented - set(types), key=lambda pair: pair[1])
    for name, number in missing:
        print(f"{document}: no row for type {number}, {name}")
    for name, number in unknown:
        print(f"{document}: type {number}, {name}, is not in the schema")
    return 1 if missing or unknown else 0


def main() -> int:
    if sys.argv[1] == "--check-docs":
        types, _ = read(Path(sys.argv[2]))
        return check_docs(types, Path(sys.argv[3]))
    Path(sys.argv[2]).write_text(header(*read(Path(sys.argv[1]))),
                                 encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
