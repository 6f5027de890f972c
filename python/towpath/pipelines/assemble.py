"""From the fragments of a pipeline and a schedule to the graph of one training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import numpy as jnp

from towpath.pipelines.fragments import Edge, Fragment, Kind, StageFragments
from towpath.programs import graph, library

NONE = 0xFFFFFFFF
LETTERS = {
    Kind.FORWARD: "F", Kind.BACKWARD: "B", Kind.INPUT_GRAD: "I", Kind.WEIGHT_GRAD: "W",
    Kind.RECOMPUTE: "R", Kind.ACCUMULATE: "A",
}


@dataclasses.dataclass
class PlanNode:
    """A node of plan/schedule/nodes.h."""

    kind: int  # 0: argument, 1: call, 4: result.
    device: int
    stage: int
    microbatch: int | None
    fragment: int
    index: int
    results: int
    operands: list[tuple[int, int]]


ARGUMENT, CALL, RESULT = 0, 1, 4


def _words_of_fragment(fragment: Fragment | None, function: int) -> Iterator[int]:
    if fragment is None:
        yield 0
        return
    yield from (1, function, len(fragment.results), len(fragment.inputs))
    for source, index in fragment.inputs:
        yield from (int(source), index)


def _words_of_stage(number: int, stage: StageFragments) -> Iterator[int]:
    yield from (len(stage.arguments), len(stage.batch), len(stage.parameters))
    yield from (stage.backward_gradient, stage.weight_gradient)
    yield from (len(stage.outputs), *stage.outputs)
    for kind in Kind:
        yield from _words_of_fragment(stage.fragments.get(kind), number * len(Kind) + kind)


def _words(stages: Sequence[StageFragments], edges: Sequence[Edge]) -> list[int]:
    words = [len(stages)]
    for number, stage in enumerate(stages):
        words.extend(_words_of_stage(number, stage))
    words.append(len(edges))
    for edge in edges:
        words += [edge.from_stage, edge.to_stage, int(edge.is_forward_only), edge.result, edge.cotangent]
    return words


def _read_nodes(words: Sequence[int]) -> Iterator[PlanNode]:
    at = 0
    while at < len(words):
        kind, device, stage, microbatch, fragment, _, index, results, operands = words[at : at + 9]
        at += 9
        pairs = [(words[at + 2 * i], words[at + 2 * i + 1]) for i in range(operands)]
        at += 2 * operands
        yield PlanNode(
            kind, device, stage, None if microbatch == NONE else microbatch, fragment, index, results, pairs
        )


def plan_nodes(csv: str, stages: Sequence[StageFragments], edges: Sequence[Edge]) -> list[PlanNode]:
    """The nodes in an order that is, restricted to a device, the device's schedule."""
    return list(_read_nodes(library.schedule_nodes(csv, _words(stages, edges))))


def make_node(
    name: str, devices: graph.Devices, function: Callable, key: Any, inputs: list[graph.Value],
    types: Sequence[Any], donated: list[bool] | None = None,
) -> graph.Node:
    outputs = [graph.Value(aval, index=i, devices=devices) for i, aval in enumerate(types)]
    step = graph.Step(None, list(inputs), outputs, True, devices)
    for value in outputs:
        value.step = step
    for value in inputs:
        value.root().users.append(step)
    return graph.Node(
        name, devices, [], inputs, outputs, [None] * len(inputs), [None] * len(outputs),
        donated or [False] * len(inputs), "", function, key,
    )


class Assembly:
    """The graph of a step, as it is written."""

    def __init__(self, devices: Sequence[graph.Devices], arguments: list[graph.Value]) -> None:
        self.devices = list(devices)  # By row of the schedule.
        self.arguments = arguments
        self.nodes: list[graph.Node] = []
        self.parts: dict[int, list[graph.Value]] = {}  # Of batch arguments, by microbatch.

    def add(self, node: graph.Node) -> list[graph.Value]:
        self.nodes.append(node)
        return node.outputs

    def split(self, argument: int, devices: graph.Devices, count: int) -> list[graph.Value]:
        """The microbatches of a batch argument, made where it is used first."""
        if argument not in self.parts:
            value = self.arguments[argument]
            value.devices = devices
            self.parts[argument] = self._split(value, devices, count)
        return self.parts[argument]

    def _split(self, value: graph.Value, devices: graph.Devices, count: int) -> list[graph.Value]:
        aval = value.aval
        if is_key(aval):
            types = [_part_type(aval, aval.shape)] * count
            function = lambda key: [jax.random.fold_in(key, m) for m in range(count)]  # noqa: E731
        elif aval.ndim == 0:
            return [value] * count
        else:
            rows = aval.shape[0] // count
            types = [_part_type(aval, (rows, *aval.shape[1:]))] * count
            function = lambda x: [x[m * rows : (m + 1) * rows] for m in range(count)]  # noqa: E731
        key = ("split", str(aval), count)
        return self.add(make_node("split", devices, function, key, [value], types))

    def schedule(
        self, nodes: Sequence[PlanNode], stages: Sequence[StageFragments], microbatches: int
    ) -> tuple[dict[tuple[int, int], graph.Value], dict[tuple[int, int, int], graph.Value]]:
        """Adds the nodes of a schedule; gives the sums of gradients by stage and number, and
        outputs by stage, microbatch and number."""
        values: list[list[graph.Value]] = []
        sums, outputs = {}, {}
        for node in nodes:
            stage = stages[node.stage]
            if node.kind == ARGUMENT:
                values.append([self._argument(node, stage, microbatches)])
            elif node.kind == CALL:
                values.append(self._call(node, stage, [values[n][i] for n, i in node.operands]))
            else:
                values.append([])
                value = values[node.operands[0][0]][node.operands[0][1]]
                if node.microbatch is None:
                    sums[node.stage, node.index] = value
                else:
                    outputs[node.stage, node.microbatch, node.index] = value
        return sums, outputs

    def _argument(self, node: PlanNode, stage: StageFragments, microbatches: int) -> graph.Value:
        devices = self.devices[node.device]
        if node.microbatch is not None:
            return self.split(stage.batch[node.index], devices, microbatches)[node.microbatch]
        value = self.arguments[stage.arguments[node.index]]
        value.devices = value.devices or devices
        return value

    def _call(self, node: PlanNode, stage: StageFragments, inputs: list[graph.Value]) -> list[graph.Value]:
        kind = Kind(node.fragment)
        fragment = stage.fragments.get(kind) or stage.fragments[Kind.FORWARD]
        where = f"stage {node.stage}, microbatch {node.microbatch}"
        name = f"{node.stage}{LETTERS[kind]}{node.microbatch} ({where})"
        donated = None
        if kind is Kind.ACCUMULATE:  # The sum so far is overwritten.
            donated = [i < len(fragment.results) for i in range(len(inputs))]
        key = (id(fragment), kind)
        made = make_node(
            name, self.devices[node.device], fragment.function, key, inputs, fragment.results, donated
        )
        return self.add(made)


def is_key(aval: Any) -> bool:
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def _part_type(aval: Any, shape: tuple[int, ...]) -> Any:
    return jax.core.ShapedArray(shape, aval.dtype)


def mean(values: Sequence[Any]) -> Any:
    """In the order of microbatches, as a loop would."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total / len(values) if jnp.issubdtype(total.dtype, jnp.inexact) else total
