"""``tow.explain``: what a program is made of, as text and as a drawing.

Nodes, slices and the bytes between them come from the program's graph. On Towpath the memory
by device is the controller's: ``tow lower --memory`` computes it from ``program.text`` with
the same function. Elsewhere there is no such program, and the text says that the numbers are
sums of the arrays' sizes.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from towpath import command, plugin
from towpath.programs import build, drawing, graph, library, slices
from towpath.programs.program import Program, default_devices

_BOOKS = "as the controller accounts for it (`tow lower --memory` of program.text)"
_SIZES = "sizes of arguments and of all results of nodes: an upper bound, without temporaries"


@dataclasses.dataclass
class Memory:
    """Bytes of one device. `peak`: what a run takes beside the arguments, at most."""

    arguments: int = 0
    peak: int = 0
    results: int = 0

    def __iadd__(self, other: Memory) -> Memory:
        self.arguments += other.arguments
        self.peak += other.peak
        self.results += other.results
        return self


@dataclasses.dataclass
class Edge:
    """A value from where it is made to where it is used. `moved`: bytes that arrive on all
    devices together if it is transferred; 0 if it is used where it is."""

    source: str
    target: str
    type: str
    bytes: int
    moved: int
    places: tuple[graph.Devices, graph.Devices]


class Explanation:
    """The result of :func:`explain`: `text`, `svg`, `edges`, and `memory` by device. A
    notebook shows the drawing."""

    def __init__(self, name: str, text: str, svg: str, edges: list[Edge], memory: dict[Any, Memory]) -> None:
        self.name = name
        self.text = text
        self.svg = svg
        self.edges = edges
        self.memory = memory

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the drawing to a file."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str:
        return f"<div style='overflow-x: auto'>{self.svg}</div>"

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<explanation of {self.name}: {len(self.text.splitlines())} lines, a drawing>"


# -- Sizes -------------------------------------------------------------------


def type_of(aval: Any) -> str:
    """"f32[8,4]"."""
    return aval.str_short(short_dtypes=True)


def bytes_of(aval: Any, shape: Sequence[int] | None = None) -> int:
    return math.prod(aval.shape if shape is None else shape) * aval.dtype.itemsize


def shard_bytes(aval: Any, sharding: Any) -> int:
    return bytes_of(aval, sharding.shard_shape(aval.shape))


def show_bytes(count: int) -> str:
    """"1.5 KiB"."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


# -- The program -------------------------------------------------------------


class _Subject:
    """A program for some arguments: its graph, and the plan that the cluster has, if any."""

    def __init__(self, name: str, made: graph.Graph, names: list[str], built: build.Built | None) -> None:
        self.name = name
        self.made = made
        self.built = built
        self.labels = {id(v): names[v.index] if v.index < len(names) else f"constant {v.index - len(names)}"
                       for v in made.arguments}
        for number, node in enumerate(made.nodes):
            self.labels.update((id(value), _output_label(number, node, value)) for value in node.outputs)

    def label(self, value: graph.Value) -> str:
        return self.labels[id(value.root())]

    def inputs(self, number: int) -> Iterator[tuple[graph.Value, Any]]:
        """What a node takes, and the sharding that it takes it with."""
        node = self.made.nodes[number]
        stated = node.in_shardings
        compiled = self.built.compiled[number] if self.built is not None else None
        if compiled is not None:
            stated = jax.tree.leaves(compiled.input_shardings[0])
        for value, sharding in zip(node.inputs, stated):
            yield value, sharding if sharding is not None else build.replicated(node.devices)

    def results(self) -> list[tuple[graph.Value, Any]]:
        """What the program gives, and the sharding of each."""
        if self.built is not None:
            return [pair for port in self.built.ports for pair in port.results]
        return [(r.root(), build.replicated(r.where() or r.root().devices))
                for r in self.made.results if isinstance(r, graph.Value) and not r.is_argument]

    def used_arguments(self) -> list[graph.Value]:
        return [v for v in self.made.arguments if v.users]

    def devices(self) -> list[graph.Devices]:
        """The sets of devices that the program uses, in the order of first use."""
        sets = [v.devices for v in self.used_arguments()] + [node.devices for node in self.made.nodes]
        sets += [graph.devices_of_sharding(s) for _, s in self.results()]
        return list(dict.fromkeys(s for s in sets if s is not None))


