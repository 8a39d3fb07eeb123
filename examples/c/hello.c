/* Two prompts in, two texts out. Usage: hello MODEL_DIRECTORY */
#include <batchllm.h>
#include <stdio.h>

int main(int argc, char **argv) {
    const char *prompts[] = {"The capital of France is", "The capital of Peru is"};
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = argc > 1 ? argv[1] : ".";
    batchllm_engine *engine = NULL;
    int32_t status = batchllm_engine_create(&options, &engine);
    for (uint64_t i = 0; status == BATCHLLM_OK && i < 2; ++i)
        status = batchllm_add_prompt(engine, prompts[i], -1, i, NULL);
    if (status == BATCHLLM_OK) status = batchllm_run(engine, NULL, NULL);
    batchllm_results *results = NULL;
    if (status == BATCHLLM_OK) status = batchllm_poll(engine, 0, &results);
    for (int64_t i = 0; results && i < results->count; ++i)
        printf("%llu: %.*s\n", (unsigned long long)results->tags[i],
               (int)(results->text_offsets[i + 1] - results->text_offsets[i]),
               results->text + results->text_offsets[i]);
    if (status != BATCHLLM_OK) fprintf(stderr, "%s\n", batchllm_last_error());
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    return status == BATCHLLM_OK ? 0 : 1;
}
