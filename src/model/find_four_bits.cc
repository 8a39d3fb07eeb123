// Finds and checks the stored tensors that together make up one four-bit tensor.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/narrow_floats.h"
#include "base/printable.h"
#include "model/four_bits.h"
#include "model/scales.h"

namespace batchllm {
namespace {

int64_t parts_of(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

uint8_t largest_byte(const std::byte *bytes, int64_t count) {
    uint8_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        largest = std::max(largest, std::to_integer<uint8_t>(bytes[i]));
    }
    return largest;
}

// A described tensor, its scheme, and the result.
class Finder {
  public:
    Finder(const Tensor &tensor, const ScaleScheme &scheme, const FindPart &find)
        : tensor_(tensor), scheme_(scheme), find_(find),
          module_(tensor.name.substr(0, tensor.name.rfind(".weight"))) {
        rows_ = tensor.stored_rows > 0 ? tensor.stored_rows : tensor.rows;
        found_.rows = rows_ * std::max<int64_t>(tensor.stored_stack, 1);
        found_.columns = tensor.columns;
        found_.group_columns = scheme.group > 0 ? scheme.group : tensor.columns;
        found_.groups = parts_of(tensor.columns, found_.group_columns);
    }

    Result<std::shared_ptr<const FourBits>> find() {
        switch (scheme_.four_bits) {
        case FourBitForm::packed:
            RETURN_IF_ERROR(find_packed());
            break;
        case FourBitForm::packed_mxfp4:
        case FourBitForm::mxfp4_experts:
            RETURN_IF_ERROR(find_mxfp4());
            break;
        case FourBitForm::packed_nvfp4:
        case FourBitForm::nvfp4:
            RETURN_IF_ERROR(find_nvfp4());
            break;
        case FourBitForm::awq:
            RETURN_IF_ERROR(find_awq());
            break;
        case FourBitForm::gptq:
            RETURN_IF_ERROR(find_gptq());
            break;
        case FourBitForm::none:
            break;
        }
        return std::make_shared<const FourBits>(found_);
    }

  private:
    using Shape = std::vector<int64_t>;

    // A part's name as it is in the files, where the names of a text model may begin otherwise.
    std::string in_files(const std::string &name) const {
        const std::string elements = four_bits_name(tensor_, scheme_);
        const std::string &stored = find_(elements)->stored->name;
        size_t same = 0;
        while (same < std::min(elements.size(), stored.size()) &&
               elements[elements.size() - 1 - same] == stored[stored.size() - 1 - same]) {
            ++same;
        }
        return printable(stored.substr(0, stored.size() - same) +
                         name.substr(std::min(name.size(), elements.size() - same)));
    }

    Result<StoredPart> part(const std::string &name, const char *type, const Shape &shape) const {
        const auto found = find_(name);
        if (!found) {
            const auto elements = find_(four_bits_name(tensor_, scheme_));
            return error(BATCHLLM_ERROR_MODEL_FORMAT, "%s: tensor %s is missing", elements->file,
                         in_files(name).c_str());
        }
        if (type != nullptr && found->stored->type != type) {
            return error(BATCHLLM_ERROR_UNSUPPORTED, "%s: tensor %s is of type %s: must be %s",
                         found->file, in_files(name).c_str(), found->stored->type.c_str(), type);
        }
        if (found->stored->shape != shape) {
            return error(BATCHLLM_ERROR_MODEL_FORMAT,
                         "%s: tensor %s has shape %s: config.json and its quantization_config make "
                         "it %s",
                         found->file, in_files(name).c_str(),
                         shape_text(found->stored->shape).c_str(), shape_text(shape).c_str());
        }
        return *found;
    }

    // For values that share a word by eights.
    Status check_eights(int64_t count, const char *what) const {
        if (count % 8 == 0) return {};
        const std::string name = four_bits_name(tensor_, scheme_);
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "%s: tensor %s would have %lld %s, which eight to a word do not divide",
                     find_(name)->file, in_files(name).c_str(), static_cast<long long>(count),
                     what);
    }

