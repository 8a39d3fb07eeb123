// Rows with pictures against transformers, on the CPU or, with the argument cuda, there: tests/golden/*_pictures, made by
// scripts/golden_pictures.py. However rows share and are divided, and whatever other rows a job has, a row
// says what it says alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <simdjson.h>

#include "batchllm.h"
#include "late_backend.h"
#include "runtime/backend_choice.h"
#include "runtime/engine.h"

// Last: cmocka has macros with everyday names.
#include "golden_files.h"
#include "testing.h"

namespace {

constexpr double margin_limit = 1e-3;
constexpr double logprob_tolerance = 2e-3;

bool on_cuda = false; // the argument

batchllm_engine_options device_options() {
    batchllm_engine_options options = float32_options();
    if (on_cuda) {
        options.backend = "cuda";
        options.backend_options = "tuning=0,quantize=none";
    }
    return options;
}

struct PicturesDeleter {
    void operator()(batchllm_pictures *pictures) const { batchllm_pictures_destroy(pictures); }
};
using PicturesHandle = std::unique_ptr<batchllm_pictures, PicturesDeleter>;
struct ColumnDeleter {
    void operator()(batchllm_column *column) const { batchllm_column_free(column); }
};
using ColumnHandle = std::unique_ptr<batchllm_column, ColumnDeleter>;

struct PictureRow : GoldenRow {
    std::string text;              // as the chat template renders it
    std::string conversation;      // with the pictures' file names
    std::vector<int32_t> pictures; // numbers
};

struct PictureGolden {
    std::string directory;
    int32_t new_tokens = 0;
    std::vector<std::string> files;    // names
    std::vector<std::string> pictures; // their bytes
    std::vector<PictureRow> rows;
};

std::string read_bytes(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

PictureGolden read_pictures(const std::string &directory) {
    PictureGolden golden;
    golden.directory = directory;
    simdjson::dom::parser parser;
    const simdjson::dom::element file = parser.load(directory + "/pictures.json");
    golden.new_tokens = static_cast<int32_t>(int64_t(file["new_tokens"]));
    for (const auto picture : file["pictures"]) {
        golden.files.emplace_back(std::string_view(picture["file"]));
        golden.pictures.push_back(read_bytes(directory + "/" + golden.files.back()));
    }
    for (const auto made : file["rows"]) {
        PictureRow row;
        row.text = std::string(std::string_view(made["text"]));
        row.prompt = read_ints(made["prompt"]);
        row.tokens = read_ints(made["tokens"]);
        row.margins = read_doubles(made["margins"]);
        row.logprobs = read_doubles(made["logprobs"]);
        row.pictures = read_ints(made["pictures"]);
        row.conversation = simdjson::minify(made["messages"]);
        for (size_t i = 0; i < golden.files.size(); ++i) {
            const std::string number = "\"image\":" + std::to_string(i) + "}";
            for (size_t at = row.conversation.find(number); at != std::string::npos;
                 at = row.conversation.find(number)) {
                row.conversation.replace(at, number.size(),
                                         "\"image\":\"" + golden.files[i] + "\"}");
            }
        }
        golden.rows.push_back(std::move(row));
    }
    return golden;
}

std::vector<PictureGolden> goldens() {
    std::vector<PictureGolden> all;
    for (const std::string &name : golden_models("pictures.json")) {
        all.push_back(read_pictures("golden/" + name));
    }
    assert_true(!all.empty());
    return all;
}

PicturesHandle make_pictures(const std::string &model, std::vector<std::string> folders) {
    std::vector<const char *> names;
    for (const std::string &folder : folders) names.push_back(folder.c_str());
    batchllm_pictures_options options;
    batchllm_pictures_options_init(&options, sizeof options);
    options.model_dir = model.c_str();
    options.folders = names.data();
    options.folder_count = static_cast<int64_t>(names.size());
    batchllm_pictures *pictures = nullptr;
    CHECK(batchllm_pictures_create(&options, &pictures));
    return PicturesHandle(pictures);
}

// Texts with the pictures of each, as the library takes them.
struct Columns {
    std::string text;
    std::vector<int64_t> text_offsets = {0};
    std::vector<int64_t> rows = {0};
    std::string bytes;
    std::vector<int64_t> offsets = {0};
    std::vector<uint8_t> kinds;

    void add(const std::string &row, const std::vector<std::string> &pictures,
             uint8_t kind = BATCHLLM_PICTURE_BYTES) {
        text += row;
        text_offsets.push_back(static_cast<int64_t>(text.size()));
        for (const std::string &picture : pictures) {
            bytes += picture;
            offsets.push_back(static_cast<int64_t>(bytes.size()));
            kinds.push_back(kind);
        }
        rows.push_back(static_cast<int64_t>(offsets.size()) - 1);
    }
    int64_t count() const { return static_cast<int64_t>(text_offsets.size()) - 1; }
    batchllm_picture_column column(bool chat) const {
        batchllm_picture_column made{};
        made.struct_size = sizeof made;
        made.chat = chat ? 1 : 0;
        made.rows = rows.data();
        made.bytes = reinterpret_cast<const uint8_t *>(bytes.data());
        made.offsets = offsets.data();
        made.kinds = kinds.data();
        return made;
    }
};

batchllm_params params_of(const PictureGolden &golden) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = golden.new_tokens;
    params.logprobs = 0;
    params.add_special = 0;
    return params;
}

void add(batchllm_engine *engine, const Columns &columns, bool chat,
         const batchllm_params &params) {
    const batchllm_picture_column column = columns.column(chat);
    CHECK(batchllm_add_pictures(engine, columns.count(), columns.text.data(),
                                columns.text_offsets.data(), &column, nullptr, &params, 1));
}

std::vector<std::string> pictures_of(const PictureGolden &golden, const PictureRow &row) {
    std::vector<std::string> found;
    for (const int32_t number : row.pictures) {
        found.push_back(golden.pictures[static_cast<size_t>(number)]);
    }
    return found;
}

Columns with_bytes(const PictureGolden &golden, int times = 1) {
    Columns columns;
    for (int i = 0; i < times; ++i) {
        for (const PictureRow &row : golden.rows) columns.add(row.text, pictures_of(golden, row));
    }
    return columns;
}

void compare(const PictureGolden &golden, const batchllm_results &results) {
    int64_t compared = 0, all = 0;
    for (int64_t i = 0; i < results.count; ++i) {
        const size_t number = results.tags[i] % golden.rows.size();
        const PictureRow &row = golden.rows[number];
        if (results.statuses[i] != BATCHLLM_OK) {
            fail_msg("%s: row %d: %s: %.*s", golden.directory.c_str(), int(number),
                     batchllm_status_name(results.statuses[i]),
                     int(results.error_offsets[i + 1] - results.error_offsets[i]),
                     results.errors + results.error_offsets[i]);
        }
        assert_int_equal(results.prompt_tokens[i], row.prompt.size());
        const int64_t begin = results.token_offsets[i];
        const int64_t count = results.token_offsets[i + 1] - begin;
        all += static_cast<int64_t>(row.tokens.size());
        for (size_t t = 0; t < row.tokens.size(); ++t) {
            const auto at = static_cast<int64_t>(t);
            const int32_t token = at < count ? results.tokens[begin + at] : -1;
            if (token != row.tokens[t] && row.margins[t] < margin_limit) break;
            if (token != row.tokens[t]) {
                fail_msg("%s: row %d: token %d is %d and not %d (margin %g)",
                         golden.directory.c_str(), int(number), int(t), token, row.tokens[t],
                         row.margins[t]);
            }
            const double logprob = double(results.logprobs[results.logprob_offsets[i] + at]);
            if (!(std::fabs(logprob - row.logprobs[t]) <= logprob_tolerance)) {
                fail_msg("%s: row %d: log-probability %d is %g and not %g",
                         golden.directory.c_str(), int(number), int(t), logprob, row.logprobs[t]);
            }
            ++compared;
        }
    }
    assert_true(compared > all * 9 / 10);
}

// Runs the rows, each `times`, with pictures as bytes.
batchllm_stats compare_ways(const PictureGolden &golden, const batchllm_engine_options &options,
                            int times = 1) {
    const EngineHandle engine = make_engine(golden.directory, options);
    add(engine.get(), with_bytes(golden, times), false, params_of(golden));
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, golden.rows.size() * static_cast<size_t>(times));
    compare(golden, *results);
    return stats_of(engine);
}

