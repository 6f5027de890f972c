"""Towpath: one program drives the accelerators of many hosts.

With this package installed, ``JAX_PLATFORMS=towpath`` and an unmodified script
is all. ``TOW_ADDRESS`` names a cluster; without it a local one is started, which
ends with the process (``TOW_LOCAL="workers=2,devices=4"`` says how large).
"""

__version__ = "0.1.0"
