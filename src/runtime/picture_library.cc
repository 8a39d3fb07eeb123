#include "runtime/picture_library.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <utility>
#include <xxhash.h>

#include "base/printable.h"

namespace batchllm {
namespace {

constexpr int32_t picture_ids = 1 << 30; // from first_picture_id on

size_t count_of(std::string_view text, std::string_view part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string_view::npos;
         at = text.find(part, at + part.size())) {
        ++count;
    }
    return count;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
    std::string made;
    for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
        made.append(text.substr(0, at)).append(to);
        text.remove_prefix(at + from.size());
    }
    return made.append(text);
}

// A fault of the picture is its row's.
Status as_row_error(Status status) {
    if (status.ok() || is_failure_of_process(status.code())) return status;
    return Status(BATCHLLM_ERROR_ROW_PICTURE, status.message());
}

} // namespace

PictureLibrary::PictureLibrary(std::unique_ptr<const PictureProcessor> processor, Status problem,
                               PictureFolders folders)
    : processor_(std::move(processor)), problem_(std::move(problem)), folders_(std::move(folders)) {
}

Result<std::shared_ptr<PictureLibrary>>
PictureLibrary::open(const std::string &model_dir, const Tokenizer *tokenizer,
                     const std::vector<std::string> &folders) {
    ASSIGN_OR_RETURN(PictureFolders opened, PictureFolders::open(folders));
    std::unique_ptr<const PictureProcessor> processor;
    Status problem;
    if (!model_dir.empty()) {
        auto made = PictureProcessor::make(model_dir, tokenizer);
        problem = as_row_error(made.status());
        if (is_failure_of_process(problem.code())) return problem;
        if (made.ok()) processor = std::move(made).value();
    }
    if (processor == nullptr && problem.ok()) {
        problem = error(BATCHLLM_ERROR_ROW_PICTURE, "the model%s%s reads no pictures",
                        model_dir.empty() ? "" : " in ", model_dir.c_str());
    }
    return std::make_shared<PictureLibrary>(std::move(processor), std::move(problem),
                                            std::move(opened));
}

bool PictureLibrary::reads_as(const PictureLibrary &other) const {
    return processor_ == nullptr || other.processor_ == nullptr ||
           processor_->fingerprint() == other.processor_->fingerprint();
}

Status PictureLibrary::check_tower(const Tower &tower) const {
    if (processor_ == nullptr) return {};
    const PictureProcessor::Cut cut = processor_->cut();
    const auto differ = [](const std::string &key, int32_t number, const char *of_tower,
                           int32_t expected) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "%s makes it %d, and the tower needs %d (config.json: %s): these files do not "
                     "belong together",
                     key.c_str(), number, expected, of_tower);
    };
    const auto patch = static_cast<int32_t>(std::lround(std::sqrt(tower.patch_values)));
    if (cut.patch != patch) {
        return differ(cut.patch_key, cut.patch, "vision_config.patch_size", patch);
    }
    const bool one_size = tower.side > 0 && !tower.interpolated;
    if (cut.merge != tower.merge) {
        return differ(cut.merge_key, cut.merge,
                      one_size ? "vision_config.image_size" : "spatial_merge_size", tower.merge);
    }
    return {};
}

std::array<uint64_t, 2> PictureLibrary::hash_of(std::span<const std::byte> bytes) const {
    const XXH128_hash_t hash =
        XXH3_128bits_withSeed(bytes.data(), bytes.size(), processor_->fingerprint());
    return {hash.low64, hash.high64};
}

void PictureLibrary::forget_gone() {
    if (by_id_.size() < forget_at_ && by_name_.size() < forget_at_) return;
    std::erase_if(by_id_, [](const auto &entry) { return entry.second.expired(); });
    std::erase_if(by_name_, [](const auto &entry) { return entry.second.source.expired(); });
    forget_at_ = std::max<size_t>(1024, 2 * std::max(by_id_.size(), by_name_.size()));
}

