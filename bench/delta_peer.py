#!/usr/bin/env python3
"""A layer of gated delta nets as vLLM, FlashInfer and flash-linear-attention compute it, at bench/recurrent's shape.

    pip install vllm==0.33.0 flash-linear-attention==0.6.0
    bench/delta_peer.py [--only vllm,flashinfer,fla]

Between the layer's two products, vLLM 0.33.0 launches for prompts a convolution, one kernel for norms of q and k and
for gates, the rule (FlashInfer's kernels on Hopper by default, Triton kernels otherwise) between a gather and a scatter
of states, and the gated norm. For decode it launches the convolution's update, the rule with norms and gates, and the
gated norm. Each part is timed alone; ALL is what vLLM calls. A CUDA graph contains `--repeat` consecutive calls, half
as many for prompts; the result is the median of five replays. The same calls are first compared with the rule in
float64.
"""
import argparse
import statistics
import sys
from types import SimpleNamespace

import torch

KEY_HEADS, VALUE_HEADS, DIM, WIDTH = 16, 32, 128, 4
KEYS, VALUES = KEY_HEADS * DIM, VALUE_HEADS * DIM
CHANNELS = 2 * KEYS + VALUES
PROMPTS = ((1, 2048), (4, 512), (16, 128), (32, 64), (2, 2048), (1, 4096))
ROWS = (16, 64, 256, 512, 1024)
EPSILON = 1e-6
DEVICE = "cuda"


def load(wanted):
    """The installed packages by short names; prints which ones are missing."""
    found = SimpleNamespace()

    def vllm():
        from vllm.model_executor.layers.mamba.ops import causal_conv1d
        from vllm.third_party.flash_linear_attention import ops
        from vllm.third_party.flash_linear_attention.ops import index, layernorm_guard
        found.vllm = SimpleNamespace(convolve=causal_conv1d.causal_conv1d_fn,
                                     update=causal_conv1d.causal_conv1d_update,
                                     prepare=ops.fused_post_conv_prep, rule=ops.chunk_gated_delta_rule,
                                     decode=ops.fused_recurrent_gated_delta_rule_packed_decode,
                                     indices=index.prepare_chunk_indices, offsets=index.prepare_chunk_offsets,
                                     norm=layernorm_guard.rmsnorm_fn)

    def flashinfer():
        from flashinfer.gdn_decode import gated_delta_rule_decode_pretranspose
        from flashinfer.gdn_prefill import chunk_gated_delta_rule
        found.flashinfer = SimpleNamespace(rule=chunk_gated_delta_rule, decode=gated_delta_rule_decode_pretranspose)

    def fla():
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
        found.fla = SimpleNamespace(rule=chunk_gated_delta_rule, decode=fused_recurrent_gated_delta_rule)

    for name, bring in (("vllm", vllm), ("flashinfer", flashinfer), ("fla", fla)):
        setattr(found, name, None)
        if name in wanted:
            try:
                bring()
            except Exception as error:  # whatever an import raises, the other packages can still run
                print(f"without {name}: {type(error).__name__}: {error}")
    return found


