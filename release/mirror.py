"""Where this machine gets Debian's packages from."""
import pathlib
import re
import sys


def mirror():
    for file in [*pathlib.Path("/etc/apt/sources.list.d").glob("*.sources"), pathlib.Path("/etc/apt/sources.list")]:
        if file.exists():
            found = re.search(r"^(?:URIs:|deb(?: \[.*?\])?)\s+(\S+)", file.read_text(), re.M)
            if found:
                return found[1]
    sys.exit("no source of Debian's packages in /etc/apt")
