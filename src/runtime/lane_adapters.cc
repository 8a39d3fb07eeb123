#include "runtime/lane_adapters.h"

#include <utility>

namespace batchllm {

Result<std::shared_ptr<const PackedAdapter>> AdapterKind::make(const Backend &backend,
                                                               const AdapterSource &source) {
    ASSIGN_OR_RETURN(std::shared_ptr<const Adapter> adapter, source.library->read(source));
    return backend.pack_adapter(std::move(adapter));
}

Status LaneAdapters::load() {
    for (const AdapterSlots::Change &change : slots_.take_changes()) {
        if (change.load) {
            RETURN_IF_ERROR(backend_.load_adapter(change.slot, take(change.number)));
        } else {
            backend_.unload_adapter(change.slot);
            drop(change.number);
        }
    }
    return {};
}

} // namespace batchllm
