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

from towpath.choice import connect, start, use

# What imports JAX, by name.
_PROGRAMS = {
    "explain": "explain",
    "on": "on",
    "program": "program",
    "slice": "make_slice",
    "Program": "Program",
    "ProgramError": "ProgramError",
    "Slice": "Slice",
    "TowpathError": "TowpathError",
}

__all__ = ["connect", "start", "use", *_PROGRAMS]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _PROGRAMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from towpath import programs

    return getattr(programs, _PROGRAMS[name])
