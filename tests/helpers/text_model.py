#!/usr/bin/env python3
"""Makes a model directory with a tokenizer for the tests: one of the golden models, and a byte-level tokenizer with 256
bytes and added tokens up to one beyond the model's vocabulary. For a model with a vision tower, the chat template has a
place for images. Usage: text_model.py GOLDEN_MODEL OUTPUT_DIRECTORY STAMP"""
import json
import pathlib
import shutil
import sys


def byte_alphabet():
    """The characters that stand for the 256 bytes in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable}
    names.update({byte: chr(0x100 + i) for i, byte in enumerate(others)})
    return [names[byte] for byte in range(256)]


CHAT_TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role == 'critic' %}{{ raise_exception('No critics') }}{% endif %}
    {{- message.role[0] ~ ':' ~ message.content | trim ~ eos_token }}
{%- endfor %}
{%- if tools %}{{ tools | length }}{% endif %}
{%- if add_generation_prompt %}a:{% endif %}"""


# Like those of Gemma 3, Mistral 3 and Qwen-VL: an image becomes a token that the vision tower's states replace.
VISION_TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
    {{- message.role[0] ~ ':' }}
    {%- if message.content is string %}{{ message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}<unused-259>
            {%- elif part.type == 'text' %}{{ part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}{{ eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}a:{% endif %}"""


def added(token_id, content, special):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": special}


def tokenizer(vocabulary):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    alphabet = byte_alphabet()
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            added(256, "<s>", True), added(257, "</s>", True), added(258, "<tool>", False),
            *[added(token_id, f"<unused-{token_id}>", True) for token_id in range(259, vocabulary)],
            # Outside the model's vocabulary: a row with this token cannot be computed.
            added(vocabulary, "<beyond>", True)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}},
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {name: byte for byte, name in enumerate(alphabet)}, "merges": []},
    }


def make(model, output):
    output.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        if file.name != "golden.json":
            shutil.copyfile(file, output / file.name)
    config = json.loads((model / "config.json").read_text())
    vocabulary = config.get("text_config", config)["vocab_size"]
    template = VISION_TEMPLATE if "vision_config" in config else CHAT_TEMPLATE
    (output / "tokenizer.json").write_text(json.dumps(tokenizer(vocabulary)))
    (output / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"},
                                                              "chat_template": template}))


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
    pathlib.Path(sys.argv[3]).write_text("")
