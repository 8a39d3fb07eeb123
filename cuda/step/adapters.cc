#include "step/adapters.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace batchllm::cuda {
namespace {

// form(). What lists are like: of the wanted rows by kOfWanted to the left.
constexpr uint16_t kAny = 1, kMerged = 2, kTall = 4, kFew = 8, kOthers = 16, kWithout = 32;
constexpr int kOfWanted = 4;

int64_t align(int64_t bytes) { return (bytes + 15) / 16 * 16; }

} // namespace

StepAdapters::~StepAdapters() {
    if (pool_ == nullptr) return;
    uploads_->stop();
    for (Slot &slot : slots_) {
        if (slot.data != nullptr) cudaFreeAsync(slot.data, uploads_->stream());
    }
    if (raw_ != nullptr) cudaFreeAsync(raw_, uploads_->stream());
    cudaStreamSynchronize(uploads_->stream());
    cudaMemPoolDestroy(pool_);
}

// ---- Loading ------------------------------------------------------------------------------------

Status StepAdapters::make_pool() {
    if (pool_ != nullptr) return {};
    int device = 0;
    RETURN_IF_CUDA(cudaGetDevice(&device));
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    RETURN_IF_CUDA(cudaMemPoolCreate(&pool_, &properties));
    // What is freed stays for the adapters that come.
    uint64_t all = UINT64_MAX;
    RETURN_IF_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all));
    return {};
}

Result<int64_t> StepAdapters::bytes(const Adapter &adapter) const {
    ASSIGN_OR_RETURN(const AdapterLayout layout, model_.layout(adapter));
    return layout.bytes;
}

Result<std::shared_ptr<const LaidOutAdapter>>
StepAdapters::pack(std::shared_ptr<const Adapter> adapter) const {
    RETURN_IF_ERROR(uploads_->start());
    ASSIGN_OR_RETURN(AdapterLayout layout, model_.layout(*adapter));
    return std::make_shared<const LaidOutAdapter>(std::move(adapter), std::move(layout));
}

// Layers are merged no more where other processes leave too little memory for them and for adapters.
Result<std::byte *> StepAdapters::take(int64_t bytes, const char *what) {
    void *memory = nullptr;
    const auto allocate = [&] {
        return cudaMallocFromPoolAsync(&memory, static_cast<size_t>(bytes), pool_,
                                       uploads_->stream());
    };
    cudaError_t code = allocate();
    if (code == cudaErrorMemoryAllocation && merged_.slot() >= 0) {
        cudaGetLastError(); // a failed allocation does not break the context
        drop_merged();
        merge_after_ = 0;
        code = allocate();
    }
    RETURN_IF_ERROR(check_cuda(code, what));
    return static_cast<std::byte *>(memory);
}

Status StepAdapters::load(int32_t slot, std::shared_ptr<const LaidOutAdapter> adapter) {
    RETURN_IF_ERROR(make_pool());
    const auto place = static_cast<size_t>(slot);
    if (place >= slots_.size()) {
        slots_.resize(place + 1);
        entries_.resize(place + 1);
    }
    Slot &to = slots_[place];
    if (to.data != nullptr) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: adapter slot %d is taken", slot);
    }
    if (to.loaded == nullptr) {
        ASSIGN_OR_RETURN(to.loaded, Event::create(false));
    }
    const AdapterLayout &layout = adapter->layout;
    if (loaded_bytes_ + layout.bytes + merged_.bytes() > room_) drop_merged();
    ASSIGN_OR_RETURN(to.data, take(layout.bytes, "an adapter"));
    to.bytes = layout.bytes;
    loaded_bytes_ += layout.bytes;
    count_bytes();
    to.alone = 0;
    to.awaited = false;
    entries_[place] = reinterpret_cast<const AdapterEntry *>(to.data);
    AdapterUploads::Upload upload{{}, to.data, raw_, to.loaded};
    if (const int64_t bytes = AdapterUploads::raw_bytes(layout); bytes > raw_bytes_) {
        ASSIGN_OR_RETURN(upload.raw, take(bytes, "an adapter on its way"));
        upload.freed = std::exchange(raw_, upload.raw);
        raw_bytes_ = bytes;
    }
    to.changed.assign(layout.entries.size(), false);
    for (size_t i = 0; i < layout.entries.size(); ++i) {
        to.changed[i] = layout.entries[i].ranks > 0;
        const AdapterEntry &entry = layout.entries[i];
        const size_t launch = model_.product(i).launch;
        int32_t most_of_part = 0;
        for (const AdapterPart &part : entry.parts)
            most_of_part = std::max(most_of_part, part.rank);
        grown_ = grown_ || entry.ranks > ranks_[launch] || most_of_part > part_ranks_[launch];
        part_ranks_[launch] = std::max(part_ranks_[launch], most_of_part);
        ranks_[launch] = std::max(ranks_[launch], entry.ranks);
    }
    upload.adapter = std::move(adapter);
    to.upload = uploads_->add(std::move(upload));
    return {};
}

