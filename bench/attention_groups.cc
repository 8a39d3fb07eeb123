#include "attention_groups.h"

#include <cstdio>

namespace batchllm::cuda {
namespace {

constexpr AttentionShape kUsual{32, 8, 128};

std::string text(const char *format, auto... values) {
    char line[128];
    std::snprintf(line, sizeof line, format, values...);
    return line;
}
AttentionCase decode(int requests, int keys, AttentionShape shape = kUsual) {
    AttentionCase c;
    c.name = text("decode %d x %d", requests, keys);
    c.shape = shape;
    for (int r = 0; r < requests; ++r) c.add(-1, keys, 1);
    return c;
}
// chunks: prefill chunks of 512 beside the decodes, the first of each group's.
AttentionCase grouped(int requests, int prefix, int own, int each, AttentionShape shape = kUsual,
                      int chunks = 0) {
    AttentionCase c;
    c.name = text("%d: prefix %d own %d by %d", requests, prefix, own, each);
    c.shape = shape;
    int parent = -1;
    for (int r = 0; r < requests; ++r) {
        if (r % each == 0) {
            parent = c.add(-1, prefix, 0);
            if (chunks-- > 0) c.add(parent, 512, 512);
        }
        c.add(parent, own, 1);
    }
    for (; chunks > 0; --chunks) c.add(parent, 512, 512);
    return c;
}
AttentionCase chunk(int tokens, int keys, int decodes, int decode_keys,
                    AttentionShape shape = kUsual) {
    AttentionCase c;
    c.name = tokens == keys ? text("prefill %d", tokens) : text("chunk %d to %d", tokens, keys);
    if (decodes > 0) c.name += text(" + %d x %d", decodes, decode_keys);
    c.shape = shape;
    c.add(-1, keys, tokens);
    for (int r = 0; r < decodes; ++r) c.add(-1, decode_keys, 1);
    return c;
}
// `count` prompts of so many tokens in one step.
AttentionCase prompts(int count, int tokens, AttentionShape shape = kUsual) {
    AttentionCase c;
    c.name = text("%d prompts of %d", count, tokens);
    c.shape = shape;
    for (int i = 0; i < count; ++i) c.add(-1, tokens, tokens);
    return c;
}
// A step of a job as bench/throughput has it: requests that decode in groups of `each`, `starting` ones
// whose 200 own tokens are computed, and prefixes that are.
AttentionCase job_step(int requests, int own, int prefix, int each, int starting, int prefixes,
                       AttentionShape shape = kUsual) {
    AttentionCase c;
    c.name = text("%d x %d by %d + %d x 200 on %d + %d", requests, own, each, starting, prefix,
                  prefixes);
    c.shape = shape;
    int parent = -1;
    for (int r = 0; r < requests + starting; ++r) {
        if (r % each == 0) parent = c.add(-1, prefix, 0);
        if (r < requests) {
            c.add(parent, own, 1);
        } else {
            c.add(parent, 200, 200);
        }
    }
    for (int r = 0; r < prefixes; ++r) c.add(-1, prefix, prefix);
    return c;
}

// Prompts of `own` tokens to prefixes of `prefix`, by `each`, of which `prefixes` are computed too; each
// continues a common prefix of `common`.
AttentionCase short_prompts(int requests, int own, int prefix, int each, int common = 0,
                            int prefixes = 0) {
    AttentionCase c;
    c.name = text("%d prompts of %d to %d by %d", requests, own, prefix, each);
    if (common > 0) c.name += text(" to %d", common);
    if (prefixes > 0) c.name += text(" + %d prefixes", prefixes);
    c.shape = kUsual;
    const int root = common > 0 ? c.add(-1, common, 0) : -1;
    int parent = -1;
    for (int r = 0; r < requests; ++r) {
        if (r % each == 0) {
            parent = c.add(root, prefix, prefixes-- > 0 ? prefix : 0);
        }
        c.add(parent, own, own);
    }
    return c;
}

void time_table(AttentionTimer *timer) {
    timer->time("", chunk(2048, 2048, 0, 0));
    timer->time("", chunk(8192, 8192, 0, 0), 791);
    timer->time("", chunk(512, 4608, 0, 0));
    timer->time("", decode(32, 4096), 131, 129);
    timer->time("", decode(128, 2048), 259, 258);
    timer->time("", decode(256, 1024), 276, 265);
    timer->time("", grouped(256, 1024, 256, 8), 238, 140);
    timer->time("", grouped(256, 1024, 256, 256), 235, 112);
    timer->time("", grouped(256, 2048, 256, 8), 383, 176);
    timer->time("", grouped(256, 2048, 1024, 8), 560, 361);
    timer->time("", grouped(512, 2000, 256, 16), 759, 256);
    timer->time("", grouped(256, 256, 256, 8), 120, 111);
    timer->time("R", grouped(32, 2048, 128, 32, {52, 52, 128}), 311, 89);
    timer->time("R", grouped(32, 4096, 128, 32, {52, 52, 128}), 586, 109);
    timer->time("L", grouped(8, 4000, 128, 8, {8, 1, 128}), 14.8, 19.4);
    timer->time("C0", chunk(1024, 12288, 80, 12288), 1288);
    timer->time("C0", chunk(1024, 12288, 0, 0), 394);
    timer->time("C0", decode(80, 12288), 917);
    timer->time("T7'", chunk(512, 16384, 48, 16384), 1015);
    timer->time("", chunk(2048, 2048, 384, 2048), 916);
}

} // namespace

void time_group(const std::string &group, AttentionTimer *timer) {
    const bool all = group == "all";
    auto is = [&](const char *name) { return all || group == name; };
    auto grid = [&](const char *id, int requests, int chunks) {
        for (const int prefix : {256, 1024, 2048}) {
            for (const int own : {256, 1024, 2048}) {
                for (const int each : {8, 32, 256}) {
                    if (each > requests) continue;
                    timer->time(id, grouped(requests, prefix, own, each, kUsual, chunks));
                }
            }
        }
    };
    if (is("table")) time_table(timer);
    if (is("B8a")) grid("B8a", 32, 0);
    if (is("B8b")) grid("B8b", 256, 0);
    if (is("B8c")) grid("B8c", 256, 7);
    if (is("C")) {
        for (const AttentionShape shape : {AttentionShape{16, 4, 128}, kUsual}) {
            timer->time("C0", chunk(1024, 12288, 80, 12288, shape));
            timer->time("C1", chunk(12288, 12288, 220, 12288, shape));
            timer->time("C2", chunk(16384, 16384, 250, 12288, shape));
        }
    }
    if (is("T7")) timer->time("T7", chunk(512, 16384, 64, 16384));
    if (is("R")) {
        for (const int prefix : {512, 1024, 2048, 4096}) {
            timer->time("R", grouped(32, prefix, 128, 32, {52, 52, 128}));
        }
    }
    if (is("CH")) {
        for (const int prefix : {256, 512, 1024, 2048, 4096, 8192}) {
            timer->time("CH", grouped(32, prefix, 64, 32, {32, 32, 128}));
        }
    }
    if (is("P")) { // causal alone: the engine has no other
        for (int keys = 512; keys <= 32768; keys *= 2) {
            timer->time("P", chunk(keys, keys, 0, 0, {64, 8, 128}));
        }
    }
    if (is("PS")) { // full steps of prompts that share nothing
        for (const int tokens : {512, 1024, 2048, 4096, 8192, 16384}) {
            timer->time("PS", prompts(16384 / tokens, tokens));
        }
    }
    if (is("D")) {
        for (const int requests : {1, 8, 32, 128, 256}) {
            for (int keys = 1024; keys <= 32768; keys *= 2)
                timer->time("D", decode(requests, keys));
        }
    }
    if (is("J")) {
        timer->time("one", job_step(1024, 250, 2000, 1024, 0, 0));
        timer->time("one", job_step(512, 250, 2000, 1024, 0, 0));
        timer->time("one", job_step(0, 0, 2000, 1024, 20, 0));
        timer->time("one", job_step(500, 230, 2000, 1024, 18, 0));
        timer->time("a16", job_step(800, 250, 2000, 16, 0, 0));
        timer->time("a16", job_step(0, 0, 2000, 16, 16, 0));
        timer->time("a16", job_step(500, 250, 2000, 16, 8, 1));
        timer->time("ind1", job_step(300, 450, 1100, 7, 0, 0));
        timer->time("ind1", job_step(0, 0, 1100, 7, 14, 0));
        timer->time("ind1", job_step(300, 450, 1100, 7, 5, 2));
        timer->time("", decode(512, 256)); // short stream jobs and nothing else
    }
    if (is("G")) { // Gemma 4 26B-A4B: layers with a window, and those without
        for (const AttentionShape shape : {AttentionShape{16, 8, 256, 1024}, {16, 2, 512}}) {
            const char *id = shape.window > 0 ? "win" : "all";
            timer->time(id, prompts(1, 8192, shape));
            timer->time(id, prompts(4, 2048, shape));
            timer->time(id, job_step(0, 0, 2000, 16, 32, 1, shape));
            timer->time(id, job_step(300, 250, 2000, 16, 4, 0, shape));
            timer->time(id, job_step(300, 250, 2000, 16, 0, 0, shape));
            timer->time(id, job_step(1000, 250, 2000, 16, 0, 0, shape));
            timer->time(id, decode(128, 2048, shape));
        }
    }
    if (is("S")) { // short prompts to prefixes, and decodes of short contexts
        timer->time("S", short_prompts(269, 30, 100, 40));
        timer->time("S", short_prompts(240, 30, 100, 40, 0, 6));
        timer->time("S", short_prompts(136, 60, 1200, 12, 800));
        timer->time("S", short_prompts(68, 120, 600, 50));
        timer->time("S", short_prompts(40, 200, 1000, 8));
        timer->time("S", short_prompts(40, 200, 2000, 16));
        for (const int own : {70, 150, 250, 350, 450}) timer->time("S", grouped(384, 300, own, 64));
        timer->time("S", decode(200, 1700));
        timer->time("S", grouped(512, 1000, 250, 8));
        timer->time("S", grouped(768, 2000, 250, 16));
        timer->time("S", grouped(768, 2000, 250, 768));
        timer->time("S", decode(384, 256));
        timer->time("S", decode(256, 1024));
    }
    if (is("L")) {
        timer->time("L", grouped(8, 4000, 128, 8, {8, 1, 128}), 14.8, 19.4);
        for (const int prefix : {128, 256, 512}) {
            for (const int requests : {2, 4, 8}) {
                timer->time("L", grouped(requests, prefix, 128, requests));
            }
        }
    }
}

} // namespace batchllm::cuda
