"""The plugin's functions for slices and programs (src/pjrt/python_api.h)."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Any

from towpath import plugin

c_u32 = ctypes.c_uint32
c_u64 = ctypes.c_uint64
c_text = ctypes.c_char_p
c_size = ctypes.c_size_t
c_pointer = ctypes.c_void_p
_out = ctypes.POINTER
_MAX_DEVICES = 1 << 20

_RANK_MAX = 32


class HostType(ctypes.Structure):
    """towpath_host_type_t"""

    _fields_ = [("type", c_u32), ("rank", c_u32), ("bounds", c_u32), ("dims", ctypes.c_int64 * _RANK_MAX)]


class HostCall(ctypes.Structure):
    """towpath_host_call_t"""

    _fields_ = [
        ("struct_size", c_size), ("path", c_text), ("symbol", c_text), ("devices", _out(ctypes.c_int64)),
        ("device_count", c_size), ("arguments", _out(HostType)), ("argument_count", c_size),
        ("results", _out(HostType)), ("result_count", c_size), ("time_limit_ms", c_u32), ("name", c_text),
    ]


def _host_types(types: Sequence[tuple[Any, int]]) -> Any:
    from towpath.programs.host import type_number

    made = [HostType(type_number(a.dtype), len(a.shape), bounds, (ctypes.c_int64 * _RANK_MAX)(*a.shape))
            for a, bounds in types]
    return (HostType * (len(made) + 1))(*made)


PROTOTYPES = {
    "towpath_slice_open": (
        _out(c_u32), c_text, c_text, _out(c_u64), _out(ctypes.c_int64), c_size, _out(c_size)),
    "towpath_slice_close": (c_u64,),
    "towpath_program_begin": (c_text, _out(c_u64)),
    "towpath_program_port": (c_u64, c_pointer, _out(c_u32)),
    "towpath_program_argument": (c_u64, c_u32, c_u32, ctypes.c_int, _out(c_u32)),
    "towpath_program_call": (c_u64, c_pointer, c_text, c_pointer, c_size, _out(c_u32)),
    "towpath_program_host_call": (c_u64, _out(HostCall), c_pointer, c_size, _out(c_u32)),
    "towpath_program_result": (c_u64, c_u32, c_u32, c_u32, c_u32),
    "towpath_program_finish": (c_u64,),
    "towpath_program_abandon": (c_u64,),
    "towpath_program_release": (c_u64,),
    "towpath_program_text": (c_u64, _out(c_pointer)),
    "towpath_executable_named": (c_text, _out(c_pointer)),
    "towpath_schedule_generate": (c_text, c_u32, c_u32, c_u32, c_u32, c_u32, _out(c_pointer)),
    "towpath_schedule_nodes": (c_text, c_pointer, c_size, _out(c_pointer), _out(c_size)),
}


class TowpathError(RuntimeError):
    """An error of the cluster or of the plugin; `code` is its name, such as UNAVAILABLE."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(":", 1)[0]


@functools.cache
def _library() -> ctypes.CDLL:
    path = plugin.library_path()
    if path is None:
        raise TowpathError("NOT_FOUND: libtowpath_pjrt.so is not there: run `make`")
    library = ctypes.CDLL(str(path))
    for name, arguments in PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_pointer
    library.towpath_text_free.argtypes, library.towpath_text_free.restype = (c_pointer,), None
    return library


def _take_text(address: int) -> str:
    text = ctypes.string_at(address).decode(errors="replace")
    _library().towpath_text_free(address)
    return text


def _call(name: str, *arguments: Any) -> None:
    address = getattr(_library(), name)(*arguments)
    if address:
        raise TowpathError(_take_text(address))


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def open_slice(shape: Sequence[int], kind: str | None, island: str | None) -> tuple[int, list[int]]:
    """The slice, and the ids of its devices in its order."""
    dims = (c_u32 * 3)(*shape)
    capacity = min(_MAX_DEVICES, functools.reduce(lambda a, b: a * b, shape))
    ids, count, handle = (ctypes.c_int64 * capacity)(), c_size(), c_u64()
    _call("towpath_slice_open", dims, _encode(kind), _encode(island), handle, ids, capacity, count)
    return handle.value, list(ids[: count.value])


