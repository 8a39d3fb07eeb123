#include "constraint/json_schema/json_schema.h"

#include "constraint/json_schema/emit.h"

namespace batchllm {

Result<JsonSchemaGrammar> compile_json_schema(std::string_view schema,
                                              const JsonSchemaOptions &options, Budget *budget) {
    ASSIGN_OR_RETURN(const std::unique_ptr<SchemaDocument> document, SchemaDocument::load(schema));
    SchemaMeaning meaning(document.get(), {options.formats, options.loose}, budget);
    ASSIGN_OR_RETURN(const RequirementId root, meaning.requirement(document->root()));
    SchemaPlanner planner(&meaning);
    RETURN_IF_ERROR(planner.plan(root));
    if (!planner.possible(root)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "#: no value satisfies the schema");
    }
    JsonSchemaGrammar out;
    SchemaEmitter emitter(&meaning, &planner, options, &out.grammar);
    RETURN_IF_ERROR(emitter.emit(root));
    out.warnings = meaning.warnings();
    return out;
}

} // namespace batchllm
