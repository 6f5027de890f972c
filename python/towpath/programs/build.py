"""From the nodes of a program to a program of the cluster: compiled functions and ports.

A port is an executable of JAX's for each set of devices that has arguments or results. JAX
checks and passes arrays to it as to any other; the plugin hands them to the program, which
starts when its last port is called (src/pjrt/python_api.h).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.dispatch import runtime_tokens
from jax.sharding import Mesh, Sharding

from towpath.programs import graph, library, slices

_names = itertools.count()
# The cluster's limit for names of nodes is larger; this is for people.
_NAME_MAX = 120
_NEVER_S = 1e9


@dataclasses.dataclass
class Port:
    """What the program takes and gives on one set of devices."""

    devices: graph.Devices
    arguments: list[graph.Value] = dataclasses.field(default_factory=list)
    results: list[tuple[graph.Value, Sharding]] = dataclasses.field(default_factory=list)
    compiled: Any = None
    # Of effects that JAX waits for, at its barriers and at exit: devices and positions of results.
    tokens: list[tuple[Any, int]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Built:
    """A program that can be called: `ports` in order, and the results of the traced
    function as positions in what the ports give, all together, as positions of arguments,
    or as constants."""

    graph: graph.Graph
    builder: library.Builder | None  # None: nothing runs, all results are known.
    ports: list[Port]
    results: list[tuple[str, Any]]
    compiled: list[Any]  # Of the nodes; callbacks of their computations live with them.


@functools.cache
def replicated(devices: graph.Devices) -> Sharding:
    return slices.replicated(Mesh(np.array(devices, dtype=object), slices.AXES[:1]))


# -- Compilation -------------------------------------------------------------


@contextlib.contextmanager
def _quietly(use_cache: bool) -> Iterator[None]:
    """Donation that XLA cannot use is no concern of the user. Executables with a name of
    their own stay out of JAX's persistent cache."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*donated.*")
        if use_cache:
            yield
            return
        # JAX decides once per process whether it uses the cache, but for each executable whether to keep it.
        with jax._src.config.persistent_cache_min_compile_time_secs(_NEVER_S):
            yield


def _compile(lowered: Any, is_port: bool) -> tuple[Any, int]:
    """The executable, and the plugin's handle of it."""
    if hasattr(_runtime_type(), "unsafe_executable_pointer"):
        with _quietly(use_cache=not is_port):
            compiled = lowered.compile()
        return compiled, compiled.runtime_executable().unsafe_executable_pointer
    name = f"n{os.getpid()}.{next(_names)}"
    with _quietly(use_cache=False):
        compiled = lowered.compile(compiler_options={"towpath_name": name})
    return compiled, library.executable_named(name)


def _runtime_type() -> type:
    from jax._src.lib import xla_client

    return xla_client.LoadedExecutable if hasattr(xla_client, "LoadedExecutable") else xla_client._xla.LoadedExecutable


def _struct(value: graph.Value) -> jax.ShapeDtypeStruct:
    aval = value.aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _input_sharding(node: graph.Node, value: graph.Value, stated: Sharding | None) -> Sharding:
    root = value.root()
    if stated is None and root.devices == node.devices and not value.is_moved:
        stated = root.sharding
    if stated is None:
        stated = replicated(node.devices)
    if root.is_argument and root.sharding is None and root.devices == node.devices:
        root.sharding = stated
    return stated


def _output_shardings(node: graph.Node, inputs: Sequence[Sharding]) -> Any:
    """Results of plain operations on replicated values are replicated; else, unless stated,
    XLA decides."""
    if all(s is not None for s in node.out_shardings):
        return list(node.out_shardings)
    if not (node.is_call or node.names_devices) and all(s.is_fully_replicated for s in inputs):
        return [replicated(node.devices)] * len(node.outputs)
    return None


class _Functions:
    """Compiled functions of nodes; equal nodes share one."""

    def __init__(self) -> None:
        self.known: dict[Any, tuple[Any, int, Any]] = {}

    def compile(self, node: graph.Node) -> tuple[Any, int]:
        if node.host is not None:
            for value in node.outputs:
                value.sharding = replicated(node.devices)
            return None, 0
        inputs = [_input_sharding(node, v, s) for v, s in zip(node.inputs, node.in_shardings)]
        key = (graph.key_of(node), tuple(inputs), tuple(node.out_shardings), tuple(node.donated))
        entry = self.known.get(key)
        if entry is None:
            entry = self.known[key] = (*self._make(node, inputs), node)  # The node keeps ids in the key alive.
        compiled, handle, _ = entry
        for value, sharding in zip(node.outputs, jax.tree.leaves(compiled.output_shardings)):
            value.sharding = sharding
        return compiled, handle

    def _make(self, node: graph.Node, inputs: list[Sharding]) -> tuple[Any, int]:
        outputs = _output_shardings(node, inputs)
        jitted = jax.jit(
            graph.function_of(node),
            in_shardings=tuple(inputs),
            donate_argnums=tuple(i for i, flag in enumerate(node.donated) if flag),
            keep_unused=True,
            **({} if outputs is None else {"out_shardings": outputs}),
        )
        with _quietly(use_cache=True):
            lowered = jitted.lower(*map(_struct, node.inputs))
        return _compile(lowered, is_port=False)


# -- Ports -------------------------------------------------------------------


def _filler(aval: Any) -> Any:
    """Any value of this type: a stub never runs."""
    return jax.lax.full(aval.shape, 0, aval.dtype)


def _stub_of(port: Port) -> Callable:
    avals = [value.aval for value, _ in port.results]

    def towpath_port(*_: Any) -> list[Any]:
        return [_filler(aval) for aval in avals]

    return towpath_port


