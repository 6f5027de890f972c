"""CPU time of each role of the local cluster that a process has started, from the
kernel's accounting."""

import os
import pathlib

PROC = pathlib.Path("/proc")


def _parent(pid: int) -> int:
    # The process name may contain anything; it ends at the last bracket.
    return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def descendants(pid: int) -> list[int]:
    parents = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = _parent(int(entry.name))
            except (OSError, IndexError):
                continue  # It has exited.
    found = [pid]
    for ancestor in found:
        found += [p for p, parent in parents.items() if parent == ancestor]
    return found[1:]


def _words(pid: int) -> list[str]:
    return (PROC / str(pid) / "cmdline").read_text().split("\0")


def _thread_seconds(pid: int) -> dict[int, float]:
    """By thread; the first number of schedstat is its CPU time in nanoseconds."""
    seconds = {}
    for thread in (PROC / str(pid) / "task").iterdir():
        try:
            seconds[int(thread.name)] = int((thread / "schedstat").read_text().split()[0]) * 1e-9
        except OSError:
            continue  # It has exited.
    return seconds


def read() -> dict[str, float]:
    """CPU seconds so far: of this thread, other threads of this process, and below it
    the controller, the workers' event loops and their other threads. A controller in
    the process of the only worker counts as that worker's loop."""
    own = _thread_seconds(os.getpid())
    main = own.pop(os.getpid())
    spent = {"main": main, "other_threads": sum(own.values()),
             "controller": 0.0, "worker": 0.0, "device": 0.0}
    for pid in descendants(os.getpid()):
        try:
            words, threads = _words(pid), _thread_seconds(pid)
        except OSError:
            continue
        loop = threads.pop(pid, 0.0)
        if "controller" in words:
            spent["controller"] += loop + sum(threads.values())
        elif "worker" in words:
            spent["worker"] += loop
            spent["device"] += sum(threads.values())
    return spent


def memory_below(pid: int) -> tuple[int, float]:
    """Descendants of a process and their memory in MiB: shared pages count once,
    XLA's files do not count."""
    count, kib = 0, 0
    for child in descendants(pid):
        try:
            kib += _resident_kib(child)
            count += 1
        except OSError:
            continue
    return count, kib / 1024


def _resident_kib(pid: int) -> int:
    total, is_xla = 0, False
    for line in (PROC / str(pid) / "smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            is_xla = "libtensorflow" in line
        elif first == "Pss:" and not is_xla:
            total += int(line.split()[1])
    return total
