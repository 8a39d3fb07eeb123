// MiniCPM3: latent attention whose rope turns halves; factors of the embedding, the sublayers' results
// and the logits.
#include <cmath>

#include "model/families/deepseek.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_minicpm3(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 73448;
    defaults.hidden = 2560;
    defaults.intermediate = 6400;
    defaults.layers = 62;
    defaults.heads = 40;
    defaults.head_dim = 32; // of the turned part
    defaults.max_positions = 32768;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    defaults.tied = true;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    LatentDefaults latent{768, 256, 64, 32, model->hidden / shape.heads};
    latent.pairs = false;
    RETURN_IF_ERROR(set_latents(config, config, latent, model));
    constexpr double least = 1e-9, most = 1e9;
    const double layers = shape.layers;
    ASSIGN_OR_RETURN(const double embedding, read_number(config, "scale_emb", 12, least, most));
    model->embedding_scale = static_cast<float>(embedding);
    const bool no_depth = config.find("scale_depth") && !config.given("scale_depth");
    ASSIGN_OR_RETURN(
        const double depth,
        read_number(config, "scale_depth", no_depth ? std::sqrt(layers) : 1.4, least, most));
    for (Layer &layer : model->layers) {
        layer.residual_scale = static_cast<float>(depth / std::sqrt(layers));
    }
    const bool no_base = config.find("dim_model_base") && !config.given("dim_model_base");
    ASSIGN_OR_RETURN(const int32_t base,
                     read_count(config, "dim_model_base", no_base ? model->hidden : 256, 1 << 20));
    model->logits_scale = static_cast<float>(base) / static_cast<float>(model->hidden);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    return set_feed_forward_biases(config, model);
}

} // namespace batchllm
