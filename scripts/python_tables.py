#!/usr/bin/env python3
"""Makes src/text/jinja/python_tables.inc: the upper, lower and title case of characters, for the
str methods that chat templates use. The data are those of the running Python; the tables name its Unicode
version. Usage: python_tables.py > src/text/jinja/python_tables.inc"""
import unicodedata

EVERY = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]


def ranges(points):
    """Sorted points -> [first, last] runs."""
    out = []
    for point in points:
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def mapped_runs(pairs):
    """Sorted (point, mapped) pairs -> [first, last, step, difference] runs of equal difference and step 1 or 2."""
    out = []
    for point, mapped in pairs:
        difference = mapped - point
        if out:
            first, last, step, same = out[-1]
            gap = point - last
            if difference == same and gap in (1, 2) and (first == last or gap == step):
                out[-1] = [first, point, gap, same]
                continue
        out.append([point, point, 1, difference])
    return out


def print_table(kind, name, rows):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        text = " {" + ", ".join(row) + "},"
        if len(line) + len(text) > 100:
            print(line)
            line = "   "
        line += text
    print(line)
    print("};")


def main():
    print(f"// Made by scripts/python_tables.py: Unicode {unicodedata.unidata_version}.")
    for name, change in (("upper", str.upper), ("lower", str.lower), ("title", str.title)):
        single, several = [], []
        for point in EVERY:
            if point < 0x80:
                continue
            text = change(chr(point))
            if text == chr(point):
                continue
            if len(text) == 1:
                single.append((point, ord(text)))
            else:
                several.append((point, [ord(c) for c in text]))
        print_table("CaseRun", name + "_runs",
                    [(hex(a), hex(b), str(step), str(d)) for a, b, step, d in mapped_runs(single)])
        print_table("Expansion", name + "_expansions",
                    [[hex(point)] + [hex(c) for c in points + [0] * (3 - len(points))] for point, points in several])
    # For a sigma at the end of a word.
    cased = [p for p in EVERY if p >= 0x80 and (chr(p).lower() != chr(p) or chr(p).upper() != chr(p)
                                              or chr(p).islower() or chr(p).isupper() or chr(p).istitle())]
    print_table("Range", "cased", [(hex(a), hex(b)) for a, b in ranges(cased)])


main()
