"""``tow.program``: a function over placed functions, as one program of the cluster."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from towpath.programs import build, graph, library

_flatten = jax.tree_util.tree_flatten
_unflatten = jax.tree_util.tree_unflatten


# -- Calls -------------------------------------------------------------------


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(positions) == 0:
        return lambda items: ()
    if len(positions) == 1:
        only = positions[0]
        return lambda items: (items[only],)
    return operator.itemgetter(*positions)


@dataclasses.dataclass
class Want:
    """What a call of the program expects as one of its arguments."""

    aval: Any
    sharding: Any  # None: any; nothing uses it on a device.

    def accepts(self, x: Any) -> bool:
        aval = _type_of(x)
        mine = self.aval
        return (
            aval.shape == mine.shape
            and aval.dtype == mine.dtype
            and getattr(aval, "weak_type", False) == getattr(mine, "weak_type", False)
        )

    def bring(self, x: Any) -> Any:
        if self.sharding is None:
            return x
        if isinstance(x, jax.Array) and x.sharding.is_equivalent_to(self.sharding, x.ndim):
            return x
        if not isinstance(x, jax.Array):
            x = np.asarray(x, dtype=self.aval.dtype)
        return jax.device_put(x, self.sharding)


def _type_of(x: Any) -> Any:
    return x.aval if isinstance(x, jax.Array) else jax.api_util.shaped_abstractify(x)


class Plan:
    """A program for one signature. Its arguments are the call's, then constants."""

    def __init__(self, built: build.Built, avals: Sequence[Any], constants: Sequence[Any], tree: Any) -> None:
        self.built = built
        self.tree = tree
        shardings = {v.index: v.sharding for port in built.ports for v in port.arguments}
        wants = [Want(aval, shardings.get(i)) for i, aval in enumerate(avals)]
        self.wants = wants[: len(wants) - len(constants)]
        self.constants = [w.bring(c) for w, c in zip(wants[len(self.wants) :], constants)]
        self.fast = [(want.aval, want.sharding) for want in self.wants]
        self.ports = [(p.compiled, _picker([v.index for v in p.arguments])) for p in built.ports]
        self.picks = [self._pick(kind, at) for kind, at in built.results]

    def _pick(self, kind: str, at: Any) -> tuple[int, Any]:
        """Which of: the ports' results, the arguments, a constant."""
        if kind == "constant":
            return 2, jnp.asarray(at)
        return (0 if kind == "result" else 1), at

    def match(self, leaves: list[Any]) -> list[Any] | None:
        """The arguments where they are wanted; None if the program is not for these."""
        if all(map(_is_there, leaves, self.fast)):
            return leaves + self.constants
        if len(leaves) != len(self.wants) or not all(w.accepts(x) for w, x in zip(self.wants, leaves)):
            return None
        return [want.bring(x) for want, x in zip(self.wants, leaves)] + self.constants

    def run(self, arguments: list[Any]) -> Any:
        results: list[Any] = []
        try:
            for port, pick in self.ports:
                results += port(*pick(arguments))
        except BaseException:
            self.built.builder.abandon()
            raise
        sources = (results, arguments)
        return _unflatten(self.tree, [at if k == 2 else sources[k][at] for k, at in self.picks])


def _is_there(x: Any, want: tuple[Any, Any]) -> bool:
    """The usual case, fast: an array that a program made."""
    return isinstance(x, jax.Array) and x.aval is want[0] and x.sharding is want[1]


# -- Tracing -----------------------------------------------------------------


def _as_tuple(given: Any) -> tuple:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


