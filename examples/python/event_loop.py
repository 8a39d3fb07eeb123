"""A program with an event loop of its own: results are handed out as they finish, other tasks go on meanwhile, and a row
that is not wanted any more is cancelled. Usage: event_loop.py MODEL_DIRECTORY"""

import asyncio
import sys

import batchllm


async def heartbeat(beats: list[int]) -> None:
    while True:
        beats.append(len(beats))
        await asyncio.sleep(0.001)


async def main(model: str) -> None:
    beats: list[int] = []
    other_work = asyncio.create_task(heartbeat(beats))
    params = [batchllm.SamplingParams(max_tokens=tokens, ignore_eos=True) for tokens in (24, 24, 400, 24)]
    with batchllm.Engine(model) as engine:
        async for result in engine.astream(["Once upon a time"] * 4, params, interval=0):
            ended = "done" if result.finish_reason == "length" else result.finish_reason
            print(f"row {result.tag} {ended} after {len(result.tokens)} tokens")
            engine.cancel(2)  # takes effect at the next step
    other_work.cancel()
    print(f"the loop went round {len(beats)} times meanwhile" if beats else "the loop stood still")


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "."))
