/* Answers that keep to a JSON schema. The schema is compiled once, for however many rows; one that cannot be enforced is
   an error here, not a wrong answer later. Usage: structured MODEL_DIRECTORY */
#include <batchllm.h>
#include <stdio.h>

static const char schema[] =
    "{\"type\": \"object\","
    " \"properties\": {\"animal\": {\"enum\": [\"cat\", \"dog\", \"fish\"]},"
    "                \"legs\": {\"enum\": [0, 2, 4]}},"
    " \"required\": [\"animal\", \"legs\"], \"additionalProperties\": false}";

int main(int argc, char **argv) {
    static const char *prompts[] = {
        "It purrs. As JSON: ", "It barks. As JSON: ", "It swims. As JSON: "};
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = argc > 1 ? argv[1] : ".";
    batchllm_engine *engine = NULL;
    int32_t status = batchllm_engine_create(&options, &engine);

    batchllm_constraint_options wanted;
    batchllm_constraint_options_init(&wanted, sizeof wanted);
    wanted.kind = BATCHLLM_CONSTRAINT_JSON_SCHEMA;
    wanted.text = schema;
    batchllm_constraint *constraint = NULL;
    if (status == BATCHLLM_OK) status = batchllm_constraint_create(engine, &wanted, &constraint);

    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.constraint = constraint;
    for (uint64_t i = 0; status == BATCHLLM_OK && i < 3; ++i)
        status = batchllm_add_prompt(engine, prompts[i], -1, i, &params);
    batchllm_constraint_destroy(constraint); /* rows that were added keep what they need */
    if (status == BATCHLLM_OK) status = batchllm_run(engine, NULL, NULL);
    batchllm_results *results = NULL;
    if (status == BATCHLLM_OK) status = batchllm_poll(engine, 0, &results);
    for (int64_t i = 0; results && i < results->count; ++i)
        printf("%llu: %.*s%s\n", (unsigned long long)results->tags[i],
               (int)(results->text_offsets[i + 1] - results->text_offsets[i]),
               results->text + results->text_offsets[i],
               results->finish_reasons[i] == BATCHLLM_FINISH_STOP ? "" : " (cut short)");
    if (status != BATCHLLM_OK) fprintf(stderr, "%s\n", batchllm_last_error());
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    return status == BATCHLLM_OK ? 0 : 1;
}