    Status take_codes(FourBits::Packing packing, const Shape &shape) {
        found_.packing = packing;
        ASSIGN_OR_RETURN(const StoredPart codes,
                         part(four_bits_name(tensor_, scheme_), "I32", shape));
        found_.codes = codes.data;
        return {};
    }

    Status take_scales(const std::string &name, bool by_group) {
        const Shape shape =
            by_group ? Shape{found_.groups, found_.rows} : Shape{found_.rows, found_.groups};
        ASSIGN_OR_RETURN(const StoredPart part_of, part(name, nullptr, shape));
        const auto type = float_type(*part_of.stored);
        found_.scales_by_group = by_group;
        found_.scales = part_of.data;
        if (!type) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "%s: tensor %s is of type %s: scales are BF16, F16 or F32", part_of.file,
                         in_files(name).c_str(), part_of.stored->type.c_str());
        }
        found_.scale_type = *type;
        return part_of.is_new ? check_scales(part_of) : Status();
    }

    // The largest element must stay finite with its scale. Scales may be negative: AutoRound writes
    // such scales.
    Status check_scales(const StoredPart &scales) const {
        Tensor column;
        column.dtype = found_.scale_type;
        column.data = scales.data;
        column.rows = found_.rows * found_.groups;
        column.columns = 1;
        std::array<float, 1024> some;
        for (int64_t first = 0; first < column.rows; first += std::ssize(some)) {
            const int64_t count = std::min<int64_t>(std::ssize(some), column.rows - first);
            read_rows(column, first, count, DType::f32, some.data());
            for (int64_t i = 0; i < count; ++i) {
                const float scale = some[static_cast<size_t>(i)];
                if (scale != 0 && std::isfinite(scale * 16)) continue;
                return refuse_scale(scales, first + i, scale, "other than 0 and finite");
            }
        }
        return {};
    }

    static Status refuse_scale(const StoredPart &scales, int64_t index, float scale,
                               const char *must) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT, "%s: tensor %s: scale %lld is %g: must be %s",
                     scales.file, printable(scales.stored->name).c_str(),
                     static_cast<long long>(index), static_cast<double>(scale), must);
    }

    // The group of each column. in_order_by_minus_one: as in compressed-tensors, a -1 among them
    // means that all are in order.
    Status take_groups(const std::string &name, bool in_order_by_minus_one) {
        ASSIGN_OR_RETURN(const StoredPart groups, part(name, "I32", {found_.columns}));
        for (int64_t c = 0; c < found_.columns; ++c) {
            const auto group = static_cast<int32_t>(word_at(groups.data, c));
            if (group == -1 && in_order_by_minus_one) return {};
            if (group >= 0 && group < found_.groups) continue;
            return error(BATCHLLM_ERROR_MODEL_FORMAT,
                         "%s: tensor %s: column %lld is of group %d: there are %lld", groups.file,
                         in_files(name).c_str(), static_cast<long long>(c), group,
                         static_cast<long long>(found_.groups));
        }
        for (int64_t c = 0; c < found_.columns; ++c) { // in order, after all: nothing to look up
            if (word_at(groups.data, c) == c / found_.group_columns) continue;
            found_.group_of = groups.data;
            break;
        }
        return {};
    }

    Status take_zeros(const std::string &name, FourBits::Zeros zeros, const Shape &shape) {
        ASSIGN_OR_RETURN(const StoredPart words, part(name, "I32", shape));
        found_.zeros = zeros;
        found_.zero_words = words.data;
        return {};
    }

    // compressed-tensors.
    Status find_packed() {
        found_.row_bytes = parts_of(found_.columns, 8) * 4;
        RETURN_IF_ERROR(
            take_codes(FourBits::Packing::row, {found_.rows, parts_of(found_.columns, 8)}));
        RETURN_IF_ERROR(take_scales(module_ + ".weight_scale", false));
        if (find_(module_ + ".weight_shape")) RETURN_IF_ERROR(check_weight_shape());
        if (!scheme_.symmetric) {
            RETURN_IF_ERROR(take_zeros(module_ + ".weight_zero_point", FourBits::Zeros::by_row,
                                       {parts_of(found_.rows, 8), found_.groups}));
        }
        const std::string groups = module_ + ".weight_g_idx";
        return find_(groups) ? take_groups(groups, true) : Status();
    }

    Status check_weight_shape() const {
        const std::string name = module_ + ".weight_shape";
        ASSIGN_OR_RETURN(const StoredPart shape, part(name, "I64", {2}));
        int64_t sizes[2];
        std::memcpy(sizes, shape.data, sizeof sizes);
        if (sizes[0] == found_.rows && sizes[1] == found_.columns) return {};
        return error(
            BATCHLLM_ERROR_MODEL_FORMAT, "%s: tensor %s says [%lld, %lld]: config.json makes it %s",
            shape.file, in_files(name).c_str(), static_cast<long long>(sizes[0]),
            static_cast<long long>(sizes[1]), shape_text({found_.rows, found_.columns}).c_str());
    }

    Status find_awq() {
        RETURN_IF_ERROR(check_eights(found_.rows, "rows"));
        RETURN_IF_ERROR(take_codes(FourBits::Packing::eight, {found_.columns, found_.rows / 8}));
        RETURN_IF_ERROR(take_scales(module_ + ".scales", true));
        return take_zeros(module_ + ".qzeros", FourBits::Zeros::eight,
                          {found_.groups, found_.rows / 8});
    }

    Status find_gptq() {
        RETURN_IF_ERROR(check_eights(found_.rows, "rows"));
        RETURN_IF_ERROR(check_eights(found_.columns, "columns"));
        RETURN_IF_ERROR(take_codes(FourBits::Packing::column, {found_.columns / 8, found_.rows}));
        RETURN_IF_ERROR(take_scales(module_ + ".scales", true));
        RETURN_IF_ERROR(take_zeros(module_ + ".qzeros", FourBits::Zeros::by_group,
                                   {found_.groups, found_.rows / 8}));
        // The first version stores zero points minus one, and its writers subtract from whole
        // words.
        if (!scheme_.second_version) found_.add_to_zeros = 0x11111111;
        if (scheme_.symmetric && all_zeros_are_middle()) found_.zeros = FourBits::Zeros::one;
        const std::string groups = module_ + ".g_idx";
        if (!scheme_.any_order && !find_(groups)) return {};
        return take_groups(groups, false);
    }

    // Files that state the first version may have zero points of the second. If all are the middle
    // under either version, they are 8.
    bool all_zeros_are_middle() const {
        const uint32_t first = word_at(found_.zero_words, 0);
        if (first != 0x77777777 && first != 0x88888888) return false;
        for (int64_t i = 1; i < found_.groups * (found_.rows / 8); ++i) {
            if (word_at(found_.zero_words, i) != first) return false;
        }
        return true;
    }

    // Under the names of published experts or of compressed-tensors: [.., columns / 32, 16] or [..,
    // columns / 2] bytes, with a scale per 32 columns.
    Status find_mxfp4() {
        const bool experts = scheme_.four_bits == FourBitForm::mxfp4_experts;
        const std::string name = four_bits_name(tensor_, scheme_);
        if (found_.columns % 32 != 0) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "%s: tensor %s would have %lld columns, which blocks of 32 do not divide",
                         find_(name)->file, in_files(name).c_str(),
                         static_cast<long long>(found_.columns));
        }
        Shape shape = {rows_, found_.groups};
        if (tensor_.stored_stack > 0) shape.insert(shape.begin(), tensor_.stored_stack);
        ASSIGN_OR_RETURN(
            const StoredPart scales,
            part(experts ? tensor_.name + "_scales" : module_ + ".weight_scale", "U8", shape));
        if (experts) {
            shape.push_back(16);
        } else {
            shape.back() = found_.columns / 2;
        }
        ASSIGN_OR_RETURN(const StoredPart blocks, part(name, "U8", shape));
        found_.kind = FourBitKind::mxfp4;
        found_.row_bytes = found_.columns / 2;
        found_.codes = blocks.data;
        found_.scales = scales.data;
        // The largest number in e2m1 is 6; multiplied by 2^126, it overflows a float.
        const int64_t count = found_.rows * found_.groups;
        const bool good = !scales.is_new || largest_byte(scales.data, count) <= 252;
        for (int64_t i = 0; !good && i < count; ++i) {
            const auto exponent = std::to_integer<uint8_t>(scales.data[i]);
            if (exponent <= 252) continue;
            return refuse_scale(scales, i, e8m0_to_float(exponent), "at most 2^125");
        }
        for (int64_t r = 0; r < tensor_.rows; ++r) { // its own alone, of a stack
            const int64_t row = tensor_.first_row + r * tensor_.row_step;
            found_.largest_power =
                std::max(found_.largest_power,
                         largest_byte(scales.data + row * found_.groups, found_.groups));
        }
        return {};
    }

    // [rows, columns / 2] bytes, a scale in e4m3 per 16 columns, and one of the whole tensor, by which elements are
    // multiplied (ModelOpt) or divided (compressed-tensors).
    Status find_nvfp4() {
        const bool packed = scheme_.four_bits == FourBitForm::packed_nvfp4;
        const std::string name = four_bits_name(tensor_, scheme_);
        if (found_.columns % 16 != 0) {
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "%s: tensor %s would have %lld columns, which blocks of 16 do not divide",
                         find_(name)->file, in_files(name).c_str(),
                         static_cast<long long>(found_.columns));
        }
        // ModelOpt writes stacks of experts with rows and columns the other way round.
        const int64_t stack = tensor_.stored_stack;
        const auto shape_of = [&](int64_t columns) {
            return stack > 0 ? Shape{stack, columns, rows_} : Shape{found_.rows, columns};
        };
        const std::string named = module_ + (stack > 0 ? "_weight" : ".weight");
        ASSIGN_OR_RETURN(const StoredPart codes, part(name, "U8", shape_of(found_.columns / 2)));
        ASSIGN_OR_RETURN(const StoredPart scales,
                         part(named + "_scale", "F8_E4M3", shape_of(found_.groups)));
        const std::string whole = named + (packed ? "_global_scale" : "_scale_2");
        const auto stored = find_(whole);
        const bool scalar = stored && stored->stored->shape.empty();
        ASSIGN_OR_RETURN(const StoredPart factor, part(whole, "F32", scalar ? Shape{} : Shape{1}));
        float value;
        std::memcpy(&value, factor.data, sizeof value);
        found_.factor = packed ? 1 / value : value;
        // Elements are up to 6 * 448 times it.
        if (!(value > 0) || !(found_.factor > 0) || !std::isfinite(found_.factor * 4096)) {
            return refuse_scale(factor, 0, value, "above 0 and finite");
        }
        found_.kind = FourBitKind::nvfp4;
        found_.row_bytes = found_.columns / 2;
        if (stack > 0) {
            found_.packing = FourBits::Packing::pair;
            found_.stacked_rows = rows_;
        }
        found_.codes = codes.data;
        found_.scales = scales.data;
        for (int64_t i = 0; scales.is_new && i < found_.rows * found_.groups; ++i) {
            const auto scale = std::to_integer<uint8_t>(scales.data[i]);
            if ((scale & 0x7F) != 0x7F) continue;
            return refuse_scale(scales, i, e4m3_to_float(scale), "a number");
        }
        return {};
    }

    const Tensor &tensor_;
    const ScaleScheme &scheme_;
    const FindPart &find_;
    const std::string module_;
    int64_t rows_; // in one matrix of the stack
    FourBits found_;
};

} // namespace

std::string four_bits_name(const Tensor &tensor, const ScaleScheme &scheme) {
    if (scheme.four_bits == FourBitForm::nvfp4 && tensor.stored_stack > 0) return tensor.name;
    if (scheme.four_bits == FourBitForm::mxfp4_experts) return tensor.name + "_blocks";
    const bool words =
        scheme.four_bits == FourBitForm::awq || scheme.four_bits == FourBitForm::gptq;
    const bool plain = scheme.four_bits == FourBitForm::nvfp4;
    return tensor.name.substr(0, tensor.name.rfind(".weight")) + (words   ? ".qweight"
                                                                  : plain ? ".weight"
                                                                          : ".weight_packed");
}

Result<std::shared_ptr<const FourBits>>
find_four_bits(const Tensor &tensor, const ScaleScheme &scheme, const FindPart &find) {
    return Finder(tensor, scheme, find).find();
}

} // namespace batchllm
