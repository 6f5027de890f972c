"""Programs in Python on a cluster, as a process that performs rounds on command.

usage: child.py DESCRIPTOR

Writes `ready` to the socket DESCRIPTOR, then reads lines `CASE COUNT` and replies to each
with the seconds that COUNT units of that case took. The first round of a case compiles it,
which is not timed. The environment names the cluster.
"""

import ctypes
import signal
import socket
import sys

import jax

import cases

PR_SET_PDEATHSIG = 1

made: dict[str, cases.Case] = {}


def case_of(name: str) -> cases.Case:
    if name not in made:
        made[name] = cases.MAKERS[name]()
    return made[name]


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = socket.socket(fileno=int(sys.argv[1])).makefile("rw", buffering=1)
    jax.devices()
    print("ready", file=parent)
    for line in parent:
        name, count = line.split()
        print(f"{case_of(name)(int(count)):.9f}", file=parent)


main()
