"""One backend of `tow bench jax`, as a process that performs rounds on command.

usage: child.py DESCRIPTOR

Reads requests from `tow bench jax` on the socket DESCRIPTOR, one JSON object per line,
and replies with one each. The environment selects the backend.

  {"do": "run", "case": NAME, "count": N}     seconds by name; the first run of a
                                              case compiles it, which is not timed
  {"do": "budget", "case": NAME, "count": N}  the same, with CPU seconds by role and,
                                              under the meter, seconds by function
  {"do": "fake", "on": true}                  under the meter: execute nothing
  {"do": "memory"}                            memory of the descendants of this process
"""

import ctypes
import json
import os
import signal
import socket
import sys

import jax

import budget
import cases

PR_SET_PDEATHSIG = 1
METER_BYTES = 1 << 14

made: dict[str, cases.Case] = {}


def case_of(name: str) -> cases.Case:
    if name not in made:
        made[name] = cases.MAKERS[name]()
    return made[name]


def meter():
    """The meter plugin, if JAX has loaded it."""
    path = os.environ.get("TOW_METER_LIBRARY") and os.environ.get("TOW_PJRT_LIBRARY")
    return ctypes.CDLL(path) if path else None


def metered(case: cases.Case, count: int) -> tuple[cases.Times, dict]:
    library = meter()
    if library is None:
        return case(count), {}
    text = ctypes.create_string_buffer(METER_BYTES)
    library.tow_meter_start()
    times = case(count)
    library.tow_meter_stop(text, ctypes.c_size_t(METER_BYTES))
    lines = [line.split() for line in text.value.decode().splitlines()]
    return times, {name: [int(calls), float(ns) * 1e-9] for name, calls, ns in lines}


def measure_budget(name: str, count: int) -> dict:
    case = case_of(name)
    before = budget.read()
    times, functions = metered(case, count)
    after = budget.read()
    cpu = {role: after[role] - before[role] for role in after if after[role] > 0}
    return {"times": times, "functions": functions, "cpu": cpu}


def answer(request: dict) -> dict:
    match request["do"]:
        case "run":
            return case_of(request["case"])(request["count"])
        case "budget":
            return measure_budget(request["case"], request["count"])
        case "fake":
            meter().tow_meter_fake(int(request["on"]))
            return {}
        case "memory":
            processes, mib = budget.memory_below(os.getpid())
            return {"processes": processes, "mib": mib}
    raise ValueError(f"what is {request['do']!r}?")


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = socket.socket(fileno=int(sys.argv[1])).makefile("rw", buffering=1)
    print(json.dumps({"devices": len(jax.devices())}), file=parent)
    for line in parent:
        try:
            said = answer(json.loads(line))
        except Exception as error:  # Any error goes to the other end.
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=parent)


main()