void rows_say_what_transformers_says(void **) {
    for (const PictureGolden &golden : goldens()) {
        const batchllm_stats stats = compare_ways(golden, device_options());
        assert_true(stats.row_pictures >= stats.picture_loads && stats.picture_loads > 0);
    }
}

void conversations_name_files(void **) {
    for (const PictureGolden &golden : goldens()) {
        const PicturesHandle pictures = make_pictures(golden.directory, {golden.directory});
        batchllm_engine_options options = device_options();
        options.pictures = pictures.get();
        const EngineHandle engine = make_engine(golden.directory, options);
        std::string text;
        std::vector<int64_t> offsets = {0};
        for (const PictureRow &row : golden.rows) {
            text += row.conversation;
            offsets.push_back(static_cast<int64_t>(text.size()));
        }
        const batchllm_params params = params_of(golden);
        CHECK(batchllm_add_chat(engine.get(), static_cast<int64_t>(golden.rows.size()), text.data(),
                                offsets.data(), nullptr, &params, 1));
        const ResultsHandle results = run(engine.get());
        assert_int_equal(results->count, golden.rows.size());
        compare(golden, *results);
    }
}

void however_rows_are_shared_and_divided(void **) {
    for (const PictureGolden &golden : goldens()) {
        batchllm_engine_options options = device_options();
        options.enlarge = BATCHLLM_ENLARGE_NONE;
        compare_ways(golden, options);
        options = device_options();
        options.min_prefix_tokens = 1;
        options.levels = 2;
        compare_ways(golden, options, 2);
        // Pictures that see themselves need a step of their own length.
        const batchllm_engine_options chosen = device_options();
        for (const int64_t step : {5, 17, 33}) {
            options = chosen;
            options.min_prefix_tokens = 1;
            options.step_tokens = step;
            const EngineHandle engine = make_engine(golden.directory, options);
            add(engine.get(), with_bytes(golden), false, params_of(golden));
            const ResultsHandle results = run(engine.get());
            bool whole = true;
            for (int64_t i = 0; i < results->count; ++i) {
                whole = whole && results->statuses[i] != BATCHLLM_ERROR_ROW_PICTURE;
            }
            if (whole) compare(golden, *results);
            assert_true(whole || golden.directory.find("gemma") != std::string::npos);
        }
    }
}

