#!/usr/bin/env python3
"""Draws docs/structure.svg: the modules of src/ and cuda/, and which includes which.

    scripts/draw_structure.py            writes docs/structure.svg
    scripts/draw_structure.py --list     prints every module with what it includes, and the files that do

A module is a folder. A folder inside a module of src/ is part of it (backend/cpu is part of backend); in cuda/ each
folder is a module, and so are the files in cuda/ itself. The order of the modules is the layering: a module only
includes modules before it. tests/policy/test_structure.py checks the code and the drawing against this file.
"""
import argparse
import collections
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRAWING = ROOT / "docs" / "structure.svg"
ENDINGS = {".h", ".cc", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)

# What the order of subdir() in src/meson.build does not say: the program only uses the library's public header, like
# any user, and CUDA's backend is a separate library that knows the interface of a backend but not the engine.
CUDA = ["device", "ranks", "attention", "linear", "adapters", "sampling", "elementwise", "latent", "gated", "experts", "four_bits", "recurrent", "tower", "step", ""]
ONLY = {"src/cli": {"include", "src/base", "src/parameters"}}
CUDA_MAY = {"include", "src/base", "src/parameters", "src/model", "src/backend"}


def layers(root=ROOT):
    """The modules from the lowest up."""
    found = re.findall(r"^subdir\('(\w+)'\)", (root / "src" / "meson.build").read_text(), re.M)
    return ["include"] + ["src/" + name for name in found] + ["cuda/" + name if name else "cuda" for name in CUDA]


def module_of(path):
    """The module of a path relative to the tree, such as 'src/text'."""
    parts = path.split("/")
    if parts[0] == "include":
        return "include"
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def includes(root=ROOT):
    """{(module, included module): {"file includes header", ..}} of all files of src/ and cuda/."""
    files = sorted(p for folder in ("src", "cuda") for p in (root / folder).rglob("*") if p.suffix in ENDINGS)
    found = collections.defaultdict(set)
    for path in files:
        file = path.relative_to(root).as_posix()
        # Folders that the compiler searches, according to this file's build.
        bases = ["src", "include"] if file.startswith("src/") else ["cuda", "src", "include"]
        for header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            places = [path.parent.relative_to(root).as_posix()] + bases
            at = [base + "/" + header for base in places if (root / base / header).exists()]
            # A header that the build generates is not in the tree, but its folder is.
            at += [base + "/" + header for base in bases if "/" in header and (root / base / header).parent.is_dir()]
            if not at:
                raise SystemExit(f'{file}: "{header}" is in no folder of src/, cuda/ or include/')
            pair = module_of(file), module_of(at[0])
            if pair[0] != pair[1]:
                found[pair].add(f"{file} includes {header}")
    return found


def faults(edges, order):
    """Violations of the layers, one per line: an unknown module, an upward include (every cycle has one), a forbidden
    include."""
    place = {module: i for i, module in enumerate(order)}
    lines = []
    for (module, included), files in sorted(edges.items()):
        where = "; ".join(sorted(files))
        if module not in place or included not in place:
            unknown = module if module not in place else included
            lines.append(f"{unknown} is in no layer: name it in src/meson.build or scripts/draw_structure.py ({where})")
        elif place[included] > place[module]:
            lines.append(f"{module} stands below {included} and includes it: {where}")
        elif included not in ONLY.get(module, place):
            lines.append(f"{module} may not include {included}: {where}")
        elif module.startswith("cuda") and not included.startswith("cuda") and included not in CUDA_MAY:
            lines.append(f"{module} may not include {included}: {where}")
        elif not module.startswith("cuda") and included.startswith("cuda"):
            lines.append(f"{module} may not include {included}: {where}")
    return lines


def cycle(edges):
    """A cycle of modules as [a, b, .., a], or None."""
    graph = collections.defaultdict(list)
    for module, included in sorted(edges):
        graph[module].append(included)
    state, path = {}, []

    def visit(node):
        state[node] = "open"
        path.append(node)
        for other in graph.get(node, []):
            if state.get(other) == "open":
                return path[path.index(other):] + [other]
            if other not in state:
                found = visit(other)
                if found:
                    return found
        path.pop()
        state[node] = "done"
        return None

    for node in sorted(graph):
        if node not in state:
            found = visit(node)
            if found:
                return found
    return None


def implied(edges):
    """The edges that a longer path implies, drawn faintly."""
    reach = collections.defaultdict(set)
    graph = collections.defaultdict(set)
    for module, included in edges:
        graph[module].add(included)

    def reachable(node):
        if node not in reach:
            for other in graph.get(node, ()):
                reach[node] |= {other} | reachable(other)
        return reach[node]

    return {(a, b) for a, b in edges if any(b in reachable(other) for other in graph[a] if other != b)}


