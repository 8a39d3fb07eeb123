"""python -m batchllm run: files of rows through a model. docs/files.md."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import signal
import sys
import time
from difflib import get_close_matches
from typing import Any, NoReturn, Optional, Sequence

from . import __version__
from .adapters import directories_of
from .engine import Engine
from .errors import Error
from .file_formats import is_remote
from .files import OUTPUT_IS_COMPLETE, run_files
from .output_paths import check_outputs, files_of_output, files_of_plan
from .plan import ENLARGE
from .progress import Progress
from .sampling_params import PARAMETERS, Parameter, SamplingParams
from .task_rows import TASKS

_DONE, _STOPPED, _ROW_ERRORS, _INTERRUPTED = 0, 1, 3, 130  # as in the batchllm program

_EXAMPLES = """examples:
  python -m batchllm run --model ./model --input in.parquet --output out.parquet --prompt-column question --max-tokens 64
  python -m batchllm run --model ./model --input in.csv --output out.parquet --template "Review: {text}\\nTitle: {title}\\nKind?"
  python -m batchllm run --model ./model --input s3://bucket/in.parquet --output s3://bucket/out.parquet --resume

Exit codes: 0 done; 3 done, some rows have an error; 1 could not continue; 130 interrupted, go on with --resume.
Rows of JSON are for the program: batchllm run --input rows.jsonl."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exits with the same code as the batchllm program."""
        print(f"batchllm: {message}; python -m batchllm run --help lists the options", file=sys.stderr)
        sys.exit(_STOPPED)

    def run_options(self) -> list[str]:
        """The options of `run`."""
        run = next(one for one in self._actions if isinstance(one, argparse._SubParsersAction)).choices["run"]
        return [name for action in run._actions for name in action.option_strings]


