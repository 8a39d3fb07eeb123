#!/usr/bin/env python3
"""Trains the catalogue model and writes it as a Hugging Face directory.

    train.py --output model                     on one GPU
    train.py --output /tmp/model --tiny         on a CPU, a few steps, to see that everything runs

Steps, seed and batch decide the run; --minutes is a safety: when time runs out first, the learning
rate falls by the clock and the card says how many steps were done.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

import llama  # noqa: E402
from generate import documents  # noqa: E402
from packing import DECISION, TEXT, VALUE, Packer, batches  # noqa: E402

END = "<|endoftext|>"
# Qwen2's split pattern: words with the space before them, digits one by one.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARK_WEIGHT = 0.5
LOSS_WEIGHTS = {TEXT: 0.2, VALUE: 1.0, DECISION: 1.0}
LENGTHS = (300, 600, 900, 10000)  # accuracy is told by the prefix's length, up to these


def train_tokenizer(seed, size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    texts = []
    for task, count in (("extraction", 1200), ("ranking", 300)):
        for _, document in zip(range(count), documents("train", f"{seed}/tokenizer", task)):
            texts.append(document.prefix)
            texts += [f"{row.own} {row.answer}\n" for row in document.rows]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    for answer in (" yes", " no"):
        if len(tokenizer.encode(answer).ids) != 1:
            raise ValueError(f"the tokenizer cuts {answer!r}, whose score must be that of one token")
    return tokenizer


class Muon(torch.optim.Optimizer):
    """Momentum whose update is brought close to an orthogonal matrix (Jordan et al., 2024), for the
    matrices inside the layers; those of one shape are treated together."""

    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.01):
        super().__init__(list(parameters), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for parameter in group["params"]:
                shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                state = self.state[parameters[0]]
                gradient = torch.stack([parameter.grad for parameter in parameters])
                if not state:
                    state["momentum"] = torch.zeros_like(gradient)
                state["momentum"].lerp_(gradient, 1 - group["momentum"])
                update = orthogonal(gradient.lerp(state["momentum"], group["momentum"]))
                rate = group["lr"] * max(1, shape[0] / shape[1]) ** 0.5
                for parameter, change in zip(parameters, update):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(change, alpha=-rate)


@torch.compile(disable=not torch.cuda.is_available())
def orthogonal(matrices):
    """[n, a, b] -> the same with all singular values near one, by five Newton-Schulz steps."""
    x = matrices.to(torch.bfloat16)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Trainer:
    def __init__(self, config, device, compiled):
        self.config, self.device = config, device
        self.blocks = device == "cuda"
        self.model = llama.Llama(config, llama.attend_blocks if self.blocks else llama.attend_dense).to(device)
        # Says of a value in the text whose it is, or whether it is what was asked for. It lends the layers
        # a gradient where the reading is done, and is thrown away after training.
        self.judge = torch.nn.Linear(config["hidden_size"], 5).to(device)
        self.losses = torch.compile(self._losses, dynamic=False) if compiled else self._losses
        self.predict = torch.compile(self._predict, dynamic=False) if compiled else self._predict
        if self.blocks:
            from torch.nn.attention.flex_attention import create_block_mask

            self.block_mask = torch.compile(create_block_mask, dynamic=False)

    def to_device(self, batch):
        out = {name: torch.from_numpy(array).to(self.device, torch.int32, non_blocking=True)
               for name, array in batch.items() if name != "about"}  # fmt: skip
        places = out.pop("starts"), out.pop("prefix_ends"), out.pop("row_starts")
        if self.blocks:
            rows, tokens = out["tokens"].shape
            out["mask"] = self.block_mask(llama.tree_mask(*places), rows, None, tokens, tokens, device=self.device)
        else:
            out["mask"] = llama.dense_mask(*places)
        return out

    def _losses(self, tokens, targets, classes, marks, positions, mask):
        """[text, value, decision, mark] mean losses."""
        hidden = self.model.hidden(tokens, positions, mask)
        judged = F.cross_entropy(self.judge(hidden).float().flatten(0, 1), marks.flatten().long(), reduction="none")
        logits = self.model.logits(hidden).float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), reduction="none")
        classes = classes.flatten()
        means = [(losses * (classes == c)).sum() / (classes == c).sum().clamp(min=1) for c in (TEXT, VALUE, DECISION)]
        marked = marks.flatten() > 0
        return torch.stack([*means, (judged * marked).sum() / marked.sum().clamp(min=1)])

    def _predict(self, tokens, targets, classes, marks, positions, mask):
        return self.model(tokens, positions, mask).argmax(-1) == targets

    def autocast(self, enabled=True):
        return torch.autocast(self.device, torch.bfloat16, enabled=enabled and self.device == "cuda")

    @torch.no_grad()
    def accuracy(self, packer, count, half):
        """Share of answers whose every token is the likeliest, which is when greedy decoding gives the
        answer: {(task, longest prefix): (right, all)}."""
        found = {}
        for index in range(count):
            batch = packer.batch(index)
            with self.autocast(half):
                right = self.predict(**self.to_device(batch)).cpu().numpy()
            for row, first, last, task, prefix in batch["about"]:
                key = task, next(length for length in LENGTHS if prefix <= length)
                hits, total = found.get(key, (0, 0))
                found[key] = hits + bool(right[row, first:last].all()), total + 1
        return found


def print_accuracy(title, found):
    summary = {}
    for task in ("extraction", "ranking"):
        own = {length: counts for (kind, length), counts in found.items() if kind == task}
        hits, total = sum(c[0] for c in own.values()), sum(c[1] for c in own.values())
        parts = ", ".join(f"<= {length}: {100 * own[length][0] / own[length][1]:.2f} % of {own[length][1]}" for length in sorted(own))
        summary[task] = 100 * hits / max(total, 1)
        print(f"{title} {task}: {summary[task]:.2f} % of {total} (prefix tokens {parts})", flush=True)
    return summary


def export(directory, model, config, tokenizer):
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": config["eos_token_id"], "pad_token_id": config["eos_token_id"], "do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END,
            "model_max_length": config["max_position_embeddings"], "clean_up_tokenization_spaces": False,
        },
    }  # fmt: skip
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="directory of the model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--minutes", type=float, default=19, help="training stops here at the latest")
    parser.add_argument("--rows", type=int, default=16, help="packed rows a step")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens a packed row")
    parser.add_argument("--warm-up", type=int, default=500, help="steps on short records, and as many on middling ones")
    parser.add_argument("--matrix-rate", type=float, default=0.02, help="learning rate of the layers' matrices")
    parser.add_argument("--other-rate", type=float, default=0.003, help="learning rate of embedding and norms")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="that make batches")
    parser.add_argument("--evaluate", type=int, default=24, help="held-out batches at the end")
    parser.add_argument("--tiny", action="store_true", help="a small model and a few steps")
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    config = dict(llama.CONFIG)
    if arguments.tiny:
        config.update(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
        arguments.rows, arguments.tokens, arguments.processes, arguments.evaluate = 1, 4096, 1, 1
        arguments.steps, arguments.warm_up = min(arguments.steps, 8), 4
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")

    tokenizer = train_tokenizer(arguments.seed, config["vocab_size"])
    config["vocab_size"] = tokenizer.get_vocab_size()
    arguments.output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(arguments.output / "tokenizer.json"))
    trainer = Trainer(config, device, device == "cuda" and not arguments.no_compile)
    model = trainer.model
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {config['vocab_size']}, {device}, torch {torch.__version__}", flush=True)

    inner = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    outer = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n] + list(trainer.judge.parameters())
    optimizers = [
        Muon(inner, lr=arguments.matrix_rate),
        torch.optim.AdamW(outer, lr=arguments.other_rate, betas=(0.9, 0.98), weight_decay=0, fused=device == "cuda"),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["full"] = group["lr"]
    weights = torch.tensor([LOSS_WEIGHTS[c] for c in (TEXT, VALUE, DECISION)] + [MARK_WEIGHT], device=device)
    stream = batches(
        str(arguments.output / "tokenizer.json"), "train", arguments.seed, arguments.rows, arguments.tokens,
        arguments.steps, arguments.warm_up, arguments.processes,
    )  # fmt: skip
    begin = None  # after the first steps, which compile
    tokens = step = 0
    waited = 0.0
    while step < arguments.steps:
        before = time.monotonic()
        batch = next(stream)
        waited += time.monotonic() - before
        clock = (time.monotonic() - begin) / (60 * arguments.minutes) if begin else 0
        progress = max(step / arguments.steps, clock)
        if progress >= 1:
            break
        factor = min(1, (step + 1) / 100, max(0.01, (1 - progress) / 0.8))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["full"] * factor
        with trainer.autocast():
            losses = trainer.losses(**trainer.to_device(batch))
        (losses * weights).sum().backward()
        torch.nn.utils.clip_grad_norm_(outer, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        tokens += arguments.rows * arguments.tokens
        step += 1
        if begin is None:
            losses.tolist()
            begin = time.monotonic()
            counted = tokens
        if step % 100 == 0 or step == arguments.steps or arguments.tiny:
            text, value, decision, mark = losses.tolist()
            seconds = time.monotonic() - begin
            print(f"step {step}: text {text:.3f} value {value:.4f} decision {decision:.4f} mark {mark:.4f}, {seconds:.0f} s, "
                  f"{(tokens - counted) / max(seconds, 1e-9):,.0f} tokens/s, waited {waited:.0f} s", flush=True)  # fmt: skip
    stream.close()

    with torch.no_grad():  # from here on, the weights as they are written
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    export(arguments.output, model, config, tokenizer)
    model.eval()
    report = {"steps": step, "tokens": tokens, "seed": arguments.seed, "parameters": sum(p.numel() for p in model.parameters()),
              "minutes": round((time.monotonic() - begin) / 60, 2)}  # fmt: skip
    packer = Packer(tokenizer, "held-out", "evaluation", arguments.rows, arguments.tokens)
    for half in (True, False):
        if device == "cuda" or not half:
            report["bf16" if half else "f32"] = print_accuracy("bf16" if half else "f32", trainer.accuracy(packer, arguments.evaluate, half))
    (arguments.output / "training.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
