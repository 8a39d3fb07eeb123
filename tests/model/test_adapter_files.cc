// Adapters' files, read in pieces: every number is looked at, wherever the pieces end, and however much is kept.
#include <cstring>
#include <string>
#include <vector>

#include <xxhash.h>

#include "model/adapter_bytes.h"
#include "model/adapter_reader.h"
#include "testing.h"

using namespace batchllm;

namespace {

constexpr auto piece = static_cast<int64_t>(adapter_piece_bytes / 2);

struct Numbers {
    const char *type;
    int64_t count, width;
    uint32_t infinite; // of this width; 0: any bits are finite
};
// After the bytes, numbers are of odd alignment.
const std::vector<Numbers> tensors = {{"F32", 40001, 4, 0xFF800000U},
                                      {"U8", 1, 1, 0},
                                      {"BF16", 100003, 2, 0x7F80U},
                                      {"U8", 200001, 1, 0},
                                      {"F16", 70001, 2, 0xFC00U},
                                      {"F32", 33333, 4, 0x7F800000U},
                                      {"I32", 3000, 4, 0}};

std::string header_of_all(int64_t *begin) {
    std::string text = "{";
    int64_t at = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
        const Numbers &t = tensors[i];
        const int64_t end = at + t.count * t.width;
        text += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + R"(":{"dtype":")" + t.type +
                R"(","shape":[)" + std::to_string(t.count) + R"(],"data_offsets":[)" +
                std::to_string(at) + "," + std::to_string(end) + "]}";
        at = end;
    }
    text += "}";
    text.append(static_cast<size_t>((11 - static_cast<int64_t>(text.size()) % 8) % 8), ' ');
    const uint64_t length = text.size();
    *begin = static_cast<int64_t>(sizeof length + length);
    return std::string(reinterpret_cast<const char *>(&length), sizeof length) + text;
}

// Reads them in each way. begin: of the tensors, in the file. This tensor alone have numbers that are not finite.
void check(const TemporaryDirectory &directory, const std::string &bytes, int64_t begin,
           size_t bad) {
    directory.write("adapter_model.safetensors", bytes);
    WeightMemory memory;
    AdapterHash hash{};
    for (const AdapterReading reading : {AdapterReading::hash, AdapterReading::check,
                                         AdapterReading::weights, AdapterReading::again}) {
        auto files = read_adapter_files(directory.path(), reading, &memory);
        if (!files.ok()) fail_msg("%s", files.status().message().c_str());
        if (reading == AdapterReading::hash) hash = files->hash;
        assert_true(files->hash == hash);
        assert_int_equal(files->weight_bytes, bytes.size());
        if (files->has_bytes()) {
            assert_memory_equal(files->weights.bytes.get() + begin, bytes.data() + begin,
                                bytes.size() - static_cast<size_t>(begin));
        }
        if (reading == AdapterReading::hash) continue;
        assert_int_equal(files->tensors.size(), tensors.size());
        assert_true(has_others(*files));
        if (reading == AdapterReading::again) continue;
        for (size_t i = 0; i < tensors.size(); ++i) {
            assert_int_equal(files->not_finite[i], i == bad);
        }
    }
}

void numbers_that_are_not_finite_are_found_wherever_pieces_end(void **) {
    const TemporaryDirectory directory;
    directory.write("adapter_config.json", "{}");
    int64_t begin = 0;
    const std::string header = header_of_all(&begin);
    std::string bytes = header;
    for (const Numbers &t : tensors) {
        // All ones are no number; 0x3B of floats is small.
        bytes.append(static_cast<size_t>(t.count * t.width), t.infinite != 0 ? '\x3B' : '\xFF');
    }
    check(directory, bytes, begin, tensors.size());
    int64_t at = begin;
    for (size_t i = 0; i < tensors.size(); at += tensors[i].count * tensors[i].width, ++i) {
        const Numbers &t = tensors[i];
        if (t.infinite == 0) continue;
        std::vector<int64_t> places = {0, t.count - 1};
        for (int64_t end = begin + piece; end < at + t.count * t.width; end += piece) {
            if (end <= at) continue;
            const int64_t last = (end - 1 - at) / t.width; // whose bytes may be in two pieces
            for (int64_t n = std::max<int64_t>(0, last - 1); n <= std::min(last + 1, t.count - 1);
                 ++n) {
                places.push_back(n);
            }
        }
        for (const int64_t n : places) {
            std::string changed = bytes;
            std::memcpy(changed.data() + at + n * t.width, &t.infinite,
                        static_cast<size_t>(t.width));
            check(directory, changed, begin, i);
        }
    }
}

// By whichever instructions the processor has.
void the_hash_is_the_librarys(void **) {
    std::string bytes(100'003, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 3U);
    for (const size_t first : {size_t{0}, size_t{1}, size_t{239}, size_t{50'000}}) {
        XXH3_state_t *state = XXH3_createState();
        XXH3_128bits_reset(state);
        const auto *data = reinterpret_cast<const std::byte *>(bytes.data());
        add_to_hash(state, data, first);
        add_to_hash(state, data + first, bytes.size() - first);
        const XXH128_hash_t hash = XXH3_128bits_digest(state);
        XXH3_freeState(state);
        assert_true(XXH128_isEqual(hash, XXH3_128bits(bytes.data(), bytes.size())));
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(numbers_that_are_not_finite_are_found_wherever_pieces_end),
        cmocka_unit_test(the_hash_is_the_librarys),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
