"""The functions of a stage: forward, backward, and the backward's two halves.

The forward returns what the stage makes and what its backward needs (residuals); residuals
that are inputs of the stage are not copied. The backward takes residuals and the cotangents
of what the stage made, and returns cotangents of what it got and gradients of its
parameters. Its first half (input gradient) computes only what the stages before wait for,
the second (weight gradient) the rest, from values that the first has left.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend import core as extend_core

from towpath.pipelines import cut
from towpath.programs import graph


class Source(enum.IntEnum):
    """Where an operand of a fragment comes from (plan/schedule/nodes.h)."""

    ARGUMENT = 0
    BATCH = 1
    ACTIVATION = 2
    COTANGENT = 3
    FORWARD = 4
    INPUT_GRAD = 5
    GRADIENT = 6
    SUM = 7


class Kind(enum.IntEnum):
    """Kinds of fragments (plan/schedule/nodes.h)."""

    FORWARD = 0
    BACKWARD = 1
    INPUT_GRAD = 2
    WEIGHT_GRAD = 3
    RECOMPUTE = 4
    ACCUMULATE = 5
    UPDATE = 6


Input = tuple[Source, int]


@dataclasses.dataclass
class Fragment:
    function: Callable[..., list[Any]]
    inputs: list[Input]
    results: list[Any]  # Their types.
    input_types: list[Any] = dataclasses.field(default_factory=list)  # Of a backward.


@dataclasses.dataclass
class Edge:
    """A value that one stage makes and a later one uses."""

    value: graph.Value
    from_stage: int
    to_stage: int
    is_forward_only: bool
    result: int = 0
    cotangent: int = 0


@dataclasses.dataclass
class StageFragments:
    arguments: list[int]  # Positions in the loss's arguments; likewise:
    batch: list[int]
    parameters: list[int]  # Of the gradients, in their order.
    outputs: list[int]  # Results of the forward that the loss returns.
    fragments: dict[Kind, Fragment]
    backward_gradient: int
    weight_gradient: int


def is_float(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))


def make_edges(stages: Sequence[cut.Stage]) -> list[Edge]:
    maker = {id(out): number for number, stage in enumerate(stages) for out in stage.outputs}
    edges = []
    for number, stage in enumerate(stages):
        for value in stage.inputs:
            if not value.is_argument:
                edges.append(Edge(value, maker[id(value)], number, not is_float(value.aval)))
    return edges


class _Maker:
    """Makes the fragments of one stage."""

    def __init__(
        self, number: int, stage: cut.Stage, edges: list[Edge], loss: graph.Value, kinds: Sequence[str]
    ) -> None:
        self.stage, self.edges, self.loss = stage, edges, loss
        self.number = number
        arguments = [v.index for v in stage.inputs if v.is_argument]
        self.arguments = [i for i in arguments if kinds[i] != "batch"]
        self.batch = [i for i in arguments if kinds[i] == "batch"]
        self.sources = [self._source(value, kinds) for value in stage.inputs]
        self.diff = [i for i, v in enumerate(stage.inputs) if self._is_differentiated(v, kinds)]
        self.float_outputs = [i for i, v in enumerate(stage.outputs) if is_float(v.aval)]

    def _source(self, value: graph.Value, kinds: Sequence[str]) -> Input:
        if not value.is_argument:
            return Source.ACTIVATION, self._edge_of(value)
        if kinds[value.index] == "batch":
            return Source.BATCH, self.batch.index(value.index)
        return Source.ARGUMENT, self.arguments.index(value.index)

    def _edge_of(self, value: graph.Value) -> int:
        return next(i for i, e in enumerate(self.edges) if e.value is value and e.to_stage == self.number)

    def _is_differentiated(self, value: graph.Value, kinds: Sequence[str]) -> bool:
        return is_float(value.aval) and (not value.is_argument or kinds[value.index] == "parameter")

    def make(self) -> StageFragments:
        forward, residuals = self._forward()
        backward, activations, parameters = self._backward(residuals)
        made = StageFragments(
            self.arguments, self.batch, parameters, [], {Kind.FORWARD: forward}, len(activations), 0
        )
        for at, value in enumerate(self.stage.outputs):
            for edge in self.edges:
                if edge.value is value:
                    edge.result = at
        for at, number in enumerate(activations):
            self.edges[number].cotangent = at
        made.fragments[Kind.BACKWARD] = backward
        input_grad, weight_grad = _split(backward, len(activations))
        made.fragments[Kind.INPUT_GRAD] = input_grad
        made.fragments[Kind.WEIGHT_GRAD] = weight_grad
        made.fragments[Kind.ACCUMULATE] = _accumulate(backward.results[len(activations) :])
        return made

    # -- Forward --

    def _forward(self) -> tuple[Fragment, list[Any]]:
        """And where each leaf of the backward's function comes from: an input or a value."""
        run, trees = self.stage.function(), []

        def forward(*args: Any) -> list[Any]:
            def differentiated(*some: Any) -> tuple[list[Any], list[Any]]:
                full = list(args)
                for at, x in zip(self.diff, some):
                    full[at] = x
                outs = run(*full)
                return [outs[i] for i in self.float_outputs], outs

            _, vjp, outs = jax.vjp(differentiated, *(args[i] for i in self.diff), has_aux=True)
            leaves, tree = jax.tree.flatten(vjp)
            trees.append(tree)
            return [*outs, *leaves]

        closed = jax.make_jaxpr(forward)(*(_struct(v.aval) for v in self.stage.inputs))
        self.tree = trees[-1]
        return self._select(closed)

    def _select(self, closed: Any) -> tuple[Fragment, list[Any]]:
        jaxpr, count = closed.jaxpr, len(self.stage.outputs)
        constants = dict(zip(jaxpr.constvars, closed.consts))
        sources = dict(zip(jaxpr.invars, self.sources))
        chosen = list(range(count))
        numbers: dict[Any, int] = {}
        for at, var in enumerate(jaxpr.outvars[:count]):
            if not isinstance(var, extend_core.Literal):
                numbers.setdefault(var, at)
        residuals: list[Any] = []
        for at, var in enumerate(jaxpr.outvars[count:], count):
            if isinstance(var, extend_core.Literal):
                residuals.append(_Fixed(var.val))
            elif var in constants:
                residuals.append(_Fixed(constants[var]))
            elif var in sources:
                residuals.append((sources[var], var.aval))
            else:
                if var not in numbers:
                    numbers[var] = len(chosen)
                    chosen.append(at)
                residuals.append(((Source.FORWARD, numbers[var]), var.aval))
        run = extend_core.jaxpr_as_fun(closed)

        def forward(*args: Any) -> list[Any]:
            outs = run(*args)
            return [outs[i] for i in chosen]

        avals = [jaxpr.outvars[i].aval for i in chosen]
        return Fragment(forward, list(self.sources), avals), residuals

    # -- Backward --

    def _cotangent_inputs(self) -> dict[int, list[int]]:
        """Edges by the output that they carry."""
        outs = self.stage.outputs
        return {
            i: [n for n, e in enumerate(self.edges) if e.value is outs[i] and not e.is_forward_only]
            for i in self.float_outputs
        }

    def _backward(self, residuals: list[Any]) -> tuple[Fragment, list[int], list[int]]:
        """And the edges and parameters of its results, in their order."""
        inputs: list[Input] = []
        avals: list[Any] = []

        def position(source: Input, aval: Any) -> int:
            if source not in inputs:
                inputs.append(source)
                avals.append(aval)
            return inputs.index(source)

        leaves = [x if isinstance(x, _Fixed) else position(*x) for x in residuals]
        edges = self._cotangent_inputs()
        cotangents = {
            i: [position((Source.COTANGENT, n), self.stage.outputs[i].aval) for n in numbers]
            for i, numbers in edges.items()
        }
        tree, outs, loss = self.tree, self.stage.outputs, self.loss
        is_activation = [not self.stage.inputs[i].is_argument for i in self.diff]

        def backward(*args: Any) -> list[Any]:
            vjp = jax.tree.unflatten(tree, [x.value if isinstance(x, _Fixed) else args[x] for x in leaves])
            given = [_cotangent(outs[i], [args[n] for n in cotangents[i]], loss) for i in self.float_outputs]
            gradients = vjp(given)
            first = [g for g, flag in zip(gradients, is_activation) if flag]
            return first + [g for g, flag in zip(gradients, is_activation) if not flag]

        activations = [self._edge_of(self.stage.inputs[i]) for i, flag in zip(self.diff, is_activation) if flag]
        parameters = [self.stage.inputs[i].index for i, flag in zip(self.diff, is_activation) if not flag]
        structs = [_struct(aval) for aval in avals]
        results = jax.eval_shape(backward, *structs)
        fragment = Fragment(backward, inputs, list(results), structs)
        return fragment, activations, parameters