void ranks_compute_pictures(void **) {
    int64_t compared = 0;
    for (const PictureGolden &golden : goldens()) {
        const std::string two = "tensor_parallel=2";
        // In steps of any size each rank owns rows, but where the tower adds to what is behind a layer.
        for (const std::string &ways :
             on_cuda ? std::vector<std::string>{",tuning=0,quantize=none",
                                                ",tuning=at_once,quantize=none,owned_rows=1"}
                     : std::vector<std::string>{""}) {
            const std::string as_one = two + ways;
            batchllm_engine_options options = device_options();
            options.backend_options = as_one.c_str();
            options.model_dir = golden.directory.c_str();
            batchllm_engine *engine = nullptr;
            const int32_t status = batchllm_engine_create(&options, &engine);
            batchllm_engine_destroy(engine);
            if (status == BATCHLLM_ERROR_UNSUPPORTED) continue; // its heads cannot be divided
            if (on_cuda && status == BATCHLLM_ERROR_BACKEND_UNAVAILABLE) skip(); // one device
            assert_int_equal(status, BATCHLLM_OK);
            compare_ways(golden, options);
            ++compared;
        }
    }
    assert_true(compared > 2);
}

// Each row ends after its first token, so that the engine expects short answers.
void run_short_rows(batchllm_engine *engine, const PictureGolden &golden) {
    std::vector<batchllm_params> params(golden.rows.size(), params_of(golden));
    for (size_t i = 0; i < params.size(); ++i) {
        params[i].stop_tokens = golden.rows[i].tokens.data();
        params[i].stop_token_count = 1;
    }
    const Columns columns = with_bytes(golden);
    const batchllm_picture_column column = columns.column(false);
    CHECK(batchllm_add_pictures(engine, columns.count(), columns.text.data(),
                                columns.text_offsets.data(), &column, nullptr, params.data(),
                                columns.count()));
    assert_int_equal(run(engine)->count, columns.count());
}

void preempted_rows_have_their_pictures_again(void **) {
    for (const PictureGolden &golden : goldens()) {
        int64_t preemptions = 0;
        for (const bool shares : {false, true}) {
            if (on_cuda && !shares) continue;
            // The smallest pool that fits all rows. On CUDA, where an engine takes longer to make, a few sizes.
            for (int64_t kib = 32; kib <= (on_cuda ? 256 : 1024) && preemptions == 0;
                 kib += on_cuda ? kib : 4 + kib / 16) {
                batchllm_engine_options options = device_options();
                options.kv_memory_bytes = kib << 10;
                options.min_prefix_tokens = 1;
                if (!shares) options.enlarge = BATCHLLM_ENLARGE_NONE;
                const EngineHandle engine = make_engine(golden.directory, options);
                run_short_rows(engine.get(), golden);
                add(engine.get(), with_bytes(golden, 3), false, params_of(golden));
                const ResultsHandle results = run(engine.get());
                const bool fits = std::all_of(results->statuses, results->statuses + results->count,
                                              [](int32_t status) { return status == BATCHLLM_OK; });
                if (!fits) continue;
                compare(golden, *results);
                preemptions += stats_of(engine).preemptions;
            }
        }
        std::printf("%s: %d preemptions\n", golden.directory.c_str(), int(preemptions));
        assert_true(on_cuda || preemptions > 0);
    }
}

// Eight questions about one picture: the tower computes it once, and the rows share its keys and values.
void an_equal_picture_is_computed_once(void **) {
    for (const PictureGolden &golden : goldens()) {
        const PictureRow &row = golden.rows[0];
        const EngineHandle engine = make_engine(golden.directory, device_options());
        Columns columns;
        for (int i = 0; i < 8; ++i) {
            std::string text = row.text;
            text.insert(text.find("What is"), std::to_string(i) + " ");
            columns.add(text, pictures_of(golden, row));
        }
        add(engine.get(), columns, false, params_of(golden));
        const ResultsHandle results = run(engine.get());
        assert_int_equal(results->count, 8);
        const batchllm_stats stats = stats_of(engine);
        assert_int_equal(stats.row_pictures, 8);
        assert_int_equal(stats.picture_loads, 1);
    }
}

