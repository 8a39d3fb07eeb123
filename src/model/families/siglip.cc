#include "model/families/siglip.h"

#include <cmath>

namespace batchllm {
namespace {

// All but what makes its patches tokens. Sets `side` to the patches along a side of its square pictures.
Status describe_siglip(const JsonValue &vision, float *epsilon, Tower *tower) {
    ASSIGN_OR_RETURN(tower->hidden, read_count(vision, "hidden_size", 768, 1 << 16));
    ASSIGN_OR_RETURN(const int32_t width, read_count(vision, "intermediate_size", 3072, 1 << 20));
    ASSIGN_OR_RETURN(const int32_t layers, read_count(vision, "num_hidden_layers", 12, 512));
    ASSIGN_OR_RETURN(const int32_t heads, read_count(vision, "num_attention_heads", 12, 1024));
    ASSIGN_OR_RETURN(const int32_t image, read_count(vision, "image_size", 224, 1 << 14));
    ASSIGN_OR_RETURN(const int32_t patch, read_count(vision, "patch_size", 16, 256));
    ASSIGN_OR_RETURN(tower->channels, read_count(vision, "num_channels", 3, 3));
    ASSIGN_OR_RETURN(const double norm_epsilon, read_number(vision, "layer_norm_eps", 1e-6, 0, 1));
    ASSIGN_OR_RETURN(const Activation activation,
                     read_activation(vision, "hidden_act", Activation::gelu_tanh));
    if (tower->hidden % heads != 0 || tower->hidden / heads % 2 != 0) {
        return vision.unsupported("heads must be even parts of hidden_size");
    }
    if (image < patch) return vision.fail("image_size must be at least patch_size");
    *epsilon = static_cast<float>(norm_epsilon);
    tower->prefixes = {"vision_tower."};
    tower->passed_over = {"vision_tower.head."}; // pools a picture for contrastive scores
    RETURN_IF_ERROR(set_patch(vision, "vision_tower.embeddings.patch_embedding", 16, tower));
    add_bias(&tower->patch);
    const int64_t rows = tower->hidden;
    tower->side = image / patch;
    tower->positions = named_weight("vision_tower.embeddings.position_embedding",
                                    int64_t{tower->side} * tower->side, rows)
                           .values;
    for (int32_t i = 0; i < layers; ++i) {
        const std::string prefix = "vision_tower.encoder.layers." + std::to_string(i) + ".";
        Layer layer = tower_layer(tower->hidden, heads, width, activation);
        layer.before_attention = layer_norm(prefix + "layer_norm1", rows, *epsilon);
        layer.before_feed_forward = layer_norm(prefix + "layer_norm2", rows, *epsilon);
        Attention &attention = *layer.attention();
        attention.q = weight_with_bias(prefix + "self_attn.q_proj", rows, rows);
        attention.k = weight_with_bias(prefix + "self_attn.k_proj", rows, rows);
        attention.v = weight_with_bias(prefix + "self_attn.v_proj", rows, rows);
        attention.o = weight_with_bias(prefix + "self_attn.out_proj", rows, rows);
        layer.feed_forward()->up = weight_with_bias(prefix + "mlp.fc1", width, rows);
        layer.feed_forward()->down = weight_with_bias(prefix + "mlp.fc2", rows, width);
        tower->layers.push_back(std::move(layer));
    }
    tower->after = layer_norm("vision_tower.post_layernorm", rows, *epsilon);
    return {};
}

} // namespace

Status describe_gemma3_tower(const JsonValue &config, const JsonValue &vision, Model *model,
                             Tower *tower) {
    float epsilon = 0;
    RETURN_IF_ERROR(describe_siglip(vision, &epsilon, tower));
    tower->prefixes.push_back("multi_modal_projector.");
    ASSIGN_OR_RETURN(const int32_t tokens, read_count(config, "mm_tokens_per_image", 256, 1 << 20));
    const auto along = static_cast<int32_t>(std::lround(std::sqrt(static_cast<double>(tokens))));
    if (along * along != tokens || tower->side % along != 0) {
        return config.unsupported("mm_tokens_per_image must be a square that divides the patches");
    }
    tower->merge = tower->side / along;
    Merger &merger = tower->merger;
    merger.averaged = true;
    merger.merged_norm =
        named_norm(NormKind::rms, "multi_modal_projector.mm_soft_emb_norm", tower->hidden, epsilon);
    merger.merged_norm.offset = 1;
    Tensor &projection = merger.projection.values;
    projection = named_vector("multi_modal_projector.mm_input_projection_weight", model->hidden);
    projection.columns = tower->hidden;
    projection.stored_rows = model->hidden;
    projection.stored_transposed = true;
    model->pictures_see_themselves = true;
    return {};
}

} // namespace batchllm
