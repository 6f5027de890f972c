"""Check source files against rules that no compiler checks.

usage: check_source.py RULE [ROOT]

  todo    a note of unfinished work gives its reason: TO-DO(reason), one word
  purity  state machines use time, random numbers, threads and sockets through
          tow_env only. Exempt are base/, env/, device/, supervisor/,
          tool/, collective/intra_host/ and pjrt/callback.c (their READMEs say
          why), and lines with /* tow-allow: reason */
  paths   no path of one machine, and no package registry's host, in any file

Prints one line per fault and exits 1 if there is any.
"""

import re
import sys
from pathlib import Path
from typing import Callable, Iterator

from source_tree import blank_comments, c_files, files, numbered, text

CODE_SUFFIXES = (".c", ".h", ".cc", ".hh", ".py", ".sh", ".proto", ".build", ".map")
CODE_NAMES = ("Makefile", "meson_options.txt", "run")

# Written in pieces so that this file passes its own check.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b(?!\([^)\s][^)]*\))")

IMPURE_HEADERS = (
    "arpa/inet.h", "netdb.h", "netinet/in.h", "netinet/tcp.h", "poll.h",
    "pthread.h", "sched.h", "semaphore.h", "sys/epoll.h", "sys/eventfd.h",
    "sys/random.h", "sys/select.h", "sys/socket.h", "sys/time.h",
    "sys/timerfd.h", "sys/un.h", "threads.h", "time.h", "ucp/api/ucp.h",
)
# Without socket(), send() and bind(): our own functions may have these names, and
# the headers above reveal calls of the real ones.
IMPURE_CALLS = (
    "arc4random", "clock_gettime", "drand48", "fork", "getentropy",
    "getrandom", "gettimeofday", "nanosleep", "posix_spawn", "pthread_create",
    "pthread_mutex_lock", "RAND_bytes", "rand", "rand_r", "random", "sleep",
    "srand", "thrd_create", "usleep",
)
IMPURE_INCLUDE = re.compile(
    r"^\s*#\s*include\s*<(" + "|".join(map(re.escape, IMPURE_HEADERS)) + ")>")
IMPURE_CALL = re.compile(r"(?<![\w.>])(" + "|".join(IMPURE_CALLS) + r")\s*\(")
MAY_BE_IMPURE = (
    "src/base/", "src/env/", "src/device/", "src/supervisor/", "src/tool/",
    "src/collective/intra_host/",
    "src/pjrt/callback.c",  # threads that call the user's functions
)
EXCEPTION = re.compile(r"tow-allow:\s*\w")

MACHINE_PATHS = re.compile(
    r"(?<![\w.$}])/(?:[r]oot|[w]ork|home/[a-z][\w-]*|Users/\w+|tmp/[t]ow|opt/[w]heels)/")
REGISTRY_HOSTS = re.compile(
    r"\b(?:pypi\.(?:org|python\.org)|files\.pythonhosted\.org"
    r"|(?:deb|security|ftp|snapshot)(?:\.\w+)?\.debian\.org)\b")


def is_code(path: Path) -> bool:
    return path.suffix in CODE_SUFFIXES or path.name in CODE_NAMES


def todo(root: Path) -> Iterator[str]:
    for path in filter(is_code, files(root)):
        for number, line in numbered(text(root / path)):
            if note := UNFINISHED.search(line):
                yield (f"{path}:{number}: {note[0]} without a reason; "
                       f"write {note[0]}(what is missing and why)")


def purity(root: Path) -> Iterator[str]:
    for path in c_files(root, "src/"):
        if str(path).startswith(MAY_BE_IMPURE):
            continue
        source = text(root / path)
        lines = source.splitlines()
        for number, line in numbered(blank_comments(source)):
            found = IMPURE_INCLUDE.match(line) or IMPURE_CALL.search(line)
            if found and not EXCEPTION.search(lines[number - 1]):
                yield (f"{path}:{number}: {found[1]} outside tow_env; "
                       "ask the environment instead")


def paths(root: Path) -> Iterator[str]:
    for path in files(root):
        for number, line in numbered(text(root / path)):
            if found := MACHINE_PATHS.search(line):
                yield f"{path}:{number}: a path of one machine: {found[0]}"
            if found := REGISTRY_HOSTS.search(line):
                yield f"{path}:{number}: a registry's host: {found[0]}"


RULES: dict[str, Callable[[Path], Iterator[str]]] = {
    "todo": todo, "purity": purity, "paths": paths}


def main() -> int:
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in RULES:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
    faults = list(RULES[sys.argv[1]](root))
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
