"""Which of some answers fits best: nothing is generated, the answers are scored. Answers of one token cost one position
of logits together. Usage: rank.py MODEL_DIRECTORY"""

import sys

import batchllm

PROMPTS = ["Is water wet? Answer:", "Is fire cold? Answer:"]
ANSWERS = [" yes", " no", " perhaps"]

with batchllm.Engine(sys.argv[1] if len(sys.argv) > 1 else ".") as engine:
    for prompt, result in zip(PROMPTS, engine.score(PROMPTS, ANSWERS)):
        for answer, score in zip(ANSWERS, result.scores):
            print(f"{prompt}{answer}: {score:.3f}")
        best = max(range(len(ANSWERS)), key=lambda i: result.scores[i])
        print(f"->{ANSWERS[best]}")
