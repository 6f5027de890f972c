"""A drawing of a graph as SVG: a lane for each slice, time from left to right. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape

_BOX = (136, 36)
_STEP = (200, 48)  # From box to box.
_MARGIN = 12
_HEAD = 40
_LANE_LABEL = 110
_TEXT_MAX = 21
_LANES = ("#eef4fb", "#f6f1e7", "#eef7ee", "#f7eef5", "#f3f3f3")
_FILLS = {"node": "#ffffff", "end": "#e4e4e4", "host": "#fff6c8"}
_STYLE = (
    "text{font-family:sans-serif;font-size:11px;fill:#222}"
    ".d{font-size:9px;fill:#666}.t{font-size:14px}"
    "path{fill:none;stroke:#888}.m{stroke:#c0392b}.b{font-size:9px;fill:#c0392b}"
)


@dataclasses.dataclass
class Box:
    key: str
    name: str
    detail: str
    lane: str
    kind: str  # One of _FILLS.


@dataclasses.dataclass
class Arrow:
    source: str
    target: str
    label: str  # Bytes that move; "": it stays where it is.


def _levels(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> dict[str, int]:
    """The length of the longest path to each box; boxes come after what they take."""
    sources: dict[str, list[str]] = {}
    for arrow in arrows:
        sources.setdefault(arrow.target, []).append(arrow.source)
    levels: dict[str, int] = {}
    for box in boxes:
        levels[box.key] = max((levels[s] + 1 for s in sources.get(box.key, ())), default=0)
    return levels


class _Layout:
    """Positions: a column for each level, a lane for each slice, boxes of one column and
    lane below each other."""

    def __init__(self, lanes: Sequence[str], boxes: Sequence[Box], levels: dict[str, int]) -> None:
        rows: dict[tuple[str, int], int] = {}
        at: dict[str, tuple[int, int]] = {}
        for box in boxes:
            cell = (box.lane, levels[box.key])
            at[box.key] = (cell[1], rows.get(cell, 0))
            rows[cell] = rows.get(cell, 0) + 1
        heights = {lane: max([n for (name, _), n in rows.items() if name == lane], default=1) for lane in lanes}
        self.tops: dict[str, int] = {}
        top = _HEAD
        for lane in lanes:
            self.tops[lane] = top
            top += heights[lane] * _STEP[1] + _MARGIN
        self.bottom = top
        self.width = _LANE_LABEL + (max(levels.values(), default=0) + 1) * _STEP[0]
        self.places = {
            box.key: (_LANE_LABEL + at[box.key][0] * _STEP[0], self.tops[box.lane] + _MARGIN + at[box.key][1] * _STEP[1])
            for box in boxes
        }


def _shorten(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{style}>{escape(text)}</text>'


def _draw_lane(layout: _Layout, number: int, lane: str, detail: str) -> str:
    tops = list(layout.tops.values()) + [layout.bottom]
    top, height = tops[number], tops[number + 1] - tops[number]
    fill = _LANES[number % len(_LANES)]
    return (
        f'<rect x="0" y="{top}" width="{layout.width}" height="{height}" fill="{fill}"/>'
        + _text(_MARGIN, top + 20, lane) + _text(_MARGIN, top + 34, _shorten(detail), "d")
    )


def _draw_box(layout: _Layout, box: Box) -> str:
    x, y = layout.places[box.key]
    return (
        f'<g><title>{escape(box.name)} {escape(box.detail)}</title>'
        f'<rect x="{x}" y="{y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="5" fill="{_FILLS[box.kind]}" stroke="#555"/>'
        + _text(x + 6, y + 15, _shorten(box.name)) + _text(x + 6, y + 28, _shorten(box.detail), "d") + "</g>"
    )


def _draw_arrow(layout: _Layout, arrow: Arrow) -> str:
    x0, y0 = layout.places[arrow.source]
    x1, y1 = layout.places[arrow.target]
    x0, y0, y1 = x0 + _BOX[0], y0 + _BOX[1] / 2, y1 + _BOX[1] / 2
    middle = (x0 + x1) / 2
    kind = ' class="m"' if arrow.label else ""
    path = f'<path d="M{x0:g} {y0:g}C{middle:g} {y0:g} {middle:g} {y1:g} {x1:g} {y1:g}"{kind} marker-end="url(#a)"/>'
    return path + (_text(middle - 14, (y0 + y1) / 2 - 3, arrow.label, "b") if arrow.label else "")


def draw(title: str, lanes: dict[str, str], boxes: Sequence[Box], arrows: Sequence[Arrow]) -> str:
    """`lanes`: names and details, from top to bottom. A box comes after those with arrows to
    it. Red arrows have labels."""
    layout = _Layout(list(lanes), boxes, _levels(boxes, arrows))
    width, height = layout.width, layout.bottom + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="a" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
        '<polygon points="0,0 6,3 0,6" fill="#888"/></marker></defs>',
        _text(_MARGIN, 24, title, "t"),
    ]
    parts += [_draw_lane(layout, i, lane, lanes[lane]) for i, lane in enumerate(lanes)]
    parts += [_draw_arrow(layout, arrow) for arrow in arrows]
    parts += [_draw_box(layout, box) for box in boxes]
    return "\n".join([*parts, "</svg>"]) + "\n"
