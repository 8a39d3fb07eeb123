#!/usr/bin/env python3
"""Draws pages with fields that anyone can check: a number in digits drawn by hand, a coloured shape, and a box that is ticked
or not.

    draw.py --count 12 --seed 7 --output pages      pages/page-001.png .., questions about them in pages/rows.jsonl, and the answers
                                                    that they should get in pages/expected.jsonl

The same seed draws the same pages on any machine. Standard library only.
"""

import argparse
import json
import math
import random
import struct
import zlib
from pathlib import Path

WIDTH, HEIGHT = 120, 80
COLOURS = {"red": (205, 45, 40), "green": (50, 150, 60), "blue": (45, 80, 200), "yellow": (235, 190, 40)}
SHAPES = ("circle", "square", "triangle", "cross")
FIELDS = {
    "number": {"type": "string", "pattern": "^[0-9]{3,5}$"},
    "shape": {"enum": list(SHAPES)},
    "colour": {"enum": list(COLOURS)},
    "paid": {"type": "boolean"},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": list(FIELDS), "additionalProperties": False}
ASK = "The page's fields as JSON:"
QUESTIONS = {"number": "Which number?", "shape": "Which shape?", "colour": "Which colour?", "paid": "Is it paid?"}


def arc(x, y, width, height, first, last, steps=8):
    """Points of an ellipse's arc; angles in degrees, clockwise from the right."""
    angles = (math.radians(first + (last - first) * step / steps) for step in range(steps + 1))
    return [(x + width * math.cos(angle), y + height * math.sin(angle)) for angle in angles]


# Lines of each digit in a box of 1 x 1, y downwards.
DIGITS = (
    [arc(0.5, 0.5, 0.45, 0.5, -90, 270, 14)],
    [[(0.2, 0.25), (0.6, 0.0), (0.6, 1.0)]],
    [arc(0.5, 0.28, 0.42, 0.28, -170, 35) + [(0.08, 1.0), (0.95, 1.0)]],
    [arc(0.42, 0.26, 0.42, 0.26, -150, 90) + arc(0.42, 0.75, 0.48, 0.25, -90, 150)],
    [[(0.65, 1.0), (0.65, 0.0), (0.05, 0.68), (0.95, 0.68)]],
    [[(0.85, 0.0), (0.2, 0.0), (0.14, 0.45)] + arc(0.45, 0.69, 0.45, 0.31, -125, 145)],
    [[(0.75, 0.0), (0.3, 0.3)] + arc(0.5, 0.7, 0.42, 0.3, -180, 180, 12)],
    [[(0.05, 0.0), (0.92, 0.0), (0.38, 1.0)]],
    [arc(0.5, 0.25, 0.36, 0.25, 90, 450, 12), arc(0.5, 0.75, 0.45, 0.25, -90, 270, 12)],
    [arc(0.5, 0.3, 0.42, 0.3, 0, 360, 12) + [(0.92, 0.3), (0.75, 1.0)]],
)


class Page:
    """A picture of RGB, on which lines are drawn."""

    def __init__(self, rng):
        self.rng = rng
        paper = [rng.randint(222, 255) for _ in range(3)]
        noise = rng.randint(2, 18)
        grain = rng.randbytes(WIDTH * HEIGHT)
        self.rows = []
        for y in range(HEIGHT):
            levels = [value * noise // 256 for value in grain[y * WIDTH : (y + 1) * WIDTH]]
            self.rows.append([[part - level for part in paper] for level in levels])

    def cover(self, x, y, share, colour):
        pixel = self.rows[y][x]
        for part in range(3):
            pixel[part] += round((colour[part] - pixel[part]) * share)

    def line(self, points, thickness, colour):
        """Straight pieces through points, with round ends."""
        reach = thickness / 2 + 0.5
        shares = {}
        for (x1, y1), (x2, y2) in zip(points, points[1:]):
            dx, dy = x2 - x1, y2 - y1
            length = dx * dx + dy * dy or 1e-9
            for y in range(max(0, math.floor(min(y1, y2) - reach)), min(HEIGHT, math.ceil(max(y1, y2) + reach))):
                for x in range(max(0, math.floor(min(x1, x2) - reach)), min(WIDTH, math.ceil(max(x1, x2) + reach))):
                    px, py = x + 0.5 - x1, y + 0.5 - y1
                    along = min(1.0, max(0.0, (px * dx + py * dy) / length))
                    share = reach - math.sqrt((px - along * dx) ** 2 + (py - along * dy) ** 2)
                    if share > 0:
                        shares[x, y] = max(shares.get((x, y), 0.0), min(1.0, share))
        for (x, y), share in shares.items():
            self.cover(x, y, share, colour)

    def fill(self, inside, left, top, size, colour):
        """What inside(x, y) is true for, of the square of 1 x 1 that is laid over size x size pixels; four samples a pixel."""
        for y in range(max(0, math.floor(top)), min(HEIGHT, math.ceil(top + size))):
            for x in range(max(0, math.floor(left)), min(WIDTH, math.ceil(left + size))):
                samples = (((x + dx - left) / size, (y + dy - top) / size) for dx in (0.25, 0.75) for dy in (0.25, 0.75))
                share = sum(map(inside, *zip(*samples))) / 4
                if share:
                    self.cover(x, y, share, colour)

    def ink(self):
        return [self.rng.randint(0, 80) for _ in range(3)]

    def pixels(self):
        return b"".join(bytes(part for pixel in row for part in pixel) for row in self.rows)

    def png(self):
        """The file, 8 bits RGB; each row is stored as it is (filter 0)."""
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        pixels = self.pixels()
        rows = b"".join(b"\0" + pixels[3 * WIDTH * y : 3 * WIDTH * (y + 1)] for y in range(HEIGHT))
        header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def draw_number(page, number):
    rng = page.rng
    width, height = rng.uniform(9, 13), rng.uniform(19, 26)
    step = width + rng.uniform(4, 7)
    left = rng.uniform(4, WIDTH - 4 - step * len(number))
    top = rng.uniform(5, 38 - height)
    slant, tilt = rng.uniform(-0.2, 0.2), rng.uniform(-0.05, 0.05)
    thickness, ink = rng.uniform(1.8, 3.4), page.ink()
    for place, digit in enumerate(number):
        for points in DIGITS[int(digit)]:
            drawn = []
            for x, y in points:
                x, y = x + rng.gauss(0, 0.035), y + rng.gauss(0, 0.025)
                across = left + place * step + x * width - slant * (y - 0.5) * height
                drawn.append((across, top + y * height + tilt * (across - WIDTH / 2)))
            page.line(drawn, thickness, ink)


def draw_shape(page, shape, colour, left):
    rng = page.rng
    size = rng.uniform(20, 30)
    inside = {
        "circle": lambda x, y: (x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.25,
        "square": lambda x, y: 0.06 < x < 0.94 and 0.06 < y < 0.94,
        "triangle": lambda x, y: abs(x - 0.5) < y / 2,
        "cross": lambda x, y: abs(x - 0.5) < 0.17 or abs(y - 0.5) < 0.17,
    }[shape]
    tone = [min(255, max(0, part + rng.randint(-25, 25))) for part in COLOURS[colour]]
    page.fill(inside, left + rng.uniform(0, 40 - size), rng.uniform(42, 76 - size), size, tone)


def draw_box(page, ticked, left):
    rng = page.rng
    size = rng.uniform(14, 20)
    x, y = left + rng.uniform(3, 36 - size), rng.uniform(46, 74 - size)
    corners = [(x, y), (x + size, y), (x + size, y + size), (x, y + size), (x, y)]
    page.line(corners, rng.uniform(1.2, 2.2), page.ink())
    if ticked:
        points = [(0.15, 0.5), (0.42, 0.85), (1.0, -0.1)]
        drawn = [(x + size * (a + rng.gauss(0, 0.04)), y + size * (b + rng.gauss(0, 0.04))) for a, b in points]
        page.line(drawn, rng.uniform(1.8, 3.0), page.ink())


def draw(seed, name):
    """(Page, fields) of the page `name`."""
    rng = random.Random(f"{seed}/{name}")
    fields = {
        "number": "".join(rng.choices("0123456789", k=rng.randint(3, 5))),
        "shape": rng.choice(SHAPES),
        "colour": rng.choice(list(COLOURS)),
        "paid": rng.random() < 0.5,
    }
    page = Page(rng)
    places = rng.sample((10, 70), 2)
    draw_number(page, fields["number"])
    draw_shape(page, fields["shape"], fields["colour"], places[0])
    draw_box(page, fields["paid"], places[1])
    return page, fields


def answers(fields):
    """(name, question, answer) of a page: first all of it as JSON, then field by field."""
    yield "fields", ASK, json.dumps(fields, separators=(",", ":"))
    for name, question in QUESTIONS.items():
        yield name, question, {True: "yes", False: "no"}.get(fields[name], fields[name])


def job(name, fields):
    """Rows for `batchllm run` about the page in a file, and what their answers should be."""
    rows, expected = [], []
    for kind, question, answer in answers(fields):
        parts = [{"type": "image", "image": name}, {"type": "text", "text": question}]
        row = {"id": f"{name} {kind}", "messages": [{"role": "user", "content": parts}], "max_tokens": 48}
        rows.append({**row, "json_schema": SCHEMA} if kind == "fields" else row)
        expected.append({"id": row["id"], "page": name, "question": question, "expected": answer})
    return rows, expected


def write(folder, seed, count):
    """count pages, rows.jsonl and expected.jsonl. Returns what the pages should be read as, by their files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, expected, drawn = [], [], {}
    for number in range(1, count + 1):
        page, fields = draw(seed, number)
        name = f"page-{number:03}.png"
        (folder / name).write_bytes(page.png())
        drawn[name] = fields
        for lines, more in zip((rows, expected), job(name, fields)):
            lines += [json.dumps(line, separators=(",", ":")) + "\n" for line in more]
    (folder / "rows.jsonl").write_text("".join(rows))
    (folder / "expected.jsonl").write_text("".join(expected))
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", default="7")
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    arguments = parser.parse_args()
    write(arguments.output, arguments.seed, arguments.count)


if __name__ == "__main__":
    main()
