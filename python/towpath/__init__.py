"""Towpath: one program drives the accelerators of many hosts.

``JAX_PLATFORMS=towpath`` runs an unmodified JAX script on a cluster; in a notebook, one
of these functions does, called before the first use of JAX::

    import towpath as tow
    tow.start(workers=2, devices=4)     # a local cluster, which ends with the process
    tow.connect("tls:head-node:4000")   # a running cluster
    tow.use()                           # as the environment says (TOW_ADDRESS, TOW_LOCAL)

Programs over slices of the cluster::

    a = tow.on(tow.slice(2), lambda x: x * 2.0)
    b = tow.on(tow.slice(2), lambda x: x + 1.0)

    @tow.program
    def f(v):
        return b(a(v))      # one message, whatever the number of calls

Importing this package does not import JAX, and JAX without one of these stays as it is.
"""

import importlib

from towpath.choice import connect, start, use

# What imports JAX: where it is, and by which name.
_LAZY = {
    "explain": ("programs", "explain"),
    "host": ("programs", "host"),
    "on": ("programs", "on"),
    "program": ("programs", "program"),
    "slice": ("programs", "make_slice"),
    "Program": ("programs", "Program"),
    "ProgramError": ("programs", "ProgramError"),
    "Slice": ("programs", "Slice"),
    "TowpathError": ("programs", "TowpathError"),
    "pipeline": ("pipelines", "pipeline"),
    "stage": ("pipelines", "stage"),
    "PipelineError": ("pipelines", "PipelineError"),
}

__all__ = ["connect", "start", "use", *_LAZY]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(importlib.import_module(f"towpath.{module}"), attribute)
