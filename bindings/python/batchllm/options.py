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
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "sampling_seed": "seed",
    "response_schema": "json_schema",
    "stop_strings": "stop",
    "eos_token_id": "stop_token_ids",
    "ebnf": "grammar",
    "guided_choice": "choices",
    "guided_regex": "regex",
    "guided_json": "json_schema",
    "guided_grammar": "grammar",
    "lora_request": "adapter",
    "kv_cache_memory_bytes": "kv_memory_bytes",
    "context_length": "max_request_tokens",
    "model_path": "model",
    "tp_size": "backend_options",
    "truncate_dim": "dimensions",
    "normalize_embeddings": "normalize",
    "show_progress_bar": "progress",
    "allowed_local_media_path": "image_folders",
}
"""Names that others use, and ours for the same."""

_CONSTRAINTS = "SamplingParams(json_schema=.., regex=.., choices=.. or grammar=..) says what the output looks like"
_TEMPLATE_VARIABLE = "it is a variable of the chat template: chat(.., chat_template_kwargs={{{0!r}: ..}})"
_OF_CONVERSATIONS = "chat has it for all conversations, and a row may have its own: {{'messages': .., {0!r}: ..}}"
_MODEL_S_TEMPLATE = "the model's own chat template is used (docs/chat.md); another one goes into chat_template.jinja of a copy of the model's directory"

_SAID = {
    "structured_outputs": _CONSTRAINTS,
    "guided_decoding": _CONSTRAINTS,
    "response_format": _CONSTRAINTS,
    "messages": "generate takes conversations as rows, and chat as conversations",
    "prompt_token_ids": "rows of token ids are lists of them, or {'prompt_token_ids': [..]}",
    "allowed_token_ids": "logit_bias={id: 1000.0 for id in ids} leaves only these tokens",
    "do_sample": "temperature=0 is greedy (the default), and above 0 tokens are drawn",
    "bad_words_ids": "bad_words=[..] has them as texts",
    "spaces_between_special_tokens": "there is none: texts are as the tokenizer's decoder writes them",
    "top_logprobs": "logprobs=N asks for the N likeliest tokens too, and Result.top_logprobs has them",
    "include_stop_str_in_output": "there is none: a text is cut before the stop text, and Result.tokens has every token",
    "truncate_prompt_tokens": "there is none: cut prompts by batchllm.Tokenizer, and pass token ids",
    "max_length": "max_tokens bounds the output alone, and Engine(max_request_tokens=..) prompt and output together",
    "min_length": "min_tokens bounds the output alone",
    "pad_token_id": "there is none: rows are not padded",
    "flat_logprobs": "there is none: Results.logprobs is one column of all rows",
    "typical_p": "there is none: top_p, min_p and top_k bound what is drawn",
    "no_repeat_ngram_size": "there is none: repetition_penalty, presence_penalty and frequency_penalty",
    "length_penalty": "there is none, as there are no beams",
    "early_stopping": "there is none, as there are no beams",
    "detokenize": "there is none: every result has its text and its tokens",
    "logits_processors": "there is none; logit_bias, bad_words and constraints change what can be chosen",
    "best_of": "there is none: ask for n samples with logprobs=0, and choose",
    "use_beam_search": "there is none: n samples with a temperature are drawn instead",
    "num_beams": "there is none: n samples with a temperature are drawn instead",
    "enable_thinking": _TEMPLATE_VARIABLE.format("enable_thinking"),
    "reasoning_effort": _TEMPLATE_VARIABLE.format("reasoning_effort"),
    **{name: _OF_CONVERSATIONS.format(name) for name in
       ("chat_template_kwargs", "tools", "documents", "add_generation_prompt", "continue_final_message")},
    "chat_template": _MODEL_S_TEMPLATE,
    "chat_template_content_format": "there is none: whether content is text or a list of parts is seen in the template (docs/chat.md)",
    "mm_processor_kwargs": "there is none: pictures are prepared as the model's preprocessor_config.json says",
    "multi_modal_data": "images=[..] has the pictures of each row",
    "priority": "there is none: the order of rows is planned",
    "enable_prefix_caching": "there is none: what rows share is always computed once; enlarge='none' turns that off",
    "quantization": "the checkpoint says it; backend_options={'quantize': 'fp8'} computes other ones in fp8",
    "kv_cache_dtype": "backend_options={'kv_type': 'fp8'}",
    "trust_remote_code": "there is none: no code of a model's directory is run",
    "enforce_eager": "there is none",
    "enable_chunked_prefill": "there is none: step_tokens bounds a step, and prompts are split to fit",
    "speculative_config": "there is none: docs/drafts.md says what drafts there are",
    "pipeline_parallel_size": "there is none: backend_options={'tensor_parallel': N}, or devices=[..] with the whole model on each",
    "data_parallel_size": "devices=[..] gives each the whole model and a share of the rows",
    "limit_mm_per_prompt": "there is none",
    "block_size": "on a CPU backend_options={'page_tokens': N}; on CUDA pages have 64 tokens",
    **dict.fromkeys(("enable_lora", "max_loras", "max_lora_rank"), "there is none: adapters={'name': 'directory'}"),
    "tokenizer": "there is none: the model's directory has its tokenizer",
}  # fmt: skip
"""Names that others use and that are none here, and what does the same."""

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
    if name in _SAID:
        return _SAID[name]
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
    if name in _SAID:
        hint = _SAID[name]
    elif "params" in names and meant in _ARGUMENTS["SamplingParams.__init__"]:
        hint = f"it is a field of SamplingParams: params=SamplingParams({meant}=..)"
    elif "engine_options" in names and meant not in names and meant in _ARGUMENTS["Engine.__init__"]:
        hint = f'it is an option of the engine: engine_options={{"{meant}": ..}}'
    else:
        hint = _hint(name, names) or f"there are {', '.join(names)}"
    return TypeError(f"{function.removesuffix('.__init__')}() has no argument {name!r}; {hint}")