// Ids of pictures come from their content, serve in plans, and mean nothing to another engine.
void encoded_rows_are_planned_and_added(void **) {
    const PictureGolden golden = goldens().front();
    const PicturesHandle pictures = make_pictures(golden.directory, {});
    const Columns columns = with_bytes(golden);
    const batchllm_picture_column given = columns.column(false);
    batchllm_column *made = nullptr;
    CHECK(batchllm_pictures_encode(pictures.get(), columns.count(), columns.text.data(),
                                   columns.text_offsets.data(), &given,
                                   BATCHLLM_ENCODE_PARSE_SPECIAL, 2, &made));
    const ColumnHandle column(made);
    for (int64_t i = 0; i < column->count; ++i) {
        assert_int_equal(column->statuses[i], BATCHLLM_OK);
        const std::vector<int32_t> &prompt = golden.rows[static_cast<size_t>(i)].prompt;
        assert_int_equal(column->offsets[i + 1] - column->offsets[i], prompt.size());
        for (size_t t = 0; t < prompt.size(); ++t) {
            const int32_t id = column->tokens[column->offsets[i] + static_cast<int64_t>(t)];
            if (id < 1 << 30) assert_int_equal(id, prompt[t]);
        }
    }
    batchllm_plan *plan = nullptr;
    CHECK(batchllm_plan_create(column->count, column->tokens, column->offsets, nullptr, nullptr,
                               nullptr, &plan));
    batchllm_engine_options options = device_options();
    options.pictures = pictures.get();
    const EngineHandle engine = make_engine(golden.directory, options);
    const batchllm_params params = params_of(golden);
    CHECK(batchllm_add_tokens(engine.get(), column->count, column->tokens, column->offsets, nullptr,
                              &params, 1));
    CHECK(batchllm_engine_use_plan(engine.get(), plan));
    batchllm_plan_destroy(plan);
    const ResultsHandle results = run(engine.get());
    compare(golden, *results);
    const std::string foreign = goldens().back().directory;
    options.model_dir = foreign.c_str();
    batchllm_engine *refused = nullptr;
    assert_int_equal(batchllm_engine_create(&options, &refused), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(batchllm_last_error(), "pictures: they are prepared for another"));
    const EngineHandle other = make_engine(golden.directory, device_options());
    CHECK(
        batchllm_add_tokens(other.get(), 1, column->tokens, column->offsets, nullptr, &params, 1));
    const ResultsHandle unknown = run(other.get());
    assert_int_equal(unknown->statuses[0], BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN);
}

// Prompts' own log-probabilities, scores and repetition penalties do not stumble over ids above the
// vocabulary.
void what_looks_at_tokens_copes_with_pictures(void **) {
    const PictureGolden golden = goldens().front();
    const EngineHandle engine = make_engine(golden.directory, device_options());
    batchllm_params params = params_of(golden);
    params.prompt_logprobs = 1;
    params.repetition_penalty = 1.5f;
    params.presence_penalty = 1;
    add(engine.get(), with_bytes(golden), false, params);
    const ResultsHandle results = run(engine.get());
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        assert_int_equal(results->prompt_logprob_offsets[i + 1] -
                             results->prompt_logprob_offsets[i],
                         results->prompt_tokens[i] - 1);
    }
}

struct BadRow {
    const char *what;
    std::string picture;
    uint8_t kind;
    const char *says; // a part of the error
};