class Layer:
    """Weights, states and inputs of a step: `requests` of `each` tokens."""

    def __init__(self, requests, each, state=torch.float32, seed=1):
        random = torch.Generator(DEVICE).manual_seed(seed)

        def normal(*shape, dtype=torch.bfloat16, scale=1.0):
            return (torch.randn(*shape, device=DEVICE, generator=random) * scale).to(dtype)

        self.requests, self.each, self.tokens = requests, each, requests * each
        self.qkvz = normal(self.tokens, CHANNELS + VALUES)
        self.ba = normal(self.tokens, 2 * VALUE_HEADS)
        self.convolution = normal(CHANNELS, WIDTH, scale=0.5)
        self.decay = torch.empty(VALUE_HEADS, device=DEVICE).uniform_(0.5, 4, generator=random).log()
        self.step = normal(VALUE_HEADS, dtype=torch.float32)
        self.norm = torch.empty(DIM, device=DEVICE).uniform_(0.5, 1.5, generator=random).bfloat16()
        # Slot 0 is unused: vLLM takes its index for padding.
        self.states = normal(requests + 1, VALUE_HEADS, DIM, DIM, dtype=state, scale=0.1)
        self.seen = normal(requests + 1, WIDTH - 1, CHANNELS).transpose(1, 2)  # [slots, channels, tokens]
        self.slots = torch.arange(1, requests + 1, dtype=torch.int32, device=DEVICE)
        self.starts = torch.arange(0, self.tokens + 1, each, dtype=torch.int32, device=DEVICE)
        self.long_starts = self.starts.long()
        self.begun = torch.ones(requests, dtype=torch.bool, device=DEVICE)
        # As the product writes them. vLLM's compiler may read z, b and a there; here they are separate from the start.
        self.qkv = self.qkvz[:, :CHANNELS]
        self.z = self.qkvz[:, CHANNELS:].reshape(self.tokens, VALUE_HEADS, DIM).contiguous()
        self.b, self.a = (part.contiguous() for part in self.ba.chunk(2, dim=-1))
        self.convolved = torch.empty(self.tokens, CHANNELS, dtype=torch.bfloat16, device=DEVICE)
        self.after = None  # states, if they are not in their slots

    def plan(self, vllm):
        """What vLLM computes once per step for all layers."""
        blocks = -(-self.each // 8)
        rows = torch.arange(self.requests, dtype=torch.int32).repeat_interleave(blocks).to(DEVICE)
        offsets = torch.arange(blocks, dtype=torch.int32).repeat(self.requests).to(DEVICE)
        self.step_plan = SimpleNamespace(batch_ptr=rows, token_chunk_offset_ptr=offsets, nums_dict={
            8: {"tot": len(rows), "mlist": rows, "mlist_len": len(rows), "offsetlist": offsets, "batch_ptr": rows,
                "token_chunk_offset_ptr": offsets}})
        self.chunk_indices = vllm.indices(self.starts.cpu(), 64).to(DEVICE)
        self.chunk_offsets = vllm.offsets(self.starts.cpu(), 64).to(DEVICE)


# --- parts of a prompt -------------------------------------------------------------------------------------------

def convolve(peers, layer):
    return peers.vllm.convolve(layer.qkv.transpose(0, 1), layer.convolution, None, activation="silu",
                               conv_states=layer.seen, has_initial_state=layer.begun, cache_indices=layer.slots,
                               query_start_loc=layer.starts, metadata=layer.step_plan).transpose(0, 1)


def prepare(peers, layer, convolved):
    made = peers.vllm.prepare(conv_output=convolved, a=layer.a, b=layer.b, A_log=layer.decay, dt_bias=layer.step,
                              num_k_heads=KEY_HEADS, head_k_dim=DIM, head_v_dim=DIM, apply_l2norm=True,
                              output_g_exp=False)
    return [part.unsqueeze(0) for part in made]


def gather(layer):
    states = layer.states[layer.slots]
    states.masked_fill_(~layer.begun[:, None, None, None], 0)
    return states


def scatter(layer, states):
    layer.states[layer.slots] = states.to(layer.states.dtype)


def rule_vllm(peers, layer, made, states):
    q, k, v, g, beta = made
    return peers.vllm.rule(q=q, k=k, v=v, g=g, beta=beta, initial_state=states, output_final_state=True,
                           cu_seqlens=layer.starts, chunk_indices=layer.chunk_indices,
                           chunk_offsets=layer.chunk_offsets, use_qk_l2norm_in_kernel=False)


def rule_flashinfer(peers, layer, made, states):
    q, k, v, g, beta = (part.squeeze(0) for part in made)
    out, after = peers.flashinfer.rule(q=q, k=k, v=v, g=torch.exp(g), beta=beta, initial_state=states,
                                       output_final_state=True, cu_seqlens=layer.starts.long(),
                                       use_cp="auto", backend="flashinfer")
    return out.unsqueeze(0), after


def rule_flashinfer_alone(peers, layer, made, gates, states, after):
    """Only FlashInfer's kernels: gates and offsets are already in their formats."""
    q, k, v, _, beta = (part.squeeze(0) for part in made)
    peers.flashinfer.rule(q=q, k=k, v=v, g=gates, beta=beta, initial_state=states, output_final_state=True,
                          output_state=after, cu_seqlens=layer.long_starts, use_cp="auto", backend="flashinfer")


def rule_fla(peers, layer, made, states):
    q, k, v, g, beta = made
    return peers.fla.rule(q, k, v, g, beta, initial_state=states, output_final_state=True, state_v_first=True,
                          cu_seqlens=layer.long_starts)


def norm(peers, layer, x):
    return peers.vllm.norm(x, layer.norm, None, z=layer.z, eps=EPSILON, group_size=None, norm_before_gate=True,
                           activation="silu")


def prompt(peers, layer, rule):
    """A layer as vLLM calls it for prompts."""
    out = torch.zeros(layer.tokens, VALUE_HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
    made = prepare(peers, layer, convolve(peers, layer))
    result, states = rule(peers, layer, made, gather(layer))
    scatter(layer, states)
    out[:] = result.squeeze(0)
    return norm(peers, layer, out)


# --- parts of decode ---------------------------------------------------------------------------------------------

def update(peers, layer):
    """vLLM lets it overwrite its input. Here it writes elsewhere, so that the next call has the same input."""
    return peers.vllm.update(layer.qkv, layer.seen, layer.convolution, None, "silu", conv_state_indices=layer.slots,
                             out=layer.convolved)


def decode_vllm(peers, layer, qkv, out):
    peers.vllm.decode(mixed_qkv=qkv, a=layer.a, b=layer.b, A_log=layer.decay, dt_bias=layer.step, scale=DIM ** -0.5,
                      initial_state=layer.states, out=out.unsqueeze(1), ssm_state_indices=layer.slots,
                      use_qk_l2norm_in_kernel=True)
    return out


def heads(layer, qkv):
    q, k, v = qkv.split([KEYS, KEYS, VALUES], dim=-1)
    return (q.view(layer.tokens, 1, KEY_HEADS, DIM), k.view(layer.tokens, 1, KEY_HEADS, DIM),
            v.view(layer.tokens, 1, VALUE_HEADS, DIM))


def decode_flashinfer(peers, layer, qkv, out):
    q, k, v = heads(layer, qkv)
    peers.flashinfer.decode(q=q, k=k, v=v, state=None, A_log=layer.decay, a=layer.a.unsqueeze(1),
                            dt_bias=layer.step, b=layer.b.unsqueeze(1), scale=DIM ** -0.5, output=out.unsqueeze(1),
                            use_qk_l2norm=True,
                            initial_state=layer.states, initial_state_indices=layer.slots, backend="flashinfer")
    return out


def decode_fla(peers, layer, qkv, out):
    """With a state per row instead of slots, since flash-linear-attention has no indices."""
    q, k, v = heads(layer, qkv)
    result, after = peers.fla.decode(q.contiguous(), k.contiguous(), v.contiguous(), g=layer.a.unsqueeze(1),
                                     beta=layer.b.unsqueeze(1), initial_state=layer.states[1:], output_final_state=True,
                                     use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=layer.decay,
                                     dt_bias=layer.step, use_beta_sigmoid_in_kernel=True, state_v_first=True)
    layer.after = after
    return result.squeeze(1)


def decode(peers, layer, rule):
    """A layer as vLLM calls it for decode."""
    out = torch.zeros(layer.tokens, VALUE_HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
    return norm(peers, layer, rule(peers, layer, update(peers, layer), out))


# --- the rule in float64 -----------------------------------------------------------------------------------------

def reference(layer):
    """Results and states, computed token by token."""
    qkv = layer.qkvz[:, :CHANNELS].double().view(layer.requests, layer.each, CHANNELS)
    before = layer.seen[1:].transpose(1, 2).double()
    all_tokens = torch.cat([before, qkv], 1)
    mixed = sum(all_tokens[:, i:i + layer.each] * layer.convolution[:, i].double() for i in range(WIDTH))
    mixed = torch.nn.functional.silu(mixed)
    q, k, v = mixed.split([KEYS, KEYS, VALUES], dim=-1)

    def unit(x):
        x = x.view(layer.requests, layer.each, KEY_HEADS, DIM)
        x = x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()
        return x.repeat_interleave(VALUE_HEADS // KEY_HEADS, 2)

    q, k, v = unit(q) * DIM ** -0.5, unit(k), v.view(layer.requests, layer.each, VALUE_HEADS, DIM)
    b, a = layer.ba.double().view(layer.requests, layer.each, -1).chunk(2, dim=-1)
    decay = (-layer.decay.double().exp() * torch.nn.functional.softplus(a + layer.step.double())).exp()
    rate = b.sigmoid()
    state = layer.states[1:].double()  # [requests, heads, values, keys]
    results = []
    for t in range(layer.each):
        state = state * decay[:, t, :, None, None]
        change = (v[:, t] - torch.einsum("rhvk,rhk->rhv", state, k[:, t])) * rate[:, t, :, None]
        state = state + change[..., None] * k[:, t, :, None]
        results.append(torch.einsum("rhvk,rhk->rhv", state, q[:, t]))
    x = torch.stack(results, 1)
    x = x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * layer.norm.double()
    z = layer.qkvz[:, CHANNELS:].double().view_as(x)
    return (x * torch.nn.functional.silu(z)).view(layer.tokens, VALUE_HEADS, DIM), state


def check(name, run, requests, each):
    """Compares a layer with the rule; bf16 intermediates account for some 0.5 %."""
    layer = Layer(requests, each, seed=requests * each)
    expected, state = reference(layer)
    result = run(layer)
    after = layer.states[1:] if layer.after is None else layer.after

    def error(got, want):
        return float((got.double() - want).norm() / want.norm())

    errors = error(result, expected), error(after, state)
    right = all(e < 0.02 for e in errors)  # false for a NaN
    print(f"{name}, {requests} x {each}: {errors[0]:.1e} off, states {errors[1]:.1e}{'' if right else ': WRONG'}")
    return right


# --- time --------------------------------------------------------------------------------------------------------

def microseconds(call, repeat):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            call()
    times = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / repeat)
    return statistics.median(times[1:])


def copy_rate():
    """Bytes read and written per second."""
    here = torch.zeros(2 << 30, dtype=torch.uint8, device=DEVICE)
    there = torch.empty_like(here)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for repeat in range(20):
        if repeat == 10:
            begin.record()
        there.copy_(here)
    end.record()
    end.synchronize()
    return 10 * 2 * here.numel() / begin.elapsed_time(end) * 1e3


def attempt(call, repeat):
    try:
        return f"{microseconds(call, repeat):.1f}"
    except Exception as error:  # if one peer fails, the others still run
        torch.cuda.synchronize()
        return f"{type(error).__name__}: {str(error)[:80]}"


def prompt_parts(peers, right, layer):
    """Names and calls of the parts that are timed for prompts."""
    layer.plan(peers.vllm)
    convolved = convolve(peers, layer)
    made, states = prepare(peers, layer, convolved), gather(layer)
    gates, after = made[3].squeeze(0).exp(), torch.empty_like(states)
    x = torch.randn(layer.tokens, VALUE_HEADS, DIM, device=DEVICE).bfloat16()
    yield "convolution", lambda: convolve(peers, layer)
    yield "q, k, gates", lambda: prepare(peers, layer, convolved)
    yield "states", lambda: scatter(layer, gather(layer))
    yield "norm", lambda: norm(peers, layer, x)
    if "vllm" in right:
        yield "rule, Triton", lambda: rule_vllm(peers, layer, made, states)
    if "flashinfer" in right:
        yield "rule, FlashInfer", lambda: rule_flashinfer_alone(peers, layer, made, gates, states, after)
    if "fla" in right:
        yield "rule, fla", lambda: rule_fla(peers, layer, made, states)
    if "vllm" in right:
        yield "ALL with Triton", lambda: prompt(peers, layer, rule_vllm)
    if "flashinfer" in right:
        yield "ALL with FlashInfer", lambda: prompt(peers, layer, rule_flashinfer)


def decode_parts(peers, right, layer):
    qkv = torch.randn(layer.tokens, CHANNELS, device=DEVICE).bfloat16()
    out = torch.randn(layer.tokens, VALUE_HEADS, DIM, device=DEVICE).bfloat16()
    in_f32 = layer.states.dtype == torch.float32
    yield "convolution", lambda: update(peers, layer)
    yield "norm", lambda: norm(peers, layer, out)
    if "vllm decode" in right:
        yield "rule, vLLM", lambda: decode_vllm(peers, layer, qkv, out)
    if "flashinfer decode" in right and in_f32:
        yield "rule, FlashInfer", lambda: decode_flashinfer(peers, layer, qkv, out)
    if "fla decode" in right and in_f32:
        yield "rule, fla", lambda: decode_fla(peers, layer, qkv, out)
    if "vllm decode" in right:
        yield "ALL", lambda: decode(peers, layer, decode_vllm)


def time_all(label, parts, repeat):
    print(f"{label}, us: " + "; ".join(f"{name} {attempt(call, repeat)}" for name, call in parts), flush=True)


def compare(peers):
    """Which peers compute the rule correctly: for prompts that fill chunks and prompts that do not, in both of
    FlashInfer's modes; and for decode."""
    right = set()
    rules = {"vllm": rule_vllm, "flashinfer": rule_flashinfer, "fla": rule_fla}
    steps = {"vllm": decode_vllm, "flashinfer": decode_flashinfer, "fla": decode_fla}

    def run(layer, call, rule):
        if layer.each > 1:
            layer.plan(peers.vllm)
        return call(peers, layer, rule)

    for name in [name for name in rules if getattr(peers, name)]:
        for label, shapes, call, rule in ((name, ((1, 200), (5, 128), (3, 77)), prompt, rules[name]),
                                          (name + " decode", ((7, 1),), decode, steps[name])):
            try:
                if all([check(label, lambda layer: run(layer, call, rule), *shape) for shape in shapes]):
                    right.add(label)
            except Exception as error:  # if one peer fails, the others still run
                print(f"{label}: {type(error).__name__}: {error}")
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="vllm,flashinfer,fla")
    parser.add_argument("--repeat", type=int, default=20)
    arguments = parser.parse_args()

    torch.set_grad_enabled(False)
    peers = load(arguments.only.split(","))
    if not peers.vllm:
        sys.exit("convolution, gates and norm are vLLM's, without which nothing can be timed")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copies at {copy_rate() * 1e-12:.2f} TB/s")
    right = compare(peers)
    for state in (torch.float32, torch.bfloat16):
        for rows in ROWS:
            time_all(f"decode, {rows:4} rows, states in {str(state)[6:]}",
                     decode_parts(peers, right, Layer(rows, 1, state)), arguments.repeat)
    for requests, each in PROMPTS:
        time_all(f"{requests:3} prompts of {each:4} tokens",
                 prompt_parts(peers, right, Layer(requests, each)), arguments.repeat // 2)


if __name__ == "__main__":
    main()
