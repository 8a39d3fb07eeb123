#!/usr/bin/env python3
"""Trains the pages model, the smallest of Qwen3-VL's architecture that reads them, and writes it as a Hugging Face directory.

    train.py --output model                      one core of a CPU, some twenty minutes
    train.py --output /tmp/model --tiny          a few steps, to see that everything runs

Pages, weights and batches come from fixed seeds. The reference is transformers' own model: at the end it reads a few pages too.
"""

import argparse
import copy
import json
import multiprocessing
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from draw import COLOURS, HEIGHT, QUESTIONS, SHAPES, WIDTH, answers, draw  # noqa: E402

PATCH, MERGE = 10, 2
ROWS, COLUMNS = HEIGHT // PATCH, WIDTH // PATCH  # of patches
PLACES = ROWS * COLUMNS // MERGE**2  # tokens of a page
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
# Qwen2's split pattern, which cuts these texts as the simple one does that words are learnt with.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
TEXT = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
            max_position_embeddings=1024, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[6, 5, 5], mrope_interleaved=True))
VISION = dict(depth=2, hidden_size=64, num_heads=2, intermediate_size=128, out_hidden_size=64, patch_size=PATCH,
              spatial_merge_size=MERGE, num_position_embeddings=144, deepstack_visual_indexes=[])


def pages(seed, first, count):
    """(pixels [count, height, width, 3] uint8, fields)"""
    drawn = [draw(seed, number) for number in range(first, first + count)]
    pixels = np.frombuffer(b"".join(page.pixels() for page, _ in drawn), np.uint8)
    return pixels.reshape(count, HEIGHT, WIDTH, 3), [fields for _, fields in drawn]


def many_pages(seed, count, processes):
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        parts = pool.starmap(pages, [(seed, first, min(250, count - first)) for first in range(0, count, 250)])
    return np.concatenate([pixels for pixels, _ in parts]), [fields for _, part in parts for fields in part]