// Each bad picture is its row's error, and the rows beside it have their answers.
void bad_pictures_are_errors_of_their_rows(void **) {
    const PictureGolden golden = goldens().front();
    const TemporaryDirectory directory;
    std::filesystem::create_directory(directory.file("in"));
    std::filesystem::create_directory(directory.file("in/sub"));
    const std::string &good = golden.pictures[0];
    directory.write("in/good.png", good);
    directory.write("outside.png", good);
    directory.write("in/empty.png", "");
    directory.write("in/cut.png", good.substr(0, good.size() / 2));
    std::filesystem::create_symlink(directory.file("outside.png"), directory.file("in/link.png"));
    std::filesystem::create_symlink("good.png", directory.file("in/inside.png"));
    assert_int_equal(::mkfifo(directory.file("in/pipe").c_str(), 0600), 0);
    assert_int_equal(::mkfifo(directory.file("pipe").c_str(), 0600), 0);
    std::string bomb = good; // its header says 60,000 x 60,000
    for (const size_t at : {16, 20}) bomb.replace(at, 4, std::string("\0\0\xea\x60", 4));
    const std::vector<BadRow> rows = {
        {"good", "good.png", BATCHLLM_PICTURE_NAME, nullptr},
        {"missing", "none.png", BATCHLLM_PICTURE_NAME, "none.png"},
        {"link out", "link.png", BATCHLLM_PICTURE_NAME, "outside the folders"},
        {"dots", "../outside.png", BATCHLLM_PICTURE_NAME, "outside the folders"},
        {"absolute", directory.file("outside.png"), BATCHLLM_PICTURE_NAME, "outside the folders"},
        {"link inside", "inside.png", BATCHLLM_PICTURE_NAME, nullptr},
        {"http", "http://host/a.png", BATCHLLM_PICTURE_NAME, "never fetched"},
        {"https", "https://host/a.png", BATCHLLM_PICTURE_NAME, "never fetched"},
        {"folder", "sub", BATCHLLM_PICTURE_NAME, "a folder"},
        {"the folder itself", ".", BATCHLLM_PICTURE_NAME, "a folder"},
        {"pipe", "pipe", BATCHLLM_PICTURE_NAME, "a pipe"},
        {"pipe elsewhere", "../pipe", BATCHLLM_PICTURE_NAME, "outside the folders"},
        {"device", "/dev/full", BATCHLLM_PICTURE_NAME, "outside the folders"},
        {"empty", "empty.png", BATCHLLM_PICTURE_NAME, "empty.png"},
        {"truncated", "cut.png", BATCHLLM_PICTURE_NAME, "cut.png"},
        {"no bytes", "", BATCHLLM_PICTURE_BYTES, "picture 1"},
        {"bomb", bomb, BATCHLLM_PICTURE_BYTES, "picture 1"},
        {"not base64", "data:image/png;base64,!!!", BATCHLLM_PICTURE_NAME, "base64"},
        {"good bytes", good, BATCHLLM_PICTURE_BYTES, nullptr},
    };
    const PicturesHandle pictures = make_pictures(golden.directory, {directory.file("in")});
    batchllm_engine_options options = device_options();
    options.pictures = pictures.get();
    const EngineHandle engine = make_engine(golden.directory, options);
    const std::string &text = golden.rows[0].text;
    Columns columns;
    for (const BadRow &row : rows) columns.add(text, {row.picture}, row.kind);
    columns.add(text, {});
    columns.add(text, {good, good});
    add(engine.get(), columns, false, params_of(golden));
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, rows.size() + 2);
    for (int64_t i = 0; i < results->count; ++i) {
        const size_t tag = results->tags[i];
        const std::string error(results->errors + results->error_offsets[i],
                                results->errors + results->error_offsets[i + 1]);
        const char *says = tag < rows.size() ? rows[tag].says : "places for pictures";
        if ((results->statuses[i] == BATCHLLM_OK) != (says == nullptr) ||
            (says != nullptr && (results->statuses[i] != BATCHLLM_ERROR_ROW_PICTURE ||
                                 error.find(says) == std::string::npos))) {
            fail_msg("%s: %s: %s", tag < rows.size() ? rows[tag].what : "number",
                     batchllm_status_name(results->statuses[i]), error.c_str());
        }
    }
}

// A file that changes after its row was added fails its rows alone.
void a_file_that_has_changed_fails_its_rows(void **) {
    const PictureGolden golden = goldens().front();
    const TemporaryDirectory directory;
    directory.write("a.png", golden.pictures[0]);
    directory.write("b.png", golden.pictures[1]);
    const PicturesHandle pictures = make_pictures(golden.directory, {directory.path()});
    batchllm_engine_options options = device_options();
    options.pictures = pictures.get();
    const EngineHandle engine = make_engine(golden.directory, options);
    Columns columns;
    for (const char *name : {"a.png", "b.png", "a.png"}) {
        columns.add(golden.rows[0].text, {name}, BATCHLLM_PICTURE_NAME);
    }
    add(engine.get(), columns, false, params_of(golden));
    directory.write("a.png", golden.pictures[2]);
    // But a row that is added now has the new picture.
    Columns later;
    later.add(golden.rows[0].text, {"a.png"}, BATCHLLM_PICTURE_NAME);
    add(engine.get(), later, false, params_of(golden));
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, 4);
    for (int64_t i = 0; i < 4; ++i) {
        const bool good = results->tags[i] == 1 || results->tags[i] == 3;
        assert_int_equal(results->statuses[i], good ? BATCHLLM_OK : BATCHLLM_ERROR_ROW_PICTURE);
    }
}

