"""Draws rooms.svg: the rooms of the package, layer by layer, and who imports whom, from the imports themselves.

Run it after a change of these: `python docs/rooms.py`. Layers are those that import-linter holds (pyproject.toml). An
arrow that follows from others is left out: where a imports b and b imports c, none is drawn from a to c.
"""

import tomllib
from itertools import pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
DRAWING = ROOT / "docs" / "rooms.svg"
WIDTH, ROW, BOX = 760, 62, (112, 30)
SMALL = (
    "__main__",
    "public",
    "checks",
    "delegation",
    "errors",
    "randomness",
    "record",
    "registry",
    "tensors",
    "theory",
)
"""Modules rather than rooms, which everybody may use or which only gather names."""

STYLE = """
.rooms { color: #1f2328; --room: #4051b5; max-width: 760px; }
.rooms text { fill: currentColor; text-anchor: middle; }
.rooms rect { stroke: var(--room); stroke-width: 2; fill: var(--room); fill-opacity: .12; }
.rooms path { fill: none; stroke: currentColor; stroke-width: 1.2; opacity: .6; marker-end: url(#rooms-head); }
.rooms marker path { fill: currentColor; stroke: none; marker-end: none; opacity: 1; }
@media (prefers-color-scheme: dark) { .rooms { color: #e6edf3; --room: #8fa2ff; } }
"""


def layers() -> list[list[str]]:
    """The rooms of each layer, the highest first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = config["tool"]["importlinter"]["contracts"]
    named = [[name.strip() for name in layer.split(":")] for layer in contract["layers"]]
    return [rooms for layer in named if (rooms := [name for name in layer if name not in SMALL])]


def arrows(rooms: list[str]) -> list[tuple[str, str]]:
    """Who imports whom directly, without what follows from other arrows."""
    graph = grimp.build_graph("mmfl", exclude_type_checking_imports=True, cache_dir=None)
    for room in rooms:
        if graph.find_children(f"mmfl.{room}"):
            graph.squash_module(f"mmfl.{room}")
    imports = {
        room: {other for other in rooms if f"mmfl.{other}" in graph.find_modules_directly_imported_by(f"mmfl.{room}")}
        for room in rooms
    }
    order = {room: n for n, room in enumerate(rooms)}  # an import of a higher room is one of the few exceptions
    down = {room: {other for other in found if order[other] > order[room]} for room, found in imports.items()}

    def reached(room: str) -> set[str]:
        return down[room].union(*(reached(other) for other in down[room]))

    return [
        (room, other)
        for room in rooms
        for other in sorted(down[room])
        if not any(other in reached(between) for between in down[room] - {other})
    ]


def draw() -> str:
    """The drawing, as SVG."""
    rows = layers()
    rooms = [room for row in rows for room in row]
    width, height = BOX
    place = {
        room: (WIDTH * (n + 1) / (len(row) + 1), 20 + height / 2 + ROW * level)
        for level, row in enumerate(rows)
        for n, room in enumerate(row)
    }
    level = {room: n for n, row in enumerate(rows) for room in row}
    parts = []
    for n, (room, other) in enumerate(arrows(rooms)):
        (x, y), (to_x, to_y) = place[room], place[other]
        far = level[other] - level[room]
        side = (
            (1 if n % 2 else -1) * (70 + 26 * far) if far > 1 else 0
        )  # arrows over several layers pass beside the boxes
        bend = (x + to_x) / 2 + side, (y + to_y) / 2
        parts.append(
            f'<path d="M{x:.0f} {y + height / 2:.0f}Q{bend[0]:.0f} {bend[1]:.0f} {to_x:.0f} {to_y - height / 2:.0f}"/>'
        )
    for room, (x, y) in place.items():
        parts.append(
            f'<rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" width="{width}" height="{height}" rx="6"/>'
        )
        parts.append(f'<text x="{x:.0f}" y="{y + 5:.0f}">{room}</text>')
    tall = 40 + ROW * (len(rows) - 1) + height
    listed = "; ".join(f"{', '.join(above)} above {', '.join(below)}" for above, below in pairwise(rows))
    return f"""<svg class="rooms" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" role="img" \
aria-labelledby="rooms-title" font-family="system-ui, sans-serif" font-size="15">
<title id="rooms-title">The rooms of the package; each imports only from rooms below it: {listed}.</title>
<style>{STYLE}</style>
<defs><marker id="rooms-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" \
orient="auto-start-reverse"><path d="M0 0L10 5L0 10z"/></marker></defs>
{chr(10).join(parts)}
</svg>
"""


if __name__ == "__main__":
    DRAWING.write_text(draw())
