"""The Llama architecture in plain PyTorch, with the parameter names of Hugging Face's checkpoints.

Trained on documents packed as trees: one shared prefix, many rows that see the prefix and themselves.
With no rows it is the usual causal model, and transformers' LlamaForCausalLM computes the same.
"""

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 3072,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "eos_token_id": 0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}


def tree_mask(starts, prefix_ends, row_starts):
    """Which token sees which, by three places for each token: where its document starts, where the
    shared prefix ends, and where its own row starts (for a prefix token: the document's start)."""

    def sees(batch, head, query, key):
        shared = (key >= starts[batch, query]) & (key < prefix_ends[batch, query])
        return (key <= query) & (shared | (key >= row_starts[batch, query]))

    return sees


def rotate(x, cosine, sine):  # [batch, heads, tokens, head_dim]; [batch, 1, tokens, head_dim]
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Attention(nn.Module):
    def __init__(self, config, attend):
        super().__init__()
        self.head_dim = config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = nn.Linear(config["hidden_size"], heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config["hidden_size"], kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config["hidden_size"], kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, config["hidden_size"], bias=False)
        self.attend = attend

    def forward(self, x, cosine, sine, mask):
        batch, tokens, _ = x.shape
        q, k, v = (
            projection(x).view(batch, tokens, -1, self.head_dim).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = self.attend(rotate(q, cosine, sine), rotate(k, cosine, sine), v, mask)
        return self.o_proj(y.transpose(1, 2).reshape(batch, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config["hidden_size"], config["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(config["hidden_size"], config["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(config["intermediate_size"], config["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config, attend):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config["hidden_size"], eps=config["rms_norm_eps"])
        self.self_attn = Attention(config, attend)
        self.post_attention_layernorm = nn.RMSNorm(config["hidden_size"], eps=config["rms_norm_eps"])
        self.mlp = Mlp(config)

    def forward(self, x, cosine, sine, mask):
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config, attend):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config, attend) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], eps=config["rms_norm_eps"])


class Llama(nn.Module):
    """tokens, positions [batch, tokens] -> logits [batch, tokens, vocabulary]. attend(q, k, v, mask)
    is one of the functions below; q has more heads than k and v."""

    def __init__(self, config, attend):
        super().__init__()
        self.model = Body(config, attend)
        exponents = torch.arange(0, config["head_dim"], 2, dtype=torch.float32) / config["head_dim"]
        self.register_buffer("frequencies", config["rope_theta"] ** -exponents, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                depth = (2 * config["num_hidden_layers"]) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                nn.init.normal_(parameter, std=config["initializer_range"] * depth)

    def forward(self, tokens, positions, mask):
        return self.logits(self.hidden(tokens, positions, mask))

    def logits(self, hidden):
        return F.linear(hidden, self.model.embed_tokens.weight)

    def hidden(self, tokens, positions, mask):
        angles = positions[:, None, :, None].float() * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)
        x = self.model.embed_tokens(tokens)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.model.layers:
            x = layer(x, cosine, sine, mask)
        return self.model.norm(x).to(x.dtype)


def attend_dense(q, k, v, mask):
    """For the CPU: mask is [batch, 1, tokens, tokens] of booleans."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def attend_blocks(q, k, v, mask):
    """For the GPU, inside torch.compile: mask is a BlockMask, and only its blocks are computed."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v.to(q.dtype), block_mask=mask, enable_gqa=True)


def dense_mask(starts, prefix_ends, row_starts):
    batch, tokens = starts.shape
    query = torch.arange(tokens, device=starts.device)[:, None]
    key = torch.arange(tokens, device=starts.device)[None, :]
    rows = torch.arange(batch, device=starts.device)[:, None, None]
    return tree_mask(starts, prefix_ends, row_starts)(rows, 0, query, key)[:, None]
