"""``PartitionSpec(unreduced=...)`` for an XLA that supports only part of it.

An array that is unreduced along a mesh axis is the sum of the devices' shards along that axis.
The cluster's XLA (tensorflow-cpu 2.21) is older than jaxlib's. Where the two differ, we add
sharding constraints to programs. They do not change the value of any array:

- XLA assumes that a result declared as unreduced is unreduced, even if it is replicated, and
  treats constants in the same way: a replicated value would be multiplied by the size of the
  axis. We make such values unreduced first.
- A change of both the unreduced axes and the sharded dimensions in one step gives wrong values
  (on JAX's own CPU backend too) or crashes the compiler. We do it in several steps.
- The same holds for an operation with an operand that is unreduced along one axis and a result
  that is unreduced along another. We reduce the operand first.
"""

from __future__ import annotations

import collections
import itertools
from typing import Any

# True once this process has lowered an unreduced sharding; programs are not searched before.
_is_used = False


def _axes(references: Any) -> list[str]:
    return [str(axis) for axis in references]


def _operations(module: Any, name: str) -> list[Any]:
    from jax._src.lib.mlir import ir

    found = []

    def look(operation: Any) -> Any:
        if operation.name == name:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return found


def _return_of(function: Any) -> Any:
    operations = function.regions[0].blocks[0].operations
    return operations[len(operations) - 1].operation


