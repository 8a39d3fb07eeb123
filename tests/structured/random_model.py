"""A model directory with random weights and the catalogue's tokenizer. Standard library only."""

import array
import json
import random
import shutil
import struct
from pathlib import Path

CATALOGUE = Path(__file__).resolve().parents[2] / "examples" / "catalogue" / "model"
HIDDEN, HEADS, HEAD_DIM, INNER, LAYERS = 64, 2, 32, 96, 2


def tensors(vocabulary):
    """(name, shape, spread of values) of each tensor; the values of norms are all 1."""
    yield "model.embed_tokens.weight", (vocabulary, HIDDEN), 0.3
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{start}{norm}.weight", (HIDDEN,), None
        for part in ("q", "k", "v"):
            yield f"{start}self_attn.{part}_proj.weight", (HEADS * HEAD_DIM, HIDDEN), 0.2
        yield f"{start}self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM), 0.2
        for part in ("gate", "up"):
            yield f"{start}mlp.{part}_proj.weight", (INNER, HIDDEN), 0.2
        yield f"{start}mlp.down_proj.weight", (HIDDEN, INNER), 0.2
    yield "model.norm.weight", (HIDDEN,), None


def make_random_model(folder, seed):
    """Writes the directory. The same seed gives the same model."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (CATALOGUE / name).exists():
            shutil.copyfile(CATALOGUE / name, folder / name)
    config = json.loads((CATALOGUE / "config.json").read_text())
    config.update(hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=HEAD_DIM,
                  intermediate_size=INNER, num_hidden_layers=LAYERS, torch_dtype="float32")
    (folder / "config.json").write_text(json.dumps(config))

    rng = random.Random(seed)
    header, data, offset = {}, [], 0
    for name, shape, spread in tensors(config["vocab_size"]):
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = array.array("f", (1.0 if spread is None else rng.gauss(0, spread) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + 4 * count]}
        offset += 4 * count
        data.append(values.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data)
