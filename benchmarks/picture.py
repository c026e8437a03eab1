"""Pictures for the documents: panels with axes, squares and lines, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 34, 44
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.title{font-weight:bold}"
    ".axis{stroke:#333;fill:none}.grid{stroke:#ddd;fill:none}"
)

Point = tuple[float, float]


class Panel:
    """One diagram.

    Parameters
    ----------
    title, x_label, y_label : str
        What is said of it.
    x_ticks, y_ticks : sequence of int
        Where numbers stand; the first and the last are the ends of the axes.
    size : tuple of int
        Width and height of the picture it takes.
    """

    def __init__(
        self,
        title: str,
        x_label: str,
        y_label: str,
        x_ticks: Sequence[int],
        y_ticks: Sequence[int],
        size: tuple[int, int],
    ) -> None:
        self.size = size
        self._x_range, self._y_range = (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1])
        left, right = self._x(x_ticks[0]), self._x(x_ticks[-1])
        bottom, top = self._y(y_ticks[0]), self._y(y_ticks[-1])
        middle = (bottom + top) / 2
        self.parts = [
            _text(left, top - 14, title, css="title"),
            _text((left + right) / 2, bottom + 36, x_label, anchor="middle"),
            _text(left - 48, middle, y_label, anchor="middle", turn=True),
        ]
        for tick in x_ticks:
            self.parts.append(_text(self._x(tick), bottom + 18, f"{tick:,}", anchor="middle"))
        for tick in y_ticks:
            y = self._y(tick)
            self.parts.append(f'<path class="grid" d="M{left:g} {y:g}H{right:g}"/>')
            self.parts.append(_text(left - 6, y + 4, f"{tick:,}", anchor="end"))
        self.parts.append(f'<path class="axis" d="M{left:g} {top:g}V{bottom:g}H{right:g}"/>')

    def add_squares(self, points: Sequence[Point], side: float, colour: str) -> None:
        """Draw a square for each point."""
        path = "".join(
            f"M{self._x(x) - side / 2:.4g} {self._y(y) - side / 2:.4g}h{side}v{side}h-{side}z"
            for x, y in points
        )
        self.parts.append(f'<path fill="{colour}" d="{path}"/>')

    def add_line(self, points: Sequence[Point], colour: str) -> None:
        """Draw a line through points."""
        path = " ".join(f"{self._x(x):.1f},{self._y(y):.1f}" for x, y in points)
        self.parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>'
        )

    def add_key(self, entries: Sequence[tuple[str, str]], y: float) -> None:
        """Say what colours mean, at a height."""
        x, top = self._x(self._x_range[0]) + 14, self._y(y)
        for row, (name, colour) in enumerate(entries):
            below = top + 18 * row
            self.parts.append(f'<path fill="{colour}" d="M{x:g} {below:g}h9v9h-9z"/>')
            self.parts.append(_text(x + 15, below + 9, name))

    def _x(self, value: float) -> float:
        first, last = self._x_range
        return _LEFT + (self.size[0] - _LEFT - _RIGHT) * (value - first) / (last - first)

    def _y(self, value: float) -> float:
        first, last = self._y_range
        height = self.size[1] - _TOP - _BOTTOM
        return _TOP + height * (1 - (value - first) / (last - first))


def write_picture(path: Path, rows: Sequence[Sequence[Panel]]) -> None:
    """Write rows of panels into one picture."""
    body, top, width = [], 0, 0
    for row in rows:
        left = 0
        for panel in row:
            body.append(f'<g transform="translate({left} {top})">{"".join(panel.parts)}</g>')
            left += panel.size[0]
        top += max(panel.size[1] for panel in row)
        width = max(width, left)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}">'
    back = f'<rect width="{width}" height="{top}" fill="#fff"/>'
    lines = [head, f"<style>{_STYLE}</style>", back, *body, "</svg>"]
    path.write_text("\n".join(lines) + "\n")


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", css: str = "", turn: bool = False
) -> str:
    kind = f' class="{css}"' if css else ""
    turned = f' transform="rotate(-90 {x:g} {y:g})"' if turn else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}{turned}>{escape(text)}</text>'