def cut(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def make_tokenizer():
    """Bytes, and the few words that pages are asked and answered with; digits are tokens of their own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cut(r" ?\p{L}+|\p{N}|[^\p{L}\p{N}]+")
    tokenizer.decoder = decoders.ByteLevel()
    texts = ["user\n", "assistant\n"]
    for shape in SHAPES:
        for colour in COLOURS:
            for paid in (True, False):
                for _, question, answer in answers({"number": "0123", "shape": shape, "colour": colour, "paid": paid}):
                    texts += [question, answer]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokens = [tokenizer.encode(text).ids for text in texts]
    tokenizer.pre_tokenizer = cut(PATTERN)
    assert tokens == [tokenizer.encode(text).ids for text in texts]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE,
        extra_special_tokens=[token for token in SPECIAL if token not in ("<|im_end|>", "<|endoftext|>")])


class Reader:
    """The model on pages of one size, many at once: every picture has the same patches, places and positions."""

    def __init__(self, model, tokenizer):
        self.model, self.tokenizer = model, tokenizer
        words = tokenizer.apply_chat_template([{"role": "user", "content": [{"type": "image"}, {"text": "\0"}]}],
                                              add_generation_prompt=True, tokenize=False)
        self.before, self.after = words.split("\0")
        self.before = self.before.replace("<|image_pad|>", "<|image_pad|>" * PLACES)
        prompt = self.tokens(self.before)
        self.first = prompt.index(model.config.image_token_id)
        grid = torch.tensor([[1, ROWS, COLUMNS]])
        ids = torch.tensor([prompt + [0] * 100])
        self.positions = model.model.get_rope_index(ids, (ids == model.config.image_token_id).int(), image_grid_thw=grid)[0]
        from transformers.models.qwen3_vl import modeling_qwen3_vl as parts

        visual = model.model.visual
        self.rotate = parts.apply_rotary_pos_emb_vision
        places, weights = parts.get_vision_interpolation_indices_and_weights(
            grid, num_grid_per_side=visual.num_grid_per_side, mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners, spatial_merge_size=MERGE, kwargs={})
        self.places, self.weights = places, weights
        self.corners = parts.get_vision_position_ids(grid, MERGE, kwargs={})

    def tokens(self, text):
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def rows(self, asked):
        """[(name, question, answer)] -> tokens [rows, length], labels with -100 where nothing is learnt"""
        made = [(self.tokens(self.before + question + self.after), self.tokens(answer + "<|im_end|>")) for _, question, answer in asked]
        length = max(len(prompt) + len(answer) for prompt, answer in made)
        ids = torch.zeros(len(made), length, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for row, (prompt, answer) in enumerate(made):
            end = len(prompt) + len(answer)
            ids[row, :end] = torch.tensor(prompt + answer)
            labels[row, len(prompt) : end] = torch.tensor(answer)
        return ids, labels

    def patches(self, pixels):
        """[pages, height, width, 3] uint8 -> [pages, patches, values], as the processor makes them"""
        values = torch.tensor(pixels).float() / 127.5 - 1
        blocks = values.view(len(pixels), ROWS // MERGE, MERGE, PATCH, COLUMNS // MERGE, MERGE, PATCH, 3)
        blocks = blocks.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(len(pixels), ROWS * COLUMNS, 3, 1, PATCH, PATCH)
        return blocks.expand(-1, -1, -1, 2, -1, -1).flatten(2)

    def tower(self, patches):
        """-> [pages, tokens, hidden]"""
        visual = self.model.model.visual
        pages, count, _ = patches.shape
        x = visual.patch_embed(patches.flatten(0, 1)).view(pages, count, -1)
        x = x + (visual.pos_embed(self.places) * self.weights[:, :, None]).sum(1)
        cosine, sine = visual.rotary_pos_emb(x, self.corners)
        for block in visual.blocks:
            part = block.attn
            q, k, v = part.qkv(block.norm1(x)).view(pages, count, 3, part.num_heads, -1).unbind(2)
            q, k = self.rotate(q, k, cosine, sine)
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
            x = x + part.proj(y.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
        return visual.merger(x.flatten(0, 1)).view(pages, PLACES, -1)

    def logits(self, pixels, ids):
        text = self.model.model.language_model
        x = text.embed_tokens(ids)
        x = torch.cat((x[:, : self.first], self.tower(self.patches(pixels)), x[:, self.first + PLACES :]), 1)
        positions = self.positions[:, :, : ids.shape[1]].expand(-1, len(ids), -1)
        return self.model.lm_head(text(inputs_embeds=x, position_ids=positions, use_cache=False).last_hidden_state)


def moved(pixels, random, reach=3):
    """The pages, each moved by up to `reach` pixels, brighter or darker: a page is another one each time that it is seen."""
    wide = np.pad(pixels, ((0, 0), (reach, reach), (reach, reach), (0, 0)), mode="edge")
    corners = random.integers(0, 2 * reach + 1, (len(pixels), 2))
    cut = np.stack([page[y : y + HEIGHT, x : x + WIDTH] for page, (y, x) in zip(wide, corners)]).astype(np.float32)
    cut = cut * random.uniform(0.85, 1.0, (len(pixels), 1, 1, 3)).astype(np.float32)
    return cut.astype(np.uint8)


@torch.no_grad()
def accuracy(reader, pixels, fields):
    """(share of fields that are right, share of pages whose JSON is): greedy, as each token is compared with all before it right."""
    right = whole = 0
    for first in range(0, len(fields), 100):
        part = slice(first, first + 100)
        asked = [one for page in fields[part] for one in answers(page)]
        ids, labels = reader.rows(asked)
        guess = reader.logits(np.repeat(pixels[part], 1 + len(QUESTIONS), 0), ids)[:, :-1].argmax(-1)
        same = ((guess == labels[:, 1:]) | (labels[:, 1:] < 0)).all(1).view(-1, 1 + len(QUESTIONS))
        right += same[:, 1:].sum().item()
        whole += same[:, 0].sum().item()
    return right / (len(QUESTIONS) * len(fields)), whole / len(fields)


def check_against_transformers(directory, reader):
    """The model as it was written, run by transformers with its processor, makes of a few pages what the training saw."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()
    images = transformers.Qwen2VLImageProcessor.from_pretrained(directory)
    for number in range(4):
        pixels, (fields,) = pages("held-out", number, 1)
        made = images(images=[Image.fromarray(pixels[0])], return_tensors="pt")
        ids, _ = reader.rows([next(answers(fields))])
        with torch.no_grad():
            theirs = model(input_ids=ids, mm_token_type_ids=(ids == model.config.image_token_id).int(), **made).logits
            assert (theirs - reader.logits(pixels, ids)).abs().max() < 1e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--pages", type=int, default=16000)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--processes", type=int, default=1, help="that draw the pages")
    parser.add_argument("--tiny", action="store_true", help="a few steps")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.pages, arguments.steps = 500, 20
    torch.manual_seed(1)
    torch.set_num_threads(1)
    random = np.random.default_rng(1)
    begin = time.monotonic()
    pixels, fields = many_pages("train", arguments.pages, arguments.processes)
    held_out = many_pages("held-out", 100 if arguments.tiny else 500, arguments.processes)
    print(f"{len(fields)} pages drawn in {time.monotonic() - begin:.0f} s", flush=True)

    tokenizer = make_tokenizer()
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>") for name, token in (
        ("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"), ("vision_end", "vision_end"))}
    config = transformers.AutoConfig.for_model(
        "qwen3_vl", text_config=dict(TEXT, vocab_size=len(tokenizer)), vision_config=VISION, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, **ids)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    reader = Reader(model, tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)

    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01, momentum=0.95),
                  torch.optim.AdamW(others, lr=arguments.rate, betas=(0.9, 0.98), weight_decay=0.01)]
    full = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    begin, total = time.monotonic(), 0.0
    for step in range(1, arguments.steps + 1):
        factor = min(1, step / 100, (arguments.steps - step + 1) / (0.7 * arguments.steps))
        for optimizer, rate in zip(optimizers, full):
            optimizer.param_groups[0]["lr"] = rate * factor
        chosen = random.integers(0, len(fields), arguments.batch)
        kinds = np.where(random.random(arguments.batch) < 0.6, 0, random.integers(1, 1 + len(QUESTIONS), arguments.batch))
        rows, labels = reader.rows([list(answers(fields[page]))[kind] for page, kind in zip(chosen, kinds)])
        logits = reader.logits(moved(pixels[chosen], random), rows)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        total += loss.item()
        if step % 100 == 0 or step == arguments.steps:
            line = f"step {step}: loss {total / 100:.4f}, {time.monotonic() - begin:.0f} s"
            if step % 500 == 0 or step == arguments.steps:
                line += ", fields {:.2%}, pages {:.2%}".format(*accuracy(reader, held_out[0][:100], held_out[1][:100]))
            print(line, flush=True)
            total = 0.0

    with torch.no_grad():  # from here on, the weights as they are written
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    model.generation_config = transformers.GenerationConfig(eos_token_id=tokenizer.eos_token_id, do_sample=False)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(arguments.output)  # not the model itself: its ropes would be rounded too
    tokenizer.save_pretrained(arguments.output)
    size = {"shortest_edge": WIDTH * HEIGHT, "longest_edge": WIDTH * HEIGHT}
    transformers.Qwen2VLImageProcessor(patch_size=PATCH, temporal_patch_size=2, merge_size=MERGE, image_mean=[0.5] * 3, image_std=[0.5] * 3,
                                       size=size).save_pretrained(arguments.output)
    check_against_transformers(arguments.output, reader)
    share, whole = accuracy(reader, *held_out)
    report = {"steps": arguments.steps, "pages": len(fields), "minutes": round((time.monotonic() - begin) / 60, 1),
              "parameters": sum(p.numel() for p in model.parameters()), "fields_right": round(share, 4), "pages_right": round(whole, 4)}
    (arguments.output / "training.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