def _output_label(number: int, node: graph.Node, value: graph.Value) -> str:
    """"%4", or "%4:1" of several; as in the program's text."""
    return f"%{number}" if len(node.outputs) == 1 else f"%{number}:{node.outputs.index(value)}"


def _argument_names(program: Program, tree: Any, count: int) -> list[str]:
    """"w[0]", "batch['x']": as the user would write them."""
    args, kwargs = jax.tree.unflatten(tree, range(count))
    try:
        known = list(inspect.signature(program.fn).parameters)
    except (TypeError, ValueError):
        known = []
    names = []
    for first, trees in ((known, args), (None, kwargs)):
        for path, _ in jax.tree_util.tree_flatten_with_path(trees)[0]:
            head, rest = path[0], jax.tree_util.keystr(path[1:])
            at = head.key if first is None else head.idx
            names.append((at if first is None else first[at] if at < len(first) else f"argument {at}") + rest)
    return names


def _subject(program: Program, args: tuple, kwargs: dict) -> _Subject:
    if library.is_available():
        tree, plan = program.plan_for(args, kwargs) if args or kwargs else program.latest_plan()
        return _Subject(program.name, plan.built.graph, _argument_names(program, tree, len(plan.wants)), plan.built)
    tree, static, leaves, rest = program.signature(args, kwargs)
    closed, _ = program.trace(tree, static, leaves)
    made = graph.make_graph(closed, default_devices(leaves), program.fuse)
    return _Subject(program.name, made, _argument_names(program, tree, len(leaves)), None)


# -- Edges -------------------------------------------------------------------


def _moved_bytes(value: graph.Value, target: Any, devices: graph.Devices) -> int:
    root = value.root()
    is_same = root.sharding is None or root.sharding.is_equivalent_to(target, len(value.aval.shape))
    if root.devices == devices and is_same:
        return 0
    return shard_bytes(value.aval, target) * len(devices)


def _edge(subject: _Subject, value: graph.Value, to: str, sharding: Any, devices: graph.Devices) -> Edge:
    return Edge(
        subject.label(value), to, type_of(value.aval), bytes_of(value.aval),
        _moved_bytes(value, sharding, devices), (value.root().devices, devices),
    )


def _edges(subject: _Subject) -> Iterator[Edge]:
    for number, node in enumerate(subject.made.nodes):
        for value, sharding in subject.inputs(number):
            yield _edge(subject, value, f"%{number}", sharding, node.devices)
    for number, (value, sharding) in enumerate(subject.results()):
        yield _edge(subject, value, f"result {number}", sharding, graph.devices_of_sharding(sharding))


def _transfers(edges: Sequence[Edge]) -> list[tuple[Edge, list[str]]]:
    """What moves: a value that several nodes of one slice take moves there once."""
    merged: dict[Any, tuple[Edge, list[str]]] = {}
    for edge in edges:
        if edge.moved:
            key = (edge.source, edge.type, edge.places[1], edge.moved)
            merged.setdefault(key, (edge, []))[1].append(edge.target)
    return list(merged.values())


# -- Memory ------------------------------------------------------------------


def _tow() -> Path | None:
    """The command: of this package, of the build folder with the plugin, or of the user."""
    found = plugin.library_path()
    built = found.resolve().parents[2] / "tow" if found is not None and len(found.resolve().parents) > 2 else None
    named = shutil.which("tow")
    places = [command.PROGRAM, built, Path(named) if named else None]
    return next((p for p in places if p is not None and p.is_file()), None)


