"""Programs with effects and without results, such as ``jax.debug.print`` alone in a function.

Such a program gets one more result, a byte, so that it runs and completes like any other.
JAX does not see this result: the executable that JAX gets hides it.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

from .callbacks import SHARD_TARGET, TARGET


class _Results:
    """The results of one call, without the last."""

    def __init__(self, results: Any) -> None:
        self._results = results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def consume_with_handlers(self, handlers: Sequence[Callable], strict: bool = True) -> Any:
        if not strict:
            return self._results.consume_with_handlers(handlers, strict=False)
        return self._results.consume_with_handlers([*handlers, lambda arrays: None])[:-1]


class _Executable:
    """An executable without its last result. JAX calls executables with effects from Python."""

    def __init__(self, executable: Any) -> None:
        self._executable = executable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def get_output_memory_kinds(self) -> list:
        return [kinds[:-1] for kinds in self._executable.get_output_memory_kinds()]

    def get_output_layouts(self) -> Sequence:
        return self._executable.get_output_layouts()[:-1]

    def get_output_shardings(self) -> Sequence | None:
        shardings = self._executable.get_output_shardings()
        return shardings[:-1] if shardings else shardings

    def execute_sharded(self, *args: Any, **named: Any) -> _Results:
        return _Results(self._executable.execute_sharded(*args, **named))


def _main(module: Any) -> Any:
    from jax._src.lib.mlir.dialects import func

    return next(op for op in module.body.operations
                if isinstance(op, func.FuncOp) and op.name.value == "main")


def _copy(module: Any) -> Any:
    """A copy, because the caller may inspect or compile the lowered function again."""
    from jax._src.lib.mlir import ir

    bytecode = io.BytesIO()
    module.operation.write_bytecode(file=bytecode)
    with module.context, ir.Location.unknown():
        return ir.Module.parse(bytecode.getvalue())


def _add_result(module: Any) -> None:
    """Adds the constant true to the results of main."""
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import func, hlo

    main = _main(module)
    with module.context, ir.Location.unknown():
        kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
        operations = main.body.blocks[0].operations
        last = operations[len(operations) - 1]
        with ir.InsertionPoint(last):
            true = hlo.constant(ir.DenseElementsAttr.get_splat(kind, ir.BoolAttr.get(True)))
            func.ReturnOp([*last.operands, true])
        last.operation.erase()
        main.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(main.type.inputs, [*main.type.results, kind]))
        main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({})])


def _needs_result(module: Any) -> bool:
    """True if the program calls back and returns nothing."""
    if _main(module).type.results:
        return False
    text = str(module)
    return TARGET in text or SHARD_TARGET in text


def install() -> None:
    """Adds the result to programs of this platform when JAX compiles them."""
    from jax._src import compiler

    compile_or_get = compiler.compile_or_get_cached

    @functools.wraps(compile_or_get)
    def compile_or_get_cached(
        backend: Any, computation: Any, devices: Any, options: Any, *args: Any, **named: Any
    ) -> Any:
        if getattr(backend, "platform", None) != "towpath" or not _needs_result(computation):
            return compile_or_get(backend, computation, devices, options, *args, **named)
        computation = _copy(computation)
        _add_result(computation)
        options.executable_build_options.allow_spmd_sharding_propagation_to_output = [True]
        return _Executable(
            compile_or_get(backend, computation, devices, options, *args, **named))

    compiler.compile_or_get_cached = compile_or_get_cached