// bytes: the file's; `file` has them, or they are the caller's.
Result<SharedPicture> PictureLibrary::add(PictureFolders::File file,
                                          std::span<const std::byte> bytes) {
    const std::array<uint64_t, 2> hash = hash_of(bytes);
    const auto id_of = [](uint64_t number) {
        return first_picture_id + static_cast<int32_t>(number % picture_ids);
    };
    // Its id, or the first after it that no other picture has. Found: the picture that is known.
    const auto keep_file = [&](const PictureSource &source) {
        if (!file.path.empty()) {
            source.paths.insert(std::move(file.path));
        } else if (source.bytes.empty()) {
            source.bytes = file.bytes.empty() ? std::vector<std::byte>(bytes.begin(), bytes.end())
                                              : std::move(file.bytes);
        }
    };
    const auto look = [&](uint64_t *number) -> SharedPicture {
        for (*number = hash[0];; ++*number) {
            const auto entry = by_id_.find(id_of(*number));
            SharedPicture known = entry == by_id_.end() ? nullptr : entry->second.lock();
            if (known != nullptr && known->hash != hash) continue;
            if (known != nullptr) keep_file(*known);
            return known;
        }
    };
    uint64_t number = 0;
    {
        const std::lock_guard lock(mutex_);
        if (SharedPicture known = look(&number)) return known;
    }
    const Result<PictureSize> size = picture_size(bytes, processor_->limits());
    if (!size.ok()) return as_row_error(size.status());
    const Result<PictureGrid> grid = processor_->grid(size->width, size->height);
    if (!grid.ok()) return as_row_error(grid.status());
    auto source = std::make_shared<PictureSource>();
    source->library = shared_from_this();
    source->hash = hash;
    source->grid = *grid;
    source->pixels = int64_t{size->width} * size->height;
    const std::lock_guard lock(mutex_);
    if (SharedPicture known = look(&number)) return known;
    keep_file(*source);
    source->id = id_of(number);
    forget_gone();
    by_id_[source->id] = source;
    any_.store(true, std::memory_order_release);
    return SharedPicture(std::move(source));
}

// What a path led to when a row named it before, if it still does; null: it has to be read.
Result<SharedPicture> PictureLibrary::known(std::string_view name) {
    SharedPicture source;
    ReadPicture file;
    {
        const std::lock_guard lock(mutex_);
        const auto entry = by_name_.find(std::string(name));
        if (entry != by_name_.end()) source = entry->second.source.lock();
        if (source == nullptr) return source;
        file = entry->second.file;
    }
    ASSIGN_OR_RETURN(const auto since,
                     PictureFolders::since_read(file.path, file.bytes, file.changed));
    if (since != PictureFolders::Since::unchanged) return SharedPicture();
    const std::lock_guard lock(mutex_);
    list(file);
    return source;
}

Result<SharedPicture> PictureLibrary::add(const PictureInput &input) {
    if (!input.is_name) {
        const int64_t most = processor_->limits().bytes;
        if (static_cast<int64_t>(input.bytes.size()) > most) {
            return error(BATCHLLM_ERROR_ROW_PICTURE,
                         "it has %zu bytes, more than the %" PRId64 " allowed", input.bytes.size(),
                         most);
        }
        return add({}, input.bytes);
    }
    const std::string_view name(reinterpret_cast<const char *>(input.bytes.data()),
                                input.bytes.size());
    const bool is_path = !name.starts_with("data:");
    if (is_path) { // read once for all rows that name it
        ASSIGN_OR_RETURN(SharedPicture found, known(name));
        if (found != nullptr) return found;
    }
    ASSIGN_OR_RETURN(PictureFolders::File file, folders_.read(name, processor_->limits().bytes));
    const std::span<const std::byte> bytes(file.bytes.data(), file.bytes.size());
    ReadPicture read;
    read.path = file.path;
    read.bytes = static_cast<int64_t>(bytes.size());
    read.changed = file.changed;
    Result<SharedPicture> added = add(std::move(file), bytes);
    if (!added.ok()) {
        return is_path ? Status(added.status()).within(printable(name)) : added.status();
    }
    if (is_path) {
        const std::lock_guard lock(mutex_);
        read.hash = (*added)->hash;
        list(read);
        by_name_[std::string(name)] = {*added, std::move(read)};
    }
    return added;
}

