// Little-endian numbers and varints (LEB128), to and from bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace batchllm {

inline uint64_t zigzag(int64_t x) {
    return (static_cast<uint64_t>(x) << 1) ^ static_cast<uint64_t>(x >> 63);
}
inline int64_t unzigzag(uint64_t x) {
    return static_cast<int64_t>(x >> 1) ^ -static_cast<int64_t>(x & 1);
}

class ByteWriter {
  public:
    explicit ByteWriter(std::string &out) : out_(out) {}

    template <typename T> void fixed(T value) {
        for (size_t i = 0; i < sizeof(T); ++i)
            out_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
    }
    void varint(uint64_t value) {
        for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
        out_.push_back(static_cast<char>(value));
    }

  private:
    std::string &out_;
};

// After a read past the end, or a varint that does not fit in 64 bits, failed() stays true and all
// numbers are 0.
class ByteReader {
  public:
    explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

    bool failed() const { return failed_; }
    bool at_end() const { return bytes_.empty(); }
    size_t left() const { return bytes_.size(); }

    template <typename T> T fixed() {
        const auto bytes = take(sizeof(T));
        T value = 0;
        for (size_t i = 0; i < bytes.size(); ++i)
            value |= static_cast<T>(static_cast<T>(bytes[i]) << (8 * i));
        return value;
    }
    uint64_t varint() {
        uint64_t value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            const auto byte = fixed<uint8_t>();
            if (failed_) return 0;
            const uint64_t part = byte & 0x7f;
            if (shift == 63 && part > 1) break;
            value |= part << shift;
            if (byte < 0x80) return value;
        }
        set_failed();
        return 0;
    }
    // A varint that is at most `most`.
    uint64_t varint_up_to(uint64_t most) {
        const uint64_t value = varint();
        if (value <= most) return value;
        set_failed();
        return 0;
    }
    // `previous` plus a zigzag difference, in [least, most].
    int64_t step_from(int64_t previous, int64_t least, int64_t most) {
        const auto value = static_cast<int64_t>(static_cast<uint64_t>(previous) +
                                                static_cast<uint64_t>(unzigzag(varint())));
        if (value >= least && value <= most) return value;
        set_failed();
        return least;
    }
    std::span<const std::byte> take(size_t count) {
        if (count > bytes_.size()) {
            set_failed();
            return {};
        }
        const auto taken = bytes_.first(count);
        bytes_ = bytes_.subspan(count);
        return taken;
    }
    void set_failed() {
        failed_ = true;
        bytes_ = {};
    }

  private:
    std::span<const std::byte> bytes_;
    bool failed_ = false;
};

} // namespace batchllm
