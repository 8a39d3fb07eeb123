"""Models that read pictures, for make_golden.py: directories as published, with tokenizer, chat template and processor, pictures as
files, and what transformers computes of them.

tests/golden/NAME/pictures.json is ours:
    pictures: for each its file, its grid (rows and columns of patches) and how many tokens stand for it
    rows: for each the conversation, whose image parts are numbers of pictures; its text (the template's) and its tokens; the pictures
        in their order; rope, three positions of each token where the family has such; and the greedy answer with its margins
tests/golden/NAME/pictures.safetensors has for picture N: patches.N as the processor makes them, of frames that are all equal only the
first, [patches, values]; output.N, what stands for its tokens, [tokens, hidden]; deepstack.N.I, what is added behind layer I.
"""
import json
import os
import pathlib
import shutil

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast

NEW_TOKENS = 12
TOKENIZERS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "text"

TEMPLATE = """{%- for message in messages %}
    {{- 'START' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {{- 'PICTURE' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- 'END\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'STARTassistant\\n' }}{%- endif %}
"""

TEXT = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=1024)
QWEN_VISION = dict(depth=3, hidden_size=32, num_heads=2, intermediate_size=48, out_hidden_size=64, patch_size=8)


def interleaved(*sections):
    return dict(rope_type="default", rope_theta=10000.0, mrope_section=list(sections), mrope_interleaved=True)


QWEN_TOKENS = dict(image="<|image_pad|>", video="<|video_pad|>", vision_start="<|vision_start|>", vision_end="<|vision_end|>")

# name: (kind, model_type, configuration)
PICTURES = {
    "qwen3_vl_pictures": ("qwen", "qwen3_vl", dict(
        text_config=dict(TEXT, head_dim=24, rope_parameters=interleaved(6, 3, 3)),
        vision_config=dict(QWEN_VISION, num_position_embeddings=36, deepstack_visual_indexes=[0, 2]))),
    "qwen2_5_vl_pictures": ("qwen", "qwen2_5_vl", dict(
        text_config=dict(TEXT, bos_token_id=None, eos_token_id=None,
                         rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 3, 3])),
        vision_config=dict(QWEN_VISION, window_size=32, fullatt_block_indexes=[1]))),
    "qwen3_5_pictures": ("qwen", "qwen3_5", dict(
        text_config=dict(TEXT, num_hidden_layers=4, head_dim=32, linear_num_key_heads=1, linear_num_value_heads=3,
                         linear_key_head_dim=32, linear_value_head_dim=16,
                         rope_parameters=dict(interleaved(3, 3, 2), partial_rotary_factor=0.5)),
        vision_config=dict(QWEN_VISION, num_position_embeddings=36))),
    "gemma3_pictures": ("gemma", "gemma3", dict(
        text_config=dict(TEXT, num_hidden_layers=6, head_dim=16, sliding_window=10, query_pre_attn_scalar=20),
        vision_config=dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=64,
                           patch_size=8, vision_use_head=False),
        mm_tokens_per_image=16)),
    "mistral3_pictures": ("pixtral", "mistral3", dict(
        text_config=dict(TEXT, model_type="mistral", head_dim=16, bos_token_id=None, eos_token_id=None),
        vision_config=dict(model_type="pixtral", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                           head_dim=16, image_size=96, patch_size=8, hidden_act="silu"),
        spatial_merge_size=2, tie_word_embeddings=False)),
    "qwen2_vl_pictures": ("qwen", "qwen2_vl", dict(
        text_config=dict(TEXT, bos_token_id=None, eos_token_id=None,
                         rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 3, 3])),
        vision_config=dict(depth=3, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, patch_size=8))),
    "qwen3_vl_moe_pictures": ("qwen", "qwen3_vl_moe", dict(
        text_config=dict(TEXT, head_dim=24, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                         tie_word_embeddings=False, rope_parameters=interleaved(6, 3, 3)),
        vision_config=dict(QWEN_VISION, num_position_embeddings=36, deepstack_visual_indexes=[0, 2]),
        tie_word_embeddings=False)),
}