Status PictureLibrary::encode(const Tokenizer &tokenizer, std::string_view text,
                              std::span<const PictureInput> pictures, const EncodeOptions &options,
                              std::vector<int32_t> *tokens, std::vector<SharedPicture> *held) {
    if (processor_ == nullptr) {
        return pictures.empty() ? tokenizer.encode(text, options, tokens) : problem_;
    }
    const std::string &placeholder = processor_->placeholder();
    const size_t places = count_of(text, placeholder);
    if (places != pictures.size()) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "the row has %zu pictures, and its prompt %zu places for pictures: %s stands "
                     "for each",
                     pictures.size(), places, in_quotes(placeholder).c_str());
    }
    if (places == 0) return tokenizer.encode(text, options, tokens);
    if (!options.parse_special) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "a text with pictures needs parse_special; untrusted text goes into a "
                     "conversation");
    }
    std::vector<int32_t> encoded;
    RETURN_IF_ERROR(tokenizer.encode(replaced(text, placeholder, processor_->replaced_by()),
                                     options, &encoded));
    const int32_t token = processor_->token();
    const auto found = std::count(encoded.begin(), encoded.end(), token);
    if (static_cast<size_t>(found) != places) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "the row has %zu pictures, and its prompt has the token of pictures, %d, %td "
                     "times",
                     places, token, found);
    }
    std::vector<SharedPicture> sources;
    for (size_t i = 0; i < pictures.size(); ++i) {
        Result<SharedPicture> source = add(pictures[i]);
        if (!source.ok()) {
            return Status(source.status()).within("picture " + std::to_string(i + 1));
        }
        sources.push_back(std::move(source).value());
    }
    size_t next = 0;
    for (const int32_t id : encoded) {
        if (id != token) {
            tokens->push_back(id);
            continue;
        }
        const PictureSource &source = *sources[next++];
        for (const int32_t part : processor_->layout(source.grid)) {
            tokens->push_back(part == token ? source.id : part);
        }
    }
    held->insert(held->end(), sources.begin(), sources.end());
    return {};
}

Result<std::shared_ptr<const RowPictures>>
PictureLibrary::find(std::span<const int32_t> tokens) const {
    const std::shared_ptr<const RowPictures> none;
    if (!any_.load(std::memory_order_acquire)) return none;
    std::vector<RowPictures::Place> places;
    std::vector<PicturePlace> grids;
    for (size_t i = 0; i < tokens.size();) {
        if (tokens[i] < first_picture_id) {
            ++i;
            continue;
        }
        SharedPicture source;
        {
            const std::lock_guard lock(mutex_);
            const auto entry = by_id_.find(tokens[i]);
            if (entry != by_id_.end()) source = entry->second.lock();
        }
        if (source == nullptr) return none;
        const std::vector<int32_t> layout = processor_->layout(source->grid);
        const auto lead = static_cast<size_t>(
            std::find(layout.begin(), layout.end(), processor_->token()) - layout.begin());
        const bool whole =
            lead <= i && layout.size() - lead <= tokens.size() - i &&
            std::equal(layout.begin(), layout.end(),
                       tokens.begin() + static_cast<std::ptrdiff_t>(i - lead),
                       [&](int32_t part, int32_t id) {
                           return id == (part == processor_->token() ? source->id : part);
                       });
        if (!whole) {
            return error(
                BATCHLLM_ERROR_ROW_PICTURE,
                "prompt token %zu begins a picture that takes %zu tokens, and they are not "
                "all there",
                i, layout.size());
        }
        places.push_back(
            {static_cast<int32_t>(i - lead), static_cast<int32_t>(layout.size()), source});
        grids.push_back({static_cast<int32_t>(i), source->grid});
        i += layout.size() - lead;
    }
    if (places.empty()) return none;
    return std::shared_ptr<const RowPictures>(
        std::make_shared<RowPictures>(RowPictures{std::move(places), RopePositions(grids)}));
}