class _Shardings:
    """The shardings of the values of one module."""

    def __init__(self, module: Any) -> None:
        from jax._src.lib.mlir.dialects import sdy

        self._sdy = sdy
        self._arguments: dict[tuple[str, int], Any] = {}
        self._calls = collections.defaultdict(list)
        for call in _operations(module, "func.call"):
            self._calls[call.attributes["callee"].value].append(call)
        self._functions = {function.attributes["sym_name"].value: function
                           for function in _operations(module, "func.func")}

    def read(self, attribute: Any) -> Any:
        return self._sdy.TensorShardingAttr(attribute)

    def read_all(self, attribute: Any) -> list[Any]:
        per_value = self._sdy.TensorShardingPerValueAttr(attribute)
        return [self.read(sharding) for sharding in per_value.shardings]

    def dimensions(self, sharding: Any) -> list[list[str]]:
        """The axes of each dimension."""
        return [_axes(self._sdy.DimensionShardingAttr(dimension).axes)
                for dimension in sharding.dimension_shardings]

    def gathered(self, source: Any, target: Any) -> Any:
        """The target, with each dimension sharded by the axes that both begin with."""
        dimensions = []
        for of_source, of_target in zip(source.dimension_shardings, target.dimension_shardings):
            before, after = (self._sdy.DimensionShardingAttr(d) for d in (of_source, of_target))
            pairs = zip(_axes(before.axes), _axes(after.axes))
            same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
            dimensions.append(self._sdy.DimensionShardingAttr.get(
                list(after.axes)[:same], after.is_closed, after.priority))
        return self._sdy.TensorShardingAttr.get(
            target.mesh_or_ref, dimensions, target.replicated_axes, target.unreduced_axes)

    def with_unreduced(self, like: Any, axes: list[Any]) -> Any:
        return self._sdy.TensorShardingAttr.get(
            like.mesh_or_ref, like.dimension_shardings, like.replicated_axes, axes)

    def constrain(self, value: Any, sharding: Any, before: Any) -> Any:
        from jax._src.lib.mlir import ir

        return self._sdy.ShardingConstraintOp(
            value, sharding, loc=before.location, ip=ir.InsertionPoint(before)).result

    def of(self, value: Any) -> Any:
        """The sharding that the program gives to a value; None if it gives none."""
        from jax._src.lib.mlir import ir

        if isinstance(value, ir.BlockArgument):
            return self._of_argument(value)
        owner, number = value.owner.operation, ir.OpResult(value).result_number
        if owner.name == "sdy.sharding_constraint":
            return self.read(owner.attributes["sharding"])
        if owner.name == "sdy.manual_computation":
            return self.read_all(owner.attributes["out_shardings"])[number]
        if owner.name == "stablehlo.while":
            return self.of(owner.operands[number])
        if owner.name == "func.call":
            called = self._functions[owner.attributes["callee"].value]
            return self.of(_return_of(called).operands[number])
        if "sdy.sharding" in owner.attributes:
            return self.read_all(owner.attributes["sdy.sharding"])[number]
        return None

    def _of_argument(self, value: Any) -> Any:
        function, number = value.owner.owner.operation, value.arg_number
        if function.name == "stablehlo.while":  # A loop keeps the shardings of its values.
            return self.of(function.operands[number])
        if function.name != "func.func":
            return None
        key = (function.attributes["sym_name"].value, number)
        if key not in self._arguments:  # Avoids exponential time for nested calls.
            self._arguments[key] = self._declared(function, number) or self._of_callers(*key)
        return self._arguments[key]

    def _declared(self, function: Any, number: int) -> Any:
        if "arg_attrs" not in function.attributes:
            return None
        attributes = function.attributes["arg_attrs"][number]
        return self.read(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else None

    def _of_callers(self, name: str, number: int) -> Any:
        """The sharding that all calls agree on."""
        given = [self.of(call.operands[number]) for call in self._calls[name]]
        is_one = given and all(one is not None and one == given[0] for one in given)
        return given[0] if is_one else None


def _common(sharding: Any, other: Any) -> list[Any]:
    """The axes along which both are unreduced."""
    theirs = _axes(other.unreduced_axes)
    return [axis for axis in sharding.unreduced_axes if str(axis) in theirs]


def _is_within(sharding: Any, other: Any) -> bool:
    return len(_common(sharding, other)) == len(list(sharding.unreduced_axes))


def _added(source: Any, target: Any) -> set[str]:
    """The axes along which only the target is unreduced."""
    return set(_axes(target.unreduced_axes)) - set(_axes(source.unreduced_axes))


def _extends(before: list[list[str]], after: list[list[str]], axes: set[str]) -> bool:
    """True if each dimension is sharded as before, and then by some of `axes`."""
    return all(longer[:len(shorter)] == shorter and axes.issuperset(longer[len(shorter):])
               for shorter, longer in zip(before, after))


def _is_made(value: Any, source: Any) -> bool:
    """True if the program itself made the value unreduced. XLA cannot then make it unreduced
    along another axis."""
    from jax._src.lib.mlir import ir

    return bool(list(source.unreduced_axes)) and not isinstance(value, ir.BlockArgument)


def _steps(shardings: _Shardings, value: Any, source: Any, target: Any) -> list[Any]:
    """Intermediate shardings that XLA needs between source and target. One step may reduce axes
    and shard dimensions by them; another may make axes unreduced that sharded dimensions
    before; neither may do anything else. A value that stays unreduced is gathered, then
    sharded again."""
    added, removed = _added(source, target), _added(target, source)
    before, after = shardings.dimensions(source), shardings.dimensions(target)
    common = _common(source, target)
    if removed:
        if not added and _extends(before, after, removed):
            return []
        reduced = shardings.with_unreduced(source, common)
        return [reduced, *_steps(shardings, value, reduced, target)]
    if added:
        is_made = _is_made(value, source)
        if _extends(after, before, added) and not is_made:
            return []
        moved = shardings.with_unreduced(target, [] if is_made else common)
        return [*_steps(shardings, value, source, moved), moved]
    if not common or _extends(before, after, set()):
        return []
    gathered = shardings.gathered(source, target)
    return [step for step in (gathered,) if step not in (source, target)]


def _rewrite_returns(shardings: _Shardings, function: Any) -> None:
    """Constrains results that are declared as unreduced and are not, or the reverse."""
    if "res_attrs" not in function.attributes:
        return
    last = _return_of(function)
    for i, attributes in enumerate(function.attributes["res_attrs"]):
        if "sdy.sharding" not in attributes:
            continue
        wanted, found = shardings.read(attributes["sdy.sharding"]), shardings.of(last.operands[i])
        if found is not None and found == wanted:
            continue
        if any(list(one.unreduced_axes) for one in (wanted, found) if one is not None):
            last.operands[i] = shardings.constrain(last.operands[i], wanted, last)


def _rewrite_operands(shardings: _Shardings, operation: Any, target: Any) -> None:
    """Reduces operands of `operation` that are unreduced along axes along which `target` is not."""
    for i, operand in enumerate(operation.operands):
        source = shardings.of(operand)
        if source is not None and not _is_within(source, target):
            reduced = shardings.with_unreduced(source, _common(source, target))
            operation.operands[i] = shardings.constrain(operand, reduced, operation)


def _is_replicated(shardings: _Shardings, value: Any) -> bool:
    """True for an argument or a constant, possibly broadcast, that is not declared as unreduced.
    XLA would request such an argument as unreduced, and assumes that a broadcast is."""
    from jax._src.lib.mlir import ir

    source = shardings.of(value)
    if source is not None or isinstance(value, ir.BlockArgument):
        return source is None or not list(source.unreduced_axes)
    made_by = value.owner.operation
    return made_by.name in ("stablehlo.constant", "stablehlo.iota") or (
        made_by.name == "stablehlo.broadcast_in_dim"
        and _is_replicated(shardings, made_by.operands[0]))


def _rewrite_constraint(shardings: _Shardings, operation: Any) -> None:
    target = shardings.read(operation.attributes["sharding"])
    value = operation.operands[0]
    source = shardings.of(value)
    steps = []
    if source is not None:
        if source.mesh_or_ref == target.mesh_or_ref:
            steps = _steps(shardings, value, source, target)
    elif list(target.unreduced_axes):
        if _is_replicated(shardings, value):
            steps = [shardings.with_unreduced(target, [])]
        else:
            _rewrite_operands(shardings, value.owner.operation, target)
    for step in steps:
        value = shardings.constrain(value, step, operation)
    operation.operands[0] = value


def rewrite(module: Any) -> Any:
    """The program, or a copy of it that the cluster's XLA computes correctly."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    if not _is_used or "unreduced" not in str(module):
        return module
    with module.context, ir.Location.unknown(module.context):
        copy = ir.Module.parse(mlir.module_to_bytecode(module))
        shardings = _Shardings(copy)
        for function in _operations(copy, "func.func"):
            _rewrite_returns(shardings, function)
        for constraint in _operations(copy, "sdy.sharding_constraint"):
            _rewrite_constraint(shardings, constraint)
    return copy


def explain(module: Any, error: Exception) -> Exception | None:
    """The error with advice, if unreduced shardings may be its cause; else None."""
    if not _is_used or "ended by signal" not in str(error) or "unreduced" not in str(module):
        return None
    return type(error)(
        f"{error}\nThe program uses PartitionSpec(unreduced=...), which the cluster's XLA supports "
        "only in part. Change the sharding in two steps (jax.reshard), or sum with jax.lax.psum in "
        "jax.shard_map (docs/jax.md)"
    )


def install() -> None:
    """Records whether this process uses unreduced shardings."""
    from jax._src import named_sharding

    lower = named_sharding.named_sharding_to_sdy_sharding

    def lower_and_record(sharding: Any, *args: Any) -> Any:
        global _is_used
        _is_used = _is_used or bool(getattr(sharding.spec, "unreduced", None))
        return lower(sharding, *args)

    named_sharding.named_sharding_to_sdy_sharding = lower_and_record