SIZES = [(40, 40), (90, 33), (30, 117), (64, 50)]  # width, height


def image(number):
    return {"type": "image", "image": number}


def text(words):
    return {"type": "text", "text": words}


def user(*parts):
    return {"role": "user", "content": list(parts)}


CONVERSATIONS = [
    [user(image(0), text("What is this?"))],
    [user(image(3), text("What is this?"))],
    [user(text("Look: "), image(1))],
    [user(image(0), text(" and "), image(1), text(", then "), image(0), text(": which is larger?"))],
    [user(text("Read the page."), image(2), text("Title?"))],
    [user(text("Read the page."), image(2), text("Title and date?"))],
    [user(text("Read the page."), image(2), text("How many lines?"))],
    [user(image(3), image(2))],
    [user(image(1), text("Name it.")), {"role": "assistant", "content": "A boat"}, user(text("And this?"), image(3))],
    [{"role": "user", "content": "No picture here."}],
]


def draw(directory, random):
    """Soft colours with a few sharp bars."""
    for number, (width, height) in enumerate(SIZES):
        coarse = Image.fromarray(random.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        pixels = np.array(coarse.resize((width, height), Image.BICUBIC))
        for _ in range(3):
            x, y = random.integers(0, width - 4), random.integers(0, height - 4)
            pixels[y:y + 3, x:] = random.integers(0, 256, 3)
        Image.fromarray(pixels).save(os.path.join(directory, f"picture_{number}.png"), optimize=True)
    return [Image.open(os.path.join(directory, f"picture_{number}.png")) for number in range(len(SIZES))]


class Qwen:
    """Patches in blocks, a grid for each picture, positions on three axes."""
    has_rope = True

    def save(self, directory, settings, model_type):
        special = list(QWEN_TOKENS.values())
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(TOKENIZERS / ("qwen3_5" if model_type == "qwen3_5" else "qwen2") / "tokenizer.json"),
            eos_token="<|im_end|>", pad_token="<|endoftext|>", extra_special_tokens=["<|im_start|>", *special])
        self.tokenizer.chat_template = (TEMPLATE.replace("START", "<|im_start|>").replace("END", "<|im_end|>")
                                        .replace("PICTURE", "<|vision_start|><|image_pad|><|vision_end|>"))
        self.tokenizer.save_pretrained(directory)
        vision = settings["vision_config"]
        pixels = (2 * vision["patch_size"]) ** 2  # that become a token
        self.images = transformers.Qwen2VLImageProcessor(
            patch_size=vision["patch_size"], temporal_patch_size=2, merge_size=2,
            size=dict(shortest_edge=4 * pixels, longest_edge=24 * pixels))
        self.images.save_pretrained(directory)
        return {f"{kind}_token_id": self.tokenizer.convert_tokens_to_ids(token) for kind, token in QWEN_TOKENS.items()}

    def prepare(self, picture):
        made = self.images(images=[picture], return_tensors="pt")
        _, rows, columns = made["image_grid_thw"][0].tolist()
        values = made["pixel_values"].view(rows * columns, 3, 2, -1)
        assert torch.equal(values[:, :, 0], values[:, :, 1])
        return dict(made), dict(grid=[rows, columns], merge=2, tokens=rows * columns // 4), values[:, :, 0].flatten(1)

    def expand(self, words, pictures):
        parts = words.split("<|image_pad|>")
        return parts[0] + "".join("<|image_pad|>" * picture["tokens"] + part for picture, part in zip(pictures, parts[1:]))

    def inputs(self, model, prompt, pictures):
        ids = torch.tensor([prompt])
        made = dict(input_ids=ids, mm_token_type_ids=(ids == model.config.image_token_id).int())
        if pictures:
            made["pixel_values"] = torch.cat([picture["pixel_values"] for picture in pictures])
            made["image_grid_thw"] = torch.cat([picture["image_grid_thw"] for picture in pictures])
        return made

    def rope(self, model, inputs):
        grids = inputs.get("image_grid_thw")
        return model.model.get_rope_index(inputs["input_ids"], inputs["mm_token_type_ids"], image_grid_thw=grids)[0][:, 0].tolist()

    def outputs(self, model, prepared):
        made = model.model.get_image_features(prepared["pixel_values"], prepared["image_grid_thw"])
        return made.pooler_output[0], [part[0] for part in getattr(made, "deepstack_features", None) or []]


class Gemma:
    """A fixed square, patches row by row; the tokens of a picture see each other."""
    has_rope = False

    def save(self, directory, settings, model_type):
        named = dict(image_token="<image_soft_token>", boi_token="<start_of_image>", eoi_token="<end_of_image>")
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(TOKENIZERS / "gemma" / "tokenizer.json"), bos_token="<s>", eos_token="</s>", unk_token="<unk>",
            pad_token="<unk>", extra_special_tokens=named)
        template = ("{{ bos_token }}" + TEMPLATE.replace("START", "<start_of_turn>").replace("END", "<end_of_turn>")
                    .replace("PICTURE", "<start_of_image>"))
        self.tokenizer.chat_template = template
        self.tokenizer.save_pretrained(directory)
        side = settings["vision_config"]["image_size"]
        self.count = settings["mm_tokens_per_image"]
        self.images = transformers.Gemma3ImageProcessor(size=dict(height=side, width=side))
        transformers.Gemma3Processor(self.images, self.tokenizer, chat_template=template,
                                     image_seq_length=self.count).save_pretrained(directory)
        self.patch = settings["vision_config"]["patch_size"]
        return {f"{key}_index": self.tokenizer.convert_tokens_to_ids(named[name]) for key, name in (
            ("image_token", "image_token"), ("boi_token", "boi_token"), ("eoi_token", "eoi_token"))}

    def prepare(self, picture):
        made = self.images(images=[picture], return_tensors="pt")
        pixels = made["pixel_values"]
        side = pixels.shape[-1] // self.patch
        patches = pixels[0].reshape(3, side, self.patch, side, self.patch).permute(1, 3, 0, 2, 4).reshape(side * side, -1)
        merge = side // int(self.count ** 0.5)
        return dict(pixel_values=pixels), dict(grid=[side, side], merge=merge, tokens=self.count), patches

    def expand(self, words, pictures):
        whole = "\n\n<start_of_image>" + "<image_soft_token>" * self.count + "<end_of_image>\n\n"
        return words.replace("<start_of_image>", whole)

    def inputs(self, model, prompt, pictures):
        ids = torch.tensor([prompt])
        made = dict(input_ids=ids, token_type_ids=(ids == model.config.image_token_id).int())
        if pictures:
            made["pixel_values"] = torch.cat([picture["pixel_values"] for picture in pictures])
        return made

    def outputs(self, model, prepared):
        return model.model.get_image_features(prepared["pixel_values"]).pooler_output[0], []


