"""From the jaxpr of a program to its nodes: what runs where, in which order.

1. *Flatten*: calls that contain placed calls are inlined. What is left are placed calls,
   plain operations, and transfers, which are not nodes: the cluster moves what a node takes
   from elsewhere.
2. *Place*: a plain operation runs where its operands are; without any, where its consumer
   is. Arguments live where they are used first.
3. *Group*: neighbouring plain operations of one slice become one computation.

Pure: nothing here compiles or talks to a cluster.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.effects import ordered_effects
from jax.extend import core as extend_core
from jax.interpreters import partial_eval
from jax.sharding import NamedSharding, Sharding

from towpath.programs import host, placed, slices

try:
    from jax._src import source_info_util
except ImportError:  # Another version of JAX: messages name no lines.
    source_info_util = None

Devices = tuple[Any, ...]
JITS = ("jit", "pjit")
# Primitives whose one inner jaxpr means the same when it is written out, by parameter.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
}
INSTEAD = {
    "scan": "write a Python `for` loop in the program: it is traced once, and all its calls are one message",
    "while": "decide the number of iterations before the program runs, and write a Python `for` loop; or put "
    "the whole loop into one placed function",
    "cond": "put `lax.cond` into the placed functions, or decide in Python and call one program or another",
}


class ProgramError(ValueError):
    """A function cannot be made into a program; the message names the user's line."""


def line_of(eqn: Any) -> str:
    """"train.py:41": where the user wrote it; "" if unknown."""
    try:
        frame = source_info_util.user_frame(_traceback(eqn.source_info))
        return f"{frame.file_name}:{frame.start_line}" if frame is not None else ""
    except Exception:
        return ""


def _traceback(source_info: Any) -> Any:
    """`user_frame` takes the traceback, in older versions of JAX the whole."""
    if tuple(int(part) for part in jax.__version__.split(".")[:2]) >= (0, 7):
        return source_info.traceback
    return source_info


def at_line(eqn: Any) -> str:
    line = line_of(eqn)
    return f", at {line}" if line else ""


# -- Values and steps --------------------------------------------------------


@dataclasses.dataclass(eq=False)
class Value:
    """What a step makes, or an argument of the program (without a step)."""

    aval: Any
    step: Step | None = None
    # Of an argument: its position; of a result of a step: likewise.
    index: int = 0
    devices: Devices | None = None
    sharding: Sharding | None = None
    # A value that is to be elsewhere: `base` is what it is, `home` the value whose devices
    # it goes to, or `target` the sharding.
    base: Value | None = None
    home: Value | None = None
    target: Sharding | None = None
    users: list[Step] = dataclasses.field(default_factory=list)

    @property
    def is_argument(self) -> bool:
        return self.step is None and self.base is None

    @property
    def is_moved(self) -> bool:
        return self.base is not None

    def root(self) -> Value:
        return self.base.root() if self.base is not None else self

    def where(self) -> Devices | None:
        """None: wherever it is wanted."""
        if self.target is not None:
            return devices_of_sharding(self.target)
        if self.base is not None:
            return self.home.where() if self.home is not None else None
        return self.devices


@dataclasses.dataclass(eq=False)
class Step:
    """An equation: a placed call, or a plain operation."""

    eqn: Any
    inputs: list[Any]  # Values and literals.
    outputs: list[Value]
    is_placed: bool
    devices: Devices | None
    position: int = 0

    @property
    def host(self) -> host.Host | None:
        """The host function that it calls."""
        return self.eqn.params["function"] if self.eqn.primitive is host.host_p else None

    def operands(self) -> list[Value]:
        return [x for x in self.inputs if isinstance(x, Value)]


