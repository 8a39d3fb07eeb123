#include "cli/row_pictures.h"

#include "base/file.h"

namespace batchllm::cli {

Result<PicturesHandle> open_pictures(const std::string &model, const std::string &input,
                                     std::vector<std::string> folders) {
    PicturesHandle pictures;
    bool reads = false;
    for (const char *name : {"/preprocessor_config.json", "/processor_config.json"}) {
        if (model.empty() || reads) continue;
        ASSIGN_OR_RETURN(reads, file_exists(model + name));
    }
    ASSIGN_OR_RETURN(const bool tokenizes, reads ? file_exists(model + "/tokenizer.json") : false);
    if (!tokenizes) return pictures;
    if (folders.empty() && input != "-" && descriptor_named(input) < 0) {
        const size_t slash = input.rfind('/');
        folders.push_back(slash == std::string::npos ? "." : input.substr(0, slash + 1));
    }
    std::vector<const char *> names;
    for (const std::string &folder : folders) names.push_back(folder.c_str());
    batchllm_pictures_options options;
    batchllm_pictures_options_init(&options, sizeof options);
    options.model_dir = model.c_str();
    options.folders = names.data();
    options.folder_count = static_cast<int64_t>(names.size());
    batchllm_pictures *created = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_pictures_create(&options, &created)));
    pictures.reset(created);
    return pictures;
}

} // namespace batchllm::cli
