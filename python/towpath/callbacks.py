"""JAX's callbacks on a cluster: ``jax.debug.print``, ``pure_callback``, ``io_callback``.

A program calls functions by number, in a custom call. The worker sends the call to the
client, and the client library calls :func:`_serve` on one of its threads. So functions run
in the user's process, wherever the devices are.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import inspect
import itertools
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# XLA's partitioner knows this target; the attribute `function` is ours.
TARGET = "xla_ffi_python_cpu_callback"
# The same for `partitioned=True`: each device calls with its shards of the arguments.
SHARD_TARGET = "xla_ffi_partitioned_python_cpu_callback"
# Values of tow_code_t, with which a failed function ends its run.
UNKNOWN, NOT_FOUND = 2, 5

# Shape and type of each array.
_Kinds = list[tuple[tuple[int, ...], np.dtype]]


@dataclasses.dataclass
class _Function:
    """One function, with the signature of one call site."""

    call: Callable[..., Sequence[Any]]
    arguments: _Kinds
    results: _Kinds
    gets_shards: bool = False  # their shapes precede the arguments


class _Registration:
    """Registers a function for as long as its executable exists."""

    def __init__(self, function: _Function) -> None:
        self.number = next(_numbers)
        _functions[self.number] = function

    def __del__(self) -> None:
        """The last runs may still be in flight, so the function is removed only after
        RETIRED_MAX others."""
        _retired.append(self.number)
        while len(_retired) > RETIRED_MAX:
            _functions.pop(_retired.popleft(), None)


# Functions whose executables no longer exist, retained for runs in flight.
RETIRED_MAX = 256
_numbers = itertools.count(1)
_functions: dict[int, _Function] = {}
_retired: collections.deque[int] = collections.deque()


# Element types that devices pack into bytes; NumPy uses one byte per element.
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}


def _unpack(data: np.ndarray, bits: int, count: int) -> np.ndarray:
    """One byte per element; the first element is in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((data[:, None] >> shifts) & ((1 << bits) - 1)).astype(np.uint8).reshape(-1)[:count]


def _pack(elements: np.ndarray, bits: int) -> np.ndarray:
    """The reverse of `_unpack`."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    whole = np.zeros(-(-elements.size // shifts.size) * shifts.size, np.uint8)
    whole[: elements.size] = elements & ((1 << bits) - 1)
    return np.bitwise_or.reduce(whole.reshape(-1, shifts.size) << shifts, axis=1, dtype=np.uint8)


def _arguments(function: _Function, address: int, size: int) -> list[np.ndarray]:
    """Copies of the arguments, because the function may keep them."""
    data = ctypes.string_at(address, size) if size else b""
    arrays, offset = [], 0
    kinds = function.arguments
    if function.gets_shards:
        kinds, offset = _shard_kinds(kinds, data)
    for shape, dtype in kinds:
        count = int(np.prod(shape, dtype=np.int64))
        bits = _BITS.get(dtype.name, 8 * dtype.itemsize)
        length = -(-count * bits // 8)
        array = np.frombuffer(data, np.uint8, length, offset)
        array = _unpack(array, bits, count) if bits < 8 else array.copy()
        arrays.append(array.view(dtype).reshape(shape))
        offset += length
    return arrays


def _shard_kinds(kinds: _Kinds, data: bytes) -> tuple[_Kinds, int]:
    """Shapes and types of one device's shards, and the offset of the first array."""
    count = sum(len(shape) for shape, _ in kinds)
    sizes = iter(np.frombuffer(data, np.int64, count).tolist())
    found = [(tuple(itertools.islice(sizes, len(shape))), dtype) for shape, dtype in kinds]
    return found, 8 * count


def _write(function: _Function, values: Sequence[Any], address: int) -> None:
    if len(values) != len(function.results):
        raise RuntimeError(
            f"the callback returned {len(values)} values, "
            f"but its declaration has {len(function.results)}"
        )
    for i, (value, (shape, dtype)) in enumerate(zip(values, function.results)):
        array = np.ascontiguousarray(value)
        if np.shape(value) != shape or array.dtype != dtype:
            raise RuntimeError(
                f"value {i} of the callback is {array.dtype}{list(np.shape(value))}, "
                f"but its declaration says {dtype}{list(shape)}"
            )
        if dtype.name in _BITS:
            array = _pack(array.view(np.uint8).reshape(-1), _BITS[dtype.name])
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        address += array.nbytes


