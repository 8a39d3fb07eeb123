// batchllm_constraint_*: what the output of rows must look like.
#include <cstring>

#include "api/boundary.h"
#include "api/engine.h"
#include "constraint/handle.h"

using namespace batchllm;
using api::guard_out;
using api::need;

namespace {

using SpecificationKind = ConstraintSpecification::Kind;

batchllm_constraint_options default_constraint_options() {
    batchllm_constraint_options options{};
    options.struct_size = sizeof options;
    options.text_bytes = -1;
    return options;
}

Result<SpecificationKind> read_kind(int32_t kind) {
    switch (kind) {
    case BATCHLLM_CONSTRAINT_CHOICES:
        return SpecificationKind::choices;
    case BATCHLLM_CONSTRAINT_REGEX:
        return SpecificationKind::regex;
    case BATCHLLM_CONSTRAINT_JSON_SCHEMA:
        return SpecificationKind::json_schema;
    case BATCHLLM_CONSTRAINT_GBNF:
        return SpecificationKind::gbnf;
    case BATCHLLM_CONSTRAINT_LARK:
        return SpecificationKind::lark;
    default:
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "kind is %d: it must be one of BATCHLLM_CONSTRAINT_", kind);
    }
}

// A field that is one of two numbers.
Result<bool> read_choice(const char *field, int32_t value) {
    if (value == 0 || value == 1) return value == 1;
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s is %d: it must be 0 or 1", field, value);
}

Status read_choices(const batchllm_constraint_options &options,
                    ConstraintSpecification *specification) {
    constexpr int64_t most = int64_t{1} << 24;
    if (options.choice_count < 0 || options.choice_count > most) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "choice_count is %lld: it must be from 0 to %lld",
                     static_cast<long long>(options.choice_count), static_cast<long long>(most));
    }
    if (options.choice_count > 0) RETURN_IF_ERROR(need("choices", options.choices));
    for (int64_t i = 0; i < options.choice_count; ++i) {
        if (options.choices[i] == nullptr) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "choices[%lld] is NULL",
                         static_cast<long long>(i));
        }
        specification->choices.emplace_back(options.choices[i]);
    }
    return {};
}

// A text beside choices, or choices beside a text, would be ignored silently. An empty text counts as none.
Status refuse_both(SpecificationKind kind, const batchllm_constraint_options &options) {
    const bool has_text = options.text != nullptr && options.text_bytes != 0 && *options.text != 0;
    if (kind == SpecificationKind::choices && has_text) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "text is given: BATCHLLM_CONSTRAINT_CHOICES has choices alone");
    }
    if (kind != SpecificationKind::choices && options.choice_count != 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "choice_count is %lld: only BATCHLLM_CONSTRAINT_CHOICES has choices",
                     static_cast<long long>(options.choice_count));
    }
    return {};
}

Result<ConstraintSpecification> read_options(const batchllm_constraint_options &options) {
    ConstraintSpecification specification;
    ASSIGN_OR_RETURN(specification.kind, read_kind(options.kind));
    RETURN_IF_ERROR(refuse_both(specification.kind, options));
    if (specification.kind == SpecificationKind::choices) {
        RETURN_IF_ERROR(read_choices(options, &specification));
    } else {
        RETURN_IF_ERROR(need("text", options.text));
        const size_t length = options.text_bytes < 0 ? std::strlen(options.text)
                                                     : static_cast<size_t>(options.text_bytes);
        specification.text.assign(options.text, length);
    }
    if (options.start_after != nullptr) specification.options.start_after = options.start_after;
    ASSIGN_OR_RETURN(const bool flexible, read_choice("whitespace", options.whitespace));
    ASSIGN_OR_RETURN(const bool any_order, read_choice("member_order", options.member_order));
    if (flexible) specification.json.spacing = JsonSchemaOptions::Spacing::flexible;
    if (any_order) specification.json.order = Members::Order::any;
    ASSIGN_OR_RETURN(const bool any_number, read_choice("numbers", options.numbers));
    specification.json.numbers = any_number ? NumberStyle::any : NumberStyle::plain;
    specification.json.loose = options.loose != 0;
    return specification;
}

} // namespace

extern "C" {

void batchllm_constraint_options_init(batchllm_constraint_options *options, size_t struct_size) {
    const batchllm_constraint_options defaults = default_constraint_options();
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

int32_t batchllm_constraint_create(batchllm_engine *engine,
                                   const batchllm_constraint_options *options,
                                   batchllm_constraint **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("engine", engine));
        RETURN_IF_ERROR(need("options", options));
        batchllm_constraint_options known = default_constraint_options();
        RETURN_IF_ERROR(copy_known("options", options, &known, sizeof known));
        ASSIGN_OR_RETURN(const ConstraintSpecification specification, read_options(known));
        ASSIGN_OR_RETURN(SpecifiedConstraint made, engine->engine->make_constraint(specification));
        auto handle = std::make_unique<batchllm_constraint>();
        handle->constraint = std::move(made.constraint);
        for (const std::string &warning : made.warnings) {
            if (!handle->warnings.empty()) handle->warnings += '\n';
            handle->warnings += warning;
        }
        *out = handle.release();
        return {};
    });
}

void batchllm_constraint_destroy(batchllm_constraint *constraint) { delete constraint; }

const char *batchllm_constraint_warnings(const batchllm_constraint *constraint) {
    return constraint == nullptr ? "" : constraint->warnings.c_str();
}

} // extern "C"
