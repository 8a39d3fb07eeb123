// An implicit prefix cache, as in streaming engines, for comparison with groups.
//
// KV memory is blocks of a fixed number of tokens. A row reuses its longest run of cached full
// blocks from its start and allocates new blocks for the rest, evicting the least recently used
// ones that no running row uses. It releases all of them when it has finished; its full prompt
// blocks stay cached until evicted. Rows start in the order given. As many run at once as memory
// and the cap allow, all for the same time (all decode the same number of tokens). This is how
// vLLM's block manager behaves (free queue in the order of release, a row's last blocks first; a
// row's last token never comes from the cache).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <unordered_map>
#include <vector>
#include <xxhash.h>

#include "plan/plan.h"

namespace batchllm {

struct BlockCacheOptions {
    int32_t block_tokens = 16;
    int64_t capacity_tokens = 0; // size of KV memory
    int64_t running = 256;       // maximum rows at once
    int32_t decode_tokens = 100; // of each row
};

struct BlockCacheResult {
    int64_t logical = 0;   // prompt tokens
    int64_t processed = 0; // how many of them were computed
    int64_t refused = 0;   // rows that alone exceed the capacity: all their tokens are computed
    double saving_ratio() const {
        return logical == 0 ? 0 : 1 - static_cast<double>(processed) / static_cast<double>(logical);
    }
};

class BlockCache {
  public:
    explicit BlockCache(const BlockCacheOptions &options)
        : options_(options), free_blocks_(options.capacity_tokens / options.block_tokens) {}

    BlockCacheResult run(const std::vector<TokenRow> &rows) {
        for (const TokenRow &row : rows) {
            result_.logical += row.length;
            start(row);
        }
        return result_;
    }

  private:
    // A cached block: used by `users` rows, or else in the queue of blocks that may be evicted.
    struct Block {
        int64_t users;
        std::list<uint64_t>::iterator place;
    };
    struct Running {
        std::vector<uint64_t> cached; // keys of its blocks that are or will be shared
        int64_t blocks;               // its other blocks: the last prompt block, decoding
    };

    void start(const TokenRow &row) {
        const int64_t size = options_.block_tokens;
        const int64_t needed = (row.length + options_.decode_tokens + size - 1) / size;
        if (needed > options_.capacity_tokens / size) {
            result_.processed += row.length;
            ++result_.refused;
            return;
        }
        std::vector<uint64_t> keys; // of full blocks: a hash of all tokens up to the block's end
        for (int64_t end = size; end <= row.length; end += size) {
            keys.push_back(XXH3_64bits_withSeed(row.tokens + end - size,
                                                static_cast<size_t>(size) * 4,
                                                keys.empty() ? 0 : keys.back()));
        }
        for (;; finish_first()) {
            if (static_cast<int64_t>(running_.size()) >= options_.running) continue;
            size_t hits = 0,
                   idle = 0; // idle: hits that no row used before, which can no longer be evicted
            while (hits < keys.size() && static_cast<int64_t>(hits + 1) * size < row.length) {
                const auto found = blocks_.find(keys[hits]);
                if (found == blocks_.end()) break;
                idle += found->second.users == 0;
                ++hits;
            }
            const int64_t evictable = static_cast<int64_t>(queue_.size() - idle);
            if (needed - static_cast<int64_t>(hits) > free_blocks_ + evictable) continue;
            take(keys, hits, needed);
            result_.processed += row.length - static_cast<int64_t>(hits) * size;
            return;
        }
    }

    void take(std::vector<uint64_t> &keys, size_t hits, int64_t needed) {
        for (size_t i = 0; i < hits; ++i) {
            Block &block = blocks_[keys[i]];
            if (block.users++ == 0) queue_.erase(block.place);
        }
        int64_t fresh = needed - static_cast<int64_t>(hits);
        for (; free_blocks_ < fresh; ++free_blocks_) {
            blocks_.erase(queue_.front());
            queue_.pop_front();
        }
        free_blocks_ -= fresh;
        size_t kept = hits;
        for (size_t i = hits; i < keys.size(); ++i) {
            // A block computed twice (by rows that run at once, or the last block of an equal row)
            // is cached once.
            if (!blocks_.try_emplace(keys[i], Block{1, queue_.end()}).second) continue;
            keys[kept++] = keys[i];
            --fresh;
        }
        keys.resize(kept);
        running_.push_back({std::move(keys), fresh});
    }

    void finish_first() {
        Running row = std::move(running_.front());
        running_.pop_front();
        free_blocks_ += row.blocks;
        for (auto key = row.cached.rbegin(); key != row.cached.rend(); ++key) {
            Block &block = blocks_[*key];
            if (--block.users == 0) block.place = queue_.insert(queue_.end(), *key);
        }
    }

    BlockCacheOptions options_;
    int64_t free_blocks_;
    std::unordered_map<uint64_t, Block> blocks_;
    std::list<uint64_t> queue_; // least recently used first
    std::deque<Running> running_;
    BlockCacheResult result_;
};

} // namespace batchllm
