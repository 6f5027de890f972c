"""``jax.experimental.buffer_callback``: functions that write their results into buffers.

On JAX's own backends these are device buffers. Here the devices are in other processes, so the
call is an ordinary callback: the function gets copies of its arguments, and the bytes that it
writes are sent back.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from . import callbacks


def _fail(text: str) -> NoReturn:
    """Raises the error that jaxlib raises for buffers on a CPU."""
    import jax

    raise jax.errors.JaxRuntimeError(f"UNIMPLEMENTED: {text}")


class Buffer:
    """Has the attributes of jaxlib's buffers."""

    def __init__(self, array: np.ndarray, writeable: bool) -> None:
        self._array = array
        self.writeable = writeable

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> np.dtype:
        return self._array.dtype

    @property
    def ndim(self) -> int:
        return self._array.ndim

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if dtype is not None and np.dtype(dtype) != self._array.dtype:
            if copy is False:
                raise ValueError(
                    f"{self._array.dtype} to {np.dtype(dtype)} needs a copy, and copy=False"
                )
            return self._array.astype(dtype)
        return self._array.copy() if copy else self._array

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict:
        _fail("Buffer.__cuda_array_interface__ is only supported on CUDA and ROCm.")


class ExecutionContext:
    """The context of one call, with the attributes of jaxlib's."""

    @property
    def stage(self) -> Any:
        from jax.experimental.buffer_callback import ExecutionStage

        return ExecutionStage.EXECUTE

    @property
    def stream(self) -> int:
        _fail("XLA FFI GPU context is not available")


def _results(
    arguments: Sequence[np.ndarray], avals: Sequence[Any], aliases: Sequence[tuple[int, int]]
) -> list[np.ndarray]:
    """The arrays that the function writes to: an aliased argument, or zeros."""
    of_argument = {result: arguments[argument] for argument, result in aliases}
    return [
        of_argument[i] if i in of_argument else np.zeros(aval.shape, aval.dtype)
        for i, aval in enumerate(avals)
    ]


def _values(
    callback: Callable[..., None], avals: Sequence[Any], *, in_tree: Any, out_tree: Any,
    aliases: Sequence[tuple[int, int]],
) -> Callable[..., list[np.ndarray]]:
    """`callback` as a function that returns its results."""
    from jax import tree_util

    def call(*arguments: np.ndarray) -> list[np.ndarray]:
        results = _results(arguments, avals, aliases)
        positional, named = tree_util.tree_unflatten(
            in_tree, [Buffer(array, writeable=False) for array in arguments])
        written = tree_util.tree_unflatten(
            out_tree, [Buffer(array, writeable=True) for array in results])
        if callback(ExecutionContext(), written, *positional, **named) is not None:
            raise ValueError("buffer_callback callback must not return any values.")
        return results

    return call


def register(primitive: object, mlir: types.ModuleType) -> None:
    """Registers the lowering of `primitive`, that of buffer_callback, for this platform.
    As in JAX, it has no sharding of its own: where the compiler partitions the arrays, every
    device calls the function with whole arrays."""

    def lower(
        ctx: Any, *operands: Any, callback: Callable[..., None], in_tree: Any, out_tree: Any,
        has_side_effect: bool, input_output_aliases: Sequence[tuple[int, int]], **_unused: Any,
    ) -> Sequence[Any]:
        call = _values(callback, ctx.avals_out, in_tree=in_tree, out_tree=out_tree,
                       aliases=input_output_aliases)
        results, _, _ = callbacks.emit_call(
            ctx, call, None, operands, ctx.avals_in, ctx.avals_out,
            has_side_effect=has_side_effect)
        return results

    mlir.register_lowering(primitive, lower, platform="towpath")
