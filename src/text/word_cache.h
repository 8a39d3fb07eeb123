// Recent words -> their tokens. Bounded: one place per hash, and the later word wins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace batchllm {

class WordCache {
  public:
    static constexpr size_t kWordBytes = 23; // longest word that is stored
    static constexpr size_t kTokens = 9;     // most tokens of a word that is stored
    static constexpr size_t kPlaces = size_t{1} << 14;

    struct Key {
        uint64_t words[3]; // the bytes, padded with zeros; the last byte is the length
        bool operator==(const Key &other) const {
            return ((words[0] ^ other.words[0]) | (words[1] ^ other.words[1]) |
                    (words[2] ^ other.words[2])) == 0;
        }
    };
    struct alignas(64) Place {
        Key key{}; // length 0: free, since no word is empty
        int32_t count = 0;
        int32_t tokens[kTokens] = {};
    };

    WordCache() : places_(kPlaces) {}

    // readable: how many bytes may be read from word.data() on; at least word.size().
    static Key key_of(std::string_view word, size_t readable) {
        Key key{};
        if (readable >= sizeof key) {
            std::memcpy(&key, word.data(), sizeof key);
            const size_t length = word.size();
            key.words[0] &= low_bytes(length < 8 ? length : 8);
            key.words[1] &= low_bytes(length < 8 ? 0 : length < 16 ? length - 8 : 8);
            key.words[2] &= low_bytes(length < 16 ? 0 : length - 16);
        } else {
            std::memcpy(&key, word.data(), word.size());
        }
        reinterpret_cast<unsigned char *>(&key)[sizeof key - 1] =
            static_cast<unsigned char>(word.size());
        return key;
    }

    Place &place_of(const Key &key) {
        uint64_t hash = key.words[0] * 0x9E3779B97F4A7C15u;
        hash = (hash ^ (hash >> 29) ^ key.words[1]) * 0xBF58476D1CE4E5B9u;
        hash = (hash ^ (hash >> 32) ^ key.words[2]) * 0x94D049BB133111EBu;
        return places_[hash >> 50];
    }

  private:
    // The first bytes in memory; all supported processors are little-endian.
    static uint64_t low_bytes(size_t count) {
        return count >= 8 ? UINT64_MAX : (uint64_t{1} << (count * 8)) - 1;
    }
    static_assert(kPlaces == size_t{1} << (64 - 50));

    std::vector<Place> places_;
};

} // namespace batchllm
