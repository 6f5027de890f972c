"""``tow.pipeline``: a training step of plain JAX code, pipelined over slices as one program."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp

from towpath.pipelines import assemble, cut, fragments
from towpath.pipelines.cut import PipelineError
from towpath.programs import build, graph, library, slices
from towpath.programs.program import Plan, Want


@dataclasses.dataclass
class State:
    """Parameters and the optimiser's state: ordinary arrays, on their slices once a step has
    placed them. A pytree."""

    params: Any
    optimizer: Any
    # Made by a step, which may overwrite it in the next.
    is_ours: bool = dataclasses.field(default=False, compare=False)


jax.tree_util.register_pytree_with_keys(
    State,
    lambda s: (
        ((jax.tree_util.GetAttrKey("params"), s.params), (jax.tree_util.GetAttrKey("optimizer"), s.optimizer)),
        None,
    ),
    lambda _, children: State(*children),
)


# -- Optimisers --------------------------------------------------------------


def _as_pair(optimizer: Any) -> tuple[Callable, Callable]:
    """``(params) -> state`` and ``(params, state, grads) -> (params, state)``."""
    if hasattr(optimizer, "init") and hasattr(optimizer, "update"):

        def apply(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
            updates, state = optimizer.update(grads, state, params)
            params = jax.tree.map(lambda p, u: jnp.asarray(p + u).astype(p.dtype), params, updates)
            return params, state

        return optimizer.init, apply
    if callable(optimizer):
        return lambda params: (), lambda params, state, grads: (optimizer(params, grads), state)
    raise TypeError(
        f"an optimizer is a function (params, grads) -> params, or has init and update as Optax's have; "
        f"not {type(optimizer).__name__}"
    )


# -- One signature -----------------------------------------------------------


@dataclasses.dataclass
class _Signature:
    """What a step is made for: types of all leaves, and the structure of each part."""

    params: list[Any]
    optimizer: list[Any]
    batch: list[Any]
    trees: tuple[Any, Any, Any]


def _types(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return [_type_of(leaf) for leaf in leaves], structure


def _type_of(x: Any) -> Any:
    if isinstance(x, (jax.Array, jax.ShapeDtypeStruct)):
        return jax.core.ShapedArray(x.shape, x.dtype)
    aval = jax.api_util.shaped_abstractify(x)
    return jax.core.ShapedArray(aval.shape, aval.dtype)


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _microbatch_type(aval: Any, count: int, name: str) -> jax.ShapeDtypeStruct:
    if aval.ndim == 0 or assemble.is_key(aval):
        return _struct(aval)
    if aval.shape[0] % count:
        raise PipelineError(
            f"the batch has {aval.shape[0]} rows in {name}, which {count} microbatches do not divide"
        )
    return jax.ShapeDtypeStruct((aval.shape[0] // count, *aval.shape[1:]), aval.dtype)


class Pipeline:
    """A training step; see :func:`pipeline`."""

    def __init__(
        self, loss: Callable, optimizer: Any, places: Sequence[Any], microbatches: int, schedule: str,
        remat: bool, reduce: str, has_aux: bool, chunks: int, warmup: str,
    ) -> None:
        self.loss, self.places = loss, list(places)
        self.begin, self.apply = _as_pair(optimizer)
        self.microbatches, self.schedule_name = microbatches, schedule
        self.remat, self.reduce, self.has_aux = remat, reduce, has_aux
        self.chunks, self.warmup = chunks, warmup
        self.plans: dict[Any, Any] = {}

    # -- What users call --

    def init(self, params: Any, batch: Any = None) -> State:
        """The first state. Arrays are placed by the first step; with a batch, or its types
        (``jax.ShapeDtypeStruct``), at once."""
        state = State(params, self.begin(params))
        if batch is None:
            return state
        plan = self._plan(state, batch)
        leaves = [want.bring(x) for want, x in zip(plan.wants, jax.tree.leaves(state))]
        return jax.tree.unflatten(jax.tree.structure(state), leaves)

    def __call__(self, state: State, batch: Any) -> tuple[State, Any]:
        if not isinstance(state, State):
            raise TypeError(f"step(state, batch): a state of step.init, not {type(state).__name__}")
        plan = self._plan(state, batch)
        if not state.is_ours and plan.consumes:
            state = jax.tree.map(_copy, state)
        params, optimizer, value = plan.run(plan.match(jax.tree.leaves((state, batch))))
        return State(params, optimizer, is_ours=True), value

    # -- Plans --

    def _plan(self, state: State, batch: Any) -> Any:
        leaves, tree = jax.tree.flatten((state, batch))
        key = (tree, tuple((jnp.shape(x), jnp.result_type(x)) if not hasattr(x, "aval") else (x.shape, x.dtype)
                           for x in leaves))
        if key not in self.plans:
            self.plans[key] = self._make(state, batch)
        return self.plans[key]

    def _make(self, state: State, batch: Any) -> Any:
        params, params_tree = _types(state.params)
        optimizer, optimizer_tree = _types(state.optimizer)
        batches, batch_tree = _types(batch)
        signature = _Signature(params, optimizer, batches, (params_tree, optimizer_tree, batch_tree))
        made, constants, out_tree = _Maker(self, signature).make()
        count = len(params) + len(optimizer)
        if not library.is_available():
            return EagerPlan(made, constants, out_tree)
        built = build.build(made, set(range(count)), getattr(self.loss, "__name__", "step"))
        return StepPlan(built, [v.aval for v in made.arguments], constants, out_tree)


class _Maker:
    """Makes the graph of a step for one signature."""

    def __init__(self, step: Pipeline, signature: _Signature) -> None:
        self.step, self.signature = step, signature

    def make(self) -> tuple[graph.Graph, list[Any], Any]:
        closed, aux_tree = self._trace()
        stages, values, results = cut.cut(closed)
        loss = self._check_loss(results[0])
        arguments = self._arguments(values)
        kinds = self._kinds(len(values))
        made, edges = fragments.make_fragments(stages, loss, results, kinds)
        csv, devices = self._schedule(len(stages))
        nodes = self._nodes(csv, made, edges)
        assembly = assemble.Assembly(devices, arguments)
        self.numbers = self._argument_numbers(len(values))
        for stage in made:
            stage.arguments = [self.numbers[i] for i in stage.arguments]
            stage.batch = [self.numbers[i] for i in stage.batch]
        sums, outputs = assembly.schedule(nodes, made, self.step.microbatches)
        new = self._update(assembly, made, sums)
        value = self._values(assembly, made, stages, results, outputs)
        p_tree, o_tree, _ = self.signature.trees
        value_tree = jax.tree.structure((0, jax.tree.unflatten(aux_tree, [0] * aux_tree.num_leaves))) \
            if self.step.has_aux else jax.tree.structure(0)
        tree = jax.tree_util.treedef_tuple((p_tree, o_tree, value_tree))
        made_graph = graph.Graph(assembly.nodes, arguments, [*new, *value])
        graph.donate(made_graph, frozenset(range(len(self.signature.params) + len(self.signature.optimizer))))
        return made_graph, closed.consts, tree

    def _trace(self) -> tuple[Any, Any]:
        """The jaxpr of the loss of one microbatch."""
        trees: list[Any] = []
        p_tree, _, b_tree = self.signature.trees
        count = len(self.signature.params)

        def flat(*leaves: Any) -> list[Any]:
            params = jax.tree.unflatten(p_tree, leaves[:count])
            out = self.step.loss(params, jax.tree.unflatten(b_tree, leaves[count:]))
            value, aux = out if self.step.has_aux else (out, ())
            rest, tree = jax.tree.flatten(aux)
            trees.append(tree)
            return [value, *rest]

        flat.__name__ = getattr(self.step.loss, "__name__", "loss")
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(
            jax.tree.unflatten(b_tree, list(range(b_tree.num_leaves))))]
        parts = [
            _microbatch_type(aval, self.step.microbatches, f"batch{name}")
            for aval, name in zip(self.signature.batch, names)
        ]
        return jax.make_jaxpr(flat)(*map(_struct, self.signature.params), *parts), trees[-1]

    def _check_loss(self, loss: Any) -> graph.Value:
        if not isinstance(loss, graph.Value) or loss.aval.shape != () or not fragments.is_float(loss.aval):
            raise PipelineError("the loss is a scalar that depends on the parameters")
        return loss

    # The loss has arguments (parameters, batch, constants), the step (parameters, optimiser
    # state, batch, constants).

    def _argument_numbers(self, count: int) -> list[int]:
        params, optimizer = len(self.signature.params), len(self.signature.optimizer)
        return [i if i < params else i + optimizer for i in range(count)]

    def _kinds(self, count: int) -> list[str]:
        params, batch = len(self.signature.params), len(self.signature.batch)
        kinds = ["parameter"] * params + ["batch"] * batch
        return kinds + ["constant"] * (count - len(kinds))

    def _arguments(self, values: list[graph.Value]) -> list[graph.Value]:
        s = self.signature
        constants = [v.aval for v in values[len(s.params) + len(s.batch) :]]
        avals = [*s.params, *s.optimizer, *s.batch, *constants]
        return [graph.Value(aval, index=i) for i, aval in enumerate(avals)]

    def _schedule(self, stage_count: int) -> tuple[str, list[graph.Devices]]:
        """The schedule as CSV, and the devices of its rows."""
        step = self.step
        rows = [slices.devices_of(place) for place in step.places]
        name = step.schedule_name
        if "," in name or "\n" in name or os.path.exists(name):
            text = open(name).read() if os.path.exists(name) else name
            return text, rows
        chunks = {"interleaved": step.chunks, "zb-v": 2}.get(name, 1)
        if stage_count != chunks * len(rows):
            raise PipelineError(
                f"the loss has {stage_count} stages ({stage_count - 1} marks of tow.stage), but {name} needs "
                f"{chunks * len(rows)} for {len(rows)} slices: mark {chunks * len(rows) - 1} places, or give "
                f"another number of slices (one slice may be given several times)"
            )
        count = step.microbatches
        try:
            text = library.generate_schedule(
                name, len(rows), count, step.chunks if name == "interleaved" else 0, step.warmup, step.remat
            )
        except library.TowpathError as why:
            raise PipelineError(str(why)) from None
        return text, rows

    def _nodes(self, csv: str, made: Sequence[Any], edges: Sequence[Any]) -> list[assemble.PlanNode]:
        try:
            return assemble.plan_nodes(csv, made, edges)
        except library.TowpathError as why:
            raise PipelineError(f"the schedule {self.step.schedule_name!r}: {why}") from None

    # -- The ends of a step --

    def _update(
        self, assembly: assemble.Assembly, made: Sequence[Any], sums: dict[tuple[int, int], graph.Value]
    ) -> list[Any]:
        """New parameters and optimiser state, from the sums of gradients."""
        s, step = self.signature, self.step
        parts: list[list[graph.Value]] = [[] for _ in s.params]
        for number, stage in enumerate(made):
            for at, parameter in enumerate(stage.parameters):
                parts[parameter].append(sums[number, at])
        flat = [value for group in parts for value in group]
        counts = [len(group) for group in parts]
        scale = step.microbatches if step.reduce == "mean" else 1
        p_tree, o_tree, _ = s.trees

        def update(*leaves: Any) -> list[Any]:
            params = list(leaves[: len(s.params)])
            state = list(leaves[len(params) : len(params) + len(s.optimizer)])
            rest = iter(leaves[len(params) + len(state) :])
            grads = [_total(p, [next(rest) for _ in range(n)], scale) for p, n in zip(params, counts)]
            new, state = step.apply(
                jax.tree.unflatten(p_tree, params), jax.tree.unflatten(o_tree, state), jax.tree.unflatten(p_tree, grads)
            )
            _check_same(p_tree, new, "parameters")
            _check_same(o_tree, state, "the optimiser's state")
            return jax.tree.leaves(new) + jax.tree.leaves(state)

        count = len(s.params) + len(s.optimizer)
        inputs = [*assembly.arguments[:count], *flat]
        closed = jax.make_jaxpr(update)(*(_struct(v.aval) for v in inputs))
        constants = [graph.Constant(c) for c in closed.consts]
        nodes, results = graph.add_nodes(closed.jaxpr, [*inputs, *constants], assembly.devices[0], moves=True)
        assembly.nodes.extend(nodes)
        return results

    def _values(
        self, assembly: assemble.Assembly, made: Sequence[Any], stages: Sequence[cut.Stage],
        results: Sequence[Any], outputs: dict[tuple[int, int, int], graph.Value],
    ) -> list[Any]:
        """The loss, a mean, and auxiliary values, stacked."""
        places = {}
        for number, (stage, fragment) in enumerate(zip(stages, made)):
            for at, index in enumerate(fragment.outputs):
                places[id(stage.outputs[index])] = (number, at)
        values = []
        for at, result in enumerate(results):
            if not isinstance(result, graph.Value) or id(result) not in places:
                values.append(result)
                continue
            number, index = places[id(result)]
            parts = [outputs[number, m, index] for m in range(self.step.microbatches)]
            values.append(self._reduce(assembly, parts, is_loss=at == 0))
        return values

    def _reduce(self, assembly: assemble.Assembly, parts: list[graph.Value], is_loss: bool) -> graph.Value:
        aval, count, scale = parts[0].aval, len(parts), self.step.reduce == "mean"
        if is_loss:
            function = lambda *xs: [assemble.mean(xs) if scale else sum(xs[1:], xs[0])]  # noqa: E731
            types = [aval]
        else:
            function = lambda *xs: [jnp.stack(xs)]  # noqa: E731
            types = [jax.core.ShapedArray((count, *aval.shape), aval.dtype)]
        key = ("mean" if is_loss else "stack", str(aval), count, scale)
        name = "loss" if is_loss else "auxiliary"
        return assembly.add(assemble.make_node(name, parts[0].devices, function, key, parts, types))[0]


def _total(parameter: Any, parts: list[Any], scale: int) -> Any:
    """The gradient of a parameter, which several stages may use."""
    if not parts:
        return jnp.zeros_like(parameter)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / scale if scale != 1 else total


def _check_same(tree: Any, made: Any, what: str) -> None:
    if jax.tree.structure(made) != tree:
        raise PipelineError(
            f"the optimizer changes the structure of {what}: from {tree} to {jax.tree.structure(made)}"
        )


# -- Running -----------------------------------------------------------------


def _copy(x: Any) -> Any:
    """A step may consume only what a step has made. An array that is brought to another
    sharding may share memory with the one that it was made of."""
    return x.copy() if isinstance(x, jax.Array) else x


class StepPlan(Plan):
    """A step as a program of the cluster."""

    consumes = True


class EagerPlan:
    """The same graph on a backend that is not Towpath's, call by call."""

    consumes = False

    def __init__(self, made: graph.Graph, constants: Sequence[Any], tree: Any) -> None:
        self.graph, self.constants, self.tree = made, list(constants), tree
        self.functions: dict[Any, Callable] = {}
        self.wants = [Want(v.aval, None if v.devices is None else build.replicated(v.devices))
                      for v in made.arguments]

    def match(self, leaves: list[Any]) -> list[Any]:
        return [want.bring(x) for want, x in zip(self.wants, [*leaves, *self.constants])]

    def run(self, arguments: list[Any]) -> Any:
        env = {id(value): x for value, x in zip(self.graph.arguments, arguments)}
        for node in self.graph.nodes:
            function = self._function(node)
            target = build.replicated(node.devices)
            inputs = [jax.device_put(env[id(v.root())], target) for v in node.inputs]
            env.update((id(v), out) for v, out in zip(node.outputs, function(*inputs)))
        results = [env[id(r.root())] if isinstance(r, graph.Value) else jnp.asarray(r.val)
                   for r in self.graph.results]
        return jax.tree.unflatten(self.tree, results)

    def _function(self, node: graph.Node) -> Callable:
        key = graph.key_of(node)
        if key not in self.functions:
            self.functions[key] = jax.jit(graph.function_of(node))
        return self.functions[key]


