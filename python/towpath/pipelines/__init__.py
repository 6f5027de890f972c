"""Pipelines: ``tow.stage`` and ``tow.pipeline``; they import JAX."""

from jax.extend import source_info_util

from towpath.pipelines.cut import PipelineError
from towpath.pipelines.marks import stage
from towpath.pipelines.step import Pipeline, State, pipeline

__all__ = ["Pipeline", "PipelineError", "State", "pipeline", "stage"]

# Errors name the user's lines, not ours.
for module in ("marks", "step", "cut", "fragments", "assemble"):
    source_info_util.register_exclusion(__file__.replace("__init__", module))
