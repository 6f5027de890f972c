"""``tow.host``: a C function of a shared object, on the hosts of a slice's devices.

In a program it is a node like a placed call; include/towpath/host.h is its side of the
contract. A result may have dimensions of which only a bound is known: such a value is an
array of the bound's shape while the function is traced, and only host functions can take it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as extend_core

from towpath.programs import library, slices

# The numbers of PJRT's types, by name of the dtype.
TYPES = {
    name: number
    for number, name in enumerate(
        ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
         "float64", "bfloat16", "complex64", "complex128"),
        start=1,
    )
}

host_p = extend_core.Primitive("towpath_host")
host_p.multiple_results = True


@host_p.def_abstract_eval
def _host_types(*_: Any, function: Host) -> list[Any]:
    return [jax.core.ShapedArray(r.shape, r.dtype) for r in function.results]


@host_p.def_impl
def _host_now(*args: Any, function: Host) -> Any:
    if not library.is_available():
        raise NotImplementedError(
            f"{function.name} is a C function on the hosts of a cluster: run with JAX_PLATFORMS=towpath, not on "
            f"{jax.default_backend()}"
        )
    return function.alone(*args)


class Host:
    """A host function; see :func:`host`."""

    def __init__(
        self, path: str, symbol: str, results: Any, bounds: Sequence[Sequence[int]], where: Any, time_limit: float
    ) -> None:
        self.path = path
        self.symbol = self.name = symbol
        self.devices = slices.devices_of(where)
        self.where = where
        leaves, self.tree = jax.tree.flatten(results)
        self.results = [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in leaves]
        if bounds and len(bounds) != len(leaves):
            raise ValueError(f"{symbol} has {len(leaves)} results, but bounds= has {len(bounds)} entries")
        self.bounds = [self._bits(i, dims) for i, dims in enumerate(bounds or [()] * len(leaves))]
        self.time_limit_ms = round(time_limit * 1000)
        for result in self.results:
            type_number(result.dtype)

    def _bits(self, index: int, dims: Sequence[int]) -> int:
        rank = len(self.results[index].shape)
        bad = [d for d in dims if not 0 <= d < rank]
        if bad:
            raise ValueError(f"bounds= names dimension {bad[0]} of result {index} of {self.symbol}, which has {rank}")
        return sum(1 << d for d in set(dims))

    @functools.cached_property
    def alone(self) -> Any:
        """Outside a program: a program of this call only."""
        from towpath.programs.program import Program

        def call(*args: Any) -> Any:
            return host_p.bind(*args, function=self)

        call.__name__ = self.symbol
        return Program(call, (), (), (), False)

    def __call__(self, *args: Any) -> Any:
        arrays = [x if isinstance(x, (jax.Array, jax.core.Tracer)) else np.asarray(x) for x in args]
        return jax.tree.unflatten(self.tree, host_p.bind(*arrays, function=self))

    def __repr__(self) -> str:
        return f"<host function {self.symbol} on {slices.describe(self.devices)}>"


def type_number(dtype: Any) -> int:
    number = TYPES.get(np.dtype(dtype).name)
    if number is None:
        raise TypeError(f"host functions have no arrays of {dtype}")
    return number


def host(
    path: str | os.PathLike[str],
    symbol: str,
    *,
    results: Any,
    where: Any,
    bounds: Sequence[Sequence[int]] = (),
    time_limit: float = 0.0,
) -> Host:
    """The C function ``symbol`` of the shared object ``path`` as a function of arrays.

    It is called once on each device's host, with whole arrays, which are replicated over the
    slice. ``results``: a ``jax.ShapeDtypeStruct``, or a tree of them. ``bounds``: for each of them the dimensions
    whose size the function decides, at most as large as stated; only host functions on the same slice can take such
    a result. ``time_limit``: seconds of one call (30). Workers must allow host functions
    (``tow up --host-functions``).
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no shared object {os.fspath(path)}")
    return Host(os.path.abspath(path), symbol, results, bounds, where, time_limit)
