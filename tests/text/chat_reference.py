"""Renders conversations with transformers, and makes conversations to try, for make_chat_golden.py and fuzz_chat.py."""
import json
import random

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **TOKENS)


def reference(template, conversation, prompt):
    """The text, or None and the error if transformers or jinja2 raises."""
    given = json.loads(conversation)
    if isinstance(given, list):
        given = {"messages": given}
    continued = given.get("continue_final_message") or False
    prompt = given.get("add_generation_prompt", prompt and not continued)
    try:
        text = TOKENIZER.apply_chat_template(
            given["messages"], tools=given.get("tools"), documents=given.get("documents"), chat_template=template,
            add_generation_prompt=prompt, continue_final_message=continued, tokenize=False,
            **(given.get("chat_template_kwargs") or {}))
        text.encode()
        return text, None
    except Exception as error:  # whatever Python raises on the template's behalf
        return None, f"{type(error).__name__}: {error}"


TEXTS = ["Hello", "  spaced out \n", "", "naïve café — “quoted”", "日本語のテキスト", "emoji 👩🏽‍🚀 and \U0001f600",
         "line one\nline two\r\nline three\n\n", "{\"json\": [1, 2.5, null]}", "tab\there \\ back/slash 'single' \"double\"",
         "\u00a0no-break\u3000wide\u2028separator\x1f", "<think>hm</think>\n\nThe answer.", "<think>\nfirst\n</think>second<think>third</think>\nfourth",
         "<answer>42</answer>", "ΑΣ ὈΔΥΣΣΕΎΣ ß ŉ ǆ İstanbul ﬃ", "{{ not.a.template }} {% raw %}", "<s>[ASK] </s>", "\u0000\u0007\u007f\u0085"]
NUMBERS = [0, 1, -7, 42, 2**53 + 1, -2**63, 10**30, 0.5, -0.0, 1e-7, 1e16, 123456789.125, 1.7976931348623157e308, 5e-324, 0.1, 100.0]


def value(rng, depth):
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind < 2:
        return rng.choice(TEXTS)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice([None, True, False])
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "b", "naïve", "items", "Z", "key with space", "x" * 20]): value(rng, depth + 1)
            for _ in range(rng.randrange(4))}


def schema(rng, depth=0):
    kind = rng.choice(["string", "integer", "number", "boolean", "object", "array"] if depth < 3 else ["string", "integer"])
    made = {"type": kind}
    if rng.random() < 0.4:
        made["description"] = rng.choice(TEXTS)
    if kind == "object":
        made["properties"] = {name: schema(rng, depth + 1) for name in rng.sample(["city", "unit", "days", "tags", "where"], rng.randrange(4))}
        if rng.random() < 0.5:
            made["required"] = list(made["properties"])[:1]
    if kind == "array":
        made["items"] = schema(rng, depth + 1)
    if kind == "string" and rng.random() < 0.3:
        made["enum"] = ["celsius", "fahrenheit", "naïve"]
    if rng.random() < 0.05:
        made["type"] = ["string", "null"]
    return made


def tool(rng):
    function = {"name": rng.choice(["get_weather", "search", "brave_search"]), "description": rng.choice(TEXTS),
                "parameters": {"type": "object", "properties": {"city": schema(rng), "n": schema(rng)}, "required": ["city"]}}
    if rng.random() < 0.2:
        function["return"] = {"type": "string"}
    return {"type": "function", "function": function}


def call(rng):
    arguments = {"city": rng.choice(TEXTS)}
    if rng.random() < 0.5:
        arguments["extra"] = value(rng, 1)
    made = {"id": rng.choice(["abcdefghi", "123456789", "call_1"]), "type": "function",
            "function": {"name": rng.choice(["get_weather", "brave_search"]), "arguments": arguments}}
    if rng.random() < 0.2:
        made["function"]["arguments"] = json.dumps(arguments)
    return made


# What the templates beside this file accept as content: only text, parts that are text, or parts of any type.
TAKES_PARTS = {"dated": "text", "typed": "text", "tagged": "text", "referring": "any"}


def part_of_a_result(rng):
    return rng.choice([{"type": "tool_reference", "name": rng.choice(["get_weather", "search", "brave_search"])},
                       {"type": "tool_reference", "name": "unknown"}, {"output": rng.choice(TEXTS)},
                       {"type": "text", "text": rng.choice(TEXTS)}, rng.choice(TEXTS)])


def content(rng, parts, role="user"):
    if parts == "any" and role == "tool" and rng.random() < 0.6:
        first = [{"type": "tool_reference", "name": rng.choice(["get_weather", "search", "brave_search"])}]
        return first * (rng.random() < 0.6) + [part_of_a_result(rng) for _ in range(rng.randrange(3))]
    if parts and rng.random() < 0.3:
        return [{"type": "text", "text": rng.choice(TEXTS)} for _ in range(rng.randrange(1, 4))]
    return rng.choice(TEXTS)


def conversation(rng, parts):
    """JSON text. parts: false, or a value of TAKES_PARTS."""
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": content(rng, parts)})
    for turn in range(rng.randrange(1, 6)):
        role = "user" if turn % 2 == 0 else "assistant"
        if rng.random() < 0.06:
            role = rng.choice(["user", "assistant", "tool", "system", "critic"])
        message = {"role": role, "content": content(rng, parts, role)}
        if rng.random() < 0.05:
            message["content"] = None
        if rng.random() < 0.03:
            del message["content"]
        if rng.random() < 0.05:
            message[rng.choice(["name", "tool_calls", "thinking"])] = None
        if role == "assistant":
            if rng.random() < 0.3:
                message["reasoning_content"] = rng.choice(TEXTS)
            if rng.random() < 0.35:
                message["tool_calls"] = [call(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
                message["content"] = rng.choice([None, "", message.get("content")])
                messages.append(message)
                message = {"role": "tool", "content": content(rng, parts == "any" and parts, "tool"), "tool_call_id": "abcdefghi"}
        messages.append(message)
    made = {"messages": messages}
    if rng.random() < 0.4:
        made["tools"] = [tool(rng) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.2:
        made["documents"] = [{"title": rng.choice(TEXTS), "text": rng.choice(TEXTS), "score": rng.choice(NUMBERS)}]
    if rng.random() < 0.3:
        made["add_generation_prompt"] = rng.random() < 0.5
    elif rng.random() < 0.2 and messages[-1]["role"] == "assistant":
        made["continue_final_message"] = rng.choice([True, True, "content", "reasoning_content", "thinking"])
    if rng.random() < 0.3:
        made["chat_template_kwargs"] = rng.choice([
            {"enable_thinking": False}, {"enable_thinking": True}, {"date_string": "9 Nov 2026"}, {"bos_token": "<other>"},
            {"builtin_tools": ["brave_search", "code_interpreter"]}, {"tools_in_user_message": False},
            {"number": 2.5, "list": [1, [2]], "none": None}])
    if len(made) == 1 and rng.random() < 0.5:
        made = messages
    return json.dumps(made, ensure_ascii=rng.random() < 0.5)
