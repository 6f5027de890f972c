"""Pipelines: ``tow.stage`` and ``tow.pipeline``; they import JAX."""

from towpath.pipelines.cut import PipelineError
from towpath.pipelines.marks import stage
from towpath.pipelines.step import Pipeline, State, pipeline

__all__ = ["Pipeline", "PipelineError", "State", "pipeline", "stage"]
