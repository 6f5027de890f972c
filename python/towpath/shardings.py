"""Shardings of results that JAX cannot express.

Where a program does not specify the sharding of a result, the partitioner decides. The
cluster's XLA may shard a dimension by part of a mesh axis: ``x.reshape(2, 40)`` of 80
elements over 8 devices by 2 of the 8. JAX 0.10 cannot express that and raises an error. The XLA
in jaxlib replicates such results, and so do we: the program is compiled again, with a
request to replicate them.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any

from . import unreduced

_inexpressible = threading.local()


def _record_inexpressible(pxla: Any, named_sharding: type) -> None:
    """Keeps a sharding that JAX cannot express as it is, and records it."""
    convert = pxla._orig_out_sharding_handlers[named_sharding]

    def convert_or_record(sharding: Any, aval: Any, like: Any) -> Any:
        recorded = getattr(_inexpressible, "shardings", None)
        try:
            return convert(sharding, aval, like)
        except pxla.IndivisibleError:
            if recorded is None:
                raise
            replicated = named_sharding(
                like.mesh, type(like.spec)(), memory_kind=sharding.memory_kind)
            recorded.append((sharding, replicated))
            return sharding

    pxla._orig_out_sharding_handlers[named_sharding] = convert_or_record


def _make(from_hlo: Any, arguments: inspect.BoundArguments) -> tuple[Any, list[Any]]:
    """The executable, and the shardings of its results that JAX cannot express."""
    outer = getattr(_inexpressible, "shardings", None)
    _inexpressible.shardings = []
    try:
        return from_hlo(*arguments.args, **arguments.kwargs), _inexpressible.shardings
    finally:
        _inexpressible.shardings = outer


def _with_replicated(module: Any, ranks: dict[int, int]) -> Any:
    """A copy of the program that requests these results replicated: number -> rank."""
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


def _request_replicated(arguments: dict[str, Any], found: Any, replicated: dict[Any, Any]) -> None:
    """Changes the arguments of ``from_hlo`` for the results whose sharding is in `replicated`."""
    tokens = len(arguments["ordered_effects"])  # these precede the results of the function
    requested, ranks = list(arguments["out_shardings"]), {}
    for i, sharding in enumerate(found):
        if sharding in replicated:
            requested[i] = replicated[sharding]
            ranks[tokens + i] = arguments["global_out_avals"][i].ndim
    arguments["out_shardings"] = tuple(requested)
    arguments["hlo"] = _with_replicated(arguments["hlo"], ranks)


def install() -> None:
    """Applies to programs of this platform; JAX handles all others."""
    from jax._src import config, sharding_impls
    from jax._src.interpreters import pxla

    if not hasattr(pxla, "IndivisibleError"):
        return  # an older version of JAX, which accepts such shardings
    executable = pxla.UnloadedMeshExecutable
    from_hlo = executable.from_hlo
    signature = inspect.signature(from_hlo)

    def from_hlo_replicating(*args: Any, **named: Any) -> Any:
        arguments = signature.bind(*args, **named)
        platform = getattr(arguments.arguments["backend"], "platform", None)
        if platform != "towpath" or not config.use_shardy_partitioner.value:
            return from_hlo(*args, **named)
        arguments.arguments["hlo"] = module = unreduced.rewrite(arguments.arguments["hlo"])
        try:
            made, inexpressible = _make(from_hlo, arguments)
        except Exception as error:
            explained = unreduced.explain(module, error)
            if explained is None:
                raise
            raise explained from error
        if not inexpressible:
            return made
        _request_replicated(arguments.arguments, made._out_shardings, dict(inexpressible))
        return from_hlo(*arguments.args, **arguments.kwargs)

    unreduced.install()
    _record_inexpressible(pxla, sharding_impls.NamedSharding)
    executable.from_hlo = staticmethod(from_hlo_replicating)
