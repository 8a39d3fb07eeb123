#!/usr/bin/env python3
"""The job of `bench/cpu steps` beside llama.cpp: same model shape, same machine, in turn.

    pip install llama-cpp-python==0.3.36 gguf
    ninja -C build
    bench/cpu_peer.py --build build [--rounds 3] [--threads 2] [--model qwen3.5]

16 rows share a prefix of 2,000 tokens; each has 200 of its own and 32 new ones, chosen greedily. The model is a Llama
of 100 million parameters with random weights in bf16, or with `--model qwen3.5` one with as many layers of Qwen3.5's
kinds, three of four with gated delta nets; both programs then read files with the same weights. llama.cpp computes the
prefix once for all rows, then the rows' own tokens in full batches, then all rows' next tokens together. The figures
are its best round with the best settings that were tried, and our best round.
"""
import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time

import cpu_peer_hybrid
import gguf
import numpy as np

# Packages that import tokenize must not get this folder's tokenize.py.
sys.path = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]
import llama_cpp as llama  # noqa: E402

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, WIDTH, VOCABULARY = 768, 12, 12, 4, 64, 2048, 32000
PREFIX, OWN, ROWS, NEW = 2000, 200, 16, 32
LONGEST = 8192


def write_model(path):
    """Random weights in the distribution of bench/cpu_bench.h's RandomModel."""
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(LONGEST)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)

    def matrix(name, rows, columns):
        values = random.uniform(-0.05, 0.05, (rows, columns)).astype(np.float32)
        bits = (values.view(np.uint32) + 0x8000) >> 16
        writer.add_tensor(name, bits.astype(np.uint16).view(np.uint8),
                          raw_dtype=gguf.GGMLQuantizationType.BF16)

    def ones(name):
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))

    matrix("token_embd.weight", VOCABULARY, HIDDEN)
    matrix("output.weight", VOCABULARY, HIDDEN)
    ones("output_norm.weight")
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        ones(block + "attn_norm.weight")
        ones(block + "ffn_norm.weight")
        matrix(block + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        matrix(block + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(block + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(block + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        matrix(block + "ffn_gate.weight", WIDTH, HIDDEN)
        matrix(block + "ffn_up.weight", WIDTH, HIDDEN)
        matrix(block + "ffn_down.weight", HIDDEN, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Peer:
    """A context of llama.cpp, and one batch that is filled and run."""

    def __init__(self, model, threads, batch, micro_batch):
        params = llama.llama_context_default_params()
        params.n_ctx = LONGEST
        params.n_batch = batch
        params.n_ubatch = micro_batch
        params.n_seq_max = ROWS
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = threads
        self.context = llama.llama_init_from_model(model, params)
        if not self.context:
            sys.exit("llama.cpp makes no context")
        self.most = batch
        self.batch = llama.llama_batch_init(batch, 0, ROWS)

    def close(self):
        llama.llama_batch_free(self.batch)
        llama.llama_free(self.context)

    def run(self, tokens):
        """tokens: (token, position, sequences, wanted). Returns the next token after each wanted one, in order."""
        chosen = []
        for begin in range(0, len(tokens), self.most):
            part = tokens[begin:begin + self.most]
            batch = self.batch
            batch.n_tokens = len(part)
            for i, (token, position, sequences, wanted) in enumerate(part):
                batch.token[i] = token
                batch.pos[i] = position
                batch.n_seq_id[i] = len(sequences)
                for j, sequence in enumerate(sequences):
                    batch.seq_id[i][j] = sequence
                batch.logits[i] = wanted
            if llama.llama_decode(self.context, batch) != 0:
                sys.exit("llama.cpp cannot decode")
            for i, (_, _, _, wanted) in enumerate(part):
                if wanted:
                    logits = llama.llama_get_logits_ith(self.context, i)
                    array = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)),
                                                  (VOCABULARY,))
                    chosen.append(int(array.argmax()))
        return chosen

    def job(self, prefix, own, in_turn):
        """Rows per second, and each row's first token. in_turn: own tokens are batched by position instead of by
        row."""
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
        everyone = list(range(ROWS))
        start = time.perf_counter()
        self.run([(token, i, everyone, False) for i, token in enumerate(prefix)])
        tokens = [(token, PREFIX + i, [row], i + 1 == OWN)
                  for row in range(ROWS) for i, token in enumerate(own[row])]
        first = last = self.run(sorted(tokens, key=lambda token: token[1]) if in_turn else tokens)
        for step in range(1, NEW):
            last = self.run([(token, PREFIX + OWN + step - 1, [row], True) for row, token in enumerate(last)])
        return ROWS / (time.perf_counter() - start), first


def ours(build, threads):
    output = subprocess.run([os.path.join(build, "bench", "cpu"), "steps", "--only-sharing", "--groups", "1",
                             "--threads", str(threads)], check=True, capture_output=True, text=True).stdout
    return float(re.search(r"([0-9.]+) rows/s", output).group(1))


def ours_from_files(folder, threads, prefix, own):
    """Rows per second, and each row's first token, for the model in a folder."""
    import batchllm
    rows = np.concatenate([np.tile(np.array(prefix, np.int32), (ROWS, 1)), np.array(own, np.int32)], 1)
    with batchllm.Engine(folder, backend="cpu", threads=threads) as engine:
        start = time.perf_counter()
        results = engine.generate(rows, batchllm.SamplingParams(max_tokens=NEW, ignore_eos=True))
        return ROWS / (time.perf_counter() - start), [int(result.tokens[0]) for result in results]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", choices=("llama", "qwen3.5"), default="llama")
    arguments = parser.parse_args()
    hybrid = arguments.model == "qwen3.5"
    sys.path.insert(0, os.path.join(arguments.build, "bindings", "python"))

    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    best, same, compared = {}, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        if hybrid:
            cpu_peer_hybrid.write_model(folder, path, VOCABULARY, LONGEST)
        else:
            write_model(path)
        model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        if not model:
            sys.exit("llama.cpp cannot load the model")
        for round_ in range(arguments.rounds):
            random = np.random.default_rng(round_)
            prefix = random.integers(0, VOCABULARY, PREFIX).tolist()
            own = random.integers(0, VOCABULARY, (ROWS, OWN)).tolist()
            for micro_batch, in_turn in ((512, False), (2048, False), (512, True), (2048, True))[:4 if hybrid else 2]:
                peer = Peer(model, arguments.threads, 2048, micro_batch)
                name = f"llama.cpp, micro-batches of {micro_batch}{', rows in turn' if in_turn else ''}"
                rate, theirs = peer.job(prefix, own, in_turn)
                best[name] = max(best.get(name, 0), rate)
                peer.close()
            if hybrid:
                rate, first = ours_from_files(folder, arguments.threads, prefix, own)
                same += sum(a == b for a, b in zip(first, theirs))
                compared += ROWS
            else:
                rate = ours(arguments.build, arguments.threads)
            best["libbatchllm"] = max(best.get("libbatchllm", 0), rate)
        llama.llama_model_free(model)
    for name, rate in best.items():
        print(f"{name:48} {rate:7.2f} rows/s")
    peers = max(rate for name, rate in best.items() if name != "libbatchllm")
    print(f"libbatchllm does {best['libbatchllm'] / peers:.1f} times the rows")
    if hybrid:
        print(f"of {compared} rows {same} begin with the same token in both")


if __name__ == "__main__":
    main()
