#include "model/tower_config.h"

#include <cmath>

namespace batchllm {
namespace {

Status check_tower(const JsonValue &vision, const Model &model, const Tower &tower) {
    const int64_t made = tower.merger.has_feed_forward() ? tower.merger.feed_forward.down.rows()
                                                         : tower.merger.projection.rows();
    if (made != model.hidden) {
        return vision.unsupported("the tower makes embeddings of " + std::to_string(made) +
                                  " numbers, the text model has " + std::to_string(model.hidden));
    }
    if (tower.channels != 3) return vision.unsupported("pictures have three channels");
    if (tower.deepstack.size() > model.layers.size()) {
        return vision.unsupported("deepstack_visual_indexes has more layers than the text model");
    }
    return {};
}

// Under either of the two keys that the families have.
Result<int32_t> read_picture_token(const JsonValue &config, int32_t token, const Model &model) {
    for (const char *key : {"image_token_id", "image_token_index"}) {
        if (const auto value = config.given(key)) {
            ASSIGN_OR_RETURN(const int64_t id, value->integer(0, INT32_MAX));
            token = static_cast<int32_t>(id);
        }
    }
    if (token < model.vocabulary) return token;
    return config.unsupported("the image token " + std::to_string(token) +
                              " is not in the vocabulary of " + std::to_string(model.vocabulary));
}

Status read_tower(const JsonValue &config, const JsonValue &vision, int32_t token,
                  DescribeTower describe, Model *model, Tower *tower) {
    if (!vision.is_object()) return vision.fail("must be an object");
    ASSIGN_OR_RETURN(token, read_picture_token(config, token, *model));
    RETURN_IF_ERROR(describe(config, vision, model, tower));
    RETURN_IF_ERROR(check_tower(vision, *model, *tower));
    model->picture_token = token;
    return {};
}

} // namespace

void set_tower(const JsonValue &config, int32_t token, DescribeTower describe, Model *model) {
    const auto vision = config.given("vision_config");
    if (!vision) return;
    auto tower = std::make_shared<Tower>();
    const Status status = read_tower(config, *vision, token, describe, model, tower.get());
    if (!status.ok()) {
        model->no_tower = status.message();
        return;
    }
    model->tower = std::move(tower);
    model->renamed.insert(model->renamed.begin(),
                          {{"model.visual.", "visual."},
                           {"model.vision_tower.vision_model.", "vision_tower."},
                           {"model.vision_tower.", "vision_tower."},
                           {"vision_tower.vision_model.", "vision_tower."},
                           {"model.multi_modal_projector.", "multi_modal_projector."}});
}

Weight weight_with_bias(const std::string &prefix, int64_t rows, int64_t columns) {
    Weight weight = named_weight(prefix, rows, columns);
    add_bias(&weight);
    return weight;
}

Norm layer_norm(const std::string &prefix, int64_t length, float epsilon) {
    Norm norm = named_norm(NormKind::layer, prefix, length, epsilon);
    norm.bias = named_vector(prefix + ".bias", length);
    return norm;
}

Status set_patch(const JsonValue &vision, const std::string &prefix, int32_t patch_size,
                 Tower *tower) {
    ASSIGN_OR_RETURN(const int32_t size, read_count(vision, "patch_size", patch_size, 256));
    tower->patch_values = size * size;
    tower->patch = named_weight(prefix, tower->hidden, tower->values() * tower->frames);
    tower->patch.values.stored_flat = true;
    return {};
}

Layer tower_layer(int32_t hidden, int32_t heads, int32_t width, Activation activation) {
    Layer layer;
    Attention attention;
    attention.heads = attention.kv_heads = heads;
    attention.head_dim = hidden / heads;
    attention.scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
    layer.mixer = std::move(attention);
    FeedForward feed_forward;
    feed_forward.width = width;
    feed_forward.activation = activation;
    layer.feed = std::move(feed_forward);
    return layer;
}

} // namespace batchllm
