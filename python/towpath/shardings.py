"""Shardings of results that JAX has no name for.

Where a program leaves a result's sharding open, the partitioner decides it, and the
XLA of the cluster may divide a dimension by a part of a mesh's axis: ``x.reshape(2, 40)``
of 80 elements over 8 devices by 2 of the 8. JAX 0.10 has no name for that and raises.
The XLA in its own jaxlib leaves such results whole. So here: the program is compiled
again, with those results asked for whole.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any

from . import unreduced

_unnamed = threading.local()


def _note_unnamed(pxla: Any, named_sharding: type) -> None:
    """A sharding without a name stays as it is, and is remembered."""
    name_of = pxla._orig_out_sharding_handlers[named_sharding]

    def name_or_note(sharding: Any, aval: Any, like: Any) -> Any:
        noted = getattr(_unnamed, "shardings", None)
        try:
            return name_of(sharding, aval, like)
        except pxla.IndivisibleError:
            if noted is None:
                raise
            whole = named_sharding(like.mesh, type(like.spec)(), memory_kind=sharding.memory_kind)
            noted.append((sharding, whole))
            return sharding

    pxla._orig_out_sharding_handlers[named_sharding] = name_or_note


def _make(from_hlo: Any, arguments: inspect.BoundArguments) -> tuple[Any, list[Any]]:
    """The executable, and what of its results could not be named."""
    outer = getattr(_unnamed, "shardings", None)
    _unnamed.shardings = []
    try:
        return from_hlo(*arguments.args, **arguments.kwargs), _unnamed.shardings
    finally:
        _unnamed.shardings = outer


def _with_whole(module: Any, ranks: dict[int, int]) -> Any:
    """A copy of the program that asks for these results whole, by their numbers."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with module.context, ir.Location.unknown(module.context):
        copy = ir.Module.parse(mlir.module_to_bytecode(module))
        main = ir.SymbolTable(copy.operation)["main"]
        results = [{a.name: a.attr for a in result} for result in main.result_attrs]
        for number, rank in ranks.items():
            dimensions = ", ".join(["{}"] * rank)
            results[number]["sdy.sharding"] = ir.Attribute.parse(
                f"#sdy.sharding<mesh<[]>, [{dimensions}]>"
            )
        main.result_attrs = ir.ArrayAttr.get([ir.DictAttr.get(result) for result in results])
    return copy


def _ask_for_whole(arguments: dict[str, Any], found: Any, whole: dict[Any, Any]) -> None:
    """In the arguments of ``from_hlo``, of results that were found in `whole`."""
    tokens = len(arguments["ordered_effects"])  # results before those of the function
    asked, ranks = list(arguments["out_shardings"]), {}
    for i, sharding in enumerate(found):
        if sharding in whole:
            asked[i] = whole[sharding]
            ranks[tokens + i] = arguments["global_out_avals"][i].ndim
    arguments["out_shardings"] = tuple(asked)
    arguments["hlo"] = _with_whole(arguments["hlo"], ranks)


def install() -> None:
    """For programs of ours; others are left to JAX."""
    from jax._src import config, sharding_impls
    from jax._src.interpreters import pxla

    if not hasattr(pxla, "IndivisibleError"):
        return  # an older JAX, which keeps them as they are
    executable = pxla.UnloadedMeshExecutable
    from_hlo = executable.from_hlo
    signature = inspect.signature(from_hlo)

    def from_hlo_with_names(*args: Any, **named: Any) -> Any:
        arguments = signature.bind(*args, **named)
        platform = getattr(arguments.arguments["backend"], "platform", None)
        if platform != "towpath" or not config.use_shardy_partitioner.value:
            return from_hlo(*args, **named)
        arguments.arguments["hlo"] = module = unreduced.mend(arguments.arguments["hlo"])
        try:
            made, unnamed = _make(from_hlo, arguments)
        except Exception as error:
            explained = unreduced.explain(module, error)
            if explained is None:
                raise
            raise explained from error
        if not unnamed:
            return made
        _ask_for_whole(arguments.arguments, made._out_shardings, dict(unnamed))
        return from_hlo(*arguments.args, **arguments.kwargs)

    unreduced.install()
    _note_unnamed(pxla, sharding_impls.NamedSharding)
    executable.from_hlo = staticmethod(from_hlo_with_names)
