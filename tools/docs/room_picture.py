"""Draw the rooms of the package in their layers, with the imports between them, as SVG.

``python -m tools.docs.room_picture`` writes docs/pictures/rooms.svg. The layers are those of the
contract in pyproject.toml, the arrows those of the imports. An import that a path over other rooms
shows already is left out, as from cli to errors.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
_PACKAGE = "kafka_index"
_COLUMNS = 9
#: How far an arrow passes from the middle of a box, at least.
_CLEAR_COLUMNS = 1.0
_BEGINNINGS = 16
_WIDTH, _HEIGHT = 62, 54
_BOX_WIDTH, _BOX_HEIGHT = 96, 24
_MARGIN = 60
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
    ' height="{height}" font-family="sans-serif" font-size="13" text-anchor="middle">\n'
    '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto"><path d="M0 0L8 4L0 8z" fill="#567"/></marker></defs>\n'
    '<rect width="100%" height="100%" fill="#fff"/>\n'
)


def layers() -> list[list[str]]:
    """Return the rooms, layer by layer, the highest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (rows,) = (each["layers"] for each in contracts if each["type"] == "layers")
    return [[name.strip().rpartition(".")[2] for name in row.split("|")] for row in rows]


def imports() -> dict[str, set[str]]:
    """Return the rooms that each room imports from."""
    graph = grimp.build_graph(_PACKAGE, cache_dir=None)
    rooms = {room for layer in layers() for room in layer}
    for room in rooms:
        graph.squash_module(f"{_PACKAGE}.{room}")
    return {
        room: {
            name.rpartition(".")[2]
            for name in graph.find_modules_directly_imported_by(f"{_PACKAGE}.{room}")
        }
        & (rooms - {room})
        for room in rooms
    }


def arrows() -> set[tuple[str, str]]:
    """Return the imports that no path over other rooms shows."""
    direct = imports()

    def below(room: str) -> set[str]:
        return direct[room].union(*(below(each) for each in direct[room]))

    return {
        (room, target)
        for room, targets in direct.items()
        for target in targets
        if not any(target in below(other) for other in targets - {target})
    }


@dataclass
class _Drawing:
    """The places of the rooms: rows are layers, columns are chosen."""

    rows: dict[str, int]
    columns: dict[str, int]
    arrows: list[tuple[str, str]]

    def point(self, room: str) -> tuple[int, int]:
        """Return the middle of a room's box."""
        return _MARGIN + self.columns[room] * _WIDTH, _MARGIN // 2 + self.rows[room] * _HEIGHT

    def cost(self) -> float:
        """Return how hard the drawing is to read: hidden arrows, crossings, long ways."""
        lines = [(source, target, *self._line(source, target)) for source, target in self.arrows]
        cost = 0.0
        for source, target, x, step in lines:
            first, last = self.rows[source], self.rows[target]
            cost += abs(step) * (last - first) * 0.2
            for room, row in self.rows.items():
                if first < row < last:
                    distance = abs(x + step * (row - first) - self.columns[room])
                    cost += 20 * (distance < _CLEAR_COLUMNS)
        for number, (source, target, x, step) in enumerate(lines):
            for other, other_target, other_x, other_step in lines[:number]:
                top = max(self.rows[source], self.rows[other])
                bottom = min(self.rows[target], self.rows[other_target])
                if top < bottom:
                    sides = [
                        x
                        + step * (row - self.rows[source])
                        - other_x
                        - other_step * (row - self.rows[other])
                        for row in (top, bottom)
                    ]
                    cost += 2 * (sides[0] * sides[1] < 0) + 3 * (sides[0] == sides[1] == 0)
        return cost + self._overlaps()

    def settle(self) -> float:
        """Move each room to its best column until none moves; return the cost that is left."""
        best = self.cost()
        moved = True
        while moved:
            moved = False
            for room in self.rows:
                for column in range(_COLUMNS):
                    before, self.columns[room] = self.columns[room], column
                    cost = self.cost()
                    if cost < best:
                        best, moved = cost, True
                    else:
                        self.columns[room] = before
        return best

    def elements(self) -> Iterator[str]:
        """Yield the arrows, and then the boxes over them."""
        for source, target in self.arrows:
            (x, y), (to_x, to_y) = self.point(source), self.point(target)
            yield (
                f'<path d="M{x} {y + _BOX_HEIGHT // 2}L{to_x} {to_y - _BOX_HEIGHT // 2}"'
                ' stroke="#567" marker-end="url(#head)">'
                f"<title>{source} imports from {target}</title></path>\n"
            )
        for room in self.rows:
            x, y = self.point(room)
            yield (
                f'<rect x="{x - _BOX_WIDTH // 2}" y="{y - _BOX_HEIGHT // 2}" rx="4"'
                f' width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" fill="#e8f0f8" stroke="#567"/>\n'
                f'<text x="{x}" y="{y + 4}">{room}</text>\n'
            )

    def _line(self, source: str, target: str) -> tuple[int, float]:
        """Return the column in which an arrow begins, and the columns it passes in a row."""
        rows = self.rows[target] - self.rows[source]
        return self.columns[source], (self.columns[target] - self.columns[source]) / rows

    def _overlaps(self) -> int:
        """Return a cost for boxes of a layer that touch."""
        return sum(
            100
            for room in self.rows
            for other in self.rows
            if room < other
            and self.rows[room] == self.rows[other]
            and abs(self.columns[room] - self.columns[other]) < 2
        )


def picture() -> str:
    """Return the drawing."""
    rooms = layers()
    rows = {room: row for row, layer in enumerate(rooms) for room in layer}
    # From many drawn beginnings, always the same: one alone ends where any single move is worse.
    drawn = random.Random(0)  # noqa: S311, no secret
    drawings = [
        _Drawing(rows, {room: drawn.randrange(_COLUMNS) for room in rows}, sorted(arrows()))
        for _ in range(_BEGINNINGS)
    ]
    drawing = min(drawings, key=_Drawing.settle)
    size = {
        "width": 2 * _MARGIN + (_COLUMNS - 1) * _WIDTH,
        "height": _MARGIN + (len(rooms) - 1) * _HEIGHT,
    }
    return _HEAD.format(**size) + "".join(drawing.elements()) + "</svg>\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
