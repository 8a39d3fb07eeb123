#!/usr/bin/env python3
"""A tokenizer.json of 128,000 tokens for bench/masks.py: byte-level BPE, split like Llama 3, followed by "</s>".

    python3 bench/masks_vocabulary.py vocabulary.json                    trained on text of this machine
    python3 bench/masks_vocabulary.py vocabulary.json --ranks FILE       a published one in tiktoken's form
    python3 bench/masks_vocabulary.py vocabulary.json --text FOLDER ..   trained on the text in these folders

Needs PyPI's tokenizers. Text is source code, documentation and translations, at most --megabytes of it, with every file
of a folder equally likely. PyPI's llama-models has Llama 3's own ranks in llama_models/llama3/tokenizer.model.
"""
import argparse
import base64
import os
import random
import sys
import sysconfig

HERE = os.path.dirname(os.path.abspath(__file__))
# Packages that import tokenize must not get this folder's tokenize.py.
sys.path = [path for path in sys.path if os.path.abspath(path) != HERE]
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

sys.path.insert(0, os.path.join(HERE, '..', 'tests', 'text'))
import make_golden  # noqa: E402

ENDINGS = ('.py', '.pyi', '.md', '.rst', '.txt', '.json', '.h', '.hpp', '.c', '.js', '.html', '.xml', '.yaml', '.po', '.pl')


def letters():
    """Byte -> the character that stands for it in byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def files(folders):
    found = []
    for folder in folders:
        for place, inner, names in os.walk(folder):
            inner.sort()
            found += [os.path.join(place, name) for name in sorted(names) if name.endswith(ENDINGS)]
    return found


def texts(paths, megabytes):
    """Texts of files in random order until there are enough bytes; only the first 200,000 bytes of a long file."""
    random.Random(1).shuffle(paths)
    left = megabytes * 1_000_000
    for path in paths:
        try:
            with open(path, encoding='utf-8') as file:
                text = file.read(200_000)
        except (OSError, UnicodeDecodeError):
            continue
        left -= len(text.encode())
        if left < 0:
            return
        yield text


def trained(folders, size, megabytes):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = make_golden.byte_level_split(make_golden.LLAMA3)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  max_token_length=128)
    tokenizer.train_from_iterator(texts(files(folders), megabytes), trainer)
    if tokenizer.get_vocab_size() != size:
        raise SystemExit(f'the text gives {tokenizer.get_vocab_size()} tokens only: name more with --text')
    return tokenizer


def from_ranks(path):
    """Ranks list the tokens; the pair that a token is merged from is what lower ranks make of its bytes."""
    with open(path, 'rb') as file:
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, filter(None, file))}
    letter = letters()
    vocabulary = {''.join(letter[byte] for byte in token): rank for token, rank in ranks.items()}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [token[i:i + 1] for i in range(len(token))]
        while len(parts) > 2:
            made = [ranks.get(parts[i] + parts[i + 1], rank) for i in range(len(parts) - 1)]
            least = min(made)
            if least == rank:
                break
            place = made.index(least)
            parts[place:place + 2] = [parts[place] + parts[place + 1]]
        if len(parts) == 2:
            merges.append(tuple(''.join(letter[byte] for byte in part) for part in parts))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = make_golden.byte_level_split(make_golden.LLAMA3)
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('output')
    parser.add_argument('--ranks')
    parser.add_argument('--text', nargs='+', default=['/usr/share', '/usr/include', sysconfig.get_path('purelib'),
                                                      sysconfig.get_path('stdlib')])
    parser.add_argument('--size', type=int, default=128_000)
    parser.add_argument('--megabytes', type=int, default=150)
    arguments = parser.parse_args()
    if arguments.ranks:
        tokenizer = from_ranks(arguments.ranks)
    else:
        tokenizer = trained(arguments.text, arguments.size, arguments.megabytes)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken('</s>', special=True)])
    tokenizer.save(arguments.output)
    print(f'{arguments.output}: {tokenizer.get_vocab_size()} tokens')


if __name__ == '__main__':
    main()
