"""Slices: ordered sets of devices that functions are placed on."""

from __future__ import annotations

import itertools
import math
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

AXES = ("x", "y", "z")


class Slice:
    """Devices of the cluster, disjoint from the caller's other slices while devices suffice.

    ``devices`` is a list, ``mesh`` a mesh of all of them: axis ``x``, or ``x``, ``y`` and
    ``z`` for a slice with a shape. The devices are free for others when nothing refers to
    the slice any more.
    """

    def __init__(self, devices: Sequence[Any], shape: Sequence[int], name: str) -> None:
        self.name = name
        self.devices = list(devices)
        self.shape = tuple(shape)
        self.mesh = self.mesh_of(AXES[: len(self.shape)])

    def mesh_of(self, axis_names: Sequence[str], shape: Sequence[int] | None = None) -> Mesh:
        """A mesh of the slice's devices with other axes; without a shape, the slice's."""
        shape = self.shape if shape is None else tuple(shape)
        if math.prod(shape) != len(self.devices):
            raise ValueError(
                f"a mesh of shape {shape} has {math.prod(shape)} devices, but slice "
                f"{self.name} has {len(self.devices)}"
            )
        grid = np.array(self.devices, dtype=object).reshape(shape)
        return Mesh(grid, tuple(axis_names))

    def sharding(self, *spec: Any) -> NamedSharding:
        """``slice.sharding("x")``: split over the axis x; ``slice.sharding()``: replicated."""
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def __len__(self) -> int:
        return len(self.devices)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.devices)

    def __repr__(self) -> str:
        return f"<slice {self.name} of {len(self.devices)}: {self.devices}>"


_numbers = itertools.count()
_lock = threading.Lock()
# Slices on devices that are not Towpath's, by device.
_loads: Counter = Counter()
_has_warned = False


def _warn_once(count: int, total: int) -> None:
    global _has_warned
    if _has_warned:
        return
    _has_warned = True
    warnings.warn(
        f"a slice of {count} devices shares them with other slices: there are {total} devices",
        stacklevel=4,
    )


def _forget(devices: Sequence[Any]) -> None:
    with _lock:
        _loads.subtract(devices)


def _choose_here(count: int, kind: str | None) -> list[Any]:
    """The least loaded devices of JAX's default backend, in the order of their ids."""
    devices = [d for d in jax.devices() if kind is None or d.device_kind == kind]
    if count > len(devices):
        of_kind = f" of kind {kind}" if kind is not None else ""
        raise ValueError(f"a slice of {count} devices, but there are {len(devices)}{of_kind}")
    with _lock:
        ranked = sorted(devices, key=lambda d: (_loads[d], d.id))[:count]
        chosen = sorted(ranked, key=lambda d: d.id)
        if any(_loads[d] for d in chosen):
            _warn_once(count, len(devices))
        _loads.update(chosen)
    return chosen


def _is_towpath() -> bool:
    return jax.default_backend() == "towpath"


def make_slice(
    count: int | None = None,
    *,
    island: str | None = None,
    kind: str | None = None,
    shape: Sequence[int] | None = None,
) -> Slice:
    """Asks the cluster for ``count`` devices, or for a ``shape`` of them, such as ``(2, 4)``."""
    if (count is None) == (shape is None):
        raise TypeError("tow.slice takes a number of devices or shape=, one of them")
    shape = (count,) if shape is None else tuple(shape)
    if not 1 <= len(shape) <= len(AXES) or any(not isinstance(n, int) or n < 1 for n in shape):
        raise ValueError(f"a slice has 1 to {len(AXES)} dimensions of 1 or more, not {shape}")
    name = f"s{next(_numbers)}"
    if not _is_towpath():
        if island is not None:
            raise ValueError(f"island={island!r}, but {jax.default_backend()} has no islands")
        made = Slice(_choose_here(math.prod(shape), kind), shape, name)
        weakref.finalize(made, _forget, tuple(made.devices))
        return remember(made)
    from towpath.programs import library

    handle, ids = library.open_slice(shape, kind, island)
    by_id = {device.id: device for device in jax.devices()}
    made = Slice([by_id[number] for number in ids], shape, name)
    weakref.finalize(made, library.close_slice, handle)
    return remember(made)


def devices_of(where: Any) -> tuple[Any, ...]:
    """The ordered devices of a slice, mesh or sharding with a mesh."""
    if isinstance(where, Slice):
        return tuple(where.devices)
    if isinstance(where, Mesh):
        return tuple(where.devices.flat)
    raise TypeError(f"a placement is a slice or a mesh, not {type(where).__name__}")


def mesh_of(where: Any) -> Mesh:
    return where.mesh if isinstance(where, Slice) else where


def replicated(mesh: Mesh) -> Sharding:
    """The same on all devices. On one device it is the sharding that JAX's own arrays have."""
    if mesh.devices.size == 1:
        return SingleDeviceSharding(mesh.devices.flat[0])
    return NamedSharding(mesh, PartitionSpec())


_named: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def remember(made: Slice) -> Slice:
    """For error messages, which name slices by their devices."""
    _named[tuple(made.devices)] = made
    return made


def name_of(devices: Sequence[Any]) -> str:
    """"s1", or "d2,d3" for devices that are no slice of the caller's."""
    known = _named.get(tuple(devices))
    return known.name if known is not None else ",".join(f"d{device.id}" for device in devices)


def describe(devices: Sequence[Any]) -> str:
    """"s1 (devices 2, 3)": the slice with these devices, for messages."""
    numbers = ", ".join(str(device.id) for device in devices)
    known = _named.get(tuple(devices))
    text = f"device{'s' if len(devices) > 1 else ''} {numbers}"
    return f"{known.name} ({text})" if known is not None else text