def _compile_port(port: Port) -> int:
    jitted = jax.jit(
        _stub_of(port),
        in_shardings=tuple(v.sharding for v in port.arguments),
        out_shardings=[s for _, s in port.results],
        keep_unused=True,
    )
    compiled, handle = _compile(jitted.lower(*map(_struct, port.arguments)), is_port=True)
    port.compiled = _with_tokens(compiled, port.tokens) if port.tokens else compiled
    return handle


def _with_tokens(compiled: Callable, tokens: list[tuple[Any, int]]) -> Callable:
    """Tells JAX of effects under way, as JAX does for its own executables."""

    def call(*arguments: Any) -> list[Any]:
        results = compiled(*arguments)
        for device, at in tokens:
            runtime_tokens.set_output_runtime_token(device, results[at])
        return results

    return call


def _result_place(result: graph.Value) -> tuple[graph.Devices, Sharding]:
    root = result.root()
    devices = result.where() or root.devices
    if result.target is not None:
        return devices, result.target
    home = result.home
    if devices == root.devices and (home is None or home.root().sharding is None):
        return devices, root.sharding
    return devices, home.root().sharding if home is not None and home.root().sharding is not None else replicated(devices)


def _is_given(result: graph.Value) -> bool:
    """True for an argument that the caller gets back as it is."""
    devices, sharding = _result_place(result)
    root = result.root()
    return root.is_argument and (sharding is None or (devices == root.devices and sharding == root.sharding))


class _Ports:
    """Ports by devices; the ends of the program."""

    def __init__(self, made: graph.Graph) -> None:
        self.by_devices: dict[graph.Devices, Port] = {}
        moved = {id(r.root()) for r in made.results if isinstance(r, graph.Value) and not _is_given(r)}
        for value in made.arguments:
            if value.users or id(value) in moved:
                value.sharding = value.sharding or replicated(value.devices)
                self._port(value.devices).arguments.append(value)
        self.places = [self._place(result) for result in made.results]
        for token in made.tokens():
            port = self._port(token.devices)
            port.tokens.append((token.devices[0], len(port.results)))
            port.results.append((token, token.sharding))

    def _port(self, devices: graph.Devices) -> Port:
        return self.by_devices.setdefault(devices, Port(devices))

    def _place(self, result: Any) -> tuple[str, Any]:
        """Where the caller finds a result."""
        if not isinstance(result, graph.Value):
            return "constant", result.val
        devices, sharding = _result_place(result)
        root = result.root()
        if _is_given(result):
            return "argument", root.index
        results = self._port(devices).results
        for index, (value, known) in enumerate(results):
            if value is root and known == sharding:
                return "result", (devices, index)
        results.append((root, sharding))
        return "result", (devices, len(results) - 1)

    def numbered(self) -> tuple[list[Port], list[tuple[str, Any]]]:
        ports = list(self.by_devices.values())
        starts, total = {}, 0
        for port in ports:
            starts[port.devices] = total
            total += len(port.results)
        number = lambda kind, at: starts[at[0]] + at[1] if kind == "result" else at  # noqa: E731
        return ports, [(kind, number(kind, at)) for kind, at in self.places]


# -- The whole ---------------------------------------------------------------


def _node_name(node: graph.Node) -> str:
    line = os.path.basename(node.line)
    known = slices.name_of(node.devices)
    return f"{node.name}@{known}{' ' + line if line else ''}"[:_NAME_MAX]


def _host_type(value: graph.Value) -> tuple[Any, int]:
    """An argument of a host function, and the bits of the dimensions that are bounds."""
    root = value.root()
    return value.aval, root.step.host.bounds[root.index] if graph.is_irregular(value) else 0


def _assemble(
    made: graph.Graph, ports: list[Port], handles: list[int], donated: set[int], name: str
) -> library.Builder:
    builder = library.Builder(name)
    places: dict[int, tuple[int, int]] = {}
    numbers = {id(port): builder.port(_compile_port(port)) for port in ports}
    for port in ports:
        for index, value in enumerate(port.arguments):
            node = builder.argument(numbers[id(port)], index, value.index in donated)
            places[id(value)] = (node, 0)
    for node, handle in zip(made.nodes, handles):
        inputs = [places[id(v.root())] for v in node.inputs]
        if node.host is not None:
            number = builder.host_call(node.host, _node_name(node), [_host_type(v) for v in node.inputs], inputs)
        else:
            number = builder.call(handle, _node_name(node), inputs)
        places.update((id(value), (number, i)) for i, value in enumerate(node.outputs))
    for port in ports:
        for index, (value, _) in enumerate(port.results):
            builder.result(numbers[id(port)], index, *places[id(value)])
    builder.finish()
    return builder


def _settle_arguments(nodes: Sequence[graph.Node]) -> None:
    """An argument has the sharding of the first call that states one for it. Arguments of plain
    operations alone keep theirs."""
    settled: set[int] = set()
    for node in nodes:
        for value, stated in zip(node.inputs, node.in_shardings):
            if stated is None or not value.is_argument or value.devices != node.devices or id(value) in settled:
                continue
            settled.add(id(value))
            value.sharding = stated


def build(made: graph.Graph, donated: set[int], name: str) -> Built:
    """Compiles the functions of a program and sends it to the cluster. `donated`: arguments
    that a call may consume, by position."""
    functions = _Functions()
    _settle_arguments(made.nodes)
    pairs = [functions.compile(node) for node in made.nodes]
    ports, results = _Ports(made).numbered()
    handles = [handle for _, handle in pairs]
    kept = {at for kind, at in results if kind == "argument"}
    builder = _assemble(made, ports, handles, donated - kept, name) if ports else None
    return Built(made, builder, ports, results, [compiled for compiled, _ in pairs])
