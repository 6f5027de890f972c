"""``tow.on``: a function placed on a slice.

A placed call is a ``jax.jit`` whose arguments and results have shardings on the slice's
devices, so that differentiation, batching and rematerialisation are JAX's own rules, and
what they derive from it has the same devices. Its arguments pass through ``transfer``, a
primitive whose transpose brings a cotangent back to where the argument was.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend import core as extend_core
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from towpath.programs import slices

# -- Transfers ---------------------------------------------------------------

# transfer(x, target, origin, key, back): x on `target`, a sharding. `origin` is where x
# was, if that is known while the call is made. In a program it is known only when the
# whole is: there a transfer and its transpose (`back`) have the same `key`.
transfer_p = extend_core.Primitive("towpath_transfer")
_keys = itertools.count()
# Where traced transfers that JAX runs call by call (jax.checkpoint) took their arrays from.
_origins: collections.OrderedDict[int, Sharding] = collections.OrderedDict()
_ORIGINS_MAX = 1 << 16


@transfer_p.def_impl
def _transfer_now(x: Any, *, target: Any, origin: Any, key: int, back: bool) -> Any:
    if target is None:
        target = _origins.get(key)
    elif origin is None and not back and isinstance(x, jax.Array):
        _remember_origin(key, x.sharding)
    return x if target is None else jax.device_put(x, target)


def _remember_origin(key: int, sharding: Sharding) -> None:
    _origins[key] = sharding
    if len(_origins) > _ORIGINS_MAX:
        _origins.popitem(last=False)


@transfer_p.def_abstract_eval
def _transfer_type(x: Any, **_: Any) -> Any:
    return x


def _transpose(cotangent: Any, x: Any, *, target: Any, origin: Any, key: int, back: bool) -> Any:
    if isinstance(cotangent, ad.Zero):
        return (ad.Zero(x.aval) if ad.is_undefined_primal(x) else cotangent,)
    return (transfer_p.bind(cotangent, target=origin, origin=target, key=key, back=not back),)


def _jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    (x,), (tangent,) = primals, tangents
    if params["origin"] is None:
        params["origin"] = whereabouts(x)
    out = transfer_p.bind(x, **params)
    if isinstance(tangent, ad.Zero):
        return out, ad.Zero.from_primal_value(out)
    return out, transfer_p.bind(tangent, **params)


def _batch(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
    """The batch dimension is not split: it comes first, where shardings name it None."""
    x = jnp.moveaxis(args[0], dims[0], 0)
    for end in ("target", "origin"):
        if isinstance(params[end], NamedSharding):
            params[end] = NamedSharding(params[end].mesh, PartitionSpec(None, *params[end].spec))
    return transfer_p.bind(x, **params), 0


ad.primitive_jvps[transfer_p] = _jvp
ad.primitive_transposes[transfer_p] = _transpose
batching.primitive_batchers[transfer_p] = _batch
# In a plain jax.jit a transfer is the identity; JAX itself says that two sets of devices
# do not fit in one computation.
mlir.register_lowering(transfer_p, lambda ctx, x, **_: [x])


def whereabouts(x: Any) -> Sharding | None:
    """The sharding of the array under the tracers of eager differentiation; None if x is
    being traced into a jaxpr."""
    while isinstance(x, jax.core.Tracer):
        inner = getattr(x, "primal", None)
        if inner is None:
            inner = getattr(x, "val", None)
        if inner is None or inner is x:
            return None
        x = inner
    return x.sharding if isinstance(x, jax.Array) else _default_sharding()


def _default_sharding() -> Sharding:
    """Where JAX puts numpy arrays and scalars."""
    chosen = jax.config.jax_default_device
    return SingleDeviceSharding(chosen if isinstance(chosen, jax.Device) else jax.devices()[0])


def _bring(x: Any, target: Sharding) -> Any:
    if not isinstance(x, jax.core.Tracer):
        return jax.device_put(x, target)
    return transfer_p.bind(x, target=target, origin=whereabouts(x), key=next(_keys), back=False)


# -- Placed functions --------------------------------------------------------


def is_sharding(tree: Any) -> bool:
    return tree is None or isinstance(tree, (Sharding, PartitionSpec))


def _spread(prefix: Any, tree: Any, what: str) -> list[Any]:
    """The leaves of `prefix`, each as often as the part of `tree` that it stands for has."""
    counts: list[Any] = []

    def repeat(leaf: Any, part: Any) -> None:
        counts.extend([leaf] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(repeat, prefix, tree, is_leaf=is_sharding)
    except (ValueError, TypeError) as why:
        raise ValueError(f"{what} does not fit what it is for: {why}") from None
    return counts


class Placed:
    """A function on a slice; see :func:`on`."""

    def __init__(
        self, where: Any, fn: Callable, in_shardings: Any, out_shardings: Any, donate: Any
    ) -> None:
        self.where = where
        self.devices = slices.devices_of(where)
        self.mesh = slices.mesh_of(where)
        self.fn = fn
        self.in_shardings = in_shardings
        self.out_shardings = jax.tree.map(self._complete, out_shardings, is_leaf=is_sharding)
        self.donate = (donate,) if isinstance(donate, int) else tuple(donate)
        self._flat: dict[Any, tuple[Callable, list[Sharding]]] = {}
        functools.update_wrapper(self, fn, updated=())

    def _complete(self, given: Any) -> Any:
        """A sharding of this slice for what the user wrote: None, a spec, or a sharding."""
        if given is None:
            return slices.replicated(self.mesh)
        if isinstance(given, PartitionSpec):
            return NamedSharding(self.mesh, given)
        if not isinstance(given, Sharding) or given.device_set != set(self.devices):
            raise ValueError(
                f"the sharding {given} of {self._name()} is not on the devices of "
                f"{slices.describe(self.devices)}"
            )
        return given

    def _name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def _target_shardings(self, args: Any, kwargs: Any, count: int) -> list[Sharding]:
        if is_sharding(self.in_shardings):
            return [self._complete(self.in_shardings)] * count
        if kwargs:
            raise TypeError(
                f"{self._name()} has in_shardings, one for each positional argument: pass "
                f"{', '.join(kwargs)} by position"
            )
        return [self._complete(s) for s in _spread(tuple(self.in_shardings), args, "in_shardings")]

    def _donated(self, args: Any) -> tuple[int, ...]:
        ends = list(itertools.accumulate((len(jax.tree.leaves(a)) for a in args), initial=0))
        bad = [n for n in self.donate if not -len(args) <= n < len(args)]
        if bad:
            raise ValueError(f"donate_argnums={bad[0]}, but {self._name()} got {len(args)} arguments")
        return tuple(i for n in self.donate for i in range(ends[n], ends[n + 1] if n != -1 else ends[-1]))

    def _compile_for(self, tree: Any, args: Any, kwargs: Any, count: int) -> Any:
        def call(*leaves: Any) -> Any:
            args, kwargs = jax.tree.unflatten(tree, leaves)
            return self.fn(*args, **kwargs)

        call.__name__ = call.__qualname__ = self._name()
        targets = self._target_shardings(args, kwargs, count)
        jitted = jax.jit(
            call,
            in_shardings=tuple(targets),
            out_shardings=self.out_shardings,
            donate_argnums=self._donated(args),
        )
        return jitted, targets

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        entry = self._flat.get(tree)
        if entry is None:
            entry = self._flat[tree] = self._compile_for(tree, args, kwargs, len(leaves))
        jitted, targets = entry
        return jitted(*map(_bring, leaves, targets))

    def __repr__(self) -> str:
        return f"<{self._name()} on {slices.describe(self.devices)}>"


def on(
    where: Any,
    fn: Callable,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] = (),
) -> Placed:
    """``fn`` on the devices of a slice or mesh.

    Arguments are brought there. They and the results are replicated over the slice, unless
    shardings say otherwise: partition specs of the slice's mesh, or named shardings, as for
    ``jax.jit``. In a function decorated with ``tow.program`` the call is a node of the
    program; elsewhere it runs at once.
    """
    if not callable(fn):
        raise TypeError(f"tow.on places a function, not {type(fn).__name__}")
    return Placed(where, fn, in_shardings, out_shardings, donate_argnums)