// From the first of its paths that still leads to the same content.
Result<PictureFolders::File> PictureLibrary::read_again(const PictureSource &source) const {
    std::set<std::string> paths;
    {
        const std::lock_guard lock(mutex_);
        paths = source.paths;
    }
    Status first;
    for (const std::string &path : paths) {
        Result<PictureFolders::File> file = folders_.read_again(path, processor_->limits().bytes);
        Status status = file.status();
        if (status.ok() && hash_of(file->bytes) == source.hash) return file;
        if (status.ok()) {
            status = error(BATCHLLM_ERROR_ROW_PICTURE, "%s has changed since its row was added",
                           in_quotes(path).c_str());
        }
        if (is_failure_of_process(status.code())) return status;
        if (first.ok()) first = std::move(status);
    }
    return first;
}

Result<std::shared_ptr<const PreparedPicture>>
PictureLibrary::prepare(const PictureSource &source) const {
    std::span<const std::byte> bytes;
    {
        const std::lock_guard lock(mutex_);
        bytes = source.bytes;
    }
    PictureFolders::File file;
    if (bytes.empty()) {
        ASSIGN_OR_RETURN(file, read_again(source));
        bytes = file.bytes;
    }
    Result<PreparedPicture> prepared = processor_->prepare(bytes);
    if (!prepared.ok()) {
        Status status = as_row_error(prepared.status());
        return file.path.empty() ? status : std::move(status).within(file.path);
    }
    if (!(prepared->grid == source.grid)) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "the picture is not of the size that its header says");
    }
    return std::shared_ptr<const PreparedPicture>(
        std::make_shared<PreparedPicture>(std::move(prepared).value()));
}

void ReadPictures::add(const ReadPicture &file) {
    const uint64_t hash = XXH3_64bits_withSeed(file.path.data(), file.path.size(),
                                               file.hash[0] ^ static_cast<uint64_t>(file.changed));
    const std::lock_guard lock(mutex_);
    if (known_.contains(hash)) return;
    files_.push_back(file);
    known_.insert(hash);
}

std::vector<ReadPicture> ReadPictures::take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(files_, {});
}

std::shared_ptr<ReadPictures> PictureLibrary::keep_read() {
    auto made = std::make_shared<ReadPictures>();
    const std::lock_guard lock(mutex_);
    std::erase_if(lists_, [](const auto &list) { return list.expired(); });
    lists_.push_back(made);
    return made;
}

void PictureLibrary::list(const ReadPicture &file) {
    for (const std::weak_ptr<ReadPictures> &list : lists_) {
        if (const auto held = list.lock()) held->add(file);
    }
}

Result<bool> PictureLibrary::has_changed(const ReadPicture &file) const {
    ASSIGN_OR_RETURN(const auto since,
                     PictureFolders::since_read(file.path, file.bytes, file.changed));
    if (since != PictureFolders::Since::unknown || processor_ == nullptr) return false;
    Result<PictureFolders::File> now = folders_.read_again(file.path, processor_->limits().bytes);
    if (is_failure_of_process(now.status().code())) return now.status();
    return !now.ok() || hash_of(now->bytes) != file.hash;
}

Status encode_conversation(const ChatTemplate &chat, ChatTemplate::Options options,
                           const Tokenizer &tokenizer, PictureLibrary *library,
                           const Status &no_pictures, std::string_view conversation,
                           std::span<const PictureInput> pictures, std::vector<int32_t> *tokens,
                           std::vector<SharedPicture> *held) {
    std::string text;
    ConversationPictures parts;
    options.pictures = &parts;
    RETURN_IF_ERROR(chat.render(conversation, options, &text));
    std::vector<PictureInput> inputs;
    size_t given = 0;
    for (const std::optional<std::string> &name : parts) {
        if (name.has_value()) {
            inputs.push_back({true, std::as_bytes(std::span(name->data(), name->size()))});
        } else if (given++ < pictures.size()) {
            inputs.push_back(pictures[given - 1]);
        }
    }
    if (given != pictures.size()) {
        return error(BATCHLLM_ERROR_ROW_PICTURE,
                     "the row has %zu pictures, and its conversation %zu parts for them",
                     pictures.size(), given);
    }
    if (inputs.empty()) return tokenizer.encode(text, chat_encode_options, tokens);
    RETURN_IF_ERROR(no_pictures);
    return library->encode(tokenizer, text, inputs, chat_encode_options, tokens, held);
}

} // namespace batchllm
