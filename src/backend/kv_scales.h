// A model's weights -> the scales of its keys and values in e4m3: a stored element times its head's scale is
// the key's or the value's.
//
// Where the checkpoint has scales they are taken as they are. Else a head's is made of its weights: with an
// input of a root mean square of 1, and elements that do not depend on each other, an element of the head
// has a root mean square of
//     sqrt(mean over the head's rows i of the sum over columns j of (w_ij * norm_weight_j)^2)
// plus the largest bias; behind a norm of its own it has that of the norm's weight. The scale is the power of two
// that brings this to 1 or above, and below 2. From there e4m3 has room for 224 times as much before
// it is full, and all its bits down to a 64th: what a real input does to some channels matters less than
// that no key is cut off. Powers of two round nothing by themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"

namespace batchllm {

struct KvScales {
    std::vector<float> k, v; // [kv_heads]; of a layer without keys and values: none
};

// [layers]. A layer that attends to an earlier one's keys and values has its scales.
std::vector<KvScales> kv_scales(const Model &model, int32_t threads);

} // namespace batchllm