def pipeline(
    loss: Callable,
    optimizer: Any,
    *,
    slices: Sequence[Any],
    microbatches: int,
    schedule: str = "1f1b",
    remat: bool = False,
    reduce: str = "mean",
    has_aux: bool = False,
    chunks: int = 2,
    warmup: str = "a",
) -> Pipeline:
    """A training step, ``state, value = step(state, batch)``, pipelined over slices.

    ``loss(params, batch)`` is plain JAX code with ``x = tow.stage(x)`` where a stage ends.
    ``optimizer`` is ``(params, grads) -> params``, or has ``init`` and ``update`` as Optax's
    have. The batch is split into microbatches along the first dimension of its arrays;
    scalars go to all of them, and a random key is folded with their number. Loss and
    gradients are means over the microbatches, or sums (``reduce="sum"``).

    ``schedule``: gpipe, 1f1b, interleaved (``chunks`` stages on each slice), zb-h1, zb-h2,
    zb-v, or a schedule as CSV or the path of such a file (`tow schedule --help`).
    ``remat``: each backward computes its forward again, so that only the inputs of stages
    are kept. ``has_aux``: the loss returns ``(loss, aux)``, and a step ``(loss, aux)`` with
    the microbatches' values stacked.
    """
    if not isinstance(microbatches, int) or microbatches < 1:
        raise ValueError(f"microbatches is a number from 1 on, not {microbatches!r}")
    if reduce not in ("mean", "sum"):
        raise ValueError(f'reduce is "mean" or "sum", not {reduce!r}')
    return Pipeline(
        loss, optimizer, slices, microbatches, schedule, remat, reduce, has_aux, chunks, warmup
    )
