"""Charts as SVG text: no script, readable in light and dark, each with its numbers as a title for screen readers.

Colours are classes; the style sheet has them. Coordinates are in user units of a fixed view box that scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 720, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 10, 26


class Point(NamedTuple):
    """One estimate over x, with its interval."""

    label: str
    """What x is, in words: a time, a number of sessions."""
    value: float
    low: float
    high: float
    n: int


def interval_line(
    points: Sequence[Point], *, title: str, low: float, high: float, mark: float | None = None, mark_label: str = ""
) -> str:
    """A line with its band; `mark` is a horizontal line (a target, zero). Empty text without points."""
    if not points:
        return ""
    span = (high - low) or 1.0
    inner_w, inner_h = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(index: int) -> float:
        return _LEFT + (inner_w * (index + 0.5) / len(points))

    def y(value: float) -> float:
        return _TOP + inner_h * (1 - (min(high, max(low, value)) - low) / span)

    up = [f"{x(i):.1f},{y(p.high):.1f}" for i, p in enumerate(points)]
    down = [f"{x(i):.1f},{y(p.low):.1f}" for i, p in enumerate(points)]
    line = [f"{x(i):.1f},{y(p.value):.1f}" for i, p in enumerate(points)]
    last = points[-1]
    summary = f"{title}: {last.value:.2f}, between {last.low:.2f} and {last.high:.2f}, at {last.label} (n={last.n})"
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(summary)}">',
        *(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>'
            for v in (low, low + span / 2, high)
        ),
    ]
    if mark is not None:
        at = f'y1="{y(mark):.1f}" y2="{y(mark):.1f}"'
        parts.append(f'<line class="mark" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" {at}/>')
        at = f'x="{_WIDTH - _RIGHT}" y="{y(mark) - 4:.1f}"'
        parts.append(f'<text class="tick" {at} text-anchor="end">{escape(mark_label)}</text>')
    parts.append(f'<polygon class="band" points="{" ".join([*up, *reversed(down)])}"/>')
    parts.append(f'<polyline class="line" points="{" ".join(line)}"/>')
    for i, p in enumerate(points):
        told = escape(f"{p.label}: {p.value:.2f} [{p.low:.2f}, {p.high:.2f}], n={p.n}")
        parts.append(f'<circle class="dot" cx="{x(i):.1f}" cy="{y(p.value):.1f}" r="3"><title>{told}</title></circle>')
    first, end = escape(points[0].label), escape(last.label)
    parts.append(f'<text class="tick" x="{_LEFT}" y="{_HEIGHT - 6}">{first}</text>')
    if len(points) > 1:
        parts.append(f'<text class="tick" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{end}</text>')
    parts.append("</svg>")
    return "".join(parts)


class Node(NamedTuple):
    """A version in the graph."""

    label: str
    parent: str | None
    kind: str
    """Of the box: champion, canary, shadow, previous, rolled, other."""
    title: str
    href: str


_NODE_W, _NODE_H, _GAP_X, _GAP_Y = 116, 40, 34, 16


def version_graph(nodes: Sequence[Node]) -> str:
    """Versions from left to right, each under its parent's line; a branch gets a row of its own."""
    if not nodes:
        return ""
    place: dict[str, tuple[int, int]] = {}
    taken: set[tuple[int, int]] = set()
    for node in nodes:
        column, row = 0, 0
        if node.parent in place:
            column, row = place[node.parent][0] + 1, place[node.parent][1]
        while (column, row) in taken:
            row += 1
        place[node.label] = (column, row)
        taken.add((column, row))

    def corner(label: str) -> tuple[float, float]:
        column, row = place[label]
        return 4 + column * (_NODE_W + _GAP_X), 4 + row * (_NODE_H + _GAP_Y)

    width = max(corner(n.label)[0] for n in nodes) + _NODE_W + 4
    height = max(corner(n.label)[1] for n in nodes) + _NODE_H + 4
    parts = [
        f'<svg class="graph" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="group" aria-label="{len(nodes)} versions">'
    ]
    for node in nodes:
        if node.parent in place:
            (px, py), (nx, ny) = corner(node.parent), corner(node.label)
            parts.append(
                f'<path class="edge" d="M{px + _NODE_W:.0f},{py + _NODE_H / 2:.0f} '
                f"C{px + _NODE_W + _GAP_X / 2:.0f},{py + _NODE_H / 2:.0f} {nx - _GAP_X / 2:.0f},{ny + _NODE_H / 2:.0f} "
                f'{nx:.0f},{ny + _NODE_H / 2:.0f}"/>'
            )
    for node in nodes:
        nx, ny = corner(node.label)
        parts.append(
            f'<a href="{escape(node.href)}" aria-label="version {escape(node.label)}: {escape(node.title)}">'
            f'<rect class="node {escape(node.kind)}" x="{nx:.0f}" y="{ny:.0f}" '
            f'width="{_NODE_W}" height="{_NODE_H}" rx="6"/>'
            f'<text class="node-label" x="{nx + 10:.0f}" y="{ny + 17:.0f}">{escape(node.label)}</text>'
            f'<text class="node-kind" x="{nx + 10:.0f}" y="{ny + 32:.0f}">{escape(node.title[:18])}</text></a>'
        )
    parts.append("</svg>")
    return "".join(parts)
