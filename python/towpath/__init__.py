"""Towpath: one program drives the accelerators of many hosts.

With this package installed, ``JAX_PLATFORMS=towpath`` runs an unmodified JAX
script on a cluster. ``TOW_ADDRESS`` names the cluster; without it a local cluster
starts, which ends with the process (``TOW_LOCAL="workers=2,devices=4"`` sets its size).
"""

__version__ = "0.1.0"