def ranks(edges, order):
    """The row of each module: just above the highest that includes it, so that arrows are short."""
    depth = {}
    for module in reversed(order):
        depth[module] = 1 + max((depth[a] for a, b in edges if b == module and a in depth), default=-1)
    return {module: max(depth.values()) - depth[module] for module in order}


WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 134, 40, 22, 58, 24


SIDES = {"src/cli": 0, "cuda": 10000}  # where modules that nothing includes begin; the others start in the middle


def positions(edges, order):
    """Module -> centre (x, y). In a row, modules are ordered by the mean position of those that include them."""
    row = ranks(edges, order)
    rows = collections.defaultdict(list)
    for module in order:
        rows[row[module]].append(module)
    widest = max(len(members) for members in rows.values())
    total = widest * (WIDTH + GAP_X) - GAP_X
    x = {}
    for level in sorted(rows, reverse=True):
        def middle(module):
            below = [x[a] for a, b in edges if b == module and a in x]
            return sum(below) / len(below) if below else SIDES.get(module, total / 2)
        members = sorted(rows[level], key=lambda module: (middle(module), module))
        free = total / len(members)
        for i, module in enumerate(members):
            x[module] = MARGIN + free * (i + 0.5)
    return {module: (x[module], MARGIN + HEIGHT / 2 + row[module] * (HEIGHT + GAP_Y)) for module in order}, total


def draw(root=ROOT):
    """The drawing as SVG. It only changes if a module, or an arrow between modules, is added or removed."""
    order = layers(root)
    edges = includes(root)
    known = [edge for edge in sorted(edges) if edge[0] in order and edge[1] in order]
    faint = implied(known)
    place, total = positions(known, order)
    bottom = max(y for _, y in place.values()) + HEIGHT / 2
    width, height = total + 2 * MARGIN, bottom + MARGIN + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="13">',
        "<title>Modules of src/ and cuda/, and which includes which</title>",
        "<!-- Written by scripts/draw_structure.py from the includes. Do not edit. -->",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#345"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
    ]
    for edge in sorted(known, key=lambda edge: (edge not in faint, edge)):
        (x1, y1), (x2, y2) = place[edge[0]], place[edge[1]]
        y1, y2 = y1 - HEIGHT / 2, y2 + HEIGHT / 2
        bend = (y1 - y2) / 2
        style = 'stroke="#ccd3da" stroke-width="1"' if edge in faint else \
            'stroke="#345" stroke-width="1.5" marker-end="url(#tip)"'
        out.append(f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 - bend:.0f} {x2:.0f} {y2 + bend:.0f} {x2:.0f} {y2:.0f}" '
                   f'fill="none" {style}><title>{edge[0]} includes {edge[1]}</title></path>')
    for module in order:
        x, y = place[module]
        parts = sorted(p.name for p in (root / module).iterdir()
                       if p.is_dir() and module.startswith("src/")) if module != "include" else []
        fill = {"src": "#e8f0fb", "cud": "#e9f6e4", "inc": "#f4efe2"}[module[:3]]
        out.append(f'<rect x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
                   f'fill="{fill}" stroke="#345"/>')
        name = {"include": "include/batchllm.h", "cuda": "cuda/*"}.get(module, module)
        if parts:
            out.append(f'<text x="{x:.0f}" y="{y - 2:.0f}" text-anchor="middle">{name}</text>')
            out.append(f'<text x="{x:.0f}" y="{y + 14:.0f}" text-anchor="middle" font-size="11" fill="#567">'
                       f'{", ".join(parts)}</text>')
        else:
            out.append(f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{name}</text>')
    out.append(f'<text x="{MARGIN}" y="{height - 28:.0f}" font-size="12" fill="#567">An arrow leads from a module to one that it '
               "includes, always upwards.</text>")
    out.append(f'<text x="{MARGIN}" y="{height - 12:.0f}" font-size="12" fill="#567">A faint line is an include of something that '
               "the arrows reach as well.</text>")
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the includes and draw nothing")
    options = parser.parse_args()
    edges = includes()
    if options.list:
        for (module, included), files in sorted(edges.items()):
            print(f"{module} -> {included}: {len(files)}")
            for line in sorted(files):
                print("    " + line)
    else:
        DRAWING.write_text(draw(), encoding="utf-8")
        print(DRAWING.relative_to(ROOT))
    wrong = faults(edges, layers())
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
