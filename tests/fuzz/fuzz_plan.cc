// libFuzzer target: a plan file, and the sections inside one (which the checksum would keep a
// fuzzer out of).
//     CC=clang CXX=clang++ meson setup build-fuzz -Dfuzz=true -Db_lundef=false -Db_sanitize=address,undefined
//         -Dcpp_args=-fsanitize=fuzzer-no-link
//     ninja -C build-fuzz tests/fuzz_plan && mkdir -p build-fuzz/corpus &&
//     build-fuzz/tests/fuzz_plan -max_total_time=60 build-fuzz/corpus tests/plan
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "plan/plan_file.h"

using namespace batchllm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto use = [](const Result<Plan> &plan) {
        if (!plan.ok()) {
            if (plan.status().code() != BATCHLLM_ERROR_PLAN_FORMAT) std::abort();
            return;
        }
        if (!check_plan(*plan).ok()) std::abort();
        // A plan that was read can be written, and used for rows that are not its own.
        const auto file = write_plan(*plan);
        if (!file.ok() || !read_plan(std::as_bytes(std::span(file->data(), file->size()))).ok())
            std::abort();
        const std::vector<int32_t> tokens(64, 1);
        std::vector<TokenRow> rows;
        for (const int32_t length : plan->lengths) {
            if (length > 64 || length < 1) return;
            rows.push_back({tokens.data(), length, length - 1});
        }
        Plan believed = *plan;
        for (size_t i = 0; i < rows.size(); ++i) {
            believed.fingerprints[i] =
                token_fingerprint({tokens.data(), static_cast<size_t>(rows[i].length)}, 0);
        }
        if (!make_plan(rows, {}, plan->options, &believed).ok()) std::abort();
    };
    use(read_plan(bytes));
    if (size > 0)
        use(read_plan_sections(bytes.subspan(1), data[0] & (plan_has_tokens | plan_has_salts)));
    return 0;
}
