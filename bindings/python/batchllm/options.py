"""Options given by name: the error for an unknown one, with what may have been meant."""

from __future__ import annotations

import functools
import inspect
from difflib import get_close_matches
from typing import Callable, Iterable, ParamSpec, TypeVar

_OTHERS = {
    "sampling_params": "params",
    "use_tqdm": "progress",
    "prompts": "rows",
    "model": "engine",
    "dtype": "compute_type",
    "max_model_len": "max_request_tokens",
    "max_num_seqs": "max_requests",
    "max_num_batched_tokens": "step_tokens",
    "gpu_memory_utilization": "kv_memory_fraction",
    "tensor_parallel_size": "backend_options",
    "tensor_parallel": "backend_options",
    "max_new_tokens": "max_tokens",
    "guided_choice": "choices",
    "guided_regex": "regex",
    "guided_json": "json_schema",
    "guided_grammar": "grammar",
    "lora_request": "adapter",
}
"""Names that others use, and ours for the same."""

_SPELLED = {"backend_options": "backend_options={'tensor_parallel': N}"}
"""What is meant where the name alone does not say it."""

_ARGUMENTS: dict[str, list[str]] = {}
"""The arguments of every function that is `hinted`: an argument may be meant for another one."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def no_option(name: str, known: Iterable[str]) -> TypeError:
    """The error names the options that may have been meant, or else all of them."""
    names = sorted(known)
    return TypeError(f"no option {name!r}; {_hint(name, names) or 'there are ' + ', '.join(names)}")


def _hint(name: str, names: Iterable[str]) -> str:
    """The options that may have been meant; "" if none is near."""
    names = sorted(names)
    ours = _OTHERS.get(name, "")
    near = [_SPELLED.get(ours, ours)] if ours in names else get_close_matches(name, names, n=3, cutoff=0.7)
    near += [other for other in names if other not in near and set(name.split("_")) <= set(other.split("_"))]
    return f"did you mean {' or '.join(near[:3])}?" if near else ""


def hinted(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Makes the error for an argument that does not exist say which one may have been meant."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    _ARGUMENTS[function.__qualname__] = names

    @functools.wraps(function)
    def checked(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        for name in named:
            if name not in names:
                raise _unexpected(function.__qualname__, name, names)
        return function(*arguments, **named)

    return checked


def _unexpected(function: str, name: str, names: Iterable[str]) -> TypeError:
    meant = _OTHERS.get(name, name)
    if "params" in names and meant in _ARGUMENTS["SamplingParams.__init__"]:
        hint = f"it is a field of SamplingParams: params=SamplingParams({meant}=..)"
    elif "engine_options" in names and meant not in names and meant in _ARGUMENTS["Engine.__init__"]:
        hint = f'it is an option of the engine: engine_options={{"{meant}": ..}}'
    else:
        hint = _hint(name, names) or f"there are {', '.join(names)}"
    return TypeError(f"{function.removesuffix('.__init__')}() has no argument {name!r}; {hint}")