def _parser() -> _Parser:
    parser = _Parser(prog="python -m batchllm", description="Runs a language model over files of rows.")
    parser.add_argument("--version", action="version", version=f"batchllm {__version__}")
    run = parser.add_subparsers(dest="command", required=True, metavar="run").add_parser(
        "run",
        help="run the rows of a Parquet, CSV or Arrow file",
        description="Runs every row of a Parquet, CSV or Arrow IPC file through a model, and writes a file of its columns and the results.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    files = run.add_argument_group("files")
    files.add_argument("--input", required=True, metavar="FILE", help="a path, or a URL that fsspec supports")
    files.add_argument("--output", required=True, metavar="FILE", help="written when every row has its result")
    files.add_argument(
        "--input-format", choices=("parquet", "csv", "arrow"), help="if the name does not end with it"
    )
    files.add_argument("--output-format", choices=("parquet", "csv", "arrow"))
    again = files.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="continue an interrupted job")
    again.add_argument("--force", action="store_true", help="start over")
    files.add_argument("--retry-failed", action="store_true", help="with --resume: run the rows again that failed in a finished job")
    files.add_argument("--columns", metavar="A,B", help="input columns to pass through (all)")
    files.add_argument("--result-prefix", default="", metavar="TEXT", help="prefix for the names of result columns")
    files.add_argument(
        "--samples", choices=("rows", "lists"), default="rows", help="with --n: a row for each, or lists"
    )
    files.add_argument("--parsed", action="store_true", help="with --json-schema: a column of the answers' values")
    files.add_argument(
        "--chunk-rows", type=int, default=65536, metavar="N", help="rows planned and kept in memory together (%(default)s)"
    )
    files.add_argument("--storage-options", metavar="JSON", help="for fsspec")
    rows = run.add_argument_group("prompts")
    rows.add_argument("--prompt-column", metavar="NAME", help="(prompt)")
    rows.add_argument("--template", metavar="TEXT", help="a prompt from several columns: {name} is the row's value")
    rows.add_argument("--template-file", metavar="FILE")
    rows.add_argument("--fields", choices=("given", "reorder"), default="given", help="reorder: in the order that shares most")
    rows.add_argument(
        "--chat", action="store_true", help="the text is the user's message, in the model's chat template"
    )
    rows.add_argument("--system", metavar="TEXT", help="with --chat: the system message")
    rows.add_argument(
        "--image-column", metavar="NAME", help="pictures: bytes of files, paths, or lists of these; with --chat before the text"
    )
    rows.add_argument(
        "--images", action="append", metavar="DIR", help="paths of pictures lead into these folders (the input's folder)"
    )
    tasks = run.add_argument_group("rows that are not continued")
    tasks.add_argument("--task", choices=TASKS, default="generate", help="embed: vectors; classify: labels (generate)")
    tasks.add_argument("--pooling", choices=("last", "mean", "first"), help="of vectors (as the model's files say)")
    tasks.add_argument("--normalize", choices=("yes", "no"), help="vectors of length 1 (as the model's files say)")
    tasks.add_argument("--dimensions", type=int, default=0, metavar="N", help="keep this many dimensions of each vector (all)")
    tasks.add_argument(
        "--continuation", action="append", metavar="TEXT", dest="continuations", help="rows are scored: one of several"
    )
    tasks.add_argument("--continuations-column", metavar="NAME", help="the same, of lists: each row's own")
    parameters = run.add_argument_group("parameters")
    for one in _PARAMETERS:
        _add_parameter(parameters, one)
    wanted = run.add_argument_group("what the output of rows must look like")
    one_of = wanted.add_mutually_exclusive_group()
    one_of.add_argument("--json-schema", metavar="FILE", help="JSON of this schema")
    one_of.add_argument("--regex", metavar="EXPRESSION", help="text that matches it as a whole")
    one_of.add_argument("--grammar", metavar="FILE", help="a text of this grammar: Lark in a .lark, else GBNF")
    one_of.add_argument("--choices", action="append", metavar="TEXT", help="one of these; may be given several times")
    wanted.add_argument("--start-after", metavar="TEXT", help="only after this text, such as </think>")
    for name, what in _CONSTRAINT_FLAGS.items():
        wanted.add_argument("--" + name.replace("_", "-"), action="store_const", const=True, help=what)
    engine = run.add_argument_group("engine")
    engine.add_argument("--model", metavar="DIR", help="a Hugging Face directory on this machine")
    for name in ("backend", "devices", "compute_type", "backend_options"):
        engine.add_argument("--" + name.replace("_", "-"), metavar="TEXT")
    engine.add_argument(
        "--kv-memory",
        type=_memory,
        default=(0, 0.0),
        metavar="SIZE",
        help="memory for keys and values: 2GiB, or a share of the free memory: 40%%",
    )
    for name in ("threads", "kv_memory_bytes", "step_tokens", "max_request_tokens", "max_requests", "engine_seed"):
        engine.add_argument("--" + name.replace("_", "-"), type=int, default=0, metavar="N")
    sharing = engine.add_mutually_exclusive_group()
    sharing.add_argument("--enlarge", choices=tuple(ENLARGE), default="optimal", help="how shared prefixes are chosen (%(default)s)")
    sharing.add_argument("--no-sharing", action="store_const", dest="enlarge", const="none", help="compute every prompt separately")
    engine.add_argument("--levels", choices=("1", "2", "auto"), default="auto", help="levels of shared prefixes (%(default)s)")
    engine.add_argument(
        "--adapter", type=_adapter, action="append", default=[], metavar="NAME=DIR", help="a LoRA as PEFT writes it; may be given several times"
    )
    engine.add_argument("--adapters", metavar="DIR", help="rows may name its directories, each of them a LoRA")
    engine.add_argument("--use-adapter", metavar="NAME", help="the adapter of rows that name none")
    engine.add_argument("--adapter-column", metavar="NAME", help="the column that names each row's adapter")
    engine.add_argument("--adapter-memory", type=_bytes, default=0, metavar="SIZE", help="the most memory for adapters of running rows (2GiB)")
    engine.add_argument("--quantize", choices=("none", "stored", "fp8"), help="fp8: compute all layers in fp8 (cuda)")
    engine.add_argument("--kv-type", choices=("auto", "fp8"), help="fp8: keys and values in fp8 (cuda)")
    engine.add_argument("--tensor-parallel", metavar="N|auto", help="devices that work as one; auto: as few as leave room")
    engine.add_argument("--drafts", choices=("off", "auto", "always"), help="auto: several tokens at once where a row's text repeats (on a GPU)")
    engine.add_argument("--plan", metavar="FILE", help="a plan whose groups rows take")
    engine.add_argument("--reproducible", action="store_true", help="a row's results are the same bits whatever rows run with it")
    told = run.add_argument_group("what is told")
    told.add_argument("--stats", metavar="FILE", help="statistics of the job as JSON")
    told.add_argument("--report", metavar="FILE", help="an HTML page that shows what was shared and done")
    told.add_argument("--timeline", metavar="FILE", help="CSV with a line for each step")
    told.add_argument(
        "--progress", choices=("auto", "json", "none"), default="auto",
        help="on stderr: a bar on a terminal, else lines; and a summary. json: an object each second, with the names of the program's",
    )  # fmt: skip
    return parser


