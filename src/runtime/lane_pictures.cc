#include "runtime/lane_pictures.h"

#include <utility>
#include <vector>

namespace batchllm {

Result<std::shared_ptr<const PreparedPicture>> PictureKind::make(const Backend &backend,
                                                                 const PictureSource &source) {
    if (backend.info().computes_on.kind != DeviceKind::none) {
        return source.library->prepare(source);
    }
    auto modelled = std::make_shared<PreparedPicture>(); // nothing reads its patches
    modelled->grid = source.grid;
    return std::shared_ptr<const PreparedPicture>(std::move(modelled));
}

Status LanePictures::load() {
    std::vector<PictureLoad> loads;
    for (const PictureSlots::Change &change : slots_.take_changes()) {
        if (change.load) {
            loads.push_back({change.slot, take(change.number)});
        } else {
            backend_.unload_picture(change.slot);
            drop(change.number);
        }
    }
    return loads.empty() ? Status() : backend_.load_pictures(loads);
}

} // namespace batchllm
