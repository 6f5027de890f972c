"""Programs over slices: ``tow.slice``, ``tow.on``, ``tow.program``; they import JAX."""

from jax.extend import source_info_util

from towpath.programs.explain import Explanation, explain
from towpath.programs.graph import ProgramError
from towpath.programs.host import Host, host
from towpath.programs.library import TowpathError
from towpath.programs.placed import Placed, on
from towpath.programs.program import Program, program
from towpath.programs.slices import Slice, make_slice

__all__ = [
    "Explanation", "Host", "Placed", "Program", "ProgramError", "Slice", "TowpathError", "explain", "host", "make_slice",
    "on", "program",
]

# Errors name the user's lines, not ours.
for module in ("build", "graph", "host", "placed", "program"):
    source_info_util.register_exclusion(__file__.replace("__init__", module))