void StepAdapters::unload(int32_t slot) {
    const auto place = static_cast<size_t>(slot);
    if (place >= slots_.size() || slots_[place].data == nullptr) return;
    if (merged_.slot() == slot) drop_merged();
    loaded_bytes_ -= slots_[place].bytes;
    static_cast<void>(uploads_->wait(slots_[place].upload)); // if it failed, steps know
    cudaFreeAsync(slots_[place].data, uploads_->stream());
    slots_[place].data = nullptr;
    entries_[place] = nullptr;
}

// ---- Merging ------------------------------------------------------------------------------------

void StepAdapters::set_merging(const std::vector<DeviceLayer> *layers, int64_t after_tokens,
                               int64_t room) {
    layers_ = layers;
    merge_after_ = reproducible_ ? 0 : after_tokens;
    room_ = room;
}

void StepAdapters::drop_merged() {
    if (merged_.slot() < 0) return;
    merged_.clear();
    merged_anew_ = false;
    form_ = 0; // of a step that has been launched
}

// Steps have cost by then what merging costs. Memory is taken while the last of them runs.
bool StepAdapters::run_merged(int32_t slot, int64_t tokens) {
    if (slot < 0 || merge_after_ == 0) return false;
    if (merged_.slot() == slot) return true;
    Slot &own = slots_[static_cast<size_t>(slot)];
    if (own.alone < merge_after_) {
        own.alone += tokens;
        return false;
    }
    const int64_t bytes = MergedLayers::bytes(*layers_, own.changed, element_);
    if (bytes == 0 || loaded_bytes_ + bytes > room_) return false;
    drop_merged();
    cudaMemPoolTrimTo(pool_, 0); // what adapters that have gone have left
    Result<DeviceMemory> memory = DeviceMemory::create(bytes, "merged layers");
    if (!memory.ok()) {
        merge_after_ = 0; // another process has it
        return false;
    }
    own.alone = 0;
    merged_.place(slot, *layers_, model_, own.changed, element_, std::move(memory).value());
    count_bytes();
    merged_anew_ = true;
    return true;
}

// ---- A step -------------------------------------------------------------------------------------

