"""Many questions about a few documents: each document is computed once. The plan is saved, and used again by the next
run, which plans only what has changed. Usage: shared_prefix.py MODEL_DIRECTORY PLAN_FILE"""

import pathlib
import sys

import batchllm

DOCUMENTS = [
    "Lighthouses: The first ones were fires on hills. Towers with lamps and mirrors came later; the lens "
    "of rings that Fresnel built in 1822 threw the light of one lamp over thirty kilometres.",
    "Bees: A hive of honey bees has one queen, some hundred drones and up to sixty thousand workers. A "
    "worker tells the others where food is by a dance whose angle to the vertical is that to the sun.",
]
QUESTIONS = ["who is named?", "which number is largest?", "what is it about?"]


def main(model: str, plan_path: pathlib.Path) -> None:
    rows = [f"{document} Question: {question} Answer:" for document in DOCUMENTS for question in QUESTIONS]
    saved = batchllm.Plan.load(plan_path) if plan_path.exists() else None
    with batchllm.Engine(model) as engine:
        results = engine.generate(rows, batchllm.SamplingParams(max_tokens=16), plan=saved)
        plan = engine.get_plan()
        stats = plan.stats()
        print(f"{stats.rows} rows in {stats.groups} groups, {stats.reused_rows} kept from the saved plan")
        plan.save(plan_path)
        figures = engine.stats()
        print(
            f"{figures.logical_prompt_tokens} prompt tokens, {figures.processed_prompt_tokens} computed: "
            f"{100 * figures.saving_ratio:.0f} % saved"
        )
    # Results outlive the engine.
    print(f"{sum(len(result.tokens) for result in results)} tokens generated")


if len(sys.argv) != 3:
    sys.exit(__doc__)
main(sys.argv[1], pathlib.Path(sys.argv[2]))