@dataclasses.dataclass(eq=False)
class Node:
    """A computation of the program."""

    name: str
    devices: Devices
    steps: list[Step]
    inputs: list[Value]
    outputs: list[Value]
    # By input and output; None: not said.
    in_shardings: list[Sharding | None]
    out_shardings: list[Sharding | None]
    donated: list[bool]
    line: str
    # Instead of steps: what it computes, and what equal nodes have in common.
    function: Callable | None = None
    key: Any = None
    # Instead of both: a C function.
    host: host.Host | None = None
    # Its last output: nothing but a sign that its effects have happened.
    token: Value | None = None

    @property
    def has_effects(self) -> bool:
        return any(step.eqn.effects for step in self.steps)

    @property
    def names_devices(self) -> bool:
        """True if a step says how its results are sharded."""
        return any(step.is_placed or _inner_devices(step.eqn) is not None for step in self.steps)

    def add_token(self) -> None:
        aval = jax.core.ShapedArray((), bool)
        self.token = Value(aval, index=len(self.outputs), devices=self.devices)
        self.outputs = [*self.outputs, self.token]
        self.out_shardings = [*self.out_shardings, None]

    @property
    def is_call(self) -> bool:
        return len(self.steps) == 1 and self.steps[0].is_placed


@dataclasses.dataclass
class Graph:
    nodes: list[Node]
    arguments: list[Value]
    # Values, or constants of the traced function.
    results: list[Any]

    def tokens(self) -> list[Value]:
        return [node.token for node in self.nodes if node.token is not None]


def devices_of_mesh(mesh: Any) -> Devices | None:
    try:
        return tuple(mesh.devices.flat) or None
    except (AttributeError, ValueError):  # An abstract mesh, by version of JAX.
        return None


def devices_of_sharding(sharding: Any) -> Devices | None:
    if isinstance(sharding, NamedSharding):
        return devices_of_mesh(sharding.mesh)
    if isinstance(sharding, Sharding):
        return tuple(sharding._device_assignment)
    return None


# -- Flattening --------------------------------------------------------------


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, extend_core.ClosedJaxpr):
                yield part.jaxpr
            elif isinstance(part, extend_core.Jaxpr):
                yield part


def _open(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, extend_core.ClosedJaxpr) else (jaxpr, ())


def _stated_devices(eqn: Any) -> Devices | None:
    """The devices that a jit's shardings name."""
    if eqn.primitive.name not in JITS:
        return None
    stated = None
    for sharding in (*eqn.params["in_shardings"], *eqn.params["out_shardings"]):
        devices = devices_of_sharding(sharding)
        if devices is None:
            continue
        if stated is not None and devices != stated:
            raise ProgramError(
                f"{eqn.params['name']} has shardings on two sets of devices: "
                f"{slices.describe(stated)} and {slices.describe(devices)}{at_line(eqn)}"
            )
        stated = devices
    return stated


def _inner_devices(eqn: Any) -> Devices | None:
    """The devices that a plain operation names, itself or inside: of a mesh or sharding."""
    named = devices_of_mesh(eqn.params["mesh"]) if eqn.primitive.name == "shard_map" else None
    if eqn.primitive.name == "sharding_constraint":
        named = devices_of_sharding(eqn.params["sharding"])
    if named is not None:
        return named
    inner = (_inner_devices(e) for jaxpr in inner_jaxprs(eqn) for e in jaxpr.eqns)
    return next((devices for devices in inner if devices is not None), None)


def _refuse_ordered(eqn: Any) -> None:
    if any(ordered_effects.contains(effect) for effect in eqn.effects):
        raise ProgramError(
            f"an ordered effect in a program{at_line(eqn)}: its nodes run in the order of their data; write "
            f"ordered=False, or call the function outside of a program"
        )


