// libFuzzer: the bytes of a picture to what a tower reads. Nothing may crash or take memory that a
// header alone asks for; what a header says must be what decoding gives.
//
// Input: one byte that picks the processor, then the file.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "fuzz_folder.h"
#include "image/picture_processor.h"

namespace {

using namespace batchllm;

// Small, so that a run takes milliseconds.
constexpr PictureLimits limits{.bytes = 1 << 20, .pixels = 1 << 18, .side = 1 << 14};

std::unique_ptr<const PictureProcessor> make(const char *config, const char *preprocessor) {
    const fuzz::Folder folder;
    folder.write("config.json", config);
    folder.write("preprocessor_config.json", preprocessor);
    auto processor = PictureProcessor::make(folder.path(), nullptr, limits);
    if (!processor.ok()) std::abort();
    return std::move(processor).value();
}

void check(bool good) {
    if (!good) std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const std::unique_ptr<const PictureProcessor> processors[] = {
        make(R"({"model_type":"qwen2_5_vl","vision_config":{}})",
             R"({"image_processor_type":"Qwen2VLImageProcessor","max_pixels":50176})"),
        make(
            R"({"model_type":"gemma3","vision_config":{},"mm_tokens_per_image":16})",
            R"({"image_processor_type":"Gemma3ImageProcessor","size":{"width":112,"height":112}})"),
        make(R"({"model_type":"gemma4","vision_config":{}})",
             R"({"image_processor_type":"Gemma4ImageProcessor","max_soft_tokens":70})"),
    };
    if (size == 0) return 0;
    const PictureProcessor &processor = *processors[data[0] % std::size(processors)];
    const auto file = std::as_bytes(std::span(data + 1, size - 1));
    const auto header = picture_size(file, limits);
    const auto pixels = decode_picture(file, limits);
    check(header.ok() || !pixels.ok());
    if (pixels.ok()) check(pixels->width == header->width && pixels->height == header->height);
    const auto prepared = processor.prepare(file);
    check(pixels.ok() || !prepared.ok());
    if (!prepared.ok()) {
        check(!prepared.status().message().empty());
        return 0;
    }
    const auto grid = processor.grid(header->width, header->height);
    check(grid.ok() && *grid == prepared->grid);
    check(processor.layout(*grid).size() >= static_cast<size_t>(grid->tokens));
    for (const float value : prepared->patches) check(std::isfinite(value));
    return 0;
}
