"""No two types of one namespace share a name: the linker would merge their functions in silence, and one would work on the
other's memory (as std::vector<PrefixNode> did, in builds that inline little). Usage: type_names.py FOLDER.."""

import pathlib
import re
import sys

OPENING = re.compile(r"^(?:inline )?namespace(?: ([\w:]+))? \{|^\} // (?:anonymous )?namespace|^extern \"C\" \{|^\} // extern")
TYPE = re.compile(r"^(?:template <[^>]*> )?(?:struct|class|union|enum class) (?:alignas\(\w+\) )?(\w+)(?: final)?(?: : [^{;]*)? ?\{")


def types_of(path):
    """Names with their namespace, of what has linkage: not of anonymous namespaces."""
    names = []
    for line in path.read_text().splitlines():
        if opening := OPENING.match(line):
            if line.startswith("}"):
                if names:
                    names.pop()
            else:
                names.append(opening[1] or ("" if line.startswith("namespace") else "extern"))
        elif (found := TYPE.match(line)) and "" not in names:
            yield "::".join([*names, found[1]])


def main():
    places = {}
    for folder in map(pathlib.Path, sys.argv[1:]):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".h", ".cc", ".cuh", ".cu"):
                for name in types_of(path):
                    places.setdefault(name, set()).add(path)
    # More than a program has: the test would say nothing if it found none.
    if len(places) < 100:
        sys.exit(f"only {len(places)} types found")
    twice = {name: paths for name, paths in places.items() if len(paths) > 1}
    for name, paths in twice.items():
        print(f"{name}: {', '.join(map(str, sorted(paths)))}", file=sys.stderr)
    sys.exit(1 if twice else 0)


main()
