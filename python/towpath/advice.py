"""What a user is told once, on standard error, when JAX starts on this platform."""

from __future__ import annotations

import os
import sys

# The releases of JAX that the tests run with.
TESTED = ((0, 6), (0, 12))
# Set by launchers that start several processes of one program.
TASK_COUNTS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def about_version(version: str) -> str | None:
    """Says that this JAX has not been tested; None if it has."""
    first, last = TESTED
    release = _release(version)
    if first <= release <= last:
        return None
    age = "older" if release < first else "newer"
    tested = " to ".join(".".join(map(str, bound)) for bound in TESTED)
    return f"JAX {version} is {age} than the releases this Towpath is tested with, {tested}"


def _task_count() -> tuple[str, int]:
    """How many processes run this program, and how we know."""
    for name in TASK_COUNTS:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 1:
            return f"{name}={text}", int(text)
    distributed = sys.modules.get("jax._src.distributed")
    state = getattr(distributed, "global_state", None)
    count = getattr(state, "num_processes", None) or 1
    return f"jax.distributed.initialize with {count} processes", count


def about_processes() -> str | None:
    """Explains what several processes of one program do here; None if it is one process."""
    told_by, count = _task_count()
    if count <= 1:
        return None
    return (
        f"{told_by}: on Towpath one process drives all devices of the cluster, and each of "
        f"these {count} would run the whole program alone. Start one process, and remove "
        "jax.distributed.initialize"
    )


def give(version: str) -> None:
    if os.environ.get("TOW_QUIET") == "1":
        return
    for text in (about_version(version), about_processes()):
        if text is not None:
            print(f"towpath: {text}", file=sys.stderr)
