"""Which text is nearest to a question, by the vectors of an embedding model. Usage: embed.py MODEL_DIRECTORY"""

import sys

import batchllm

QUESTION = "What is the capital of France?"
TEXTS = ["Paris is the capital of France.", "Water boils at 100 degrees."]

with batchllm.Engine(sys.argv[1] if len(sys.argv) > 1 else ".") as engine:
    vectors = engine.embed([QUESTION, *TEXTS], normalize=True)
    for text, near in zip(TEXTS, vectors[1:] @ vectors[0]):  # cosines, since all have length 1
        print(f"{near:.3f} {text}")