// The section: how many tiles all rows and the wanted ones have, of few rows and others; then of both kinds of rows their entries,
// blocks, whether they are in other tiles than those of few rows, themselves, and tiles. Those of all tokens are last, since they
// alone are of a length that the step's size does not give: steps of one size read at the same places.
Status StepAdapters::stage(const TokenBatch &batch, std::span<const int32_t> wanted, int64_t tokens,
                           int64_t wanted_rows, bool gather, StepInput *input, Staging *staging) {
    bool any = false, several = false;
    int32_t alone = -1; // the slot of all tokens
    for (const ContextNode &node : batch.nodes) {
        if (node.token_count == 0) continue;
        several = several || (node.token_begin > 0 && node.adapter != alone);
        alone = node.adapter;
        if (node.adapter < 0) continue;
        if (static_cast<size_t>(node.adapter) >= slots_.size() ||
            slots_[static_cast<size_t>(node.adapter)].data == nullptr) {
            return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: adapter slot %d is empty",
                         node.adapter);
        }
        any = true;
    }
    const bool merged = !several && run_merged(alone, static_cast<int64_t>(batch.tokens.size()));
    if (merged) any = merged_.leaves_any();
    form_ = static_cast<uint16_t>((merged ? kMerged : 0) | (any ? kAny : 0));
    use_.merged_batches += merged ? 1 : 0;
    slot_of_row_.clear();
    if (!any) return input->stage_room<int32_t>(kAdapters, 0, staging).status();
    slot_of_row_.assign(batch.tokens.size(), -1);
    for (const ContextNode &node : batch.nodes) {
        std::fill_n(slot_of_row_.begin() + node.token_begin, node.token_count, node.adapter);
    }
    const bool short_alone = reproducible_ || element_ == DType::f32;
    all_.list(slot_of_row_, entries_, short_alone);
    slot_of_wanted_.clear();
    if (gather) {
        for (const int32_t token : wanted) {
            slot_of_wanted_.push_back(slot_of_row_[static_cast<size_t>(token)]);
        }
    }
    wanted_.list(slot_of_wanted_, entries_, short_alone);
    const auto kind = [](const AdapterLists &lists) {
        const bool others = lists.few < static_cast<int32_t>(lists.tiles.size());
        const bool without = lists.rows.size() < lists.entries.size();
        return (lists.tall ? kTall : 0) | (lists.few > 0 ? kFew : 0) | (others ? kOthers : 0) |
               (without ? kWithout : 0);
    };
    form_ = static_cast<uint16_t>((form_ & kMerged) | kAny | kind(all_) |
                                  (gather ? kind(wanted_) << kOfWanted : 0));
    constexpr auto tile = static_cast<int64_t>(sizeof(AdapterTile));
    constexpr auto entry = static_cast<int64_t>(sizeof(const AdapterEntry *));
    const int64_t others = gather ? wanted_rows : 0;
    const auto blocks = [](int64_t rows) { return (rows + kAdapterBlock - 1) / kAdapterBlock; };
    of_wanted_.entries = 16;
    of_all_.entries = of_wanted_.entries + align(entry * others);
    of_wanted_.block_counts = of_all_.entries + align(entry * tokens);
    of_all_.block_counts = of_wanted_.block_counts + align(4 * blocks(others));
    of_wanted_.in_others = of_all_.block_counts + align(4 * blocks(tokens));
    of_all_.in_others = of_wanted_.in_others + align(others);
    of_wanted_.rows = of_all_.in_others + align(tokens);
    of_all_.rows = of_wanted_.rows + align(4 * others);
    of_wanted_.block_entries = of_all_.rows + align(4 * tokens);
    of_all_.block_entries =
        of_wanted_.block_entries + align(entry * kAdapterBlock * blocks(others));
    of_wanted_.tiles = of_all_.block_entries + align(entry * kAdapterBlock * blocks(tokens));
    of_all_.tiles = of_wanted_.tiles + tile * others;
    const int64_t bytes = of_all_.tiles + tile * static_cast<int64_t>(all_.tiles.size());
    ASSIGN_OR_RETURN(std::byte *const to, input->stage_room<std::byte>(kAdapters, bytes, staging));
    // Rows of padding have no adapter.
    std::memset(to, 0, static_cast<size_t>(of_wanted_.rows));
    const auto put = [&](const Places &places, const AdapterLists &lists, int64_t place) {
        const int32_t counts[2] = {lists.few, static_cast<int32_t>(lists.tiles.size()) - lists.few};
        std::memcpy(to + place, counts, sizeof counts);
        const auto copy = [&](int64_t at, const auto &values) {
            if (values.empty()) return;
            std::memcpy(to + at, values.data(), values.size() * sizeof(values[0]));
        };
        copy(places.entries, lists.entries);
        copy(places.rows, lists.rows);
        copy(places.block_counts, lists.block_counts);
        copy(places.in_others, lists.in_others);
        copy(places.block_entries, lists.block_entries);
        copy(places.tiles, lists.tiles);
    };
    put(of_all_, all_, 0);
    put(of_wanted_, wanted_, 8);
    return {};
}

Result<bool> StepAdapters::reserve(int64_t rows, cudaStream_t stream) {
    if (!grown_) return false;
    grown_ = false;
    int64_t most = 0;
    for (size_t i = 0; i < ranks_.size(); ++i) most = std::max(most, model_.sums(i, ranks_[i]));
    sum_rows_ = rows;
    const int64_t bytes = 4 * most * rows;
    if (bytes > sums_.bytes()) {
        RETURN_IF_CUDA(cudaStreamSynchronize(stream));
        sums_ = DeviceMemory();
        ASSIGN_OR_RETURN(sums_, DeviceMemory::create(bytes, "adapters' products"));
    }
    return true;
}

Status StepAdapters::wait(cudaStream_t stream) {
    const auto wait_for = [&](int32_t slot) -> Status {
        Slot &own = slots_[static_cast<size_t>(slot)];
        if (own.awaited) return {};
        RETURN_IF_ERROR(uploads_->wait(own.upload));
        own.awaited = true;
        return check_cuda(cudaStreamWaitEvent(stream, own.loaded, 0), "an adapter");
    };
    for (const int32_t slot : slot_of_row_) {
        if (slot >= 0) RETURN_IF_ERROR(wait_for(slot));
    }
    if (!std::exchange(merged_anew_, false)) return {};
    RETURN_IF_ERROR(wait_for(merged_.slot()));
    return merged_.launch(*layers_, model_, element_, entries_[static_cast<size_t>(merged_.slot())],
                          stream);
}

