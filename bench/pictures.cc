// Pictures a second on one core: files -> patches.
//     build/bench/pictures MODEL_FOLDER FILE.. [--seconds S]
//         for each file: its size, tokens, milliseconds of decoding alone and of all. bench/pictures.py runs it beside
//         Pillow with torchvision.
//     build/bench/pictures MODEL_FOLDER FILE.. --write FOLDER
//         writes what the tower would read as f32 to FOLDER/NUMBER.f32 and prints "rows columns merge tokens", or the
//         error: what scripts/make_pictures.py --compare reads.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "image/picture_processor.h"

using namespace batchllm;

namespace {

[[noreturn]] void die(const std::string &text) {
    std::fprintf(stderr, "%s\n", text.c_str());
    std::exit(1);
}

// Milliseconds that a call takes of a processor, when it is repeated for `seconds`: the fewest.
template <typename Call> double fewest(double seconds, const Call &call) {
    const auto now = [] { return 1000.0 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
    double best = 1e9;
    for (const double begin = now(); now() - begin < 1000 * seconds;) {
        const double start = now();
        call();
        best = std::min(best, now() - start);
    }
    return best;
}

void write(const PictureProcessor &processor, std::span<const std::byte> file,
           const std::string &path) {
    const auto prepared = processor.prepare(file);
    if (!prepared.ok()) {
        std::printf("error: %s\n", prepared.status().message().c_str());
        return;
    }
    const PictureGrid &grid = prepared->grid;
    std::printf("%d %d %d %d\n", grid.rows, grid.columns, grid.merge, grid.tokens);
    const auto *bytes = reinterpret_cast<const char *>(prepared->patches.data());
    const Status status =
        write_file(path, {bytes, prepared->patches.size() * sizeof prepared->patches[0]});
    if (!status.ok()) die(status.message());
}

} // namespace

int main(int count, char **arguments) {
    std::vector<std::string> paths;
    std::string folder;
    double seconds = 1;
    for (int i = 1; i < count; ++i) {
        const std::string argument = arguments[i];
        if (argument == "--seconds" && i + 1 < count) {
            seconds = std::atof(arguments[++i]);
        } else if (argument == "--write" && i + 1 < count) {
            folder = arguments[++i];
        } else {
            paths.push_back(argument);
        }
    }
    if (paths.size() < 2) die("usage: pictures MODEL_FOLDER FILE.. [--seconds S | --write FOLDER]");
    const auto tokenizer = Tokenizer::load(paths[0]); // not all processors need it
    const auto processor =
        PictureProcessor::make(paths[0], tokenizer.ok() ? tokenizer->get() : nullptr);
    if (!processor.ok()) {
        if (!tokenizer.ok()) std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
        die(processor.status().message());
    }
    if (*processor == nullptr) die(paths[0] + ": reads text alone");
    for (size_t i = 1; i < paths.size(); ++i) {
        const auto file = MappedFile::open(paths[i]);
        if (!file.ok()) die(file.status().message());
        const auto bytes = file->bytes();
        if (!folder.empty()) {
            write(**processor, bytes, folder + "/" + std::to_string(i - 1) + ".f32");
            continue;
        }
        const auto size = picture_size(bytes);
        const auto once = (*processor)->prepare(bytes);
        if (!size.ok() || !once.ok()) die(paths[i] + ": " + once.status().message());
        const double decode = fewest(seconds, [&] { (void)decode_picture(bytes); });
        const double all = fewest(seconds, [&] { (void)(*processor)->prepare(bytes); });
        std::printf("%s: %d x %d, %d tokens: decode %.2f ms, all %.2f ms, %.1f pictures/s\n",
                    paths[i].c_str(), size->width, size->height, once->grid.tokens, decode, all,
                    1000 / all);
    }
}
