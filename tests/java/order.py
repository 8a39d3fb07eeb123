#!/usr/bin/env python3
"""The JAR lists each library after those that it needs: a host may lack all of them. Usage: order.py JAR"""
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

with zipfile.ZipFile(sys.argv[1]) as jar, tempfile.TemporaryDirectory() as folder:
    (index,) = [name for name in jar.namelist() if name.endswith("/index")]
    names = [line.split()[2] for line in jar.read(index).decode().splitlines()]
    assert len(names) > 5, names
    for i, name in enumerate(names):
        path = pathlib.Path(folder, name)
        path.write_bytes(jar.read(index.removesuffix("index") + name))
        dynamic = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
        late = [needed for needed in re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic) if needed in names[i + 1:]]
        assert not late, f"{name} is loaded before {late}"
