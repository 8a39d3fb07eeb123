#!/usr/bin/env python3
"""Small inputs that a fuzzer starts from, one folder per target. Usage: make_seeds.py OUTPUT_FOLDER

They are small on purpose: a real model's tokenizer has megabytes, and a fuzzer that starts there tries a dozen inputs
per second.
"""

import base64
import json
import pathlib
import struct
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}],
     "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "continue_final_message": True},
    {"messages": [{"role": "assistant", "content": "x", "reasoning": "y"}], "add_generation_prompt": False,
     "chat_template_kwargs": {"enable_thinking": False}}]
TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}{{ m.role ~ ': ' ~ m.content | trim }}\n{% endfor %}",
    "{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% set ns = namespace(n=0) %}"
    "{% for m in messages if m.role != 'system' %}{% set ns.n = ns.n + 1 %}{{ loop.index0 }}{{ m['content'][:3] }}{% else %}-{% endfor %}{{ ns.n }}",
    "{% macro f(a, b='x') %}{{ a.split('x') | join(b) | upper }}{% endmacro %}{{ f('axb') }}{{ raise_exception('no') if false }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | last }}{{ strftime_now('%d %b') }}"]


SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 9}, "tags": {
        "type": "array", "items": {"enum": ["a", "b", 3]}, "uniqueItems": True}}, "required": ["name"], "additionalProperties": False},
    {"$defs": {"n": {"type": ["object", "null"], "properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    {"type": "integer", "minimum": -10 ** 30, "maximum": 10 ** 30, "default": 10 ** 400},
    {"type": "number", "minimum": -2.5, "exclusiveMaximum": 1e3, "multipleOf": 0.25},
    {"anyOf": [{"type": "string", "pattern": "^[a-z]+$", "format": "email"}, {"const": {"a": [1, None]}}], "not": {"const": "b@c.de"}},
    {"patternProperties": {"^x-": {"type": "integer"}}, "propertyNames": {"maxLength": 4}, "minProperties": 1, "maxProperties": 3},
    {"prefixItems": [{"type": "boolean"}, True], "items": {"type": "string"}, "contains": {"const": "c"}, "minItems": 1, "maxItems": 5},
    {"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["v"]}, "else": {"dependentRequired": {"k": ["w"]}},
     "properties": {"k": {"enum": [1, 2]}, "v": {}, "w": {}}, "type": "object", "unevaluatedProperties": False}]


def tokenizers():
    """One tokenizer for each kind of part, with the smallest vocabulary that uses it."""
    vocab = {"a": 0, "b": 1, "ab": 2, "\u0120": 3, "\u0120a": 4, "<unk>": 5, "\u2581": 6, "\u2581a": 7, "<0xC3>": 8, "<0xA9>": 9}
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab,
             "merges": [["a", "b"], ["\u0120", "a"], ["\u2581", "a"]]}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    parts = [
        (None, byte_level, byte_level, None),
        ({"type": "NFC"}, metaspace, metaspace, None),
        ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                              {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}, None,
         {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                           {"type": "ByteFallback"}, {"type": "Fuse"},
                                           {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}, None),
        (None, {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
             "behavior": "Isolated", "invert": False}, {**byte_level, "use_regex": False}]}, byte_level,
         {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
          "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [10], "tokens": ["<s>"]}}})]
    for normalizer, pre_tokenizer, decoder, post_processor in parts:
        yield {"version": "1.0", "added_tokens": [
            {"id": 10, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": True, "normalized": False, "special": True}],
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model}


def adapters():
    """(adapter_config.json, shapes of the tensors) of adapters for the target's two models, in turn."""
    layer = "base_model.model.model.layers.0."

    def pair(module, rows, columns):
        return {module + ".lora_A.weight": [2, columns], module + ".lora_B.weight": [rows, 2]}

    yield {"target_modules": ["q_proj", "down_proj"]}, {**pair(layer + "self_attn.q_proj", 8, 8), **pair(layer + "mlp.down_proj", 8, 12)}
    yield {"target_modules": ["down_proj"]}, pair(layer + "mlp.experts.1.down_proj", 8, 6)
    yield {"target_modules": "all-linear", "use_rslora": True}, pair(layer + "mlp.gate_proj", 12, 8)
    yield {"target_modules": ["embed_tokens"]}, {"base_model.model.model.embed_tokens.lora_embedding_A": [2, 10],
                                                 "base_model.model.model.embed_tokens.lora_embedding_B": [8, 2]}
    yield {"target_modules": ["lm_head"]}, {**pair("base_model.model.lm_head", 10, 8), "base_model.model.lm_head.base_layer.weight": [10, 8]}
    yield {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]}, {
        layer + "mlp.experts.lora_A.weight": [6, 6], layer + "mlp.experts.lora_B.weight": [8, 6]}
    yield {"target_modules": ".*o_proj", "rank_pattern": {"o_proj": 2}, "alpha_pattern": {"^.*o_proj": 3}, "layers_to_transform": [0],
           "exclude_modules": ["v_proj"]}, pair(layer + "self_attn.o_proj", 8, 8)


def rows():
    yield {"id": 1, "prompt": "text", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 7, "stop": ["a"]}
    yield {"id": "x", "tokens": [1, 2, 3], "score": [[1], [2, 3]]}
    yield {"messages": CONVERSATIONS[0], "n": 2, "logprobs": 3, "ignore_eos": True, "metadata": {"own": 1}}
    yield {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "p", "echo": False}}
    yield {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions",
           "body": {"model": "m", "messages": CONVERSATIONS[0], "max_completion_tokens": 3, "logprobs": True, "top_logprobs": 2,
                    "response_format": {"type": "text"}, "tools": None, "logit_bias": {"5": -1}}}
    yield '{"id": 1e999, "prompt": "\\ud800", "prompt": 2}'
    yield '{"id": 7, "tokens": [1, 2.0, 3e0], "seed": 1e400, "metadata": {"a": -1e400, "a": 0.1e-9999}}'
    yield '{"id": 7, "tokens": [01], "top_p": .5}'
    yield '{"id": 88888888888888888888888, "88888888888888888888888": 7, "stop": ["a"], "prompt": "x"}'


def picture_rows():
    """Golden rows: texts with files and with names, and conversations whose parts bring names or "data:" URLs."""
    folder = TESTS / "golden/qwen3_vl_pictures"
    made = json.loads((folder / "pictures.json").read_text())
    names = [picture["file"] for picture in made["pictures"]]
    files = [(folder / name).read_bytes() for name in names]

    def one(flags, pictures, text):
        items = b"".join(bytes([kind]) + len(data).to_bytes(2, "little") + data for kind, data in pictures)
        return bytes([flags, len(pictures)]) + items + text.encode()

    for i, row in enumerate(made["rows"]):
        if len(row["pictures"]) > 3:
            continue
        yield "picture_rows", f"files_{i}", one(0, [(0, files[n]) for n in row["pictures"]], row["text"])
        yield "picture_rows", f"names_{i}", one(0, [(1, names[n].encode()) for n in row["pictures"]], row["text"])
        parts = json.loads(json.dumps(row["messages"]))
        for message in parts:
            for part in message["content"] if isinstance(message["content"], list) else ():
                if part["type"] == "image":
                    part["image"] = names[part["image"]]
        yield "picture_rows", f"parts_{i}", one(1, [], json.dumps(parts))
    url = "data:image/png;base64," + base64.b64encode(files[0]).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "image"}, {"type": "text", "text": "?"}]
    text = json.dumps([{"role": "user", "content": parts}])
    yield "picture_rows", "url", one(3, [(0, files[1][:100])], text)