// Equal files are one picture, but each row asks only that its own file is still there.
void an_equal_file_elsewhere_may_change_or_vanish(void **) {
    const PictureGolden golden = goldens().front();
    const TemporaryDirectory directory;
    const std::string &picture = golden.pictures[static_cast<size_t>(golden.rows[0].pictures[0])];
    assert_int_equal(golden.rows[0].pictures.size(), 1);
    for (const char *name : {"a.png", "b.png", "c.png", "d.png"}) directory.write(name, picture);
    const PicturesHandle pictures = make_pictures(golden.directory, {directory.path()});
    batchllm_engine_options options = float32_options();
    options.pictures = pictures.get();
    for (const bool of_memory : {false, true}) {
        const EngineHandle engine = make_engine(golden.directory, options);
        Columns columns;
        columns.add(golden.rows[0].text, {"a.png"}, BATCHLLM_PICTURE_NAME);
        columns.add(golden.rows[0].text, {of_memory ? picture : "c.png"},
                    of_memory ? BATCHLLM_PICTURE_BYTES : BATCHLLM_PICTURE_NAME);
        columns.add(golden.rows[0].text, {"d.png"}, BATCHLLM_PICTURE_NAME);
        add(engine.get(), columns, false, params_of(golden));
        directory.write("a.png", "another");
        std::filesystem::remove(directory.file("d.png"));
        const ResultsHandle results = run(engine.get());
        assert_int_equal(results->count, 3);
        for (int64_t i = 0; i < 3; ++i) assert_int_equal(results->statuses[i], BATCHLLM_OK);
        assert_int_equal(stats_of(engine).picture_loads, 1);
        directory.write("a.png", picture);
        directory.write("d.png", picture);
    }
}

// Files of two models in one folder are an error of each row with pictures; text runs.
void a_processor_that_does_not_fit_the_tower_is_an_error_of_rows_with_pictures(void **) {
    struct Change {
        const char *model, *file, *from, *to;
        std::vector<std::string> says;
    };
    const Change changes[] = {
        {"qwen3_vl_pictures",
         "preprocessor_config.json",
         "\"patch_size\": 8",
         "\"patch_size\": 16",
         {"preprocessor_config.json: patch_size", "16", "config.json: vision_config.patch_size"}},
        {"qwen2_5_vl_pictures",
         "preprocessor_config.json",
         "\"merge_size\": 2",
         "\"merge_size\": 1",
         {"preprocessor_config.json: merge_size", "config.json: spatial_merge_size"}},
        {"gemma3_pictures",
         "processor_config.json",
         "64",
         "32",
         {"processor_config.json: size", "config.json: vision_config.image_size"}},
        {"mistral3_pictures",
         "processor_config.json",
         "\"spatial_merge_size\": 2",
         "\"spatial_merge_size\": 1",
         {"processor_config.json: spatial_merge_size", "config.json: spatial_merge_size"}},
    };
    for (const Change &change : changes) {
        const TemporaryDirectory directory;
        std::filesystem::copy(std::string("golden/") + change.model, directory.path());
        std::string settings = read_bytes(directory.file(change.file));
        const std::string_view from = change.from;
        for (size_t at = settings.find(from); at != std::string::npos; at = settings.find(from)) {
            settings.replace(at, from.size(), change.to);
        }
        directory.write(change.file, settings);
        const PictureGolden golden = read_pictures(directory.path());
        const EngineHandle engine = make_engine(directory.path(), float32_options());
        Columns columns;
        columns.add("What is this?", {});
        columns.add(golden.rows[0].text, {golden.pictures[0]});
        add(engine.get(), columns, false, params_of(golden));
        const ResultsHandle results = run(engine.get());
        assert_int_equal(results->count, 2);
        const int64_t bad = results->tags[0] == 1 ? 0 : 1;
        assert_int_equal(results->statuses[1 - bad], BATCHLLM_OK);
        assert_int_equal(results->statuses[bad], BATCHLLM_ERROR_ROW_PICTURE);
        const std::string error(results->errors + results->error_offsets[bad],
                                results->errors + results->error_offsets[bad + 1]);
        for (const std::string &part : change.says) {
            if (error.find(part) == std::string::npos) fail_msg("%s", error.c_str());
        }
    }
}

