"""Shared by the tests: the small text model, the simulated engine, rows."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
from array import array

import batchllm

MODEL = os.environ.get("BATCHLLM_TEXT_MODEL", "build/tests/text_model")
SIM = {"backend": "sim", "backend_options": {"vocabulary": 1000, "eos_token": 999, "pages": 4096}}


def sim(**options):
    """An engine without tensors."""
    return batchllm.Engine(**{**SIM, **options})


def slow_sim(**options):
    """An engine whose long rows take a while to run: one step for each token."""
    return batchllm.Engine(backend="sim", backend_options="vocabulary=1000,eos_token=999,page_tokens=1024,pages=65536",
                           max_request_tokens=50_000_000, **options)


def rows(count, shared=30, own=5):
    """Rows of token ids, no two equal."""
    return [[j % 900 for j in range(shared)] + [i % 997, i // 997] + [7] * own for i in range(count)]


def columns(count, length=20):
    """The same as columns."""
    tokens = array("i", ((i * 31 + j) % 997 for i in range(count) for j in range(length)))
    return batchllm.Tokens(tokens, array("q", range(0, count * length + 1, length)))


def chat_model(folder, template):
    """The text model with a chat template, or without one (None)."""
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    if template is not None:
        config["chat_template"] = template
    (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def run_script(text, *arguments, **options):
    """Runs a script with arguments in a new process with this process's package; -> CompletedProcess."""
    return subprocess.run([sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "BATCHLLM_TEXT_MODEL": MODEL, "TESTS": os.path.dirname(os.path.abspath(__file__))}, check=False, **options)
