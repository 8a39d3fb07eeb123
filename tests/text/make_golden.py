#!/usr/bin/env python3
"""Makes the small tokenizers and the golden data beside this file, with Hugging Face tokenizers.

    pip install tokenizers
    tests/text/make_golden.py

NAME/tokenizer.json are trained on generated text. golden.jsonl has a line
[name, options, text, ids, text decoded, text decoded without special tokens]
for each case, where options are bits: 1 add_special, 2 parse_special, 4 nothing is encoded, the ids are only decoded.
"""
import json
import os
import random

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

import sample_text

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
          r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
          r"|\s*[\r\n]|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN3_5 = (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SEED = (CONTRACTIONS + "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+"
        "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
LING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+")


DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def cased(contractions, digits):
    capital, small = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before, after = r"[^\r\n\p{L}\p{N}]?", contractions and contractions + "?"
    return (f"{before}{capital}*{small}+{after}|{before}{capital}+{small}*{after}|{digits}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


O200K = cased(CONTRACTIONS, r"\p{N}{1,3}")
TEKKEN = cased("", r"\p{N}")
KIMI = "[\\p{Han}]+|" + cased(CONTRACTIONS, r"\p{N}{1,3}").replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("/", "")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
OTHER = "".join(chr(random.Random(7).choice(range(a, b + 1))) for a, b in sample_text.SCRIPTS
                for _ in range(30))


def corpus():
    yield from sample_text.english(60000, 1).split("\n")
    yield from sample_text.code(20000, 2).splitlines(True)
    for i in range(0, len(OTHER), 10):
        yield OTHER[i:i + 10]


def train_bytes(tokenizer, size, specials):
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def byte_level_split(regex, behavior="isolated", invert=False):
    return byte_level_splits([regex], behavior, invert)


def byte_level_splits(regexes, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), behavior, invert) for regex in regexes] +
                                   [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = byte_level_split(LLAMA3)
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, 900, [])
    # A token that no merge produces: only ignore_merges finds it.
    data = json.loads(tokenizer.to_str())
    data["model"]["vocab"]["\u0120unmergeable"] = len(data["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
            special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))])])
    return tokenizer


def qwen2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = byte_level_split(QWEN2)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    train_bytes(tokenizer, 800, [])
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), "caf\u00e9", "e\u0301t\u00e9",
                          AddedToken("</think>", normalized=False)])
    return tokenizer


def gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, 700, ["<|endoftext|>"])
    tokenizer.add_tokens([
        AddedToken("<mask>", lstrip=True, normalized=False, special=True),
        AddedToken("[WORD]", single_word=True, normalized=False),
        AddedToken("dog", single_word=True), AddedToken("<r>", rstrip=True),
        AddedToken("<both>", lstrip=True, rstrip=True), "  ", "<<", "<", "<<<x",
        AddedToken("[N]", normalized=True, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("<|endoftext|>", 0), ("<mask>", tokenizer.token_to_id("<mask>")))
    return tokenizer


def sentencepiece(pieces, merges_as_text):
    """Trained on words marked as in SentencePiece, with byte tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=900, show_progress=False, limit_alphabet=150,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(pieces)]))
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["id"] < 3]
    vocabulary = data["model"]["vocab"]
    for run in range(2, 9):  # runs of the mark, as in Llama 2's vocabulary
        vocabulary["\u2581" * run] = len(vocabulary)
        half = run // 2
        data["model"]["merges"].append(["\u2581" * (run - half), "\u2581" * half])
    if merges_as_text:
        data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"]]
    data["pre_tokenizer"] = None
    return data


def llama2():
    data = sentencepiece(256, True)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                                 normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    data = json.loads(tokenizer.to_str())  # which writes merges in the new form
    data["model"]["merges"] = [" ".join(merge) for merge in data["model"]["merges"]]
    return Tokenizer.from_str(json.dumps(data)), data


def metaspace():
    data = sentencepiece(200, False)  # some bytes have no token: unknown characters remain
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([
        decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    tokenizer.add_tokens([AddedToken("[INST]", special=True, normalized=False),
                          AddedToken("[/INST]", special=True, normalized=False),
                          AddedToken("<pad>", special=True, normalized=False, rstrip=True)])
    tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    return tokenizer


def metaspace_split():
    data = sentencepiece(0, False)  # no bytes at all
    data["model"]["fuse_unk"] = False
    data["model"]["byte_fallback"] = False
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def digits():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, 500, ["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("\n", lstrip=True, rstrip=True, normalized=False),
                          AddedToken(" \t", rstrip=True, normalized=False)])
    return tokenizer


def cl100k():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level_split(CL100K)
    tokenizer.decoder = None
    train_bytes(tokenizer, 500, ["<|endoftext|>"])
    return tokenizer


def with_model(tokenizer, **settings):
    data = json.loads(tokenizer.to_str())
    data["model"].update(settings)
    return data


def qwen3_5():
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = byte_level_split(QWEN3_5)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    train_bytes(tokenizer, 600, [])
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(f"<{name}>", normalized=False)
                          for name in ("think", "/think", "tool_call", "/tool_call")])
    return tokenizer


def o200k():
    """As in gpt-oss and Phi-4-mini; the unknown token is not in the vocabulary and never needed."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = byte_level_split(O200K, "removed", True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    train_bytes(tokenizer, 600, [])
    tokenizer.add_special_tokens([
        "<|startoftext|>", "<|return|>", "<|start|>", "<|channel|>",
        AddedToken("<|dummy_1|>", lstrip=True, rstrip=True, normalized=False, special=True)])
    return with_model(tokenizer, unk_token="<|unknown|>")


def tekken():
    """Special tokens come first, within the vocabulary."""
    specials = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "<pad>"]
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = byte_level_split(TEKKEN)
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, 600, specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0", pair="<s>:0 $A:0 <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return tokenizer


def seed():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level_split(SEED)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<seed_bos> $A", pair="<seed_bos> $A <seed_bos>:1 $B:1",
        special_tokens=[("<seed_bos>", 0)])
    train_bytes(tokenizer, 500, ["<seed_bos>", "<seed_pad>", "<seed_eos>", "<seed_think>"])
    return tokenizer


