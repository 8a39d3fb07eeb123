"""The small model that is installed with the program."""

from __future__ import annotations

from pathlib import Path


def demo_model() -> str:
    """Path of the model that `batchllm demo` runs, with its rows beside it in rows.jsonl:

        with batchllm.Engine(batchllm.demo_model()) as engine: ...

    It answers questions about made-up product records, and is a model directory as any other.

    Raises:
        FileNotFoundError: if it is not installed.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "demo", *(parent / "share/batchllm/demo" for parent in here.parents)):
        if (folder / "config.json").is_file():
            return str(folder)
    raise FileNotFoundError(f"no demo in {here / 'demo'} or in share/batchllm: this package was built without the program")