class Program:
    """A function that runs as one program; see :func:`program`."""

    def __init__(self, fn: Callable, static_argnums: Any, static_argnames: Any, donate: Any, fuse: bool) -> None:
        self.fn = fn
        self.static_names = frozenset(_as_tuple(static_argnames))
        self.static_numbers = frozenset(_as_tuple(static_argnums)) | self._numbers_of(self.static_names)
        self.donate = frozenset(_as_tuple(donate))
        self.fuse = fuse
        self.plans: dict[Any, list[Plan]] = {}
        self._latest: tuple[Any, Plan] | None = None
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())

    def _numbers_of(self, names: frozenset[str]) -> frozenset[int]:
        """Static arguments may be passed by position too."""
        try:
            known = list(inspect.signature(self.fn).parameters)
        except (TypeError, ValueError):
            return frozenset()
        return frozenset(known.index(name) for name in names if name in known)

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", "program")

    def _split(self, args: tuple, kwargs: dict) -> tuple[Any, tuple, dict]:
        """Static arguments, and the others."""
        static = tuple((n, args[n]) for n in sorted(self.static_numbers) if n < len(args))
        named = tuple((k, kwargs[k]) for k in sorted(kwargs) if k in self.static_names)
        rest = tuple(None if n in self.static_numbers else a for n, a in enumerate(args))
        return (static, named), rest, {k: v for k, v in kwargs.items() if k not in self.static_names}

    def _join(self, static: Any, args: tuple, kwargs: dict) -> tuple[list, dict]:
        joined = list(args)
        for number, value in static[0]:
            joined[number] = value
        return joined, {**kwargs, **dict(static[1])}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        static: Any = ()
        rest, named = args, kwargs
        if self.static_numbers or self.static_names:
            static, rest, named = self._split(args, kwargs)
        leaves, tree = _flatten((rest, named))
        for plan in self.plans.get((tree, static), ()):
            arguments = plan.match(leaves)
            if arguments is not None:
                return _finished(plan.run(arguments))
        if not library.is_available() or any(isinstance(x, jax.core.Tracer) for x in leaves):
            return self.fn(*args, **kwargs)
        plan = self._plan_for(tree, static, leaves, rest)
        return _finished(plan.run(plan.match(leaves)))

    def _plan_for(self, tree: Any, static: Any, leaves: list[Any], args: tuple) -> Plan:
        with self._lock:
            for plan in self.plans.get((tree, static), ()):  # Another thread may have made it.
                if all(w.accepts(x) for w, x in zip(plan.wants, leaves)):
                    return plan
            plan = self._make(tree, static, leaves, args)
            self.plans.setdefault((tree, static), []).append(plan)
            self._latest = (tree, plan)
            return plan

    def signature(self, args: tuple, kwargs: dict) -> tuple[Any, Any, list[Any], tuple]:
        """The structure of the arguments, the static ones, the arrays, and all by position."""
        static: Any = ()
        if self.static_numbers or self.static_names:
            static, args, kwargs = self._split(args, kwargs)
        leaves, tree = _flatten((args, kwargs))
        return tree, static, leaves, args

    def plan_for(self, args: tuple, kwargs: dict) -> tuple[Any, Plan]:
        """The program for such arguments, with their structure; nothing runs."""
        tree, static, leaves, rest = self.signature(args, kwargs)
        return tree, self._plan_for(tree, static, leaves, rest)

    def latest_plan(self) -> tuple[Any, Plan]:
        if self._latest is None:
            raise graph.ProgramError(f"{self.name} has not been traced: call it, or tow.explain(program, *args), first")
        return self._latest

    @property
    def text(self) -> str:
        """The program that was traced last, in the form that ``tow lower`` reads."""
        if not library.is_available():
            raise graph.ProgramError(f"{self.name} is a program of a cluster only with JAX_PLATFORMS=towpath")
        return self.latest_plan()[1].built.builder.text()

    def _donated(self, args: tuple) -> frozenset[int]:
        donated, at = set(), 0
        for number, argument in enumerate(args):
            count = len(jax.tree.leaves(argument))
            if number in self.donate or number - len(args) in self.donate:
                donated.update(range(at, at + count))
            at += count
        return frozenset(donated)

    def trace(self, tree: Any, static: Any, leaves: list[Any]) -> tuple[Any, Any]:
        """The jaxpr, and the structure of what the function returns."""
        trees = []

        def flat(*leaves: Any) -> list[Any]:
            args, kwargs = _unflatten(tree, leaves)
            if static:
                args, kwargs = self._join(static, args, kwargs)
            results, out_tree = _flatten(self.fn(*args, **kwargs))
            trees.append(out_tree)
            return results

        flat.__name__ = self.name
        structs = [_struct_of(x) for x in leaves]
        return jax.make_jaxpr(flat)(*structs), trees[-1]

    def _make(self, tree: Any, static: Any, leaves: list[Any], args: tuple) -> Plan:
        closed, out_tree = self.trace(tree, static, leaves)
        donated = self._donated(args)
        made = graph.make_graph(closed, default_devices(leaves), self.fuse, donated)
        built = build.build(made, donated, self.name)
        avals = [value.aval for value in made.arguments]
        return Plan(built, avals, closed.consts, out_tree)

    def __repr__(self) -> str:
        return f"<program {self.name}>"


def _struct_of(x: Any) -> jax.ShapeDtypeStruct:
    aval = _type_of(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def default_devices(leaves: Sequence[Any]) -> graph.Devices:
    """Where a program runs that is placed nowhere: where its arguments are."""
    for x in leaves:
        if isinstance(x, jax.Array) and x.committed:
            return graph.devices_of_sharding(x.sharding)
    return (jax.devices()[0],)


def _finished(results: Any) -> Any:
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:
        _check_numbers(results)
    return results


def _check_numbers(results: Any) -> None:
    for x in jax.tree.leaves(results):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            bad = jnp.isnan(x).any() if jax.config.jax_debug_nans else jnp.isinf(x).any()
            if bad:
                raise FloatingPointError("a result of the program is not a number; run the function undecorated to find where")


def program(
    fn: Callable | None = None,
    *,
    static_argnums: Any = (),
    static_argnames: Any = (),
    donate_argnums: Any = (),
    fuse: bool = False,
) -> Any:
    """Makes one program of a function over placed functions.

    It is traced once for each signature, like a function of ``jax.jit``, and a call is one
    message, whatever its length: it returns at once, with arrays that may be used before
    they have a value. On a backend that is not Towpath's, and while JAX traces it, the
    function runs call by call. ``fuse=True``: neighbouring calls on one slice become one
    computation.
    """
    if fn is None:
        return functools.partial(
            program, static_argnums=static_argnums, static_argnames=static_argnames,
            donate_argnums=donate_argnums, fuse=fuse,
        )
    if not callable(fn):
        raise TypeError(f"tow.program makes a program of a function, not of {type(fn).__name__}")
    return Program(fn, static_argnums, static_argnames, donate_argnums, fuse)