bool StepAdapters::changes(size_t product) const {
    if ((form_ & kAny) == 0 || ranks_[product] == 0) return false;
    return (form_ & kMerged) == 0 || merged_.leaves(product);
}
const std::vector<DeviceLayer> *StepAdapters::merged() const {
    return (form_ & kMerged) != 0 ? &merged_.layers() : nullptr;
}
bool StepAdapters::all_in_others(bool wanted) const {
    return ((wanted ? form_ >> kOfWanted : form_) & (kFew | kWithout)) == 0;
}
bool StepAdapters::is_merged(uint16_t form) { return (form & kMerged) != 0; }

bool StepAdapters::changes_experts() const {
    return std::any_of(ranks_.begin() + static_cast<std::ptrdiff_t>(model_.head()) + 1,
                       ranks_.end(), [](int32_t ranks) { return ranks > 0; });
}

AdapterWork StepAdapters::work(bool wanted, const StepInput &input) const {
    const auto *section = input.at<std::byte>(kAdapters);
    const Places &places = wanted ? of_wanted_ : of_all_;
    const int form = wanted ? form_ >> kOfWanted : form_;
    const auto *const counts = reinterpret_cast<const int32_t *>(section) + (wanted ? 2 : 0);
    return {counts + 1,
            reinterpret_cast<const AdapterTile *>(section + places.tiles),
            reinterpret_cast<const int32_t *>(section + places.rows),
            reinterpret_cast<const AdapterEntry *const *>(section + places.entries),
            (form & kTall) != 0,
            reinterpret_cast<const int32_t *>(section + places.block_counts),
            reinterpret_cast<const AdapterEntry *const *>(section + places.block_entries),
            counts,
            (form & kFew) != 0,
            (form & kOthers) != 0,
            reinterpret_cast<const uint8_t *>(section + places.in_others)};
}

AdapterArguments StepAdapters::arguments(const Addition &addition, const StepInput &input) const {
    const AdaptedProduct &product = model_.product(addition.product);
    AdapterArguments a{};
    a.element = element_;
    a.work = addition.turns != nullptr ? *addition.turns : work(addition.wanted, input);
    // A tile of turns has the entries of its expert on.
    a.product = static_cast<int32_t>(addition.product);
    a.most_ranks = ranks_[addition.product];
    a.most_of_part = part_ranks_[addition.product];
    a.x = addition.x.data;
    a.columns = product.columns;
    a.range = product.range();
    a.x_rows = addition.x_rows;
    const Scaling scaling = addition.scaling;
    a.x_scales = scaling == Scaling::none ? nullptr : addition.x.scales;
    a.x_row_stride = scaling == Scaling::turns ? scale_groups(product.columns) : 1;
    a.x_group_stride = scaling == Scaling::blocks  ? padded_rows(addition.rows)
                       : scaling == Scaling::turns ? 1
                                                   : 0;
    a.t = sums_.data();
    const bool feeds =
        addition.product < model_.embedding() &&
        addition.product % kLayerProducts == static_cast<size_t>(LayerProduct::gate_up);
    const bool product_adds = addition.product_adds || (feeds && a.x_scales == nullptr);
    // What the embedding's change is looked up in is f32.
    a.whole = addition.product != model_.embedding() &&
              adapter_sums_are_whole(element_, hopper_, a.work.tall, product_adds);
    a.t_rows = static_cast<int32_t>(sum_rows_ * product.rows);
    a.t_stride = a.most_ranks;
    a.y = addition.y;
    a.y_type = addition.y_type;
    a.width = product.width;
    a.parts = product.firsts(a.first);
    a.turns = product.turns;
    a.alpha = addition.alpha;
    a.first_row = addition.first_row;
    a.some_rows = addition.some_rows;
    return a;
}

Result<AdapterArguments> StepAdapters::shrink(const Addition &addition, const StepInput &input,
                                              cudaStream_t stream) const {
    const AdapterArguments a = arguments(addition, input);
    RETURN_IF_CUDA(launch_adapter_shrink(a, sms_, stream));
    return a;
}

} // namespace batchllm::cuda
