#!/usr/bin/env python3
"""embed.py OUT.cc FILE ..: the files of choices as C++."""
import pathlib
import sys

out, *files = map(pathlib.Path, sys.argv[1:])
texts = [path.read_text() for path in files]
stamps = [text.splitlines()[1] for text in texts]
if len(set(stamps)) != len(stamps):
    sys.exit(f"two files of one device and version: {stamps}")
listed = "".join(f'        R"choices({text})choices",\n' for text in texts)
body = f"    static constexpr std::string_view texts[] = {{\n{listed}    }};\n    return texts;\n" if texts else "    return {};\n"
out.write_text(f'#include "linear/tuning_cache.h"\n\nstd::span<const std::string_view> batchllm::cuda::shipped_choices() {{\n{body}}}\n')
