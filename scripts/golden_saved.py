"""Directories as transformers saves them, for make_golden.py: model, tokenizer, processor and generation defaults each by their own
save_pretrained, with a chat template, and the answers to conversations.

tests/golden/saved/NAME is read by tests as it was saved. The one named `.._4` is then spelled as transformers 4 spelled it: special
tokens and template within tokenizer_config.json, special_tokens_map.json, the older keys of config.json. saved.json is ours: for each
row the conversation, its text and tokens, and the greedy answer.
"""
import json
import os
import pathlib
import shutil

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedTokenizerFast

NEW_TOKENS = 12
TOKENIZERS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "text"

MARKED = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'text' %}{{ part.text }}{% else %}{{ image_token }}{% endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
TURNS = """{{ bos_token }}{% for message in messages %}
{% if message.role == 'user' %}
{{ '[INST] ' + message.content + ' [/INST]' }}{% else %}
{{ message.content + eos_token }}{% endif %}
{% endfor %}
"""

SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
             max_position_embeddings=512)

# name: (model_type, configuration, tokenizer, special tokens, template, the text that ends an answer)
SAVED = {
    "llama_5": ("llama", dict(SMALL, rope_parameters=dict(rope_type="default", rope_theta=20000.0)), "llama2",
                dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>"), TURNS, "</s>"),
    "qwen3_4": ("qwen3", dict(SMALL, tie_word_embeddings=True), "qwen2",
                dict(eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=["<|im_start|>", "<|im_end|>"]), MARKED,
                "<|im_end|>"),
    "gemma3_vl_5": ("gemma3", dict(
        text_config=dict(SMALL, sliding_window=16, query_pre_attn_scalar=16),
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14),
        mm_tokens_per_image=4), "gemma",
        dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", extra_special_tokens=dict(
            image_token="<image_soft>", boi_token="<start_of_image>", eoi_token="<end_of_image>")),
        "{{ bos_token }}" + MARKED.replace("<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>"), "<end_of_turn>"),
}

CONVERSATIONS = [
    [{"role": "user", "content": "Which colour is the sky?"}],
    [{"role": "user", "content": "Name a town."}, {"role": "assistant", "content": "Wroc\u0142aw"},
     {"role": "user", "content": "  And another?\n"}],
    [{"role": "user", "content": "\u6f22\u5b57 \U0001f600 1,234.50"}],
]


def save_tokenizer(directory, name, special, template):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZERS / name / "tokenizer.json"), **special)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return tokenizer


def save_processor(directory, tokenizer, template):
    """As a processor is saved: it takes the tokenizer with it."""
    from transformers import Gemma3ImageProcessor, Gemma3Processor
    processor = Gemma3Processor(Gemma3ImageProcessor(size=dict(height=28, width=28)), tokenizer, chat_template=template,
                                image_seq_length=4)
    processor.save_pretrained(directory)


def rewrite(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def spell_as_4(directory, tokenizer):
    """What transformers 4 wrote for the same model and tokenizer."""
    directory = pathlib.Path(directory)
    template = directory / "chat_template.jinja"

    def tokens(config):
        config.pop("backend", None)
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
        config["added_tokens_decoder"] = {
            str(number): {key: value for key, value in token.__getstate__().items()}
            for number, token in tokenizer.added_tokens_decoder.items()}
        config.update(add_prefix_space=False, bos_token=None, errors="replace", split_special_tokens=False, unk_token=None,
                      tokenizer_class="Qwen2Tokenizer", chat_template=template.read_text())
    rewrite(directory / "tokenizer_config.json", tokens)
    template.unlink()
    config = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "special_tokens_map.json").write_text(json.dumps({
        "additional_special_tokens": config["additional_special_tokens"],
        **{key: {"content": config[key], "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
           for key in ("eos_token", "pad_token")}}, indent=2) + "\n")
    (directory / "added_tokens.json").write_text(json.dumps(
        {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}, indent=2) + "\n")


def answer(reader, reference, messages):
    text = reader.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = reader.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    with torch.no_grad():
        made = reference.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                                  max_new_tokens=NEW_TOKENS, do_sample=False, temperature=None, top_p=None, top_k=None, pad_token_id=0,
                                  output_logits=True, return_dict_in_generate=True)
    tokens = made.sequences[0, len(prompt):].tolist()
    top = [torch.topk(logits[0].double(), 2).values for logits in made.logits]
    good = min(float(values[0] - values[1]) for values in top) > 2e-3 and len(set(tokens)) > len(tokens) / 2
    return {"messages": messages, "text": text, "prompt": prompt, "tokens": tokens,
            "answer": reader.decode(tokens, skip_special_tokens=True), "good": good}


def make_saved(name, seed, output, fill_weights, respell):
    model_type, settings, tokenizer_name, special, template, end = SAVED[name]
    directory = os.path.join(output, "saved", name)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    tokenizer = save_tokenizer(directory, tokenizer_name, special, template)
    if "vision_config" in settings:
        save_processor(directory, tokenizer, template)
    sizes = settings.get("text_config", settings)
    sizes["vocab_size"] = len(tokenizer)
    ids = {} if "vision_config" not in settings else {
        f"{key}_index": tokenizer.convert_tokens_to_ids(special["extra_special_tokens"][f"{kind}_token"])
        for key, kind in (("image_token", "image"), ("boi_token", "boi"), ("eoi_token", "eoi"))}
    config = AutoConfig.for_model(model_type, bos_token_id=tokenizer.bos_token_id, eos_token_id=None, pad_token_id=None, **settings, **ids)
    auto = AutoModelForImageTextToText if "vision_config" in settings else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    ends = tokenizer.convert_tokens_to_ids(end)
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=[ends, tokenizer.eos_token_id] if ends != tokenizer.eos_token_id else ends,
        do_sample=True, temperature=0.7, top_k=20, top_p=0.95)
    for attempt in range(30):  # until no two tokens are close and the answers wander
        model = model.float()
        fill_weights(model, [seed, attempt], config.tie_word_embeddings)
        model = model.to(torch.bfloat16)
        model.save_pretrained(directory)
        if name.endswith("_4"):
            respell(os.path.join(directory, "config.json"), "type")
            if attempt == 0:
                spell_as_4(directory, tokenizer)
        # The reference reads the directory as a user would.
        reader = transformers.AutoTokenizer.from_pretrained(directory)
        reference = auto.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        rows = [answer(reader, reference, messages) for messages in CONVERSATIONS]
        if all(row.pop("good") for row in rows):
            break
    else:
        raise AssertionError(name)
    for file in os.listdir(directory):
        os.chmod(os.path.join(directory, file), 0o644)
    golden = {"format": 1, "reference": f"transformers {transformers.__version__}, torch {torch.__version__}, CPU, float32, eager attention",
              "new_tokens": NEW_TOKENS, "rows": rows}
    with open(os.path.join(directory, "saved.json"), "w") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")
    size = sum(os.path.getsize(os.path.join(directory, file)) for file in os.listdir(directory))
    print(f"saved/{name}: {size / 1000:.0f} kB, {sorted(os.listdir(directory))}")
