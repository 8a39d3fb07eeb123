// The library in C++17 and later: handles that close themselves, and failures as exceptions. Everything else is
// batchllm.h, which this header includes: it adds no types of its own for rows, options and results.
//
//     #include <batchllm/handles.h>
//     #include <iostream>
//
//     int main(int argc, char **argv) try {
//         auto options = batchllm::init(batchllm_engine_options_init);
//         options.model_dir = argc > 1 ? argv[1] : ".";
//         const batchllm::Engine engine = batchllm::make(batchllm_engine_create, &options);
//         for (const char *prompt : {"The capital of France is", "The capital of Peru is"})
//             batchllm::check(batchllm_add_prompt(engine.get(), prompt, -1, 0, nullptr));
//         batchllm::check(batchllm_run(engine.get(), nullptr, nullptr));
//         const batchllm::Results results = batchllm::make(batchllm_poll, engine.get(), 0);
//         for (int64_t i = 0; i < results->count; ++i)
//             std::cout << batchllm::text_of(results, i) << '\n';
//     } catch (const batchllm::Error &error) {
//         std::cerr << error.what() << '\n';
//         return 1;
//     }
#ifndef BATCHLLM_HANDLES_H
#define BATCHLLM_HANDLES_H

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include <batchllm.h>

namespace batchllm {

// A call that failed. what() begins with the name of the status, such as "BATCHLLM_ERROR_IO".
class Error : public std::runtime_error {
  public:
    Error(int32_t status, const std::string &text) : std::runtime_error(text), status_(status) {}
    int32_t status() const noexcept { return status_; } // BATCHLLM_ERROR_...

  private:
    int32_t status_;
};

// Throws Error if the call whose status this is has failed. On the thread that made the call.
inline void check(int32_t status) {
    if (status != BATCHLLM_OK)
        throw Error(status,
                    std::string(batchllm_status_name(status)) + ": " + batchllm_last_error());
}

struct Closer {
    void operator()(batchllm_adapter *adapter) const { batchllm_adapter_destroy(adapter); }
    void operator()(batchllm_column *column) const { batchllm_column_free(column); }
    void operator()(batchllm_constraint *constraint) const {
        batchllm_constraint_destroy(constraint);
    }
    void operator()(batchllm_engine *engine) const { batchllm_engine_destroy(engine); }
    void operator()(batchllm_journal *journal) const { batchllm_journal_destroy(journal); }
    void operator()(batchllm_pictures *pictures) const { batchllm_pictures_destroy(pictures); }
    void operator()(batchllm_plan *plan) const { batchllm_plan_destroy(plan); }
    void operator()(batchllm_ranges *ranges) const { batchllm_ranges_free(ranges); }
    void operator()(batchllm_report *report) const { batchllm_report_destroy(report); }
    void operator()(batchllm_results *results) const { batchllm_results_free(results); }
    void operator()(batchllm_table *table) const { batchllm_table_destroy(table); }
    void operator()(batchllm_tokenizer *tokenizer) const { batchllm_tokenizer_destroy(tokenizer); }
};

template <class Handle> using Owner = std::unique_ptr<Handle, Closer>;
using Adapter = Owner<batchllm_adapter>;
using Column = Owner<batchllm_column>;
using Constraint = Owner<batchllm_constraint>;
using Engine = Owner<batchllm_engine>;
using Journal = Owner<batchllm_journal>;
using Pictures = Owner<batchllm_pictures>;
using Plan = Owner<batchllm_plan>;
using Ranges = Owner<batchllm_ranges>;
using Report = Owner<batchllm_report>;
using Results = Owner<batchllm_results>;
using Table = Owner<batchllm_table>;
using Tokenizer = Owner<batchllm_tokenizer>;

// Calls a function whose last parameter returns a handle, and owns the handle: make(batchllm_plan_load, path) is a
// Plan. Throws Error.
template <class... Parameters, class... Arguments>
auto make(int32_t (*function)(Parameters...), Arguments... arguments) {
    using Out = std::tuple_element_t<sizeof...(Parameters) - 1, std::tuple<Parameters...>>;
    std::remove_pointer_t<Out> handle = nullptr;
    check(function(arguments..., &handle));
    return Owner<std::remove_pointer_t<std::remove_pointer_t<Out>>>(handle);
}

// An options struct with its defaults: init(batchllm_params_init).
template <class Options, class Size> Options init(void (*function)(Options *, Size)) {
    Options options;
    function(&options, sizeof options);
    return options;
}

// Valid as long as the results are.
inline std::string_view text_of(const Results &results, int64_t i) {
    const int64_t begin = results->text_offsets[i];
    return {results->text + begin, static_cast<std::size_t>(results->text_offsets[i + 1] - begin)};
}

} // namespace batchllm

#endif
