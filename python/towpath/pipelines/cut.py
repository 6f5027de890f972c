"""Cuts the jaxpr of a loss at its marks into stages.

An operation belongs to the stage of its latest operand; one that only parameters or the
batch go into, to the stage that uses it first. Constants are made in every stage that needs
them. Values flow forward only, from the stage that makes them to each that uses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any


from towpath.pipelines import marks
from towpath.programs import graph

Value, Step = graph.Value, graph.Step


class PipelineError(ValueError):
    """A loss cannot be cut into stages as it is; the message names the user's line."""


@dataclasses.dataclass
class Stage:
    """What one stage computes for one microbatch: `outputs` from `inputs`, which are
    arguments of the loss and values of earlier stages."""

    steps: list[Step]
    inputs: list[Value]
    outputs: list[Value]

    def function(self) -> Callable[..., list[Any]]:
        def run(*args: Any) -> list[Any]:
            env = {id(value): arg for value, arg in zip(self.inputs, args)}
            for step in self.steps:
                made = graph.evaluate(step, [_read(env, x) for x in step.inputs])
                env.update((id(value), out) for value, out in zip(step.outputs, made))
            return [_read(env, value) for value in self.outputs]

        return run


def _read(env: dict[int, Any], x: Any) -> Any:
    return env[id(x)] if isinstance(x, Value) else x.val