def deepseek():
    """Several steps, two of which leave text between their matches."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level_splits(DEEPSEEK)
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, 600, ["<|begin|>", "<|end|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|>:1 $B:1", special_tokens=[("<|begin|>", 0)])
    return tokenizer


def kimi():
    """A pattern with intersections of classes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level_split(KIMI)
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, 600, ["[BOS]", "[EOS]"])
    return tokenizer


def gemma():
    """SentencePiece without a mark before the text; runs of spaces and of line feeds are added tokens."""
    data = sentencepiece(256, False)
    for token in ("\n", "\n\n", "\t"):
        data["model"]["vocab"].setdefault(token, len(data["model"]["vocab"]))
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    tokenizer.add_tokens([AddedToken(token, normalized=False)
                          for token in ("\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<unused0>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0", pair="<s>:0 $A:0 <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return tokenizer


def phi3():
    """Like Llama 2's, with tokens that include the white space after them."""
    _, data = llama2()
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens([
        AddedToken(token, rstrip=True, normalized=False, special=True)
        for token in ("<|endoftext|>", "<|assistant|>", "<|user|>", "<|end|>")])
    tokenizer.add_tokens([AddedToken("</s>", rstrip=True, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A $B", special_tokens=[])
    return tokenizer


def command():
    """Command R and A; StarCoder 2 and Granite 3 differ only in the normalizer and the template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, 500, ["<PAD>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<BOS_TOKEN>:0 $A:0", pair="<BOS_TOKEN>:0 $A:0 $B:1",
        special_tokens=[("<BOS_TOKEN>", 1)])
    return tokenizer


def make_all():
    """{name: text of tokenizer.json}"""
    made = {}
    for make in (llama3, qwen2, gpt2, llama2, metaspace, metaspace_split, digits, cl100k, qwen3_5,
                 o200k, tekken, seed, deepseek, kimi, gemma, phi3, command):
        made_one = make()
        if isinstance(made_one, tuple):
            made_one = made_one[1]
        data = made_one if isinstance(made_one, dict) else json.loads(made_one.to_str())
        made[make.__name__] = json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n"
    return made


def specials_of(text):
    return [token["content"] for token in json.loads(text)["added_tokens"]] + ["<0x41>", "<unk>"]


def expected(tokenizer, options, text):
    """text: the ids themselves if options has 4."""
    tokenizer.encode_special_tokens = not options & 2
    ids = text if options & 4 else tokenizer.encode(
        text, add_special_tokens=bool(options & 1)).ids
    return ids, tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids)


def main():
    cases = []
    for name, text in make_all().items():
        os.makedirs(os.path.join(HERE, name), exist_ok=True)
        with open(os.path.join(HERE, name, "tokenizer.json"), "w", encoding="utf-8") as file:
            file.write(text)
        tokenizer = Tokenizer.from_str(text)
        generator = random.Random(name)
        texts = ["", " ", "\n", "Hello world", sample_text.english(80, 11)]
        texts += [sample_text.hostile(generator, specials_of(text)) for _ in range(260)]
        for case in texts:
            if len(case) > 90:
                continue
            options = generator.randrange(4)
            cases.append([name, options, case, *expected(tokenizer, options, case)])
        for _ in range(20):
            ids = sample_text.token_ids(generator, tokenizer.get_vocab_size())
            cases.append([name, 4, "", *expected(tokenizer, 4, ids)])
    with open(os.path.join(HERE, "golden.jsonl"), "w", encoding="utf-8") as file:
        for case in cases:
            file.write(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