class _JsonLines:
    """Progress as lines of JSON on stderr: one each second, and one at the end. The counts are those of this run."""

    def __init__(self) -> None:
        self._next = 0.0
        self._last: Optional[Progress] = None

    def __call__(self, now: Progress) -> None:
        self._last = now
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 1
            self._print(now)

    def end(self) -> None:
        if self._last is not None:
            self._print(self._last)

    def _print(self, now: Progress) -> None:
        names = ("rows_waiting", "rows_running", "rows_done", "tokens_done", "tokens_left", "pages_used", "pages_total", "seconds")
        print(json.dumps({name: getattr(now, name) for name in names}), file=sys.stderr, flush=True)


def _memory(text: str) -> tuple[int, float]:
    """(bytes, share of the free memory), one of which is 0."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?) ?(?:([kmgt])(i?b)?|(%)|b)?", text, re.I)
    number = float(found[1]) if found is not None else 0.0
    if found is None or number == 0 or (found[4] and number > 100):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2GiB, nor a share such as 40%")
    if found[4]:
        return 0, number / 100
    thousand = 1000 if (found[3] or "").lower() == "b" else 1024
    return int(number * thousand ** ("kmgt".index(found[2].lower()) + 1 if found[2] else 0)), 0.0


def _bytes(text: str) -> int:
    size, share = _memory(text)
    if share:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2GiB")
    return size


def _adapter(text: str) -> tuple[str, str]:
    name, found, path = text.partition("=")
    if not name or not found or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIR")
    return name, path


_CONSTRAINT_FLAGS = {
    "flexible_whitespace": "JSON may have spaces and line ends",
    "any_member_order": "members of JSON objects in any order",
    "any_numbers": "JSON numbers may be 12.0 for 12, and have exponents",
    "loose_schema": "ignore what a schema requires but cannot be enforced, with a warning",
}
# Those of generated rows; the others are options of tasks.
_PARAMETERS = [one for one in PARAMETERS if hasattr(SamplingParams(), one.python_name) and one.kind != "Biases"]
_SCALARS: dict[str, Any] = {"Whole": int, "Likeliest": int, "Seed": int, "Number": float}


def _place(one: Parameter) -> str:
    """Where the parsed options have it: --samples is something else."""
    return "parameter_" + one.python_name


def _add_parameter(group: argparse._ArgumentGroup, one: Parameter) -> None:
    option, to = one.option or "--" + one.python_name.replace("_", "-"), _place(one)
    if one.kind in _SCALARS:
        kind = _SCALARS[one.kind]
        group.add_argument(option, dest=to, type=kind, metavar="X" if kind is float else "N", help=one.help)
    elif one.kind == "Flag":
        on = not getattr(SamplingParams(), one.python_name)
        group.add_argument(option, dest=to, action="store_const", const=on, help=one.help)
    elif one.kind == "Tokens":
        group.add_argument(option, dest=to, action="append", type=int, metavar="ID", help=one.help)
    else:
        group.add_argument(option, dest=to, action="append", metavar="TEXT", help=one.help)


def _params(given: argparse.Namespace) -> SamplingParams:
    places = {one.python_name: _place(one) for one in _PARAMETERS}
    places |= {name: name for name in ("regex", "choices", "start_after", *_CONSTRAINT_FLAGS)}
    # 0 is a value: only options that were not given are left out.
    named = {name: value for name, place in places.items() if (value := getattr(given, place)) is not None}
    if given.json_schema is not None:
        named["json_schema"] = _text_of(given.json_schema)
    if given.use_adapter is not None:
        named["adapter"] = given.use_adapter
    if given.grammar is not None:
        text = _text_of(given.grammar)
        named["grammar"] = {"lark": text} if given.grammar.endswith(".lark") else text
    return SamplingParams(**named)


def _template(given: argparse.Namespace) -> Optional[str]:
    if given.template_file is None:
        return None if given.template is None else str(given.template)
    if given.template is not None:
        raise ValueError("--template and --template-file both say the template")
    return _text_of(given.template_file)


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as fault:
        raise ValueError(f"{path}: byte {fault.start} is not UTF-8") from None


def _storage_options(text: Optional[str]) -> Optional[dict[str, Any]]:
    if not text:
        return None
    try:
        options = json.loads(text)
    except ValueError as fault:
        raise ValueError(f"--storage-options: not JSON: {fault}") from None
    if not isinstance(options, dict):
        raise ValueError('--storage-options: a JSON object is expected, such as {"anon": true}')
    return options


def _backend_options(given: argparse.Namespace) -> Optional[str]:
    named = [f"{name}={value}" for name in ("quantize", "kv_type", "tensor_parallel", "drafts") if (value := getattr(given, name)) is not None]
    return ",".join([given.backend_options] * bool(given.backend_options) + named) or None


def _run(given: argparse.Namespace) -> int:
    params, template, json_lines = _params(given), _template(given), _JsonLines()
    options = _storage_options(given.storage_options)
    if (given.adapter or given.adapters) and not (given.adapter_column or given.use_adapter):
        raise ValueError("--adapter-column says which column names each row's adapter, or --use-adapter names one for all rows")
    # run_files checks them too, but the engine opens the timeline before.
    check_outputs(
        {"the output": files_of_output(given.output, given.retry_failed), "--report": given.report, "--stats": given.stats, "--timeline": given.timeline},
        {"the input": given.input, "the file of --plan": None if given.plan is None else files_of_plan(given.plan),
         "the file of --template-file": given.template_file, "the file of --json-schema": given.json_schema, "the file of --grammar": given.grammar},
        given.model,
        [path for _, path in given.adapter] + directories_of(given.adapters),
    )  # fmt: skip
    folders = given.images or ([] if given.image_column is None or is_remote(given.input) else [os.path.dirname(given.input) or "."])
    with Engine(
        given.model,
        backend=given.backend,
        devices=given.devices,
        compute_type=given.compute_type,
        backend_options=_backend_options(given),
        threads=given.threads,
        kv_memory_bytes=given.kv_memory_bytes or given.kv_memory[0],
        kv_memory_fraction=given.kv_memory[1],
        step_tokens=given.step_tokens,
        max_request_tokens=given.max_request_tokens,
        max_requests=given.max_requests,
        enlarge=given.enlarge,
        levels=given.levels if given.levels == "auto" else int(given.levels),
        timeline=given.timeline,
        adapters=given.adapters,
        adapter_memory_bytes=given.adapter_memory,
        reproducible=given.reproducible,
        image_folders=folders,
        seed=given.engine_seed,
    ) as engine:
        engine._adapters.options = "--adapter, --adapters"
        for name, path in given.adapter:
            engine.load_adapter(name, path)
        report = run_files(
            engine,
            given.input,
            given.output,
            prompt_column=given.prompt_column,
            template=template,
            fields=given.fields,
            chat=given.chat,
            system=given.system,
            image_column=given.image_column,
            params=params,
            columns=None if given.columns is None else given.columns.split(","),
            result_prefix=given.result_prefix,
            samples=given.samples,
            parsed=given.parsed,
            task=given.task,
            pooling=given.pooling,
            normalize=None if given.normalize is None else given.normalize == "yes",
            dimensions=given.dimensions,
            continuations=given.continuations,
            continuations_column=given.continuations_column,
            adapter_column=given.adapter_column,
            resume=given.resume,
            force=given.force,
            retry_failed=given.retry_failed,
            chunk_rows=given.chunk_rows,
            input_format=given.input_format,
            output_format=given.output_format,
            storage_options=options,
            progress=json_lines if given.progress == "json" else given.progress == "auto",
            plan=given.plan,
            report=given.report,
            stats=given.stats,
        )
    json_lines.end()
    if given.progress == "auto" and not report.summary:
        print(f"{report.rows:,} rows are done since an earlier run ({report.failed:,} errors)", file=sys.stderr)
    return _ROW_ERRORS if report.failed else _DONE


# How errors that name arguments of run_files begin and end, with the options instead.
_ARGUMENTS_AT_START = {
    "retry_failed: {output}: ": "--retry-failed: {output}: ",
    "retry_failed: {output}.retry": "--retry-failed: {output}.retry",
    "stats: {stats}: ": "--stats: {stats}: ",
    "report: {report}: ": "--report: {report}: ",
    "retry_failed is for a job that continues: give resume=True too": "--retry-failed is for a job that continues: give --resume too",
}
_ARGUMENTS_AT_END = {
    "; resume continues it, force starts over": "; --resume continues it, --force starts over",
    "; force starts over": "; --force starts over",
    ": input_format says 'parquet', 'csv' or 'arrow'": ": --input-format says 'parquet', 'csv' or 'arrow'",
    ": output_format says 'parquet', 'csv' or 'arrow'": ": --output-format says 'parquet', 'csv' or 'arrow'",
    ": say so by input_format": ": say so by --input-format",
}


def _with_options(text: str, given: argparse.Namespace) -> str:
    """An error's text with the program's options for the arguments that it names. In between are paths and values, which
    stay as they are."""
    for arguments, options in _ARGUMENTS_AT_START.items():
        start = arguments.format(**vars(given))
        if text.startswith(start):
            text = options.format(**vars(given)) + text[len(start) :]
    for arguments, options in _ARGUMENTS_AT_END.items():
        if text.endswith(arguments):
            text = text[: -len(arguments)] + options
    return text


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = _parser()
    words = sys.argv[1:] if arguments is None else arguments
    if words and words[0] != "run" and not words[0].startswith("-"):
        parser.error(f"{words[0]!r}: only run is a command here, others are the program's (batchllm --help)")
    given, unknown = parser.parse_known_args(words)
    if unknown:
        near = get_close_matches(unknown[0].split("=")[0], parser.run_options(), n=1, cutoff=0.7)
        parser.error(f"unknown option {unknown[0]}" + (f" (did you mean {near[0]}?)" if near else ""))

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        return _run(given)
    except KeyboardInterrupt:
        print("batchllm: interrupted; run again with --resume to go on", file=sys.stderr)
        return _INTERRUPTED
    except (Error, OSError, ValueError, KeyError, TypeError, NotImplementedError, ModuleNotFoundError) as fault:
        text = fault.args[0] if isinstance(fault, KeyError) and fault.args else fault
        if given.json_schema is not None and str(text).startswith("json_schema: "):
            text = f"--json-schema: {given.json_schema}: {text}"
        if isinstance(fault, OSError) and not isinstance(fault, Error) and fault.filename is not None:
            text = f"{fault.filename}: {fault.strerror}"
        text = _with_options(str(text), given)
        full = isinstance(fault, OSError) and fault.errno == errno.ENOSPC and not text.endswith(OUTPUT_IS_COMPLETE)
        again = "; make room, and run again with --resume" if full else ""
        print(f"batchllm: {text}{again}", file=sys.stderr)
        return _STOPPED


if __name__ == "__main__":
    sys.exit(main())
