#include "text/token_table.h"

#include <algorithm>
#include <xxhash.h>

namespace batchllm {

size_t TokenTable::slot_of(std::string_view wanted) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = XXH3_64bits(wanted.data(), wanted.size()) & mask;
    while (slots_[slot] >= 0 && token(slots_[slot]) != wanted) slot = (slot + 1) & mask;
    return slot;
}

void TokenTable::grow() {
    const std::vector<int32_t> old = std::move(slots_);
    slots_.assign(std::max<size_t>(1024, old.size() * 2), -1);
    for (const int32_t id : old) {
        if (id >= 0) slots_[slot_of(token(id))] = id;
    }
}

bool TokenTable::insert(std::string_view token, int32_t id) {
    if (static_cast<size_t>(count_) * 2 >= slots_.size()) grow();
    const size_t slot = slot_of(token);
    if (slots_[slot] >= 0 || contains(id)) return false;
    if (id >= id_end()) tokens_.resize(static_cast<size_t>(id) + 1);
    tokens_[static_cast<size_t>(id)] = {static_cast<int64_t>(text_.size()),
                                        static_cast<int64_t>(token.size())};
    text_.append(token);
    slots_[slot] = id;
    ++count_;
    longest_ = std::max(longest_, token.size());
    return true;
}

int32_t TokenTable::find(std::string_view token) const {
    if (slots_.empty() || token.size() > longest_) return -1;
    return slots_[slot_of(token)];
}

} // namespace batchllm