// A device with room for few pictures, which checks what it is told of them.
class FewPictures : public batchllm::Backend {
  public:
    FewPictures(std::unique_ptr<batchllm::Backend> inner, int32_t slots, int64_t tokens,
                int64_t patches = 0)
        : inner_(std::move(inner)), info_(inner_->info()) {
        info_.picture_slots = slots;
        info_.picture_tokens = tokens;
        info_.picture_patches = patches;
        info_.no_pictures = "these are why";
        loaded_.resize(static_cast<size_t>(slots));
    }
    const batchllm::BackendInfo &info() const override { return info_; }
    batchllm::Status forward(const batchllm::TokenBatch &batch) override {
        for (const batchllm::PictureTokens &run : batch.pictures) {
            const auto &picture = loaded_.at(static_cast<size_t>(run.slot));
            assert_true(picture != nullptr && run.token_count > 0 &&
                        run.first + run.token_count <= picture->grid.tokens);
        }
        return inner_->forward(batch);
    }
    batchllm::Status sample(std::span<const batchllm::TokenMask> masks) override {
        return inner_->sample(masks);
    }
    batchllm::Status collect(batchllm::BatchOutput *output) override {
        return inner_->collect(output);
    }
    batchllm::Status load_pictures(std::span<const batchllm::PictureLoad> pictures) override {
        for (const batchllm::PictureLoad &load : pictures) {
            auto &slot = loaded_.at(static_cast<size_t>(load.slot));
            assert_null(slot.get());
            slot = load.picture;
            computes_ = true;
            const batchllm::PictureGrid &grid = slot->grid;
            if (info_.picture_patches > 0 && grid.rows * grid.columns > info_.picture_patches) {
                return batchllm::error(BATCHLLM_ERROR_OUT_OF_MEMORY, "a picture");
            }
        }
        int64_t tokens = 0;
        for (const auto &picture : loaded_) tokens += picture == nullptr ? 0 : picture->grid.tokens;
        assert_true(tokens <= info_.picture_tokens);
        return inner_->load_pictures(pictures);
    }
    void unload_picture(int32_t slot) override {
        assert_non_null(loaded_.at(static_cast<size_t>(slot)).get());
        loaded_[static_cast<size_t>(slot)] = nullptr;
        inner_->unload_picture(slot);
    }
    double last_run_seconds() const override { return 0; }
    bool computes() const { return computes_; }

  private:
    std::unique_ptr<batchllm::Backend> inner_;
    batchllm::BackendInfo info_;
    bool computes_ = false;
    std::vector<std::shared_ptr<const batchllm::PreparedPicture>> loaded_;
};

// Adds a golden's rows twice to an engine whose devices have room for so few pictures, and calls check(results). Returns the
// number of devices that have computed pictures.
template <typename Check> int64_t with_few_pictures(const PictureGolden &golden, int32_t slots,
                                                    int32_t in_flight, int64_t patches,
                                                    const Check &check, size_t devices = 1) {
    std::vector<batchllm::LoadedModel> others; // their backends read these models
    std::vector<const FewPictures *> all;
    batchllm::EngineOptions options;
    options.model_dir = golden.directory;
    options.backend = "cpu";
    options.backend_options.compute_type = "f32";
    options.backend_options.kv_memory_bytes = int64_t{16} << 20;
    options.backend_options.threads = options.threads = 2;
    options.min_prefix_tokens = 1;
    const batchllm::EngineOptions of = options; // the cpu backend has one device
    options.devices.resize(devices);
    std::iota(options.devices.begin(), options.devices.end(), 0);
    auto made = batchllm::Engine::create(
        options, [&](const batchllm::EngineOptions &) -> batchllm::Result<batchllm::LoadedModel> {
            ASSIGN_OR_RETURN(batchllm::LoadedModel loaded, batchllm::load_model_and_backend(of));
            while (loaded.backends.size() < devices) {
                ASSIGN_OR_RETURN(batchllm::LoadedModel other, batchllm::load_model_and_backend(of));
                loaded.backends.push_back(std::move(other.backends[0]));
                others.push_back(std::move(other));
            }
            batchllm::LateOptions late;
            late.batches_in_flight = in_flight;
            for (auto &backend : loaded.backends) {
                const int64_t most = backend->info().picture_tokens;
                auto few = std::make_unique<FewPictures>(std::move(backend), slots, most, patches);
                all.push_back(few.get());
                backend = std::make_unique<batchllm::LateBackend>(std::move(few), late);
            }
            return loaded;
        });
    assert_true(made.ok());
    batchllm::Engine &engine = **made;
    const Columns columns = with_bytes(golden, 2);
    batchllm::PictureColumns pictures;
    pictures.items = {columns.rows.back(),
                      reinterpret_cast<const std::byte *>(columns.bytes.data()),
                      columns.offsets.data()};
    pictures.rows = columns.rows.data();
    const batchllm_params params = params_of(golden);
    const auto column = batchllm::ParamsColumn::open(&params, 1, columns.count());
    auto intake = engine.intake();
    assert_true(column.ok() && intake.ok());
    assert_true(
        (*intake)
            ->add_pictures({columns.count(), columns.text.data(), columns.text_offsets.data()},
                           pictures, nullptr, *column)
            .ok());
    const batchllm::Status status = engine.run(nullptr, nullptr);
    if (!status.ok()) fail_msg("%s", status.message().c_str());
    check(*engine.poll(0));
    return std::count_if(all.begin(), all.end(),
                         [](const FewPictures *f) { return f->computes(); });
}

// Rows are divided among the devices, and each device computes the pictures of its own.
void rows_on_several_devices_have_their_pictures_there(void **) {
    for (const PictureGolden &golden : goldens()) {
        const int64_t computing = with_few_pictures(
            golden, 2, 2, 0, [&](const batchllm_results &results) { compare(golden, results); }, 2);
        assert_int_equal(computing, 2);
    }
}