def seeds():
    for i, template in enumerate(TEMPLATES):
        for j, conversation in enumerate(CONVERSATIONS):
            yield "chat_template", f"{i}-{j}", template.encode() + b"\0" + json.dumps(conversation).encode()
    for i, tokenizer in enumerate(tokenizers()):
        text = json.dumps(tokenizer, ensure_ascii=False).encode()
        yield "tokenizer", f"{i}", text + b"\0" + "ab a <s>\u00e9 12345 it's\r\n  x".encode()
    for i, expression in enumerate([
            "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}&&[^\\p{Han}]]*\\p{Ll}+(?i:'s|'t)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s+(?!\\S)|\\s+",
            "(?:a|b??)*c|(?>ab|a)\\b", "^\\h{2,}?$|(?=\\d{3})", "(?:a|aa)+b"]):
        yield "split", f"{i}", expression.encode() + b"\0" + "it's Ab12345 \u4e2d aab\r\n  x aaaac".encode()
    yield "tokenizer", "text", "_a\u00e9 <s>  aa".encode()
    configs = sorted(TESTS.glob("golden/*/config.json"))
    for path in configs:
        index = path.parent / "model.safetensors.index.json"
        generation = path.parent / "generation_config.json"
        parts = [path.read_bytes(), generation.read_bytes() if generation.exists() else b'{"eos_token_id": [1, 2]}',
                 json.dumps({"bos_token": "<s>", "chat_template": [{"name": "default", "template": TEMPLATES[0]}]}).encode(),
                 json.dumps({"eos_token": {"content": "</s>"}}).encode(),
                 index.read_bytes()[:4096] if index.exists() else b'{"weight_map": {"model.norm.weight": "a.safetensors"}}',
                 b'{"chat_template": "x"}']
        own = path.parent / "hf_quant_config.json"
        if own.exists():
            parts.append(own.read_bytes())
        yield "model_files", path.parent.name, b"\0".join(parts)
    # Numbers of any size where nobody asks for them, and a key twice.
    unasked = b', "own": [1e400, -1e-9999, 1' + b"0" * 30 + b', -0], "own": 1.0}'
    yield "model_files", "numbers", b"\0".join(
        [configs[0].read_bytes().rstrip()[:-1] + unasked, b'{"eos_token_id": 1.0' + unasked, b'{"model_max_length": 1' + b"0" * 30 + unasked])
    yield "safetensors", "numbers", struct.pack("<Q", 64) + b'{"a":{"dtype":"U8","shape":[1e400],"data_offsets":[0,1]}}'.ljust(64)
    yield "chat_template", "numbers", b"{{ messages[0].n }}{{ messages[0].n | tojson }}\0" + \
        b'[{"role": "user", "content": "x", "n": [1e400, 0.1e-9999, -1' + b"0" * 30 + b', -0, 1.0]}]'
    for i, row in enumerate(rows()):
        yield "rows", f"{i}", b"\0" + (row if isinstance(row, str) else json.dumps(row)).encode()
    lines = b'{"id":1,"text":"a"}\n{"id":2}\n'
    for how in (0, 2, 4, 6):
        yield "state", f"{how}", bytes([how]) + lines + b"\0\0" + struct.pack("<QQ", 3 << 1, 77)
    block = struct.pack("<QQ", 5, 2) + b"bytes" + struct.pack("<QQ", 0, 1)
    for how in (8, 9, 12):
        yield "state", f"blocks{how}", bytes([how]) + block + b"\0\0" + struct.pack("<QQ", 7 << 1, 77)
    yield "state", "torn_block", b"\x08" + block + struct.pack("<QQ", 9, 1) + b"\0\0"
    yield "state", "torn", b"\0" + lines + b'{"id'
    yield "state", "endless", b"\6{\0\0\r"
    yield "state", "zeros", b"\0" + lines + b"\0{}\n"
    yield "state", "own", b'\3{}\n\0\0{"batchllm_state":1,"created":5,"job":{"model config.json":"none","input bytes":"17"}}\n' + bytes(16)
    for path in sorted((TESTS / "plan").glob("*.plan")):
        yield "plan", path.name, path.read_bytes()
    # The small ones of each kind.
    for i, path in enumerate(path for path in sorted((TESTS / "image/pictures").iterdir()) if path.stat().st_size < 8192):
        yield "picture", path.name, bytes([i]) + path.read_bytes()

    yield from picture_rows()
    for kind, text in ((0, 'root ::= "a" item* "b"\nitem ::= [a-c]{1,3} ("," item)?\n'), (0, 'root ::= root "x" | "\u00e9"'),
                       (1, 'start: pair ("," pair)*\npair: NAME ":" (NUMBER | "null"i)\nNAME: /[a-z_]+/\n%import common.NUMBER\n%ignore " "\n'),
                       (2, r"^(?:a|b{2,5})(?=c)[^\d\s]+\p{Lu}\u{1F600}$"), (3, r"(?P<y>\d{4})-(?i:ab?)\Z"), (16, 'root ::= "abc"')):
        yield "constraint", f"{kind}-{len(text)}", bytes([kind]) + text.encode() + b"\0" + bytes(range(40, 90))
    for i, schema in enumerate(SCHEMAS):
        for kind in range(4, 8):
            yield "constraint", f"{kind}-schema-{i}", bytes([kind]) + json.dumps(schema).encode() + b"\0" + bytes(range(40, 90))
    for which in range(32):
        for start in range(3):
            steps = bytes((start * 83 + which * 31 + i * i * 7 + i) % 256 for i in range(50))
            text = b'{"enum": ["a", 1]}\0' if which >= 17 else b""
            yield "constraint_tokens", f"{which}-{start}", bytes([which]) + text + steps
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
                         "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}}).encode()
    yield "safetensors", "two", struct.pack("<Q", len(header)) + header + bytes(12)
    for i, (config, shapes) in enumerate(adapters()):
        header, at = {}, 0
        for name, shape in shapes.items():
            end = at + 4 * shape[0] * shape[1]
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
            at = end
        head = json.dumps(header).encode()
        given = {"peft_type": "LORA", "bias": "none", "r": 2, "lora_alpha": 4, **config}
        yield "adapter", f"{i}", b"%d" % (i % 2) + json.dumps(given).encode() + b"\0" + struct.pack("<Q", len(head)) + head + \
            struct.pack("<f", 0.25) * (at // 4)
    body = b"batchllm tuning 4\nstamp\n64 128 256 0 1 0 3\n1 2 3 1 1 1 0\n"
    number = 0xcbf29ce484222325
    for byte in body:
        number = (number ^ byte) * 0x100000001b3 % (1 << 64)
    for form in ("%016x", "%x", "%d"):
        yield "tuning", form.strip("%"), body + b"end " + (form % number).encode() + b"\n"
    for i in range(8):
        # An array or a stream; each format; increasing offsets.
        yield "arrow", f"{i}", bytes([i % 2, *(0,) * (i % 2), i // 2, *(0,) * 6, 3, 0, 0, 0, 0, 9, 1, 2, 1, 3, 0, 0, 0, 0, *range(40)])
        yield "api", f"{i}", bytes((j * 37 + i * 91 + j * j * 11) % 256 for j in range(60 + 20 * i))


def main():
    for target, name, data in seeds():
        folder = pathlib.Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


main()