class _Cutter(graph.Flattener):
    """Writes out the calls that contain marks; a mark is the number of its values' stage."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[int, int] = {}  # By value; of arguments: none.
        self.marked: list[tuple[Any, list[Value]]] = []

    def is_place(self, eqn: Any) -> bool:
        return eqn.primitive is marks.stage_p

    def equation(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        if self.is_place(eqn):
            return self._mark(eqn, inputs)
        if any(map(self.has_places, graph.inner_jaxprs(eqn))):
            return self._inline_marked(eqn, inputs)
        return self.step(eqn, inputs, None)

    def _inline_marked(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        if eqn.primitive.name not in graph.CALLS:
            raise PipelineError(
                f"tow.stage inside `{eqn.primitive.name}`{graph.at_line(eqn)}: a stage ends between "
                f"operations; write the loop over layers in Python, with tow.stage between them"
            )
        return self.inline(eqn, inputs)

    def _mark(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        values = [x for x in inputs if isinstance(x, Value)]
        number = 1 + max((self.numbers.get(id(v.root()), 0) for v in values), default=0)
        outs = [Value(x.aval, base=x) if isinstance(x, Value) else x for x in inputs]
        made = [out for out in outs if isinstance(out, Value)]
        self.numbers.update((id(out), number) for out in made)
        self.marked.append((eqn, made))
        return outs

    def step(self, eqn: Any, inputs: list[Any], devices: Any) -> list[Any]:
        outs = super().step(eqn, inputs, devices)
        known = [self.numbers[id(x)] for x in inputs if isinstance(x, Value) and id(x) in self.numbers]
        if known:
            self.numbers.update((id(out), max(known)) for out in outs)
        return outs


def _check_marks(cutter: _Cutter, used: set[int]) -> None:
    for eqn, values in cutter.marked:
        if not any(id(value) in used for value in values):
            raise PipelineError(
                f"nothing depends on what tow.stage returns{graph.at_line(eqn)}: write `x = tow.stage(x)` "
                f"and go on with x"
            )


def _used_values(steps: Sequence[Step], results: Sequence[Any]) -> set[int]:
    values = [x for step in steps for x in step.operands()]
    values += [r for r in results if isinstance(r, Value)]
    used = set()
    for value in values:
        while value is not None:
            used.add(id(value))
            value = value.base
    return used


def _live(steps: list[Step], results: Sequence[Any]) -> list[Step]:
    wanted = {id(r.root()) for r in results if isinstance(r, Value)}
    live = []
    for step in reversed(steps):
        if step.eqn.effects or any(id(out) in wanted for out in step.outputs):
            wanted.update(id(x.root()) for x in step.operands())
            live.append(step)
    return live[::-1]


class _Assignment:
    """Stages of steps. `number`: by step; None: a constant, wherever it is needed."""

    def __init__(self, cutter: _Cutter, steps: list[Step], results: Sequence[Any]) -> None:
        self.numbers = cutter.numbers
        self.count = 1 + max(self.numbers.values(), default=0)
        self.number: dict[int, int | None] = {}
        # Stages that use a value as it is made; a mark uses it in the stage that it ends.
        users: dict[int, list[int]] = {}
        for value in (value for _, values in cutter.marked for value in values):
            users.setdefault(id(value.base), []).append(self.numbers[id(value)] - 1)
        for r in results:
            if isinstance(r, Value):
                users.setdefault(id(r), []).append(self.count - 1)
        for step in reversed(steps):
            self._assign(step, users)

    def _assign(self, step: Step, users: dict[int, list[int]]) -> None:
        known = [self.numbers[id(out)] for out in step.outputs if id(out) in self.numbers]
        wanted = [n for out in step.outputs for n in users.get(id(out), ())]
        number = known[0] if known else min(wanted, default=self.count - 1)
        self.number[id(step)] = number
        for x in step.operands():
            users.setdefault(id(x), []).append(number)


def _is_constant(step: Step, constants: set[int]) -> bool:
    return not step.eqn.effects and all(id(x.root()) in constants for x in step.operands())


def cut(closed: Any) -> tuple[list[Stage], list[Value], list[Any]]:
    """The stages of a loss, its arguments (the jaxpr's, then its constants), and what it
    returns: values and constants."""
    jaxpr = closed.jaxpr
    arguments = [Value(v.aval, index=i) for i, v in enumerate((*jaxpr.invars, *jaxpr.constvars))]
    cutter = _Cutter()
    count = len(jaxpr.invars)
    results = cutter.run(jaxpr, arguments[count:], arguments[:count])
    _check_marks(cutter, _used_values(cutter.steps, results))
    steps = _live(cutter.steps, results)
    assignment = _Assignment(cutter, steps, results)
    _rest(steps)
    results = [r.root() if isinstance(r, Value) else r for r in results]
    return _divide(steps, assignment, results), arguments, results


def _rest(steps: list[Step]) -> None:
    for step in steps:
        step.inputs = [x.root() if isinstance(x, Value) else x for x in step.inputs]


def _divide(steps: list[Step], assignment: _Assignment, results: Sequence[Any]) -> list[Stage]:
    constants: set[int] = set()
    shared: list[Step] = []
    own: list[list[Step]] = [[] for _ in range(assignment.count)]
    for step in steps:
        if _is_constant(step, constants):
            constants.update(id(out) for out in step.outputs)
            shared.append(step)
        else:
            own[assignment.number[id(step)]].append(step)
    stages = [_with_constants(members, shared) for members in own]
    return _connect(stages, results)


def _with_constants(members: list[Step], shared: list[Step]) -> list[Step]:
    """The constants that the steps need are made in their stage."""
    wanted = {id(x) for step in members for x in step.operands()}
    needed = []
    for step in reversed(shared):
        if any(id(out) in wanted for out in step.outputs):
            wanted.update(id(x) for x in step.operands())
            needed.append(step)
    return needed[::-1] + members


def _connect(stages: list[list[Step]], results: Sequence[Any]) -> list[Stage]:
    made = [{id(out) for step in steps for out in step.outputs} for steps in stages]
    inputs = []
    for steps, own in zip(stages, made):
        operands = [x for step in steps for x in step.operands() if id(x) not in own]
        inputs.append(list({id(x): x for x in operands}.values()))
    outside = {id(x) for stage_inputs in inputs for x in stage_inputs}
    outside.update(id(r) for r in results if isinstance(r, Value))
    outputs = [[out for step in steps for out in step.outputs if id(out) in outside] for steps in stages]
    # Constants are made in several stages; they are the outputs of none but the last that makes them.
    seen: set[int] = set()
    for at in range(len(stages) - 1, -1, -1):
        outputs[at] = [out for out in outputs[at] if id(out) not in seen]
        seen.update(map(id, outputs[at]))
    return [Stage(*parts) for parts in zip(stages, inputs, outputs)]