def _serve(
    number: int, _device: int, arguments: int, size: int, results: int, _result_size: int,
    error: int, capacity: int,
) -> int:
    """The client library calls this on one of its threads. Returns a tow_code_t; on failure
    it writes a message of at most `capacity` bytes to `error`."""
    try:
        function = _functions.get(number)
        if function is None:
            text, code = f"callback function {number} no longer exists in this process", NOT_FOUND
        else:
            _write(function, function.call(*_arguments(function, arguments, size)), results)
            return 0
    except BaseException:  # any exception fails the run, and must not end this thread
        text, code = "a callback failed:\n" + traceback.format_exc(), UNKNOWN
    # The end of a traceback has the error and its beginning the call: keep both.
    message = text.encode()
    if len(message) >= capacity:
        half = (capacity - 8) // 2
        message = message[:half] + b"\n...\n" + message[-half:]
    ctypes.memmove(error, message + b"\0", len(message) + 1)
    return code


_SERVE_TYPE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_size_t,
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t,
)
_serve_pointer = _SERVE_TYPE(_serve)


def _kinds(avals: Sequence[Any]) -> _Kinds:
    return [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in avals]


def _calls_with_shards_anyway(context: Any) -> bool:
    """True on one device, and in a shard_map over all axes of the mesh."""
    if hasattr(context, "manual_axes"):
        return set(context.manual_axes) == set(context.mesh.axis_names)
    return getattr(context, "num_devices", 1) in (1, None)


def emit_call(
    ctx: Any, callback: Callable[..., Sequence[Any]], token: Any, operands: Sequence[Any],
    operand_avals: Sequence[Any], result_avals: Sequence[Any], *, has_side_effect: bool,
    sharding: Any = None, partitioned: bool = False, **_unused: Any,
) -> tuple[list[Any], Any, _Registration]:
    """JAX's emit_python_callback, for this platform."""
    if partitioned and result_avals:
        raise ValueError("Partitioned callback not supported with return values.")
    by_shards = partitioned and not _calls_with_shards_anyway(ctx.module_context.axis_context)
    from jax._src import core, dtypes, ffi, xla_bridge
    from jax._src.interpreters import mlir

    # JAX puts arguments on its CPU devices: create these now, not during a call.
    xla_bridge.local_devices(backend="cpu")
    canonical = getattr(dtypes, "canonicalize_value", lambda value: value)

    def call(*arguments: np.ndarray) -> list[Any]:
        return [canonical(np.asarray(value)) for value in callback(*arguments)]

    registration = _Registration(
        _Function(call, _kinds(operand_avals), _kinds(result_avals), by_shards)
    )
    ctx.module_context.add_keepalive(registration)
    if token is not None:  # an ordered effect: the token is an operand and a result
        operands = [token, *operands]
        sharding = _with_token(sharding, ctx)
        ctx = dataclasses.replace(
            ctx,
            avals_in=[core.abstract_token, *ctx.avals_in],
            avals_out=[core.abstract_token, *ctx.avals_out],
        )
    target = SHARD_TARGET if by_shards else TARGET
    lower = ffi.build_ffi_lowering_function(target, has_side_effect=has_side_effect)
    made = lower(ctx, *operands, function=np.uint64(registration.number))
    if sharding is not None:
        _set_sharding(mlir, ctx, made, sharding)
    results = list(made.results)
    if token is not None:
        token = results.pop(0)
    return results, token, registration


def _with_token(sharding: Any, ctx: Any) -> Any:
    """The token is one more result, on the devices of the others."""
    from jax._src import sharding_impls

    if not isinstance(sharding, sharding_impls.SdyArrayList) or not ctx.avals_out:
        return sharding
    first = sharding.shardings[0]
    of_token = sharding_impls.SdyArray(
        mesh_shape=(), dim_shardings=(), logical_device_ids=first.logical_device_ids
    )
    return sharding_impls.SdyArrayList((of_token, *sharding.shardings))


def _set_sharding(mlir: Any, ctx: Any, made: Any, sharding: Any) -> None:
    if "ctx" in inspect.signature(mlir.set_sharding).parameters:
        mlir.set_sharding(ctx.module_context, made, sharding)
    else:  # before JAX 0.7
        mlir.set_sharding(made, sharding)


def install(library: Path) -> None:
    """Registers the lowering of callbacks for this platform, and `_serve` with the client
    library."""
    from jax._src import callback, debugging
    from jax._src.interpreters import mlir

    serve = getattr(ctypes.CDLL(str(library)), "towpath_serve_callbacks", None)
    if serve is None:
        return  # an older library: JAX then reports that callbacks are not supported
    serve.argtypes, serve.restype = [_SERVE_TYPE], None
    serve(_serve_pointer)
    emit_of_jax = callback.emit_python_callback

    def emit(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if tuple(ctx.module_context.platforms) == ("towpath",):
            return emit_call(ctx, *args, **kwargs)
        return emit_of_jax(ctx, *args, **kwargs)

    callback.emit_python_callback = emit
    rules = mlir._platform_specific_lowerings
    for name in ("debug_callback_p", "debug_print_p"):
        primitive = getattr(debugging, name, None)
        if primitive is not None and primitive in rules["cpu"]:
            rules["towpath"].setdefault(primitive, rules["cpu"][primitive])
