"""Answers that keep to a dataclass's fields. The schema is compiled once, for however many rows; one that cannot be
enforced is an error before any row runs. Usage: structured.py MODEL_DIRECTORY"""

import sys
from dataclasses import dataclass
from typing import Literal

import batchllm


@dataclass
class Animal:
    kind: Literal["cat", "dog", "fish"]
    legs: Literal[0, 2, 4]
    tame: bool


PROMPTS = [f"{what} As JSON: " for what in ("It purrs.", "It barks.", "It swims.")]

with batchllm.Engine(sys.argv[1] if len(sys.argv) > 1 else ".") as engine:
    params = batchllm.SamplingParams(json_schema=Animal)
    for prompt, value in zip(PROMPTS, engine.generate(PROMPTS, params, on_error="raise").parsed):
        print(prompt, Animal(**value))
