// Adapters for a job's rows: all of one size, made up, each kept in memory as if its file were in the page cache. They share
// their bytes there, but are packed and loaded one by one.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/narrow_floats.h"
#include "jobs.h"
#include "runtime/adapter_library.h"
#include "throughput_arguments.h"

namespace batchllm {

class BenchAdapters {
  public:
    // --rank 0: rows differ as if they had adapters, but have none.
    static Result<std::unique_ptr<BenchAdapters>> make(const Model &model, const Backend &backend,
                                                       const Arguments &arguments,
                                                       const NamedJob &job, JobRows *rows) {
        auto made = std::make_unique<BenchAdapters>();
        const auto count = static_cast<size_t>(arguments.adapters);
        made->place(count, job, rows);
        const auto rank = static_cast<int64_t>(arguments.rank);
        if (rank == 0) return made;
        auto adapter = std::make_shared<Adapter>();
        made->fill(model, rank, arguments.adapted, adapter.get());
        ASSIGN_OR_RETURN(const int64_t bytes, backend.adapter_bytes(*adapter));
        for (size_t i = 0; i < count; ++i) {
            auto source = std::make_shared<AdapterSource>();
            source->library = made->library_;
            source->hash = {i + 1, i + 1};
            source->memory_bytes = bytes;
            source->kept = adapter;
            made->sources.push_back(std::move(source));
        }
        std::printf("%zu adapters of rank %lld, %.1f MiB each, room for %.0f MiB\n", count,
                    static_cast<long long>(rank), static_cast<double>(bytes) / (1 << 20),
                    static_cast<double>(backend.info().adapter_bytes) / (1 << 20));
        return made;
    }

    std::vector<std::shared_ptr<const AdapterSource>> sources;
    std::vector<size_t> of_row;

  private:
    // Documents' rows have an adapter together, unless there are more adapters than documents.
    void place(size_t count, const NamedJob &job, JobRows *rows) {
        std::map<std::vector<int32_t>, size_t> documents;
        const auto length = static_cast<int32_t>(std::max(1.0, job.prefix));
        std::vector<size_t> document_of;
        for (const TokenRow &row : rows->rows) {
            std::vector<int32_t> begin(row.tokens, row.tokens + std::min(length, row.length));
            document_of.push_back(
                documents.emplace(std::move(begin), documents.size()).first->second);
        }
        for (size_t i = 0; i < rows->rows.size(); ++i) {
            of_row.push_back(count > documents.size() ? i % count
                                                      : document_of[i] * count / documents.size());
            rows->rows[i].salt = of_row[i] + 1;
        }
    }

    void fill(const Model &model, int64_t rank, const std::string &adapted, Adapter *adapter) {
        int64_t widest = 0;
        for (const Layer &layer : model.layers) {
            each_matrix(layer, adapted, [&](const Tensor &w) {
                widest = std::max({widest, w.rows, w.columns});
            });
        }
        const auto count = static_cast<size_t>(widest * rank + 64);
        adapter->bytes.push_back(std::make_unique<std::byte[]>(2 * count));
        auto *const numbers = reinterpret_cast<uint16_t *>(adapter->bytes[0].get());
        std::minstd_rand random(1);
        for (size_t i = 0; i < count; ++i) { // from 0.004 to 0.016, of either sign
            numbers[i] = static_cast<uint16_t>(0x3b80 + random() % 0x100 + random() % 2 * 0x8000);
        }
        for (const Layer &layer : model.layers) {
            int32_t number = 0; // what has equal data has one A, so that 64 in a row have not
            each_matrix(layer, adapted, [&](const Tensor &w) {
                LowRank change;
                change.a.dtype = change.b.dtype = DType::bf16;
                change.a.rows = change.b.columns = rank;
                change.a.columns = w.columns;
                change.b.rows = w.rows;
                change.a.data = adapter->bytes[0].get() + 2 * (number++ % 64);
                change.b.data = adapter->bytes[0].get();
                adapter->changes.emplace(&w, change);
            });
        }
    }
    template <typename Act>
    static void each_matrix(const Layer &layer, const std::string &adapted, const Act &act) {
        const auto all = [&](std::initializer_list<const Weight *> weights) {
            for (const Weight *w : weights) {
                if (*w) act(w->values);
            }
        };
        const Attention *a = layer.attention();
        if (a != nullptr && adapted != "experts") all({&a->q, &a->k, &a->v, &a->o});
        const FeedForward *f = layer.feed_forward();
        if (f != nullptr && adapted == "all") all({&f->gate, &f->up, &f->down});
        if (const Experts *experts = layer.experts(); experts != nullptr && adapted == "experts") {
            for (const FeedForward &e : experts->each) all({&e.gate, &e.up, &e.down});
        }
    }

    std::shared_ptr<AdapterLibrary> library_ = std::make_shared<AdapterLibrary>();
};

} // namespace batchllm