def _lower(text: str, *options: str) -> list[dict[str, Any]]:
    tow = _tow()
    if tow is None:
        raise library.TowpathError("NOT_FOUND: the command `tow` is not there: put it into PATH")
    done = subprocess.run([tow, "lower", "-", "--json", *options], input=text, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise library.TowpathError(f"INTERNAL: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _slices_of_text(subject: _Subject, text: str) -> dict[int, graph.Devices]:
    """Which devices the slices of the text are: its nodes are ours, in our order."""
    ports = subject.built.ports
    places = [port.devices for port in ports for _ in port.arguments]
    places += [node.devices for node in subject.made.nodes]
    (program,) = _lower(text, "--after", "verify")
    known = {node["slice"]: devices for node, devices in zip(program["nodes"], places)}
    results = iter([port.devices for port in ports for _ in port.results])
    at = None
    for node in program["nodes"][len(places) :]:
        if node["kind"] == "transfer":  # Of the result that follows.
            at = node["slice"]
            continue
        devices = next(results)
        if at is not None:
            known[at] = devices
        at = None
    return known


def _memory_by_books(subject: _Subject) -> dict[Any, Memory]:
    text = subject.built.builder.text()
    known = _slices_of_text(subject, text)
    memory: dict[Any, Memory] = {}
    for row in _lower(text, "--memory"):
        for device in known[row["slice"]]:
            memory.setdefault(device, Memory())
            memory[device] += Memory(row["argument_bytes"], row["peak_bytes"], row["result_bytes"])
    return memory


def _memory_by_sizes(subject: _Subject) -> dict[Any, Memory]:
    memory = {device: Memory() for devices in subject.devices() for device in devices}

    def add(value: graph.Value, devices: graph.Devices, **what: int) -> None:
        for device in devices:
            memory[device] += Memory(**dict.fromkeys(what, bytes_of(value.aval)))

    for value in subject.used_arguments():
        add(value, value.devices, arguments=1)
    for node in subject.made.nodes:
        for value in node.outputs:
            add(value, node.devices, peak=1)
    for value, sharding in subject.results():
        add(value, graph.devices_of_sharding(sharding), results=1)
    return memory


# -- Text --------------------------------------------------------------------


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
            for row in (head, *rows)]


def _node_rows(subject: _Subject) -> Iterator[list[str]]:
    for number, node in enumerate(subject.made.nodes):
        takes = ", ".join(subject.label(value) for value in node.inputs)
        gives = ", ".join(type_of(value.aval) for value in node.outputs)
        line = os.path.basename(node.line)
        yield [f"%{number}", node.name, slices.name_of(node.devices), takes or "-", gives or "-", line]


def _argument_rows(subject: _Subject) -> Iterator[list[str]]:
    for value in subject.made.arguments:
        where = slices.name_of(value.devices) if value.users else "-"
        yield [subject.label(value), type_of(value.aval), show_bytes(bytes_of(value.aval)), where]


def _transfer_rows(edges: Sequence[Edge]) -> Iterator[list[str]]:
    for edge, targets in _transfers(edges):
        count = len(edge.places[1])
        each = f"{show_bytes(edge.moved // count)} on each of {count}" if count > 1 else ""
        way = " -> ".join(map(slices.name_of, edge.places))
        yield [f"{edge.source} -> {', '.join(targets)}", way, edge.type, show_bytes(edge.moved), each]


def _memory_rows(memory: dict[Any, Memory]) -> Iterator[list[str]]:
    for device, row in memory.items():
        yield [str(device.id), *map(show_bytes, (row.arguments, row.peak, row.results))]


def _text(subject: _Subject, edges: list[Edge], memory: dict[Any, Memory]) -> str:
    places = subject.devices()
    counts = (f"{len(subject.made.nodes)} node(s) on {len(places)} slice(s), {len(subject.made.arguments)} "
              f"argument(s), {len(subject.made.results)} result(s)")
    parts = [[f"program {subject.name}: {counts}"]]
    parts.append([f"  {slices.name_of(p)}: devices {', '.join(str(d.id) for d in p)}" for p in places])
    if subject.made.arguments:
        parts.append(_table(("argument", "type", "bytes", "slice"), list(_argument_rows(subject))))
    parts.append(_table(("node", "name", "slice", "takes", "gives", "line"), list(_node_rows(subject))))
    moves = list(_transfer_rows(edges))
    parts.append(_table(("transfer", "slices", "type", "bytes", ""), moves) if moves else ["  no transfers"])
    parts.append(_table(("device", "arguments", "run at most", "of them results"), list(_memory_rows(memory))))
    parts[-1].append(f"  memory: {_BOOKS if subject.built is not None else _SIZES}")
    return "\n\n".join("\n".join(part) for part in parts)


# -- Drawing -----------------------------------------------------------------

# Beyond this a drawing is not readable, and a browser slow.
_DRAWN_MAX = 300
# Arguments of a slice beyond this are one box.
_ARGUMENTS_MAX = 6


def _argument_boxes(subject: _Subject) -> Iterator[tuple[drawing.Box, list[str]]]:
    """Boxes, and the labels of the arguments that each stands for."""
    by_place = itertools.groupby(sorted(subject.used_arguments(), key=lambda v: slices.name_of(v.devices)),
                                 key=lambda v: slices.name_of(v.devices))
    for place, group in by_place:
        values = list(group)
        labels = [subject.label(v) for v in values]
        if len(values) <= _ARGUMENTS_MAX:
            for value, label in zip(values, labels):
                yield drawing.Box(label, label, type_of(value.aval), place, "end"), [label]
            continue
        total = show_bytes(sum(bytes_of(v.aval) for v in values))
        yield drawing.Box(f"arguments {place}", f"{len(values)} arguments", total, place, "end"), labels


def _node_boxes(subject: _Subject) -> Iterator[drawing.Box]:
    for number, node in enumerate(subject.made.nodes[:_DRAWN_MAX]):
        detail = os.path.basename(node.line)
        yield drawing.Box(f"%{number}", f"%{number} {node.name}", detail, slices.name_of(node.devices), "node")


def _result_boxes(subject: _Subject) -> Iterator[drawing.Box]:
    for number, (value, sharding) in enumerate(subject.results()):
        place = slices.name_of(graph.devices_of_sharding(sharding))
        yield drawing.Box(f"result {number}", f"result {number}", type_of(value.aval), place, "end")


def _draw(subject: _Subject, edges: list[Edge]) -> str:
    named = list(_argument_boxes(subject))
    stands_for = {label: box.key for box, labels in named for label in labels}
    boxes = [box for box, _ in named] + list(_node_boxes(subject)) + list(_result_boxes(subject))
    known = {box.key for box in boxes}
    arrows = {}
    for edge in edges:
        source = stands_for.get(edge.source) or edge.source.split(":")[0]
        if source in known and edge.target in known:
            label = show_bytes(edge.moved) if edge.moved else ""
            arrows[source, edge.target] = drawing.Arrow(source, edge.target, label)
    title = f"program {subject.name}"
    if len(subject.made.nodes) > _DRAWN_MAX:
        title += f": the first {_DRAWN_MAX} of {len(subject.made.nodes)} nodes"
    places = {slices.name_of(p): f"devices {', '.join(str(d.id) for d in p)}" for p in subject.devices()}
    return drawing.draw(title, places, boxes, list(arrows.values()))


# -- The whole ---------------------------------------------------------------


def _program_of(given: Any) -> Program:
    if isinstance(given, Program):
        return given
    if not callable(given):
        raise TypeError(f"tow.explain explains a program or a function, not {type(given).__name__}")
    return Program(given, (), (), (), False)


def explain(program: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Prints what a program is made of for these arguments: nodes, slices, the bytes between
    them and the memory that it takes on each device; gives an object with the text and a
    drawing (`text`, `svg`, `save(path)`), which a notebook shows.

    Nothing runs. Arguments may be ``jax.ShapeDtypeStruct``. Without any, the program is
    explained for the arguments that it was traced with last.
    """
    subject = _subject(_program_of(program), args, kwargs)
    edges = list(_edges(subject))
    memory = _memory_by_books(subject) if subject.built is not None else _memory_by_sizes(subject)
    made = Explanation(subject.name, _text(subject, edges, memory), _draw(subject, edges), edges, memory)
    print(made.text)
    return made
