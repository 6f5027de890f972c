"""Towpath: one program drives the accelerators of many hosts.

``JAX_PLATFORMS=towpath`` runs an unmodified JAX script on a cluster; in a notebook, one
of these functions does, called before the first use of JAX::

    import towpath
    towpath.start(workers=2, devices=4)     # a local cluster, which ends with the process
    towpath.connect("tls:head-node:4000")   # a running cluster
    towpath.use()                           # as the environment says (TOW_ADDRESS, TOW_LOCAL)

Importing this package does not import JAX, and JAX without one of these stays as it is.
"""

from towpath.choice import connect, start, use

__all__ = ["connect", "start", "use"]
__version__ = "0.1.0"