def close_slice(handle: int) -> None:
    """At exit the session may be gone already, and its slices with it."""
    try:
        _call("towpath_slice_close", handle)
    except TowpathError:
        pass


def executable_named(name: str) -> int:
    found = c_pointer()
    _call("towpath_executable_named", name.encode(), found)
    return found.value


def generate_schedule(
    name: str, devices: int, microbatches: int, chunks: int, warmup: str, recompute: bool
) -> str:
    """A known schedule as CSV (`tow schedule`)."""
    text = c_pointer()
    _call(
        "towpath_schedule_generate", name.encode(), devices, microbatches, chunks,
        int(warmup == "b"), int(recompute), text,
    )
    return _take_text(text.value)


def schedule_nodes(csv: str, pipeline: Sequence[int]) -> list[int]:
    """The nodes of a pipeline in the order of a schedule (plan/schedule/words.h)."""
    words, out, count = (c_u32 * len(pipeline))(*pipeline), c_pointer(), c_size()
    _call("towpath_schedule_nodes", csv.encode(), words, len(pipeline), out, count)
    made = ctypes.cast(out, ctypes.POINTER(c_u32))[: count.value]
    _library().towpath_text_free(out)
    return made


class Builder:
    """A program of the cluster, node by node; released with this object."""

    def __init__(self, name: str) -> None:
        handle = c_u64()
        _call("towpath_program_begin", name.encode(), handle)
        self.handle = handle.value

    def _number(self, name: str, *arguments: Any) -> int:
        number = c_u32()
        _call(name, self.handle, *arguments, number)
        return number.value

    def port(self, stub: int) -> int:
        return self._number("towpath_program_port", stub)

    def argument(self, port: int, index: int, donated: bool) -> int:
        return self._number("towpath_program_argument", port, index, int(donated))

    def call(self, executable: int, name: str, inputs: Sequence[tuple[int, int]]) -> int:
        flat = (c_u32 * (2 * len(inputs) + 1))(*(number for pair in inputs for number in pair))
        return self._number("towpath_program_call", executable, name.encode(), flat, len(inputs))

    def host_call(
        self, function: Any, name: str, arguments: Sequence[tuple[Any, int]], inputs: Sequence[tuple[int, int]]
    ) -> int:
        """`arguments`: types, and bits of dimensions that are bounds."""
        flat = (c_u32 * (2 * len(inputs) + 1))(*(number for pair in inputs for number in pair))
        ids = [device.id for device in function.devices]
        call = HostCall(
            ctypes.sizeof(HostCall), os.fsencode(function.path), function.symbol.encode(),
            (ctypes.c_int64 * len(ids))(*ids), len(ids), _host_types(arguments), len(arguments),
            _host_types(list(zip(function.results, function.bounds))), len(function.results),
            function.time_limit_ms, name.encode(),
        )
        return self._number("towpath_program_host_call", call, flat, len(inputs))

    def result(self, port: int, index: int, node: int, output: int) -> None:
        _call("towpath_program_result", self.handle, port, index, node, output)

    def finish(self) -> None:
        _call("towpath_program_finish", self.handle)

    def abandon(self) -> None:
        _call("towpath_program_abandon", self.handle)

    def text(self) -> str:
        address = c_pointer()
        _call("towpath_program_text", self.handle, address)
        return _take_text(address.value)

    def release(self) -> None:
        handle, self.handle = self.handle, 0
        try:
            _call("towpath_program_release", handle)
        except TowpathError:
            pass  # The session is gone, and the program with it.

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            self.release()


def is_available() -> bool:
    """False on a backend that is not Towpath's."""
    import jax

    return jax.default_backend() == "towpath"


