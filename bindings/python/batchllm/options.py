"""Options given by name: the error for an unknown one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Iterable


def no_option(name: str, known: Iterable[str]) -> TypeError:
    """The error names the options that may have been meant, or else all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.7)
    near += [other for other in names if other not in near and set(name.split("_")) <= set(other.split("_"))]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else f"there are {', '.join(names)}"
    return TypeError(f"no option {name!r}; {hint}")
