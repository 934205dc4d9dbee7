# SPDX-License-Identifier: MIT
"""svg.py FILE: fails unless the drawing of `haul info --graph` is valid XML and legible: boxes do not
overlap, each text lies within its box or beside all of them and is no wider than the space there, texts do not
overlap, and no line crosses a box."""

import sys
import xml.etree.ElementTree as tree

SVG = "{http://www.w3.org/2000/svg}"
LETTER = 7.23  # pixels of a letter of DejaVu Sans Mono, 12 pixels high
HEIGHT = 12


def number(element, name):
    return float(element.get(name, 0))


def rectangle(element):
    x, y = number(element, "x"), number(element, "y")
    return x, y, x + number(element, "width"), y + number(element, "height")


def text_area(element):
    size = 15 / 12 if element.get("class") == "title" else 1
    x, y, letters = number(element, "x"), number(element, "y"), len(element.text or "")
    return x, y - 10 * size, x + letters * LETTER * size, y + 2


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def within(a, b):
    return a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]


def crosses(line, box):
    """Whether a segment has a point inside of the box: it is sampled."""
    x1, y1, x2, y2 = line
    points = [(x1 + (x2 - x1) * i / 500, y1 + (y2 - y1) * i / 500) for i in range(501)]
    return any(box[0] + 1 < x < box[2] - 1 and box[1] + 1 < y < box[3] - 1 for x, y in points)


def faults(root):
    of_kind = lambda kind: [r for r in root.iter(SVG + "rect") if kind in r.get("class", "").split()]
    page = rectangle(of_kind("page")[0])
    boxes = [rectangle(r) for r in of_kind("box")]
    bands = [rectangle(r) for r in of_kind("band")]
    texts = [(t.text, text_area(t)) for t in root.iter(SVG + "text") if t.text]
    lines = [[number(l, n) for n in ("x1", "y1", "x2", "y2")] for l in root.iter(SVG + "line")]
    if not boxes or not bands or not texts:
        yield "nothing is drawn"
    for i, box in enumerate(boxes):
        if not within(box, page):
            yield f"box {box} leaves the page"
        for other in boxes[i + 1 :]:
            if overlap(box, other):
                yield f"boxes {box} and {other} overlap"
        if any(overlap(box, band) and not within(box, band) for band in bands):
            yield f"box {box} leaves its band"
        if any(crosses(line, box) for line in lines):
            yield f"a line crosses box {box}"
    for i, (text, area) in enumerate(texts):
        if not within(area, page):
            yield f"text leaves the page: {text}"
        if any(overlap(area, box) and not within(area, box) for box in boxes):
            yield f"text leaves its box: {text}"
        for other, area2 in texts[i + 1 :]:
            if overlap(area, area2):
                yield f"texts overlap: {text} | {other}"


found = list(faults(tree.parse(sys.argv[1]).getroot()))
print("\n".join(found) or "legible")
sys.exit(bool(found))