// However few pictures fit the device, and with a batch in flight while the next one is built.
void rows_wait_for_room_for_their_pictures(void **) {
    for (const PictureGolden &golden : goldens()) {
        for (const int32_t slots : {1, 2}) {
            for (const int32_t in_flight : {1, 2}) {
                with_few_pictures(golden, slots, in_flight, 0,
                                  [&](const batchllm_results &all) { compare(golden, all); });
            }
        }
    }
}

void rows_say_why_a_backend_computes_no_pictures(void **) {
    int64_t refused = 0;
    with_few_pictures(goldens().back(), 0, 1, 0, [&](const batchllm_results &all) {
        for (int64_t i = 0; i < all.count; ++i) {
            if (all.statuses[i] == BATCHLLM_OK) continue;
            assert_int_equal(all.statuses[i], BATCHLLM_ERROR_ROW_PICTURE);
            const std::string text(all.errors + all.error_offsets[i],
                                   all.errors + all.error_offsets[i + 1]);
            assert_string_equal(text.c_str(),
                                "the cpu backend computes no pictures: these are why");
            ++refused;
        }
    });
    assert_true(refused > 0);
}

// Others are computed.
void pictures_that_a_device_has_no_memory_for_are_errors_of_their_rows(void **) {
    const PictureGolden golden = goldens().back(); // of several sizes
    std::map<int64_t, int64_t> patches;            // of the picture that was refused -> rows
    const auto refuse = [&](int64_t most) {
        patches.clear();
        with_few_pictures(golden, 2, 1, most, [&](const batchllm_results &all) {
            for (int64_t i = 0; i < all.count; ++i) {
                if (all.statuses[i] == BATCHLLM_OK) continue;
                assert_int_equal(all.statuses[i], BATCHLLM_ERROR_ROW_PICTURE);
                const std::string text(all.errors + all.error_offsets[i],
                                       all.errors + all.error_offsets[i + 1]);
                long long picture = 0, has = 0, room = 0;
                assert_int_equal(std::sscanf(text.c_str(),
                                             "picture %lld has %lld patches, and a device has "
                                             "memory for %lld: make it smaller, or lower",
                                             &picture, &has, &room),
                                 3);
                assert_true(picture > 0 && has > most && room == most);
                ++patches[has];
            }
        });
    };
    refuse(1);
    assert_true(patches.size() > 1);
    const auto [largest, rows] = *patches.rbegin();
    refuse(largest - 1);
    assert_int_equal(patches.size(), 1);
    assert_true(patches[largest] >= rows);
    refuse(largest);
    assert_true(patches.empty());
}

} // namespace

int run_on_cuda() {
    on_cuda = true;
    batchllm_engine_options options = device_options();
    options.model_dir = "golden/qwen3_vl_pictures";
    batchllm_engine *engine = nullptr;
    if (batchllm_engine_create(&options, &engine) != BATCHLLM_OK) {
        std::printf("skipped: %s\n", batchllm_last_error());
        return 77;
    }
    batchllm_engine_destroy(engine);
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_say_what_transformers_says),
        cmocka_unit_test(conversations_name_files),
        cmocka_unit_test(however_rows_are_shared_and_divided),
        cmocka_unit_test(ranks_compute_pictures),
        cmocka_unit_test(an_equal_picture_is_computed_once),
        cmocka_unit_test(what_looks_at_tokens_copes_with_pictures),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

int main(int count, char **values) {
    if (count > 1 && std::string(values[1]) == "cuda") return run_on_cuda();
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_say_what_transformers_says),
        cmocka_unit_test(conversations_name_files),
        cmocka_unit_test(however_rows_are_shared_and_divided),
        cmocka_unit_test(ranks_compute_pictures),
        cmocka_unit_test(preempted_rows_have_their_pictures_again),
        cmocka_unit_test(an_equal_picture_is_computed_once),
        cmocka_unit_test(encoded_rows_are_planned_and_added),
        cmocka_unit_test(what_looks_at_tokens_copes_with_pictures),
        cmocka_unit_test(bad_pictures_are_errors_of_their_rows),
        cmocka_unit_test(a_file_that_has_changed_fails_its_rows),
        cmocka_unit_test(an_equal_file_elsewhere_may_change_or_vanish),
        cmocka_unit_test(a_processor_that_does_not_fit_the_tower_is_an_error_of_rows_with_pictures),
        cmocka_unit_test(rows_on_several_devices_have_their_pictures_there),
        cmocka_unit_test(rows_wait_for_room_for_their_pictures),
        cmocka_unit_test(rows_say_why_a_backend_computes_no_pictures),
        cmocka_unit_test(pictures_that_a_device_has_no_memory_for_are_errors_of_their_rows),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