class _Fixed:
    def __init__(self, value: Any) -> None:
        self.value = value


def _cotangent(out: graph.Value, parts: list[Any], loss: graph.Value) -> Any:
    if out is loss:
        return jnp.ones(out.aval.shape, out.aval.dtype)
    if not parts:
        return jnp.zeros(out.aval.shape, out.aval.dtype)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _accumulate(types: Sequence[Any]) -> Fragment:
    count = len(types)

    def accumulate(*args: Any) -> list[Any]:
        return [total + part for total, part in zip(args[:count], args[count:])]

    inputs = [(Source.SUM, i) for i in range(count)] + [(Source.GRADIENT, i) for i in range(count)]
    return Fragment(accumulate, inputs, list(types))


# -- The two halves of a backward --------------------------------------------


class _Inliner(graph.Flattener):
    """Writes out all calls, so that each operation can be in one half or the other."""

    def is_place(self, eqn: Any) -> bool:
        return False

    def equation(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        if eqn.primitive.name in graph.CALLS:
            return self.inline(eqn, inputs)
        return self.step(eqn, inputs, None)


def _ancestors(steps: Sequence[graph.Step], results: Sequence[Any]) -> set[int]:
    wanted = {id(r) for r in results if isinstance(r, graph.Value)}
    found = set()
    for step in reversed(steps):
        if any(id(out) in wanted for out in step.outputs):
            found.add(id(step))
            wanted.update(id(x) for x in step.operands())
    return found


def _first_half(steps: list[graph.Step], activations: list[Any], gradients: list[Any]) -> set[int]:
    """What cotangents of activations need; in the first stage, which has none, what at least
    two gradients need."""
    if activations:
        return _ancestors(steps, activations)
    families = [_ancestors(steps, [g]) for g in gradients]
    return {id(step) for step in steps if sum(id(step) in family for family in families) > 1}


def _split(backward: Fragment, count: int) -> tuple[Fragment, Fragment]:
    closed = jax.make_jaxpr(backward.function)(*backward.input_types)
    jaxpr = closed.jaxpr
    arguments = [graph.Value(v.aval, index=i) for i, v in enumerate(jaxpr.invars)]
    inliner = _Inliner()
    results = inliner.run(jaxpr, [graph.Constant(c) for c in closed.consts], arguments)
    activations, gradients = results[:count], results[count:]
    first = _first_half(inliner.steps, activations, gradients)
    early = [step for step in inliner.steps if id(step) in first]
    wanted = _ancestors(inliner.steps, gradients)
    late = [step for step in inliner.steps if id(step) in wanted and id(step) not in first]
    stash = _crossing(early, late, gradients)
    outputs = activations + stash
    if not outputs:  # A computation has at least one result.
        outputs = arguments[-1:]
    return (
        _half(backward, arguments, early, outputs, {}),
        _half(backward, arguments, late, gradients, {id(v): count + i for i, v in enumerate(stash)}),
    )


def _crossing(early: list[graph.Step], late: list[graph.Step], gradients: list[Any]) -> list[graph.Value]:
    """What the first half makes and the second uses."""
    made = {id(out): out for step in early for out in step.outputs}
    used = [x for step in late for x in step.operands()] + [g for g in gradients if isinstance(g, graph.Value)]
    return list({id(x): x for x in used if id(x) in made}.values())


def _half(
    backward: Fragment, arguments: list[graph.Value], steps: list[graph.Step], results: list[Any],
    stash: dict[int, int],
) -> Fragment:
    made = {id(out) for step in steps for out in step.outputs}
    operands = [x for step in steps for x in step.operands()] + [r for r in results if isinstance(r, graph.Value)]
    inputs = list({id(x): x for x in operands if id(x) not in made}.values())
    run = cut.Stage(steps, inputs, results).function()
    sources = [
        (Source.INPUT_GRAD, stash[id(x)]) if id(x) in stash else backward.inputs[x.index] for x in inputs
    ]
    types = [r.aval if isinstance(r, graph.Value) else jax.typeof(r.val) for r in results]
    return Fragment(run, sources, types)


def make_fragments(
    stages: Sequence[cut.Stage], loss: graph.Value, results: Sequence[Any], kinds: Sequence[str]
) -> tuple[list[StageFragments], list[Edge]]:
    """`kinds`, by argument of the loss: "parameter", "batch" or "constant"."""
    edges = make_edges(stages)
    made = [_Maker(i, stage, edges, loss, kinds).make() for i, stage in enumerate(stages)]
    returned = {id(r) for r in results if isinstance(r, graph.Value)}
    for stage, fragments in zip(stages, made):
        fragments.outputs = [i for i, out in enumerate(stage.outputs) if id(out) in returned]
    return made, edges
