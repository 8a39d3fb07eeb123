"""Two prompts in, two texts out. Usage: hello.py MODEL_DIRECTORY"""

import sys

import batchllm

with batchllm.Engine(sys.argv[1] if len(sys.argv) > 1 else ".") as engine:
    for result in engine.generate(["The capital of France is", "The capital of Peru is"]):
        print(f"{result.tag}: {result.text}")
