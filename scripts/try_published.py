#!/usr/bin/env python3
"""Tries folders of published metadata: configurations, tokenizers, and conversations against transformers.

    scripts/try_published.py build/src/cli/batchllm DIRECTORY

DIRECTORY holds a folder for each model: config.json, tokenizer_config.json, chat templates and so on as they were published, without
weights. Where a folder has expected-chat.json, its conversations are rendered and compared with it: a list of objects with
"messages", "add_generation_prompt" and "text", which is what transformers renders, or an object with "error" where it refuses. The
folder's own tokenizer.json is loaded, but conversations are rendered with a stand-in that has a token for each byte, so that the
text can be read off the tokens.

Prints a table and, below it, each difference and each refusal with its reason. The exit status is 1 if a conversation differs.
Needs only the standard library.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2} [A-Z][a-z]+ \d{4}")
READ = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
        "chat_template.json", "additional_chat_templates")


def byte_characters():
    """The characters that byte-level vocabularies write for the bytes 0 to 255."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + others.index(byte)) for byte in range(256)]


def stand_in():
    """A tokenizer.json whose tokens are the bytes of the text."""
    return json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(byte_characters())}, "merges": []}})


def reason(text, folder):
    """The program's last line without what only says where."""
    line = text.strip().splitlines()[-1] if text.strip() else "no message"
    return line.removeprefix("batchllm: ").replace(f"{folder}/", "")


class Folder:
    def __init__(self, program, path, scratch):
        self.program, self.path, self.scratch = program, path, scratch
        self.model = scratch / "model"  # the folder's metadata with the stand-in
        self.model.mkdir()
        for name in READ:
            if (path / name).exists():
                (self.model / name).symlink_to((path / name).resolve())
        (self.model / "tokenizer.json").write_text(stand_in())
        self.equal = self.both_refuse = 0
        self.differences, self.refusals = [], []  # texts

    def run(self, *arguments, given=""):
        return subprocess.run([self.program, *map(str, arguments)], input=given, capture_output=True, text=True)

    def try_config(self):
        """The configuration and the generation defaults, by a job on the backend that computes no tensors."""
        if not (self.path / "config.json").exists():
            return "-"
        rows, output = self.scratch / "rows.jsonl", self.scratch / "output.jsonl"
        rows.write_text(json.dumps({"id": 1, "tokens": [1, 2, 3], "max_tokens": 2}) + "\n")
        done = self.run("run", "--backend", "sim", "--model", self.model, "--input", rows, "--output", output)
        if done.returncode == 0:
            return "loads"
        self.refusals.append(re.sub(": this version runs .*", ": not a supported one", reason(done.stderr, self.model)))
        return "refused"

    def try_tokenizer(self):
        """The folder's own tokenizer, and whether each of its special tokens is one token."""
        if not (self.path / "tokenizer.json").exists():
            return "-"
        special = {}
        try:
            config = json.loads((self.path / "tokenizer_config.json").read_text())
            for key, value in config.items():
                value = value.get("content") if isinstance(value, dict) else value
                if key.endswith("_token") and isinstance(value, str):
                    special[key] = value
        except OSError:
            pass
        lines = [{"text": text} for text in ["Hello", *special.values()]]
        done = self.run("tokenize", "--model", self.path, "--no-special", given="".join(json.dumps(line) + "\n" for line in lines))
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        if len(answers) != len(lines):
            self.refusals.append(reason(done.stderr, self.path))
            return "refused"
        several = [key for key, answer in zip(special, answers[1:]) if len(answer.get("tokens", [])) != 1]
        if several:
            self.differences.append(f"not one token: {', '.join(several)}")
        return "loads"

    def rendered(self, conversations):
        """For each conversation its text, or an error."""
        lines = "".join(json.dumps({key: one[key] for key in ("messages", "add_generation_prompt")}) + "\n" for one in conversations)
        done = self.run("tokenize", "--model", self.model, given=lines)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        if len(answers) != len(conversations):
            return [(None, reason(done.stderr, self.model))] * len(conversations)
        return [(bytes(answer["tokens"]).decode() if "tokens" in answer else None,
                 answer.get("error", {}).get("message", "").replace(f"{self.model}/", "")) for answer in answers]

    def try_conversations(self):
        path = self.path / "expected-chat.json"
        if not path.exists():
            return
        conversations = json.loads(path.read_text())
        dated = any("strftime_now" in file.read_text() for file in self.path.iterdir()
                    if file.name in READ and file.is_file())
        for number, (one, (text, error)) in enumerate(zip(conversations, self.rendered(conversations)), 1):
            wanted = one["text"]
            if dated and text is not None and isinstance(wanted, str):  # rendered on another day
                text, wanted = DATE.sub("DATE", text), DATE.sub("DATE", wanted)
            if isinstance(wanted, dict):
                if text is None:
                    self.both_refuse += 1
                else:
                    self.differences.append(f"conversation {number}: transformers refuses ({wanted['error']}), and here is a text")
            elif text == wanted:
                self.equal += 1
            elif text is None:
                self.differences.append(f"conversation {number}: refused: {error}")
            else:
                place = next((i for i, (a, b) in enumerate(zip(text, wanted)) if a != b), min(len(text), len(wanted)))
                self.differences.append(f"conversation {number}: at character {place} {text[place:place + 40]!r}, "
                                        f"transformers {wanted[place:place + 40]!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=pathlib.Path, help="batchllm")
    parser.add_argument("directory", type=pathlib.Path, help="of folders, one for each model")
    parser.add_argument("--brief", action="store_true", help="only the sums, the refusals and the differences")
    options = parser.parse_args()
    tried = []
    for path in sorted(path for path in options.directory.iterdir() if path.is_dir()):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Folder(options.program.resolve(), path, pathlib.Path(scratch))
            folder.config, folder.tokenizer = folder.try_config(), folder.try_tokenizer()
            folder.try_conversations()
            tried.append(folder)
    if not options.brief:
        width = max([len("folder"), *(len(folder.path.name) for folder in tried)])
        print(f"{'folder':{width}}  config   tokenizer  equal  both refuse  differ")
        for folder in tried:
            print(f"{folder.path.name:{width}}  {folder.config:7}  {folder.tokenizer:9}  {folder.equal:5}  {folder.both_refuse:11}"
                  f"  {len(folder.differences):6}")
        print()
    for title, lists in (("Refused:", "refusals"), ("Differences:", "differences")):
        found = [(folder.path.name, text) for folder in tried for text in getattr(folder, lists)]
        if found:
            print(title)
        for name, text in found:
            print(f"  {name}: {text}")
    configs = [folder.config for folder in tried]
    tokenizers = [folder.tokenizer for folder in tried]
    differ = sum(len(folder.differences) for folder in tried)
    print(f"{len(tried)} folders. Configurations: {configs.count('loads')} load, {configs.count('refused')} refused. "
          f"Tokenizers: {tokenizers.count('loads')} load, {tokenizers.count('refused')} refused. Conversations: "
          f"{sum(folder.equal for folder in tried)} equal, {sum(folder.both_refuse for folder in tried)} refused by both, {differ} differ.")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