class Pixtral:
    """Patches row by row; a token after each row of a picture's tokens, and another behind the last."""
    has_rope = False

    def save(self, directory, settings, model_type):
        special = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(TOKENIZERS / "tekken" / "tokenizer.json"), eos_token="</s>", extra_special_tokens=special)
        template = TEMPLATE.replace("START", "[INST]").replace("END", "[/INST]").replace("PICTURE", "[IMG]")
        self.tokenizer.chat_template = template
        self.tokenizer.save_pretrained(directory)
        self.patch = settings["vision_config"]["patch_size"]
        self.merge = settings["spatial_merge_size"]
        side = self.patch * self.merge
        self.images = transformers.PixtralImageProcessor(patch_size=self.patch, size=dict(longest_edge=96))
        transformers.PixtralProcessor(self.images, self.tokenizer, patch_size=self.patch, spatial_merge_size=self.merge,
                                      chat_template=template).save_pretrained(directory)
        self.images = transformers.PixtralImageProcessor(patch_size=side, size=dict(longest_edge=96))
        return dict(image_token_index=self.tokenizer.convert_tokens_to_ids("[IMG]"))

    def prepare(self, picture):
        made = self.images(images=[picture], return_tensors="pt")
        height, width = (int(length) for length in made["image_sizes"][0])
        rows, columns = height // self.patch, width // self.patch
        pixels = made["pixel_values"][:, :, :height, :width]
        patches = pixels[0].reshape(3, rows, self.patch, columns, self.patch).permute(1, 3, 0, 2, 4).reshape(rows * columns, -1)
        return (dict(pixel_values=pixels, image_sizes=torch.tensor([[height, width]])),
                dict(grid=[rows, columns], merge=self.merge, tokens=rows * columns // self.merge ** 2), patches)

    def expand(self, words, pictures):
        parts = words.split("[IMG]")
        whole = parts[0]
        for picture, part in zip(pictures, parts[1:]):
            rows, columns = (length // self.merge for length in picture["grid"])
            whole += "[IMG_BREAK]".join(["[IMG]" * columns] * rows) + "[IMG_END]" + part
        return whole

    def inputs(self, model, prompt, pictures):
        made = dict(input_ids=torch.tensor([prompt]))
        if pictures:
            height = max(picture["pixel_values"].shape[-2] for picture in pictures)
            width = max(picture["pixel_values"].shape[-1] for picture in pictures)
            made["pixel_values"] = torch.cat([torch.nn.functional.pad(
                pixels, (0, width - pixels.shape[-1], 0, height - pixels.shape[-2]))
                for pixels in (picture["pixel_values"] for picture in pictures)])
            made["image_sizes"] = torch.cat([picture["image_sizes"] for picture in pictures])
        return made

    def outputs(self, model, prepared):
        made = model.model.get_image_features(prepared["pixel_values"], prepared["image_sizes"],
                                              vision_feature_layer=-1, output_hidden_states=True)
        return made.pooler_output[0], []


KINDS = dict(pixtral=Pixtral, qwen=Qwen, gemma=Gemma)


def fill_tower(model, seed):
    """Weights of the tower with which its outputs are about as large as embeddings, and differ."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if not any(part in name for part in ("visual.", "vision_tower.", "multi_modal_projector.")):
                continue
            values = random.standard_normal(tuple(parameter.shape))
            if name.endswith("mm_soft_emb_norm.weight"):
                values *= 0.2  # adds one
            elif name.endswith(".bias"):
                values *= 0.1
            elif parameter.ndim == 1:
                values = 1 + 0.2 * values
            elif "pos_embed" in name or "position_embedding" in name:
                values *= 0.6
            elif name.endswith("mm_input_projection_weight"):
                values *= 1.0 / np.sqrt(parameter.shape[0])
            else:
                values *= 1.4 / np.sqrt(np.prod(parameter.shape[1:]))
            parameter.copy_(torch.from_numpy(values))


def greedy(kind, model, prompt, pictures, ends):
    """Token by token, each from a fresh pass over all that stands before it."""
    tokens, margins, logprobs = [], [], []
    for _ in range(NEW_TOKENS):
        logits = model(**kind.inputs(model, prompt + tokens, pictures), use_cache=False).logits[0, -1].double()
        top = torch.topk(logits, 2)
        tokens.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 6))
        logprobs.append(round(float(torch.log_softmax(logits, 0)[tokens[-1]]), 6))
        if tokens[-1] in ends:
            break
    return {"tokens": tokens, "margins": margins, "logprobs": logprobs}


def check_against_generate(kind, model, prompt, pictures, row, ends):
    made = model.generate(**kind.inputs(model, prompt, pictures), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0,
                          eos_token_id=ends)[0, len(prompt):].tolist()
    assert made == row["tokens"], (made, row)


def transpose_experts(path):
    """Qwen3-VL's stacks of experts with rows and columns the other way round, as they are published. transformers turns
    them back where it reads them."""
    tensors = load_file(path)
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})


def make_pictures(name, seed, output, fill_weights):
    kind_name, model_type, settings = PICTURES[name]
    directory = os.path.join(output, name)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    kind = KINDS[kind_name]()
    ids = kind.save(directory, settings, model_type)
    settings["text_config"]["vocab_size"] = len(kind.tokenizer)
    drawn = draw(directory, np.random.default_rng([seed, 1]))
    prepared = [kind.prepare(picture) for picture in drawn]

    config = AutoConfig.for_model(model_type, bos_token_id=kind.tokenizer.bos_token_id, eos_token_id=None, pad_token_id=None,
                                  **settings, **ids)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    ends = [kind.tokenizer.eos_token_id]
    model.generation_config = transformers.GenerationConfig(eos_token_id=ends[0], do_sample=False)
    prompts = []
    for messages in CONVERSATIONS:
        words = kind.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        parts = [part for message in messages if not isinstance(message["content"], str) for part in message["content"]]
        used = [part["image"] for part in parts if part["type"] == "image"]
        expanded = kind.expand(words, [prepared[number][1] for number in used])
        prompt = kind.tokenizer(expanded, add_special_tokens=False)["input_ids"]
        assert prompt.count(config.image_token_id) == sum(prepared[number][1]["tokens"] for number in used)
        prompts.append({"messages": messages, "text": words, "prompt": prompt, "pictures": used})

    for attempt in range(30):  # until no two tokens are close and the answers wander
        model = model.float()
        fill_weights(model, [seed, attempt], config.tie_word_embeddings)
        fill_tower(model, [seed, attempt, 1])
        model = model.to(torch.bfloat16)
        model.save_pretrained(directory)
        if model_type == "qwen3_vl_moe":
            transpose_experts(os.path.join(directory, "model.safetensors"))
        reference = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        rows = []
        with torch.no_grad():
            for prompt in prompts:
                rows.append(greedy(kind, reference, prompt["prompt"], [prepared[n][0] for n in prompt["pictures"]], ends))
                if min(rows[-1]["margins"]) < 4e-3:
                    break
        whole = len(rows) == len(prompts)
        variety = np.mean([len(set(row["tokens"])) / len(row["tokens"]) for row in rows])
        if whole and variety > 0.6 and min(rows[-1]["margins"]) >= 4e-3 and rows[0]["tokens"] != rows[1]["tokens"]:
            break
    else:
        raise AssertionError(name)

    tensors = {}
    with torch.no_grad():
        for prompt, row in zip(prompts, rows):
            pictures = [prepared[n][0] for n in prompt["pictures"]]
            check_against_generate(kind, reference, prompt["prompt"], pictures, row, ends)
            if kind.has_rope:
                row["rope"] = kind.rope(reference, kind.inputs(reference, prompt["prompt"], pictures))
        for number, (inputs, _, patches) in enumerate(prepared):
            made, deepstack = kind.outputs(reference, inputs)
            tensors[f"patches.{number}"] = patches.contiguous()
            tensors[f"output.{number}"] = made.contiguous()
            for layer, part in enumerate(deepstack):
                tensors[f"deepstack.{number}.{layer}"] = part.contiguous()
    save_file(tensors, os.path.join(directory, "pictures.safetensors"))
    for file in os.listdir(directory):
        os.chmod(os.path.join(directory, file), 0o644)
    golden = {"format": 1, "reference": f"transformers {transformers.__version__}, torch {torch.__version__}, CPU, float32, eager attention",
              "new_tokens": NEW_TOKENS, "eos_tokens": ends,
              "pictures": [{"file": f"picture_{number}.png", **facts} for number, (_, facts, _) in enumerate(prepared)],
              "rows": [{**prompt, **row} for prompt, row in zip(prompts, rows)]}
    with open(os.path.join(directory, "pictures.json"), "w") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")
    size = sum(os.path.getsize(os.path.join(directory, file)) for file in os.listdir(directory))
    scale = {key: round(float(value.std()), 2) for key, value in tensors.items() if "patches" not in key}
    print(f"{name}: {size / 1000:.0f} kB, attempt {attempt}, variety {variety:.2f}, least margin "
          f"{min(m for row in rows for m in row['margins']):.2g}, outputs {scale}, {sorted(os.listdir(directory))}")
