#include "linear/tuning_cache.h"

#include <charconv>
#include <cinttypes>
#include <cstdio>

#include "base/cache_path.h"
#include "base/file.h"

namespace batchllm::cuda {
namespace {

constexpr std::string_view kMagic = "batchllm tuning ";
constexpr std::string_view kFirstLine = "batchllm tuning 4\n";
constexpr size_t kMostBytes = size_t{1} << 20;

uint64_t fnv1a(std::string_view text) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
}

// Takes "<number><end>" from the front.
bool take_number(std::string_view *text, char end, int64_t least, int64_t most, int64_t *number) {
    const char *stop = text->data() + text->size();
    const auto [at, failure] = std::from_chars(text->data(), stop, *number);
    if (failure != std::errc() || at == stop || *at != end) return false;
    text->remove_prefix(static_cast<size_t>(at - text->data()) + 1);
    return *number >= least && *number <= most;
}

bool take(std::string_view *text, std::string_view expected) {
    if (!text->starts_with(expected)) return false;
    text->remove_prefix(expected.size());
    return true;
}

std::string last_line(std::string_view before) {
    char line[32];
    std::snprintf(line, sizeof line, "end %016" PRIx64 "\n", fnv1a(before));
    return line;
}

} // namespace

bool TuningCache::parse(std::string_view text, std::string_view stamp,
                        std::map<TuningKey, int32_t> *choices) {
    choices->clear();
    const size_t end = text.rfind("end ");
    if (end == std::string_view::npos || text.substr(end) != last_line(text.substr(0, end))) {
        return false;
    }
    text = text.substr(0, end);
    if (!take(&text, kFirstLine)) return false;
    const size_t line = text.find('\n');
    if (line == std::string_view::npos) return false;
    // Of another version or device: a good file that says nothing about this one.
    if (text.substr(0, line) != stamp) return true;
    text.remove_prefix(line + 1);
    std::map<TuningKey, int32_t> read;
    while (!text.empty()) {
        constexpr int64_t most = INT32_MAX;
        int64_t m = 0, n = 0, k = 0, element = 0, result = 0, accumulate = 0, candidate = 0;
        if (!take_number(&text, ' ', 1, most, &m) || !take_number(&text, ' ', 1, most, &n) ||
            !take_number(&text, ' ', 1, most, &k) || !take_number(&text, ' ', 0, 255, &element) ||
            !take_number(&text, ' ', 0, 255, &result) ||
            !take_number(&text, ' ', 0, 4, &accumulate) ||
            !take_number(&text, '\n', 0, kCandidates - 1, &candidate) ||
            read.size() >= kMostEntries) {
            return false;
        }
        read[{m, n, k, static_cast<int32_t>(element), static_cast<int32_t>(result),
              static_cast<int32_t>(accumulate)}] = static_cast<int32_t>(candidate);
    }
    *choices = std::move(read);
    return true;
}

std::string TuningCache::text() const {
    std::string text(kFirstLine);
    text += stamp_ + '\n';
    for (const auto &[key, candidate] : choices_) {
        char line[160];
        std::snprintf(line, sizeof line, "%" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %d\n", key.m,
                      key.n, key.k, key.element, key.result, key.accumulate, candidate);
        text += line;
    }
    return text + last_line(text);
}

TuningCache::TuningCache(std::string path, std::string stamp, std::string *warning,
                         std::span<const std::string_view> shipped)
    : path_(std::move(path)), stamp_(std::move(stamp)) {
    for (size_t i = 0; i < shipped.size() && shipped_.empty(); ++i) {
        parse(shipped[i], stamp_, &shipped_);
    }
    if (path_.empty()) return;
    const Result<bool> there = file_exists(path_);
    if (!there.ok()) {
        *warning = "tuning cache: " + there.status().message() + "; not used";
        path_.clear();
        return;
    }
    if (!*there) return;
    const Result<std::string> read = read_file(path_, kMostBytes);
    if (!read.ok()) {
        *warning = "tuning cache: " + read.status().message() + "; not used";
        path_.clear();
    } else if (!read->empty() && !std::string_view(*read).starts_with(kMagic)) {
        *warning = "tuning cache " + path_ + ": not such a file; not used, and left as it is";
        path_.clear();
    } else if (!parse(*read, stamp_, &choices_) &&
               (read->empty() || std::string_view(*read).starts_with(kFirstLine))) {
        *warning = "tuning cache " + path_ + ": torn or changed; not used, and written anew";
    }
}

int32_t TuningCache::find(const TuningKey &key) const {
    for (const auto *choices : {&choices_, &shipped_}) {
        if (const auto found = choices->find(key); found != choices->end()) return found->second;
    }
    return -1;
}

void TuningCache::add(const TuningKey &key, int32_t candidate) {
    if (choices_.size() >= kMostEntries) return;
    choices_[key] = candidate;
    changed_ = true;
}

void TuningCache::save() {
    if (!changed_) return;
    changed_ = false;
    if (path_.empty()) return;
    std::map<TuningKey, int32_t> theirs;
    const Result<std::string> read = read_file(path_, kMostBytes);
    if (read.ok() && parse(*read, stamp_, &theirs)) choices_.merge(theirs);
    if (!keep_in_cache(path_, text())) path_.clear();
}

} // namespace batchllm::cuda
