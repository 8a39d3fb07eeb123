#!/usr/bin/env python3
"""Says in one page what of a model's directory is used, what is ignored, and what stands in the way.

    scripts/try_checkpoint.py build/src/cli/batchllm DIRECTORY
    scripts/try_checkpoint.py build/src/cli/batchllm DIRECTORY --run    also loads the weights and answers a row on the CPU

DIRECTORY is a Hugging Face model directory, complete or in part. The program reads each of its parts: the configuration on the backend
that computes no tensors, the tokenizer and the chat template with a short text. Of the weights, the names, types and sizes are read;
with --run, the program checks each tensor as it loads it. The exit status is 1 if something stands in the way.
Needs only the standard library.
"""
import argparse
import collections
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

USED = {
    "config.json": "the architecture and its sizes",
    "generation_config.json": "the tokens that end a row",
    "tokenizer.json": "the tokenizer",
    "tokenizer_config.json": "the chat template and the special tokens that it may name",
    "special_tokens_map.json": "special tokens, if tokenizer_config.json has no added_tokens_decoder",
    "chat_template.jinja": "the chat template",
    "chat_template.json": "the chat template, if there is no other",
    "model.safetensors": "the weights",
    "model.safetensors.index.json": "which shard has which tensor",
    "hf_quant_config.json": "how weights are quantised, if config.json does not say",
    "modules.json": "the pooling of an embedding model",
}
IGNORED = {
    ".bin": "weights as Python pickles: only safetensors are read", ".pt": "weights as Python pickles", ".pth": "weights as Python pickles",
    ".gguf": "weights for llama.cpp", ".h5": "weights for TensorFlow", ".msgpack": "weights for Flax", ".onnx": "a graph for ONNX",
    ".model": "a SentencePiece or tiktoken model: tokenizer.json has it all", ".md": "documentation", ".py": "code, which is never run",
}
OTHERS = {
    "merges.txt": "tokenizer.json has it all", "vocab.json": "tokenizer.json has it all", "added_tokens.json": "tokenizer.json has it all",
    "preprocessor_config.json": "for pictures and sound, which are not supported", "processor_config.json": "for pictures and sound, which are not supported",
    "video_preprocessor_config.json": "for pictures and sound, which are not supported", "adapter_config.json": "an adapter: only whole models are read",
}
# Any small tokenizer: the configuration is tried with it, so that neither waits for the other.
STAND_IN = pathlib.Path(__file__).resolve().parent.parent / "examples" / "catalogue" / "model" / "tokenizer.json"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