class Flattener:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        # What was transferred, by key; several where a traced function is called repeatedly.
        self.transferred: dict[int, list[Value]] = {}
        self._places: dict[int, tuple[Any, bool]] = {}  # By jaxpr, which is kept alive.

    def has_places(self, jaxpr: Any) -> bool:
        """True if it contains a placed call or a transfer."""
        known = self._places.get(id(jaxpr))
        if known is None:
            found = any(self.is_place(eqn) or any(map(self.has_places, inner_jaxprs(eqn))) for eqn in jaxpr.eqns)
            known = self._places[id(jaxpr)] = (jaxpr, found)
        return known[1]

    def is_place(self, eqn: Any) -> bool:
        return eqn.primitive in (placed.transfer_p, host.host_p) or _stated_devices(eqn) is not None

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        env = dict(zip(jaxpr.constvars, consts))
        env.update(zip(jaxpr.invars, args))

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, extend_core.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            outs = self.equation(eqn, [read(atom) for atom in eqn.invars])
            env.update(zip(eqn.outvars, outs))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        if eqn.primitive is placed.transfer_p:
            return [self._transfer(eqn, inputs[0])]
        if eqn.primitive.name == "device_put":
            return self._device_put(eqn, inputs)
        if eqn.primitive is host.host_p:
            return self.step(eqn, inputs, eqn.params["function"].devices)
        devices = _stated_devices(eqn)
        inner = [jaxpr for jaxpr in inner_jaxprs(eqn) if self.has_places(jaxpr)]
        if not inner:
            return self.step(eqn, inputs, devices)
        if devices is not None:
            raise ProgramError(
                f"{eqn.params['name']}, which is placed on {slices.describe(devices)}, calls a placed "
                f"function: call it from the program instead{at_line(eqn)}"
            )
        return self.inline(eqn, inputs)

    def inline(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        name = eqn.primitive.name
        if name not in CALLS:
            instead = INSTEAD.get(name, "call placed functions outside of it")
            raise ProgramError(f"a placed function is called inside `{name}`{at_line(eqn)}: {instead}")
        jaxpr, consts = _open(eqn.params[CALLS[name]])
        return self.run(jaxpr, [_constant(c) for c in consts], inputs)

    def _transfer(self, eqn: Any, x: Any) -> Any:
        key = eqn.params["key"]
        if not isinstance(x, Value):
            return x
        if not eqn.params["back"]:
            self.transferred.setdefault(key, []).append(x)
            return x
        if key in self.transferred:
            return Value(x.aval, base=x, home=self._latest(key))
        if eqn.params["target"] is not None:
            return Value(x.aval, base=x, target=eqn.params["target"])
        return Value(x.aval, base=x)

    def _latest(self, key: int) -> Value:
        """Transposes come in the reverse of the order of what they transpose."""
        values = self.transferred[key]
        return values.pop() if len(values) > 1 else values[0]

    def _device_put(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        outs = []
        for x, target, source in zip(inputs, eqn.params["devices"], eqn.params["srcs"]):
            if hasattr(target, "device_kind"):
                target = jax.sharding.SingleDeviceSharding(target)
            if devices_of_sharding(target) is not None and isinstance(x, Value):
                x = Value(x.aval, base=x, target=target)
            elif target is None and source is not None and isinstance(x, Value):
                x = Value(x.aval, base=x)  # A transpose: back to where the rest of the gradient is.
            outs.append(x)
        return outs

    def step(self, eqn: Any, inputs: list[Any], devices: Devices | None) -> list[Value]:
        _refuse_ordered(eqn)
        is_placed = devices is not None
        if not is_placed:
            devices = _inner_devices(eqn)
        step = Step(eqn, inputs, [], is_placed, devices, len(self.steps))
        step.outputs = [Value(v.aval, step, i, devices) for i, v in enumerate(eqn.outvars)]
        self.steps.append(step)
        return step.outputs


class Constant:
    """An array that an inner jaxpr has closed over."""

    def __init__(self, val: Any) -> None:
        self.val = val


def _constant(value: Any) -> Any:
    return value if isinstance(value, (Value, extend_core.Literal, Constant)) else Constant(value)


# -- Dead code ---------------------------------------------------------------


def _prune_call(step: Step, is_used: list[bool]) -> None:
    """Drops the results of a placed call that nobody uses, and what only they need."""
    params = dict(step.eqn.params)
    closed = params["jaxpr"]
    jaxpr, used_inputs = partial_eval.dce_jaxpr(closed.jaxpr, is_used, instantiate=False)
    keep = lambda flags, items: tuple(x for x, flag in zip(items, flags) if flag)  # noqa: E731
    params["jaxpr"] = extend_core.ClosedJaxpr(jaxpr, closed.consts)
    for name, flags in (("in", used_inputs), ("out", is_used)):
        for what in ("shardings", "layouts"):
            if f"{name}_{what}" in params:
                params[f"{name}_{what}"] = keep(flags, params[f"{name}_{what}"])
    params["donated_invars"] = keep(used_inputs, params["donated_invars"])
    step.inputs = list(keep(used_inputs, step.inputs))
    step.outputs = list(keep(is_used, step.outputs))
    for index, value in enumerate(step.outputs):
        value.index = index
    step.eqn = step.eqn.replace(
        params=params,
        invars=list(keep(used_inputs, step.eqn.invars)),
        outvars=list(keep(is_used, step.eqn.outvars)),
    )


def _live_steps(steps: list[Step], results: list[Any]) -> list[Step]:
    wanted = {id(r.root()) for r in results if isinstance(r, Value)}
    live = []
    for step in reversed(steps):
        is_used = [id(out) in wanted for out in step.outputs]
        if not any(is_used) and not step.eqn.effects:
            continue
        if step.is_placed and step.host is None and not all(is_used) and not step.eqn.effects:
            _prune_call(step, is_used)
        wanted.update(id(x.root()) for x in step.operands())
        live.append(step)
    live.reverse()
    for position, step in enumerate(live):
        step.position = position
        for value in step.operands():
            value.root().users.append(step)
    return live


# -- Placement ---------------------------------------------------------------


def _conflict(step: Step, first: Devices, second: Devices) -> ProgramError:
    return ProgramError(
        f"`{step.eqn.primitive.name}` has operands on two slices, {slices.describe(first)} and "
        f"{slices.describe(second)}{at_line(step.eqn)}: move one with jax.device_put, or place the "
        f"operation with tow.on"
    )


def _place_by_operands(step: Step) -> None:
    for devices, _ in _places_of(step):
        if step.devices is not None and step.devices != devices:
            raise _conflict(step, step.devices, devices)
        step.devices = devices
    _spread(step)


def _places_of(step: Step) -> Iterator[tuple[Devices, int]]:
    """Where its operands are, and their sizes. Arguments go where they are wanted."""
    for value in step.operands():
        devices = None if value.is_argument else value.where()
        if devices is not None:
            yield devices, value.aval.size


def _place_by_largest(step: Step) -> None:
    """Where most of its operands' elements are; the others are moved."""
    if step.devices is None:
        step.devices = max(_places_of(step), key=lambda place: place[1], default=(None, 0))[0]
    _spread(step)


def _spread(step: Step) -> None:
    for out in step.outputs:
        out.devices = step.devices


def _settle_arguments(steps: list[Step]) -> None:
    """An argument lives where it is used first."""
    for step in steps:
        for value in step.operands():
            root = value.root()
            if root.is_argument and root.devices is None and step.devices is not None:
                root.devices = step.devices


def _place_by_users(step: Step) -> None:
    if step.devices is None:
        users = (u for out in step.outputs for u in out.users if u.devices is not None)
        first = min(users, key=lambda u: u.position, default=None)
        if first is not None:
            step.devices = first.devices
            _spread(step)


def _place_by_arguments(step: Step, default: Devices) -> None:
    if step.devices is None:
        homes = [v.where() or v.root().devices for v in step.operands()]
        step.devices = next(filter(None, homes), default)
        _spread(step)


def _place(steps: list[Step], default: Devices, moves: bool) -> None:
    _settle_arguments([step for step in steps if step.is_placed])
    plain = [step for step in steps if not step.is_placed]
    for step in plain:
        _place_by_largest(step) if moves else _place_by_operands(step)
    for step in reversed(plain):
        _place_by_users(step)
    _settle_arguments(steps)
    for step in plain:
        _place_by_arguments(step, default)
    _settle_arguments(steps)
    for step in steps:
        step.inputs = [_at_rest(x) for x in step.inputs]


def _at_rest(x: Any) -> Any:
    """The value itself, if it is already where it is to be."""
    if isinstance(x, Value) and x.is_moved and x.where() in (None, x.root().devices):
        return x.root()
    return x


# -- Grouping ----------------------------------------------------------------


def _stated(shardings: Sequence[Any]) -> list[Sharding | None]:
    return [s if isinstance(s, Sharding) else None for s in shardings]


def _unique(values: Sequence[Value]) -> list[Value]:
    return list({id(v): v for v in values}.values())


class _Grouper:
    def __init__(self, results: list[Any], fuse: bool) -> None:
        self.nodes: list[Node] = []
        self.open: dict[Devices, list[Step]] = {}
        self.results = {id(r.root()) for r in results if isinstance(r, Value)}
        self.fuse = fuse

    def add(self, step: Step) -> None:
        for value in step.operands():
            maker = value.root().step
            if maker is not None and (maker.devices != step.devices or self._is_alone(step)):
                self._emit_group_of(maker)
        if self._is_alone(step):
            self._emit_call(step)
        else:
            self.open.setdefault(step.devices, []).append(step)

    def _is_alone(self, step: Step) -> bool:
        return step.is_placed and (not self.fuse or step.host is not None)

    def _emit_group_of(self, step: Step) -> None:
        group = self.open.get(step.devices, ())
        if any(step is member for member in group):
            self._emit(self.open.pop(step.devices))

    def finish(self) -> list[Node]:
        for group in list(self.open.values()):
            self._emit(group)
        return self.nodes

    def _emit_call(self, step: Step) -> None:
        """One step: its inputs are the node's, in order, repeated ones too."""
        if step.host is not None:
            self.nodes += _host_nodes(step)
            return
        params = step.eqn.params
        values = step.operands()
        flags = [isinstance(x, Value) for x in step.inputs]
        pick = lambda items: [x for x, flag in zip(items, flags) if flag]  # noqa: E731
        self.nodes.append(
            Node(
                params["name"], step.devices, [step], values, step.outputs,
                pick(_stated(params["in_shardings"])), _stated(params["out_shardings"]),
                pick(params["donated_invars"]), line_of(step.eqn),
            )
        )

    def _emit(self, group: list[Step]) -> None:
        if len(group) == 1 and group[0].is_placed:
            self._emit_call(group[0])
            return
        members = set(map(id, group))
        made = {id(out) for step in group for out in step.outputs}
        inputs = _unique([v for s in group for v in s.operands() if id(v.root()) not in made])
        outputs = [out for step in group for out in step.outputs if self._is_wanted(out, members)]
        names = _unique_names(group)
        self.nodes.append(
            Node(
                names, group[0].devices, group, inputs, outputs, [None] * len(inputs),
                [None] * len(outputs), [False] * len(inputs), line_of(group[0].eqn),
            )
        )

    def _is_wanted(self, out: Value, members: set[int]) -> bool:
        return id(out) in self.results or any(id(user) not in members for user in out.users)


# -- Host functions ----------------------------------------------------------


def is_irregular(value: Value) -> bool:
    """Is only a bound of its size known?"""
    root = value.root()
    return root.step is not None and root.step.host is not None and root.step.host.bounds[root.index] != 0


def _identity(x: Any) -> list[Any]:
    return [x]


def _copy_node(name: str, step: Step, source: Value, target: Value) -> Node:
    return Node(name, step.devices, [], [source], [target], [None], [None], [False], line_of(step.eqn),
                function=_identity, key=(name, source.aval.shape, source.aval.dtype))


def _host_nodes(step: Step) -> list[Node]:
    """The call. On several devices it takes and gives whole arrays of this slice, so a
    computation brings them there, and another gives its results a sharding."""
    function = step.host
    if not all(isinstance(x, Value) for x in step.inputs):
        raise ProgramError(f"{function.name} takes a constant{at_line(step.eqn)}: pass it to the program")
    made = Node(function.name, step.devices, [step], list(step.inputs), list(step.outputs), [None] * len(step.inputs),
                [None] * len(step.outputs), [False] * len(step.inputs), line_of(step.eqn), host=function)
    if len(step.devices) == 1:
        return [made]
    before, after = [], []
    for i, value in enumerate(made.inputs):
        if not is_irregular(value):
            made.inputs[i] = Value(value.aval, step, i, step.devices)
            before.append(_copy_node("to_host", step, value, made.inputs[i]))
    for i, value in enumerate(made.outputs):
        if not is_irregular(value):
            made.outputs[i] = Value(value.aval, step, i, step.devices)
            after.append(_copy_node("from_host", step, made.outputs[i], value))
    return [*before, made, *after]


def _is_within_reach(value: Value, step: Step) -> bool:
    """Shardings of irregular values are unknown, so they move only between single devices."""
    devices = value.root().devices
    return step.devices == devices or len(step.devices) == len(devices) == 1


def _check_irregular(steps: list[Step], results: list[Any]) -> None:
    hint = "only a host function on the same slice can take it: pad it with one"
    for step in steps:
        for value in step.operands():
            if is_irregular(value) and (step.host is None or not _is_within_reach(value, step)):
                name = step.eqn.params.get("name", step.eqn.primitive.name) if step.host is None else step.host.name
                raise ProgramError(f"{name} takes a result of {value.root().step.host.name} whose size is known only "
                                   f"when it has run{at_line(step.eqn)}: {hint}")
    for result in results:
        if isinstance(result, Value) and is_irregular(result):
            raise ProgramError(f"the program returns a result of {result.root().step.host.name} whose size is known only "
                               f"when it has run{at_line(result.root().step.eqn)}: {hint}")


def _unique_names(group: list[Step]) -> str:
    """"mul,add,...": short, for people."""
    names = list(dict.fromkeys(s.eqn.params.get("name", s.eqn.primitive.name) for s in group))
    return ",".join(names[:3]) + (",..." if len(names) > 3 else "")


# -- Functions of nodes ------------------------------------------------------


def function_of(node: Node) -> Callable:
    """The node's computation as a function of its inputs, for ``jax.jit``."""
    made = node.function or (_function_of_call(node.steps[0], node.name) if node.is_call else _function_of_group(node))
    return made if node.token is None else _with_token(made)


def _with_token(function: Callable) -> Callable:
    return functools.wraps(function)(lambda *args: [*function(*args), np.True_])


def _function_of_group(node: Node) -> Callable:
    wanted = [value for value in node.outputs if value is not node.token]

    def group(*args: Any) -> list[Any]:
        env = {id(value): arg for value, arg in zip(node.inputs, args)}
        for step in node.steps:
            outs = evaluate(step, [_read(env, x) for x in step.inputs])
            env.update((id(value), out) for value, out in zip(step.outputs, outs))
        return [env[id(value)] for value in wanted]

    group.__name__ = node.name.removesuffix(",...").replace(",", "_")  # Traces of devices show it.
    return group


def _function_of_call(step: Step, name: str) -> Callable:
    inner = extend_core.jaxpr_as_fun(step.eqn.params["jaxpr"])
    fixed = [None if isinstance(x, Value) else x.val for x in step.inputs]
    flags = [isinstance(x, Value) for x in step.inputs]

    def call(*args: Any) -> list[Any]:
        rest = iter(args)
        return inner(*(next(rest) if flag else x for x, flag in zip(fixed, flags)))

    call.__name__ = name
    return call


def _read(env: dict[int, Any], x: Any) -> Any:
    if not isinstance(x, Value):
        return x.val
    return env[id(x)] if id(x) in env else env[id(x.root())]


def evaluate(step: Step, args: list[Any]) -> list[Any]:
    primitive = step.eqn.primitive
    given = primitive.get_bind_params(step.eqn.params)
    functions, params = given if isinstance(given, tuple) else ((), given)  # By version of JAX.
    with step.eqn.ctx.manager:
        outs = primitive.bind(*functions, *args, **params)
    return list(outs) if primitive.multiple_results else [outs]


def key_of(node: Node) -> Any:
    """Equal for nodes with equal computations, while both exist."""
    if node.function is not None:
        return (node.devices, node.key)
    numbers = {id(value): i for i, value in enumerate(node.inputs)}
    parts = []
    for step in node.steps:
        operands = tuple(_operand_key(numbers, x) for x in step.inputs)
        parts.append((step.eqn.primitive, _params_key(step.eqn.params), operands))
        first = len(numbers)
        numbers.update((id(out), first + i) for i, out in enumerate(step.outputs))
    wanted = tuple(numbers.get(id(value)) for value in node.outputs)  # None: the token.
    avals = tuple((v.aval.shape, v.aval.dtype, getattr(v.aval, "weak_type", False)) for v in node.inputs)
    return (node.devices, tuple(parts), wanted, avals)


def _operand_key(numbers: dict[int, int], x: Any) -> Any:
    if isinstance(x, Value):
        return numbers.get(id(x), numbers.get(id(x.root())))
    if isinstance(x, Constant):
        return ("constant", id(x.val))
    return ("literal", str(x.aval), x.val.tobytes() if hasattr(x.val, "tobytes") else repr(x.val))


def _params_key(params: dict[str, Any]) -> Any:
    return tuple((name, _param_key(value)) for name, value in sorted(params.items()))


def _param_key(value: Any) -> Any:
    """Traced functions are compared by identity: JAX has one of each."""
    if isinstance(value, extend_core.ClosedJaxpr):
        return ("closed", id(value.jaxpr), tuple(map(id, value.consts)))
    if isinstance(value, extend_core.Jaxpr):
        return ("jaxpr", id(value))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return value


# -- The whole ---------------------------------------------------------------


def make_graph(
    closed: Any, default: Devices, fuse: bool = False, donated: frozenset[int] = frozenset()
) -> Graph:
    """The nodes of a traced program. `default`: devices of what is placed nowhere. The
    arguments are the jaxpr's, then its constants. `donated`: arguments that may be consumed,
    by position."""
    jaxpr = closed.jaxpr
    arguments = [Value(v.aval, index=i) for i, v in enumerate((*jaxpr.invars, *jaxpr.constvars))]
    nodes, results = add_nodes(jaxpr, arguments, default, fuse=fuse)
    made = Graph(nodes, arguments, results)
    donate(made, donated)
    return made


def add_nodes(
    jaxpr: Any, inputs: Sequence[Value], default: Devices, fuse: bool = False, moves: bool = False
) -> tuple[list[Node], list[Any]]:
    """The nodes and results of a jaxpr with these inputs, its constants last. `moves`: an
    operation with operands on several slices runs where the largest is."""
    flattener = Flattener()
    count = len(jaxpr.invars)
    results = flattener.run(jaxpr, inputs[count:], inputs[:count])
    steps = _live_steps(flattener.steps, results)
    _check_irregular(steps, results)
    _place(steps, default, moves)
    grouper = _Grouper(results, fuse)
    for step in steps:
        grouper.add(step)
    nodes = grouper.finish()
    for node in nodes:
        if node.has_effects:
            node.add_token()
    return nodes, [_result(r, default) for r in results]


def donate(made: Graph, donated: frozenset[int]) -> None:
    """The last user of a donated argument may write its result in its place."""
    returned = {id(r.root()) for r in made.results if isinstance(r, Value)}
    last: dict[int, Node] = {}
    for node in made.nodes:
        last.update((id(value), node) for value in node.inputs)
    for value in made.arguments:
        node = last.get(id(value))
        if value.index not in donated or node is None or id(value) in returned:
            continue
        if node.devices == value.devices and node.inputs.count(value) == 1:
            node.donated[node.inputs.index(value)] = True


def _result(result: Any, default: Devices) -> Any:
    """Arguments that nothing but the results uses live where they are to be returned."""
    if isinstance(result, Value) and result.root().devices is None:
        result.root().devices = result.where() or default
        result.root().sharding = result.target
    return result
