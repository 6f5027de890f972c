"""Unpack from a tensorflow-cpu wheel what Towpath uses of it: XLA.

usage: unpack_xla.py WHEEL FOLDER

FOLDER, which must not exist, gets the two libraries, the headers and the
notices. The rest of the wheel, some 180 MB of Python and TensorFlow, stays
packed. Every byte is checked against the wheel's own CRC-32.
"""

import os
import shutil
import sys
import zipfile

PREFIX = "tensorflow/"
LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
NOTICES = ("THIRD_PARTY_NOTICES.txt",)
HEADERS = "include/"


def wanted(name: str) -> str | None:
    """The path under FOLDER of a member of the wheel, None to leave it out."""
    if not name.startswith(PREFIX) or name.endswith("/"):
        return None
    path = name[len(PREFIX):]
    if path in LIBRARIES or path in NOTICES:
        return path
    if path.startswith(HEADERS) and ".." not in path.split("/"):
        return path
    return None


def unpack(wheel: str, folder: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = {
            path: info
            for info in archive.infolist()
            if (path := wanted(info.filename)) is not None
        }
        for library in LIBRARIES:
            if library not in members:
                raise zipfile.BadZipFile(f"no {PREFIX}{library} in it")
        for path, info in members.items():
            target = os.path.join(folder, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with archive.open(info) as source, open(target, "xb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    wheel, folder = sys.argv[1:]
    try:
        unpack(wheel, folder)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        print(f"corrupt wheel {wheel}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"cannot unpack to {folder}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