class Page:
    def __init__(self, program, directory, scratch):
        self.program, self.directory, self.scratch = program, directory, scratch
        self.obstacles = []

    def say(self, text, *more):
        print(text)
        for line in more:
            print(f"    {line}")

    def obstacle(self, text):
        self.obstacles.append(text)

    def run(self, *arguments, given=""):
        done = subprocess.run([self.program, *map(str, arguments)], input=given, capture_output=True, text=True)
        lines = done.stderr.strip().splitlines() or ["no message"]
        error = lines[-1].removeprefix("batchllm: ")
        for place in (self.scratch / "model", self.directory):
            error = error.replace(f"{place}/", "")
        return done, error

    def tokenize(self, model, line):
        """The program's answer to a line; an object with "error" if there is none."""
        done, error = self.run("tokenize", "--model", model, given=json.dumps(line) + "\n")
        answer = json.loads(done.stdout.splitlines()[0]) if done.stdout else {"error": {"message": error}}
        if "error" in answer:
            answer["error"] = answer["error"]["message"].replace(f"{self.directory}/", "")
        return answer

    def files(self):
        used, ignored = [], []
        shards = self.shards()
        for path in sorted(self.directory.iterdir()):
            name, size = path.name, path.stat().st_size if path.is_file() else 0
            if name in USED:
                used.append(f"{name}: {USED[name]}")
            elif name in shards:
                continue
            elif name == "additional_chat_templates" or name.endswith("_Pooling"):
                used.append(name)
            else:
                ignored.append(f"{name}: {OTHERS.get(name) or IGNORED.get(path.suffix, 'not read')} ({size:,} bytes)")
        self.say("Used", *used, *([f"{len(shards)} shards of weights"] if shards else []))
        self.say("Ignored", *(ignored or ["nothing"]))

    def shards(self):
        index = self.directory / "model.safetensors.index.json"
        if not index.exists():
            return set()
        try:
            return set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            self.obstacle(f"{index.name}: {type(error).__name__}: {error}")
            return set()

    def configuration(self):
        if not (self.directory / "config.json").exists():
            self.obstacle("config.json is missing")
            return
        model, job = self.scratch / "model", self.scratch / "rows.jsonl"
        model.mkdir()
        for path in self.directory.iterdir():
            if path.name != "tokenizer.json":
                (model / path.name).symlink_to(path.resolve())
        (model / "tokenizer.json").symlink_to(STAND_IN)
        job.write_text(json.dumps({"id": 1, "tokens": [1, 2, 3], "max_tokens": 1}) + "\n")
        done, error = self.run("run", "--backend", "sim", "--model", model, "--input", job, "--output", self.scratch / "out.jsonl")
        if done.returncode:
            self.obstacle(error)
        config = self.json_of("config.json")
        text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
        said = [f"{config.get('architectures')}, model_type {config.get('model_type')}: " + ("refused" if done.returncode else "supported")]
        if text is not config:
            said.append("only the text model runs (text_config)")
        quantized = config.get("quantization_config")
        if isinstance(quantized, dict):
            said.append(f"quantised: {quantized.get('quant_method')}")
        said.append(f"rows of up to {text.get('max_position_embeddings', config.get('max_position_embeddings'))} tokens")
        generation = self.json_of("generation_config.json")
        ends = generation.get("eos_token_id", config.get("eos_token_id", text.get("eos_token_id")))
        said.append(f"tokens that end a row: {ends}")
        others = sorted(set(generation) - {"eos_token_id", "_from_model_config", "transformers_version"})
        if others:
            said.append(f"ignored in generation_config.json (rows say how they are sampled): {', '.join(others)}")
        self.say("Configuration", *said)

    def json_of(self, name):
        try:
            value = json.loads((self.directory / name).read_text(encoding="utf-8-sig"))
            return value if isinstance(value, dict) else {}
        except (OSError, ValueError):
            return {}

    def weights(self):
        names = sorted(self.shards()) or (["model.safetensors"] if (self.directory / "model.safetensors").exists() else [])
        if not names:
            self.obstacle("there are no weights: neither model.safetensors nor an index of shards")
            return
        missing = [name for name in names if not (self.directory / name).exists()]
        if missing:
            self.obstacle(f"{len(missing)} of {len(names)} files of weights are missing: {', '.join(missing[:3])}" + (" ..." if len(missing) > 3 else ""))
        kinds, towers = collections.Counter(), collections.Counter()
        for name in set(names) - set(missing):
            try:
                with open(self.directory / name, "rb") as file:
                    size, = struct.unpack("<Q", file.read(8))
                    header = json.loads(file.read(size))
            except (struct.error, ValueError, OverflowError, MemoryError) as error:
                self.obstacle(f"{name}: not a safetensors file: {error}")
                continue
            for tensor, about in header.items():
                if tensor == "__metadata__":
                    continue
                count = about["data_offsets"][1] - about["data_offsets"][0]
                kinds[about["dtype"]] += count
                part = tensor.removeprefix("model.").split(".")[0]
                if part in ("vision_tower", "visual", "multi_modal_projector", "audio_tower", "embed_vision", "embed_audio", "mtp"):
                    towers[part] += count
        self.say("Weights", f"{len(names)} file" + ("s" if len(names) > 1 else ""), *(f"{kind}: {count / 2**20:,.1f} MiB" for kind, count in kinds.most_common()),
                 *(f"ignored: {part}, {count / 2**20:,.1f} MiB" for part, count in towers.items()))

    def text(self):
        if not (self.directory / "tokenizer.json").exists():
            self.obstacle("tokenizer.json is missing: rows of tokens work, text and conversations do not"
                          + (" (transformers can make it: AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY))"
                             if list(self.directory.glob("*.model")) or (self.directory / "vocab.json").exists() else ""))
            return
        answer = self.tokenize(self.directory, {"text": "Hello world"})
        if "tokens" not in answer:
            self.obstacle(f"the tokenizer: {answer['error']}")
            return
        said = [f"\"Hello world\" is {answer['tokens']}"]
        answer = self.tokenize(self.directory, HELLO)
        if "tokens" in answer:
            done, _ = self.run("tokenize", "--model", self.directory, "--decode", "--keep-special", given=json.dumps({"tokens": answer["tokens"]}) + "\n")
            said.append(f"a conversation begins {json.loads(done.stdout)['text']!r}")
        elif "no chat template" in answer["error"]:
            said.append("there is no chat template: prompts as text work, conversations do not")
        else:
            self.obstacle(f"conversations: {answer['error']}")
        self.say("Text", *said)

    def row(self):
        job, output = self.scratch / "rows.jsonl", self.scratch / "answers.jsonl"
        has_text = "tokens" in self.tokenize(self.directory, HELLO)
        job.write_text(json.dumps({"id": 1, "max_tokens": 16, **(HELLO if has_text else {"tokens": [1, 2, 3]})}) + "\n")
        done, error = self.run("run", "--backend", "cpu", "--model", self.directory, "--input", job, "--output", output, "--progress", "none")
        if done.returncode:
            self.obstacle(f"a row on the CPU: {error}")
        else:
            self.say("A row on the CPU", repr(json.loads(output.read_text().splitlines()[0]).get("text")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=pathlib.Path, help="batchllm")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--run", action="store_true", help="load the weights and answer a row on the CPU")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        page = Page(options.program.resolve(), options.directory, pathlib.Path(scratch))
        page.files()
        page.configuration()
        page.weights()
        page.text()
        if options.run:
            page.row()
        page.say("In the way", *(page.obstacles or ["nothing"]))
    return 1 if page.obstacles else 0


if __name__ == "__main__":
    sys.exit(main())
