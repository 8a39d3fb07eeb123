// libFuzzer: rows that carry pictures, through the C interface on the simulated backend. A row has one result,
// and an error has a text; what is encoded beforehand is the same row; equal rows have equal tokens.
//
// Input: a byte (bit 0: a conversation; bit 1: special tokens are text), the number of pictures, each as a byte
// (its kind), two bytes (its length) and its bytes; then the text.
#include <cstdint>
#include <string>
#include <vector>

#include "batchllm.h"
#include "fuzz_folder.h"

namespace {

using batchllm::fuzz::check;

const char model[] = BATCHLLM_GOLDEN "/qwen3_vl_pictures";

struct Rows {
    std::string text;
    std::vector<int64_t> text_offsets = {0};
    std::vector<int64_t> rows = {0};
    std::string bytes;
    std::vector<int64_t> offsets = {0};
    std::vector<uint8_t> kinds;
    batchllm_picture_column column{};

    const batchllm_picture_column *pictures(bool chat) {
        column.struct_size = sizeof column;
        column.chat = chat ? 1 : 0;
        column.rows = rows.data();
        column.bytes = reinterpret_cast<const uint8_t *>(bytes.data());
        column.offsets = offsets.data();
        column.kinds = kinds.data();
        return &column;
    }
};

// Twice the same row.
Rows read(const uint8_t *data, size_t size) {
    const auto take = [&](size_t most) {
        const size_t count = most < size ? most : size;
        const std::string part(reinterpret_cast<const char *>(data), count);
        data += count;
        size -= count;
        return part;
    };
    const auto byte = [&] {
        const std::string one = take(1);
        return one.empty() ? 0u : static_cast<unsigned char>(one[0]);
    };
    Rows read;
    std::vector<std::string> pictures;
    std::vector<uint8_t> kinds;
    const unsigned count = byte() % 4;
    for (unsigned i = 0; i < count; ++i) {
        kinds.push_back(byte() % 2 == 0 ? BATCHLLM_PICTURE_BYTES : BATCHLLM_PICTURE_NAME);
        const unsigned low = byte();
        pictures.push_back(take(low + 256 * byte()));
    }
    const std::string text = take(size);
    for (int row = 0; row < 2; ++row) {
        read.text += text;
        read.text_offsets.push_back(static_cast<int64_t>(read.text.size()));
        for (size_t i = 0; i < pictures.size(); ++i) {
            read.bytes += pictures[i];
            read.offsets.push_back(static_cast<int64_t>(read.bytes.size()));
            read.kinds.push_back(kinds[i]);
        }
        read.rows.push_back(static_cast<int64_t>(read.kinds.size()));
    }
    return read;
}

class Engine {
  public:
    Engine() {
        const char *folder = model;
        batchllm_pictures_options reading;
        batchllm_pictures_options_init(&reading, sizeof reading);
        reading.model_dir = model;
        reading.folders = &folder;
        reading.folder_count = 1;
        check(batchllm_pictures_create(&reading, &pictures) == BATCHLLM_OK);
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.model_dir = model;
        options.backend = "sim";
        options.backend_options = "pages=256,page_tokens=16";
        options.threads = 1;
        options.step_tokens = 64;
        options.min_prefix_tokens = 1;
        options.pictures = pictures;
        check(batchllm_engine_create(&options, &engine) == BATCHLLM_OK);
    }
    ~Engine() {
        batchllm_engine_destroy(engine);
        batchllm_pictures_destroy(pictures);
    }

    // Runs the two rows that were added, and returns their status, which is the same.
    int32_t run() {
        check(batchllm_run(engine, nullptr, nullptr) == BATCHLLM_OK);
        batchllm_results *results = nullptr;
        check(batchllm_poll(engine, 0, &results) == BATCHLLM_OK);
        check(results->count == 2);
        for (int64_t i = 0; i < 2; ++i) {
            const bool good = results->statuses[i] == BATCHLLM_OK;
            check(good == (results->error_offsets[i] == results->error_offsets[i + 1]));
        }
        const int32_t status = results->statuses[0];
        check(results->statuses[1] == status);
        check(results->prompt_tokens[0] == results->prompt_tokens[1]);
        batchllm_results_free(results);
        return status;
    }

    batchllm_pictures *pictures = nullptr;
    batchllm_engine *engine = nullptr;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Engine with;
    if (size == 0) return 0;
    const bool chat = (data[0] & 1) != 0, plain = (data[0] & 2) != 0;
    Rows rows = read(data + 1, size - 1);
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 2;
    params.add_special = 0;
    params.parse_special = plain ? 0 : 1;
    check(batchllm_add_pictures(with.engine, 2, rows.text.data(), rows.text_offsets.data(),
                                rows.pictures(chat), nullptr, &params, 1) == BATCHLLM_OK);
    const int32_t status = with.run();
    batchllm_column *encoded = nullptr;
    check(batchllm_pictures_encode(with.pictures, 2, rows.text.data(), rows.text_offsets.data(),
                                   rows.pictures(chat), plain ? 0u : BATCHLLM_ENCODE_PARSE_SPECIAL,
                                   1, &encoded) == BATCHLLM_OK);
    check(encoded->statuses[0] == encoded->statuses[1]);
    check(std::vector<int32_t>(encoded->tokens, encoded->tokens + encoded->offsets[1]) ==
          std::vector<int32_t>(encoded->tokens + encoded->offsets[1],
                               encoded->tokens + encoded->offsets[2]));
    if (encoded->statuses[0] != BATCHLLM_OK) {
        check(encoded->statuses[0] == status);
        check(encoded->error_offsets[0] < encoded->error_offsets[1]);
    } else {
        check(batchllm_add_tokens(with.engine, 2, encoded->tokens, encoded->offsets, nullptr,
                                  &params, 1) == BATCHLLM_OK);
        check(with.run() == status);
    }
    batchllm_column_free(encoded);
    return 0;
}
