"""A model of Qwen3.5's kinds of layers with random weights, as a checkpoint and as a GGUF file: for bench/cpu_peer.py.

Three layers of four are gated delta nets, with as many key heads as value heads, as in Qwen3.5's smaller models: with
more value heads, the two formats order them differently.
"""
import json
import os
import struct

import gguf
import numpy as np

LAYERS, ATTENDS, WIDTH = 12, 4, 2048  # every fourth layer attends
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 768, 12, 4, 64
DELTA_HEADS, DELTA_DIM, TAPS = 8, 128, 4
DELTA = DELTA_HEADS * DELTA_DIM


class Weights:
    """The tensors of both files, each with its name in either format."""

    def __init__(self, writer):
        self.writer, self.random, self.checkpoint = writer, np.random.default_rng(1), {}

    def matrix(self, ours, theirs, rows, columns):
        values = self.random.uniform(-0.05, 0.05, (rows, columns)).astype(np.float32)
        self.writer.add_tensor(theirs, self.keep(ours, values).view(np.uint8),
                               raw_dtype=gguf.GGMLQuantizationType.BF16)

    def vector(self, ours, theirs, values, as_theirs=lambda x: x, shape=None):
        bits = self.keep(ours, np.asarray(values, np.float32), shape)
        rounded = (bits.astype(np.uint32) << 16).view(np.float32)
        self.writer.add_tensor(theirs, np.ascontiguousarray(as_theirs(rounded)).reshape(np.shape(values)))

    def norm(self, ours, theirs, length):
        """Norm weights; the checkpoint stores them minus one."""
        self.vector(ours, theirs, np.zeros(length), lambda x: x + 1)

    def keep(self, name, values, shape=None):
        bits = ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
        self.checkpoint[name] = bits.reshape(shape or values.shape)
        return bits


def describe(writer, vocabulary, longest):
    writer.add_block_count(LAYERS)
    writer.add_context_length(longest)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(HEAD_DIM // 4)
    writer.add_rope_dimension_sections([3, 3, 2, 0])  # text has the same position in all of them
    writer.add_vocab_size(vocabulary)
    writer.add_full_attention_interval(ATTENDS)
    writer.add_ssm_conv_kernel(TAPS)
    writer.add_ssm_inner_size(DELTA)
    writer.add_ssm_state_size(DELTA_DIM)
    writer.add_ssm_time_step_rank(DELTA_HEADS)
    writer.add_ssm_group_count(DELTA_HEADS)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def add_attention(weights, ours, theirs):
    weights.matrix(ours + "q_proj.weight", theirs + "attn_q.weight", 2 * HEADS * HEAD_DIM, HIDDEN)  # with gates
    weights.matrix(ours + "k_proj.weight", theirs + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    weights.matrix(ours + "v_proj.weight", theirs + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    weights.matrix(ours + "o_proj.weight", theirs + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
    weights.norm(ours + "q_norm.weight", theirs + "attn_q_norm.weight", HEAD_DIM)
    weights.norm(ours + "k_norm.weight", theirs + "attn_k_norm.weight", HEAD_DIM)


def add_delta_net(weights, ours, theirs):
    uniform = weights.random.uniform
    weights.matrix(ours + "in_proj_qkv.weight", theirs + "attn_qkv.weight", 3 * DELTA, HIDDEN)
    weights.matrix(ours + "in_proj_z.weight", theirs + "attn_gate.weight", DELTA, HIDDEN)
    weights.matrix(ours + "in_proj_b.weight", theirs + "ssm_beta.weight", DELTA_HEADS, HIDDEN)
    weights.matrix(ours + "in_proj_a.weight", theirs + "ssm_alpha.weight", DELTA_HEADS, HIDDEN)
    weights.matrix(ours + "out_proj.weight", theirs + "ssm_out.weight", HIDDEN, DELTA)
    weights.vector(ours + "A_log", theirs + "ssm_a", np.log(uniform(1, 16, DELTA_HEADS)), lambda x: -np.exp(x))
    weights.vector(ours + "dt_bias", theirs + "ssm_dt.bias", uniform(-4, -1, DELTA_HEADS))
    weights.vector(ours + "norm.weight", theirs + "ssm_norm.weight", np.ones(DELTA_DIM))
    weights.vector(ours + "conv1d.weight", theirs + "ssm_conv1d.weight", uniform(-0.5, 0.5, (3 * DELTA, TAPS)),
                   shape=(3 * DELTA, 1, TAPS))


def write_checkpoint(folder, tensors, vocabulary, longest):
    kinds = ["full_attention" if i % ATTENDS == ATTENDS - 1 else "linear_attention" for i in range(LAYERS)]
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(dict(
            architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", dtype="bfloat16", eos_token_id=0,
            head_dim=HEAD_DIM, hidden_act="silu", hidden_size=HIDDEN, intermediate_size=WIDTH, layer_types=kinds,
            linear_conv_kernel_dim=TAPS, linear_key_head_dim=DELTA_DIM, linear_num_key_heads=DELTA_HEADS,
            linear_num_value_heads=DELTA_HEADS, linear_value_head_dim=DELTA_DIM, max_position_embeddings=longest,
            num_attention_heads=HEADS, num_hidden_layers=LAYERS, num_key_value_heads=KV_HEADS, rms_norm_eps=1e-6,
            rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25),
            tie_word_embeddings=False, vocab_size=vocabulary), out)
    header, end = {}, 0
    for name, values in tensors.items():
        header[name] = dict(dtype="BF16", shape=values.shape, data_offsets=[end, end + values.nbytes])
        end += values.nbytes
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            out.write(values.tobytes())


def write_model(folder, path, vocabulary, longest):
    """Writes the checkpoint to `folder` and the GGUF file to `path`."""
    writer = gguf.GGUFWriter(path, "qwen35")
    describe(writer, vocabulary, longest)
    weights = Weights(writer)
    weights.matrix("model.embed_tokens.weight", "token_embd.weight", vocabulary, HIDDEN)
    weights.matrix("lm_head.weight", "output.weight", vocabulary, HIDDEN)
    weights.norm("model.norm.weight", "output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        ours, theirs = f"model.layers.{layer}.", f"blk.{layer}."
        weights.norm(ours + "input_layernorm.weight", theirs + "attn_norm.weight", HIDDEN)
        weights.norm(ours + "post_attention_layernorm.weight", theirs + "post_attention_norm.weight", HIDDEN)
        for part in ("gate", "up"):
            weights.matrix(f"{ours}mlp.{part}_proj.weight", f"{theirs}ffn_{part}.weight", WIDTH, HIDDEN)
        weights.matrix(ours + "mlp.down_proj.weight", theirs + "ffn_down.weight", HIDDEN, WIDTH)
        if layer % ATTENDS == ATTENDS - 1:
            add_attention(weights, ours + "self_attn.", theirs)
        else:
            add_delta_net(weights, ours + "linear_attn.", theirs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_checkpoint(folder, weights.checkpoint, vocabulary, longest)
