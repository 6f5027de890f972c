"""``tow.program``: a function over placed functions, as one program of the cluster."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import operator
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax._src.array import ArrayImpl

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
    is_returned: bool = False

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
            return jnp.asarray(x) if self.is_returned else x
        if isinstance(x, jax.Array) and x.sharding.is_equivalent_to(self.sharding, x.ndim):
            return x
        if not isinstance(x, jax.Array):
            x = np.asarray(x, dtype=self.aval.dtype)
        return jax.device_put(x, self.sharding)


def _is_traced(leaves: Iterable[Any]) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in leaves)


def _type_of(x: Any) -> Any:
    return x.aval if isinstance(x, jax.Array) else jax.api_util.shaped_abstractify(x)


class Plan:
    """A program for one signature. Its arguments are the call's, then constants.

    Most calls take arrays that a program made, and these share their type and sharding with
    those of the call before. So a plan remembers the objects that it has seen last, and
    compares identities; everything else is compared in full.
    """

    def __init__(self, built: build.Built, avals: Sequence[Any], constants: Sequence[Any], tree: Any) -> None:
        self.built = built
        self.tree = tree
        returned = {at for kind, at in built.results if kind == "argument"}
        wants = [Want(v.aval, v.sharding, v.index in returned) for v in built.graph.arguments]
        self.wants = wants[: len(wants) - len(constants)]
        self.constants = [w.bring(c) for w, c in zip(wants[len(self.wants) :], constants)]
        self.seen: list[tuple[Any, Any]] = [(None, None)] * len(self.wants)
        self.ports = [(p.compiled, _picker([v.index for v in p.arguments])) for p in built.ports]
        self._choose_results([len(p.results) for p in built.ports], len(wants))

    def _choose_results(self, counts: list[int], argument_count: int) -> None:
        """Results are picked from one list: what the ports give, arguments, fixed values."""
        given = sum(counts)
        starts = {"result": 0, "argument": given, "constant": given + argument_count}
        self.fixed = [jnp.asarray(at) for kind, at in self.built.results if kind == "constant"]
        fixed = itertools.count()
        positions = [
            starts[kind] + (next(fixed) if kind == "constant" else at) for kind, at in self.built.results
        ]
        self.pick = None if positions == list(range(given)) else _picker(positions)

    def match(self, leaves: list[Any]) -> list[Any] | None:
        """The arguments where they are wanted; None if the program is not for these. There
        are as many as the program takes: their tree is the program's."""
        for x, (aval, sharding) in zip(leaves, self.seen):
            if type(x) is not ArrayImpl or x.aval is not aval or x.sharding is not sharding:
                return self._match_in_full(leaves)
        return leaves + self.constants if self.constants else leaves

    def _match_in_full(self, leaves: list[Any]) -> list[Any] | None:
        if _is_traced(leaves) or not all(want.accepts(x) for want, x in zip(self.wants, leaves)):
            return None
        brought = [want.bring(x) for want, x in zip(self.wants, leaves)]
        if all(map(operator.is_, brought, leaves)) and all(isinstance(x, ArrayImpl) for x in leaves):
            self.seen = [(x.aval, x.sharding) for x in leaves]
        return brought + self.constants

    def run(self, arguments: list[Any]) -> Any:
        results: list[Any] = []
        try:
            for port, pick in self.ports:
                results += port(*pick(arguments))
        except BaseException:
            self.built.builder.abandon()
            raise
        if self.pick is not None:
            results = self.pick(results + arguments + self.fixed)
        return _unflatten(self.tree, results)


# -- Tracing -----------------------------------------------------------------


def _as_tuple(given: Any) -> tuple:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def _parameters(fn: Callable) -> list[str]:
    """The names of the arguments that may be passed by position."""
    try:
        known = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


class Program:
    """A function that runs as one program; see :func:`program`."""

    def __init__(self, fn: Callable, static_argnums: Any, static_argnames: Any, donate: Any, fuse: bool) -> None:
        self.fn = fn
        known = _parameters(fn)
        names, numbers = _as_tuple(static_argnames), _as_tuple(static_argnums)
        # Static arguments may be passed by position and by name.
        self.static_names = frozenset(names) | {known[n] for n in numbers if -len(known) <= n < len(known)}
        self.static_numbers = frozenset(n % len(known) if n < 0 and known else n for n in numbers) | {
            known.index(name) for name in names if name in known}
        self.donate = frozenset(_as_tuple(donate))
        self.fuse = fuse
        self.plans: dict[Any, list[Plan]] = {}
        self._latest: tuple[Any, Plan] | None = None
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())

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

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """In a class: a method."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if jax.config.jax_disable_jit:
            return self.fn(*args, **kwargs)
        static: Any = ()
        rest, named = args, kwargs
        if self.static_numbers or self.static_names:
            static, rest, named = self._split(args, kwargs)
        leaves, tree = _flatten((rest, named))
        for plan in self.plans.get((tree, static), ()):
            arguments = plan.match(leaves)
            if arguments is not None:
                return _run(plan, arguments)
        if not library.is_available() or _is_traced(leaves):
            return self.fn(*args, **kwargs)
        plan = self._plan_for(tree, static, leaves, rest)
        return _run(plan, plan.match(leaves))

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
        _keep_shardings(made.arguments, leaves)
        built = build.build(made, donated, self.name)
        avals = [value.aval for value in made.arguments]
        return Plan(built, avals, closed.consts, out_tree)

    def __repr__(self) -> str:
        return f"<program {self.name}>"


def _struct_of(x: Any) -> jax.ShapeDtypeStruct:
    aval = _type_of(x)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _keep_shardings(arguments: Sequence[graph.Value], leaves: Sequence[Any]) -> None:
    """Committed arrays that are where they are used keep their shardings, unless a call
    states another."""
    for value, x in zip(arguments, leaves):
        if value.users and isinstance(x, jax.Array) and x.committed and graph.devices_of_sharding(x.sharding) == value.devices:
            value.sharding = x.sharding


def default_devices(leaves: Sequence[Any]) -> graph.Devices:
    """Where a program runs that is placed nowhere: where its arguments are."""
    for x in leaves:
        if isinstance(x, jax.Array) and x.committed:
            return graph.devices_of_sharding(x.sharding)
    return (jax.devices()[0],)


def _run(plan: Plan, arguments: list[Any]) -> Any:
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:
        return _run_checked(plan, arguments)
    return plan.run(arguments)


def _run_checked(plan: Plan, arguments: list[Any]) -> Any:
    """JAX would wait for the results of one port before it calls the next, for ever."""
    tests = [(jax.config.jax_debug_nans, jnp.isnan, "not a number"), (jax.config.jax_debug_infs, jnp.isinf, "infinite")]
    with jax.debug_nans(False), jax.debug_infs(False):
        results = plan.run(arguments)
        for x in jax.tree.leaves(results):
            for is_on, test, what in tests:
                if is_on and jnp.issubdtype(x.dtype, jnp.inexact) and test(x).any():
                    raise FloatingPointError(f"a result is {what}; call the function undecorated to find where")
    return results


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
