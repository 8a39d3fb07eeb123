// Pictures of all kinds against Pillow and transformers' processors (scripts/make_pictures.py), and files that are broken or
// lie.
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "image/picture_processor.h"
#include "image/resize.h"
#include "image/rope_positions.h"

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

using namespace batchllm;

namespace {

// Other versions of the decoders may round otherwise than those of the golden values.
constexpr int most_levels = 2;

std::string read(const std::string &path) {
    auto text = read_file(path, 64 << 20);
    if (!text.ok()) fail_msg("%s", text.status().message().c_str());
    return std::move(text).value();
}

std::span<const std::byte> bytes_of(const std::string &text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

std::string picture(const std::string &file) { return read("image/pictures/" + file); }

struct Golden {
    Golden() : document(JsonDocument::load("image/pictures.json", BATCHLLM_ERROR_MODEL_FORMAT)) {}
    std::vector<JsonValue> list(const char *key) const {
        return document->root().at(key).value().elements().value();
    }
    Result<JsonDocument> document;
};

std::vector<double> numbers(const JsonValue &value) {
    std::vector<double> result;
    const auto elements = value.elements();
    for (const JsonValue &element : *elements)
        result.push_back(element.number(-1e15, 1e15).value());
    return result;
}

template <typename T> bool close(const std::vector<double> &golden, const T *values, size_t count,
                                 double tolerance, const std::string &what) {
    for (size_t i = 0; i < golden.size(); ++i) {
        // As numpy.linspace(0, count - 1, n).astype(int).
        const auto at =
            static_cast<size_t>(static_cast<double>(i) * (static_cast<double>(count - 1) /
                                                          static_cast<double>(golden.size() - 1)));
        const size_t place = i + 1 == golden.size() ? count - 1 : at;
        if (std::abs(golden[i] - static_cast<double>(values[place])) <= tolerance) continue;
        print_error("%s: value %zu is %g, not %g\n", what.c_str(), place,
                    static_cast<double>(values[place]), golden[i]);
        return false;
    }
    return true;
}

struct Model {
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<const PictureProcessor> processor;
};

Model load(const std::string &folder) {
    Model model;
    auto tokenizer = Tokenizer::load(folder);
    assert_true(tokenizer.ok());
    model.tokenizer = std::move(tokenizer).value();
    auto processor = PictureProcessor::make(folder, model.tokenizer.get());
    if (!processor.ok()) fail_msg("%s", processor.status().message().c_str());
    model.processor = std::move(processor).value();
    assert_non_null(model.processor.get());
    return model;
}

void every_kind_of_file_has_the_pixels_of_pillow(void **) {
    const Golden golden;
    int wrong = 0;
    for (const JsonValue &entry : golden.list("pictures")) {
        const std::string file = entry.string("file").value(), data = picture(file);
        const auto width = entry.at("width").value().integer(1, 10000).value();
        const auto height = entry.at("height").value().integer(1, 10000).value();
        const auto size = picture_size(bytes_of(data));
        const auto pixels = decode_picture(bytes_of(data));
        if (!size.ok() || !pixels.ok()) {
            print_error("%s: %s\n", file.c_str(), pixels.status().message().c_str());
            ++wrong;
            continue;
        }
        if (size->width != width || size->height != height || pixels->width != width ||
            pixels->height != height) {
            print_error("%s: %d x %d\n", file.c_str(), pixels->width, pixels->height);
            ++wrong;
            continue;
        }
        const auto count = static_cast<size_t>(width * height * 3);
        wrong += !close(numbers(entry.at("pixels").value()), pixels->rgb.get(), count, most_levels,
                        file);
        // The mean of all of them shows what the samples miss.
        int64_t sum = 0;
        for (size_t i = 0; i < count; ++i) sum += pixels->rgb[i];
        const int64_t golden_sum = entry.at("sum").value().integer(0, int64_t{1} << 50).value();
        if (std::abs(static_cast<double>(sum - golden_sum)) > 0.1 * static_cast<double>(count)) {
            print_error("%s: the values' sum is %lld\n", file.c_str(), static_cast<long long>(sum));
            ++wrong;
        }
    }
    assert_int_equal(wrong, 0);
}

void processors_make_the_patches_and_tokens_of_transformers(void **) {
    const Golden golden;
    std::map<std::string, Model, std::less<>> models;
    int wrong = 0, with_ids = 0;
    for (const JsonValue &entry : golden.list("pictures")) {
        const std::string file = entry.string("file").value(), data = picture(file);
        const auto all = entry.at("prepared").value().members();
        for (const auto &[name, kept] : *all) {
            auto found = models.find(name);
            if (found == models.end()) {
                const std::string folder = "image/processors/" + std::string(name);
                found = models.emplace(name, load(folder)).first;
            }
            const PictureProcessor &processor = *found->second.processor;
            const std::string what = file + " for " + std::string(name);
            const auto prepared = processor.prepare(bytes_of(data));
            if (kept.find("error")) {
                if (prepared.ok()) print_error("%s: accepted\n", what.c_str());
                wrong += prepared.ok();
                continue;
            }
            if (!prepared.ok()) {
                print_error("%s: %s\n", what.c_str(), prepared.status().message().c_str());
                ++wrong;
                continue;
            }
            const auto size = picture_size(bytes_of(data));
            const PictureGrid grid = processor.grid(size->width, size->height).value();
            assert_true(grid == prepared->grid);
            const std::vector<double> numbers_of_grid = numbers(kept.at("grid").value());
            if (numbers_of_grid != std::vector<double>{double(grid.rows), double(grid.columns),
                                                       double(grid.merge), double(grid.tokens)}) {
                print_error("%s: %d x %d patches\n", what.c_str(), grid.rows, grid.columns);
                ++wrong;
                continue;
            }
            const double level = 1.0 / 255 / 0.26;
            wrong += !close(numbers(kept.at("values").value()), prepared->patches.data(),
                            prepared->patches.size(), most_levels * level, what);
            double sum = 0;
            for (const float value : prepared->patches) sum += static_cast<double>(value);
            const double mean = kept.at("mean").value().number(-1e6, 1e6).value();
            if (std::abs(sum / static_cast<double>(prepared->patches.size()) - mean) > level / 10) {
                print_error("%s: another mean\n", what.c_str());
                ++wrong;
            }
            if (const auto ids = kept.find("ids")) {
                ++with_ids;
                std::vector<int32_t> tokens, laid;
                assert_true(
                    found->second.tokenizer
                        ->encode("a" + processor.replaced_by() + " b", {true, true}, &tokens)
                        .ok());
                for (const int32_t token : tokens) {
                    const auto layout = processor.layout(grid);
                    if (token == processor.token()) {
                        laid.insert(laid.end(), layout.begin(), layout.end());
                    } else {
                        laid.push_back(token);
                    }
                }
                const std::vector<double> expected = numbers(*ids);
                const bool equal =
                    std::equal(laid.begin(), laid.end(), expected.begin(), expected.end(),
                               [](int32_t a, double b) { return a == b; });
                if (!equal) print_error("%s: other tokens\n", what.c_str());
                wrong += !equal;
            }
        }
    }
    assert_int_equal(wrong, 0);
    assert_true(with_ids > 20);
}

void processors_differ_in_their_fingerprints(void **) {
    std::map<uint64_t, std::string> seen;
    for (const char *name :
         {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "gemma4", "mistral3"}) {
        const std::string folder = std::string("image/processors/") + name;
        const uint64_t fingerprint = load(folder).processor->fingerprint();
        assert_true(fingerprint == load(folder).processor->fingerprint());
        assert_true(seen.emplace(fingerprint, name).second);
    }
}

void rope_positions_are_those_of_get_rope_index(void **) {
    const Golden golden;
    for (const JsonValue &entry : golden.list("rope")) {
        std::vector<PicturePlace> places;
        const auto pictures = entry.at("pictures").value().elements();
        for (const JsonValue &one : *pictures) {
            const std::vector<double> n = numbers(one);
            PicturePlace place;
            place.first = static_cast<int32_t>(n[0]);
            place.grid = {static_cast<int32_t>(n[1]), static_cast<int32_t>(n[2]),
                          static_cast<int32_t>(n[3]),
                          static_cast<int32_t>(n[1] * n[2] / n[3] / n[3])};
            places.push_back(place);
        }
        const RopePositions positions(places);
        const auto axes = entry.at("positions").value().elements();
        const std::vector<double> time = numbers((*axes)[0]), row = numbers((*axes)[1]),
                                  column = numbers((*axes)[2]);
        for (size_t i = 0; i < time.size(); ++i) {
            const RopePosition at = positions.at(static_cast<int32_t>(i));
            assert_true(at.time == time[i] && at.row == row[i] && at.column == column[i]);
        }
        const auto end = static_cast<int32_t>(time.size()) + 5;
        assert_int_equal(positions.at(end).time, end - positions.shortened());
    }
}

// The error's text, or "" if the file is accepted.
std::string refusal(const std::string &data, const PictureLimits &limits = {}) {
    const auto pixels = decode_picture(bytes_of(data), limits);
    if (pixels.ok()) return "";
    assert_int_equal(pixels.status().code(), BATCHLLM_ERROR_INVALID_ARGUMENT);
    return pixels.status().message();
}

void truncated_files_are_refused(void **) {
    const Golden golden;
    for (const JsonValue &entry : golden.list("pictures")) {
        const std::string file = entry.string("file").value(), data = picture(file);
        for (size_t tenth = 0; tenth < 10; ++tenth) {
            const std::string part = data.substr(0, data.size() * tenth / 10);
            // Behind its pixels a file may have more: metadata, further frames, the end mark of PNG.
            const bool pixels_are_all_there = tenth == 9 && data.size() < 300;
            const bool later_frames = file == "webp_animated.webp" && tenth >= 3;
            if (pixels_are_all_there || later_frames) {
                (void)decode_picture(bytes_of(part));
            } else if (refusal(part).empty()) {
                fail_msg("%s: %zu of %zu bytes are accepted", file.c_str(), part.size(),
                         data.size());
            }
        }
    }
    assert_non_null(
        strstr(refusal(picture("jpeg_large.jpg").substr(0, 50000)).c_str(), "truncated"));
    assert_non_null(strstr(refusal(picture("png_rgb.png").substr(0, 500)).c_str(), "truncated"));
    assert_non_null(
        strstr(refusal(picture("webp_lossy.webp").substr(0, 500)).c_str(), "truncated"));
}

void what_is_no_picture_is_refused_by_name(void **) {
    assert_string_equal(refusal("").c_str(), "the picture has no bytes");
    for (const char *other : {"GIF89a....", "%PDF-1.7", "RIFF....WAVE", "\xff\xd8", "\x89PNG"}) {
        assert_string_equal(refusal(other).c_str(), "not a JPEG, PNG or WebP file");
    }
    assert_string_equal(refusal(std::string(1000, '\0')).c_str(), "not a JPEG, PNG or WebP file");
}

void put_u32(std::string *data, size_t at, uint32_t value) {
    for (size_t i = 0; i < 4; ++i) (*data)[at + i] = static_cast<char>(value >> (24 - 8 * i));
}

// With the sum that goes over it put right.
void put_png_size(std::string *png, uint32_t width, uint32_t height) {
    put_u32(png, 16, width);
    put_u32(png, 20, height);
    uint32_t sum = 0xffffffff;
    for (size_t at = 12; at < 29; ++at) {
        sum ^= static_cast<uint8_t>((*png)[at]);
        for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
    }
    put_u32(png, 29, ~sum);
}

void bombs_and_lying_headers_are_refused(void **) {
    // A JPEG's SOF0 says 65,500 x 65,500.
    std::string jpeg = picture("jpeg_420.jpg");
    const size_t frame = jpeg.find("\xff\xc0");
    assert_true(frame != std::string::npos);
    for (const size_t at : {frame + 5, frame + 7}) {
        jpeg[at] = '\xff';
        jpeg[at + 1] = '\xdc';
    }
    assert_string_equal(refusal(jpeg).c_str(),
                        "65500 x 65500 pixels are more than the limit of 178956970");
    assert_false(picture_size(bytes_of(jpeg)).ok());
    jpeg[frame + 5] = jpeg[frame + 7] = 0;
    jpeg[frame + 6] = 0;
    assert_false(refusal(jpeg).empty());

    // A PNG that has the pixels of 77 x 50 and says more.
    std::string png = picture("png_rgb.png");
    put_png_size(&png, 77, 50);
    assert_string_equal(refusal(png).c_str(), "");
    put_png_size(&png, 77, 51);
    assert_true(picture_size(bytes_of(png)).ok());
    assert_non_null(strstr(refusal(png).c_str(), "not a valid PNG file"));
    put_png_size(&png, 1 << 20, 1 << 20);
    assert_string_equal(refusal(png).c_str(),
                        "1048576 x 1048576 pixels are more than the limit of 178956970");
    put_png_size(&png, 1 << 30, 1);
    assert_string_equal(refusal(png).c_str(),
                        "a side of 1073741824 pixels is more than the limit of 1048576");

    const std::string good = picture("png_rgb.png");
    PictureLimits limits;
    limits.pixels = 77 * 50;
    assert_string_equal(refusal(good, limits).c_str(), "");
    limits.pixels = 77 * 50 - 1;
    assert_string_equal(refusal(good, limits).c_str(),
                        "77 x 50 pixels are more than the limit of 3849");
    limits = {};
    limits.bytes = static_cast<int64_t>(good.size()) - 1;
    assert_non_null(strstr(refusal(good, limits).c_str(), "more than the limit of"));
    limits = {};
    limits.side = 76;
    assert_string_equal(refusal(good, limits).c_str(),
                        "a side of 77 pixels is more than the limit of 76");
}

// The last scan of a progressive file again and again: each costs a pass over the whole picture.
void many_scans_are_refused(void **) {
    const std::string jpeg = picture("jpeg_progressive.jpg");
    const size_t last = jpeg.rfind("\xff\xda"), end = jpeg.rfind("\xff\xd9");
    assert_true(last != std::string::npos && end != std::string::npos && last < end);
    const auto repeated = [&](int times) {
        std::string file = jpeg.substr(0, end);
        for (int i = 0; i < times; ++i) file += jpeg.substr(last, end - last);
        return file + jpeg.substr(end);
    };
    assert_string_equal(refusal(repeated(100)).c_str(), "");
    assert_non_null(strstr(refusal(repeated(500)).c_str(), "too many scans"));
}

void a_size_that_a_model_does_not_take_is_refused(void **) {
    const Model qwen = load("image/processors/qwen3_vl");
    assert_true(qwen.processor->grid(2000, 10).ok());
    const auto refused = qwen.processor->grid(2001, 10);
    assert_int_equal(refused.status().code(), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_string_equal(refused.status().message().c_str(),
                        "the longer side of 2001 x 10 pixels is more than 200 times the shorter");
    assert_false(qwen.processor->grid(0, 10).ok());
    // The published limits: 16,777,216 pixels at most.
    const PictureGrid large = qwen.processor->grid(20000, 10000).value();
    assert_true(int64_t{large.rows} * large.columns * 256 <= 16777216);
}

void a_size_is_kept_bit_for_bit_where_nothing_changes(void **) {
    auto pixels = decode_picture(bytes_of(picture("png_rgb.png")));
    const std::vector<uint8_t> before(pixels->rgb.get(), pixels->rgb.get() + 77 * 50 * 3);
    const auto same = resize_picture(std::move(pixels).value(), 77, 50, ResizeFilter::bicubic);
    assert_memory_equal(same->rgb.get(), before.data(), before.size());
}

std::string folder_with(const std::string &config, const std::string &preprocessor) {
    char path[] = "/tmp/batchllm_image_XXXXXX";
    assert_non_null(mkdtemp(path));
    const std::string folder = path;
    assert_true(write_file(folder + "/config.json", config).ok());
    if (!preprocessor.empty()) {
        assert_true(write_file(folder + "/preprocessor_config.json", preprocessor).ok());
    }
    return folder;
}

// The error of a processor from these files, "none" if there is none, "text" if the model reads text.
std::string made(const std::string &config, const std::string &preprocessor) {
    const std::string folder = folder_with(config, preprocessor);
    const auto processor = PictureProcessor::make(folder, nullptr);
    for (const char *file : {"/config.json", "/preprocessor_config.json"}) {
        std::remove((folder + file).c_str());
    }
    std::remove(folder.c_str());
    if (!processor.ok()) return processor.status().message();
    return *processor == nullptr ? "text" : "none";
}

void settings_that_are_not_known_are_refused_by_name(void **) {
    const std::string qwen = R"({"model_type":"qwen3_vl","vision_config":{}})";
    const auto with = [](const std::string &more) {
        return R"({"image_processor_type":"Qwen2VLImageProcessor")" + more + "}";
    };
    assert_string_equal(made(R"({"model_type":"llama"})", "").c_str(), "text");
    assert_string_equal(made(qwen, with("")).c_str(), "none");
    const struct {
        std::string config, preprocessor, text;
    } cases[] = {
        {qwen, "", "no such file"},
        {qwen, R"({"image_processor_type":"CLIPImageProcessor"})", "CLIPImageProcessor"},
        {R"({"model_type":"llava","vision_config":{}})", with(""), "llava"},
        {qwen, with(R"(,"do_resize":false)"), "do_resize"},
        {qwen, with(R"(,"do_center_crop":true)"), "do_center_crop"},
        {qwen, with(R"(,"resample":1)"), "resample"},
        {qwen, with(R"(,"image_mean":[1,2])"), "image_mean"},
        {qwen, with(R"(,"image_std":[0,1,1])"), "image_std"},
        {qwen, with(R"(,"patch_size":0)"), "patch_size"},
        {qwen, with(R"(,"min_pixels":9,"max_pixels":8)"), "more pixels at least"},
        {R"({"model_type":"gemma3","vision_config":{}})",
         R"({"image_processor_type":"Gemma3ImageProcessor","do_pan_and_scan":true})",
         "do_pan_and_scan"},
        {R"({"model_type":"gemma3","vision_config":{},"mm_tokens_per_image":255})",
         R"({"image_processor_type":"Gemma3ImageProcessor"})", "255 tokens"},
        {R"({"model_type":"mistral3","vision_config":{}})",
         R"({"image_processor_type":"PixtralImageProcessor"})", "tokenizer"},
    };
    for (const auto &one : cases) {
        const std::string error = made(one.config, one.preprocessor);
        if (error.find(one.text) == std::string::npos) {
            fail_msg("%s: %s", one.preprocessor.c_str(), error.c_str());
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_file_has_the_pixels_of_pillow),
        cmocka_unit_test(processors_make_the_patches_and_tokens_of_transformers),
        cmocka_unit_test(processors_differ_in_their_fingerprints),
        cmocka_unit_test(rope_positions_are_those_of_get_rope_index),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(what_is_no_picture_is_refused_by_name),
        cmocka_unit_test(bombs_and_lying_headers_are_refused),
        cmocka_unit_test(many_scans_are_refused),
        cmocka_unit_test(a_size_that_a_model_does_not_take_is_refused),
        cmocka_unit_test(a_size_is_kept_bit_for_bit_where_nothing_changes),
        cmocka_unit_test(settings_that_are_not_known_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("image", tests, nullptr, nullptr);
}
