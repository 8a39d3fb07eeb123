#!/usr/bin/env python3
"""needed.py LIBRARY: the CUDA library needs cuBLASLt and what every Linux has, since its wheel brings nothing else."""
import re
import subprocess
import sys

needed = re.findall(r"\(NEEDED\).*\[(.*)\]", subprocess.run(["readelf", "-d", sys.argv[1]], check=True, capture_output=True, text=True).stdout)
unexpected = [name for name in needed if not re.match(r"(ld-linux.*|lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+|cublasLt))\.so", name)]
sys.exit(f"{sys.argv[1]} needs {', '.join(unexpected)}" if unexpected or not needed else 0)
