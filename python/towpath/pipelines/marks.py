"""``tow.stage``: marks where a stage of a pipeline ends."""

from __future__ import annotations

from typing import Any

import jax
from jax import numpy as jnp
from jax.extend import core as extend_core
from jax.interpreters import ad, batching, mlir

stage_p = extend_core.Primitive("towpath_stage")
stage_p.multiple_results = True


@stage_p.def_impl
def _now(*leaves: Any) -> list[Any]:
    return list(leaves)


@stage_p.def_abstract_eval
def _types(*leaves: Any) -> list[Any]:
    return list(leaves)


def _jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """A mark says where the values are made; derivatives follow from that."""
    return stage_p.bind(*primals), list(tangents)


def _batch(args: Any, dims: Any) -> tuple[Any, Any]:
    return stage_p.bind(*args), dims


ad.primitive_jvps[stage_p] = _jvp
batching.primitive_batchers[stage_p] = _batch
mlir.register_lowering(stage_p, lambda ctx, *leaves: list(leaves))


def stage(x: Any) -> Any:
    """`x`, an array or a pytree of arrays, as the next stage of a pipeline gets it.

    What is computed from the result belongs to the next stage. Outside of ``tow.pipeline``
    it changes nothing.
    """
    leaves, tree = jax.tree.flatten(x)
    if not leaves:
        return x
    return jax.tree.unflatten(tree, stage_p.bind(*map(jnp.asarray, leaves)))
