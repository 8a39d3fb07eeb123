/* Which text is nearest to a question, by the vectors of an embedding model. Usage: embed MODEL_DIRECTORY */
#include <batchllm.h>
#include <stdio.h>

/* What is in common of vectors of length 1: their cosine. */
static double dot(const float *a, const float *b, int64_t dimensions) {
    double sum = 0;
    for (int64_t i = 0; i < dimensions; ++i) sum += (double)a[i] * (double)b[i];
    return sum;
}

int main(int argc, char **argv) {
    static const char *texts[] = {"What is the capital of France?",
                                  "Paris is the capital of France.", "Water boils at 100 degrees."};
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = argc > 1 ? argv[1] : ".";
    batchllm_engine *engine = NULL;
    int32_t status = batchllm_engine_create(&options, &engine);

    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.task = BATCHLLM_TASK_EMBED;
    params.normalize = 1;
    for (uint64_t i = 0; status == BATCHLLM_OK && i < 3; ++i)
        status = batchllm_add_prompt(engine, texts[i], -1, i, &params);
    if (status == BATCHLLM_OK) status = batchllm_run(engine, NULL, NULL);
    batchllm_results *results = NULL;
    if (status == BATCHLLM_OK) status = batchllm_poll(engine, 0, &results);

    const float *vectors[3] = {NULL, NULL,
                               NULL}; /* results come in the order in which they finish */
    int64_t dimensions = 0;
    for (int64_t i = 0; results && i < results->count; ++i) {
        if (results->statuses[i] != BATCHLLM_OK) continue;
        vectors[results->tags[i]] = results->embeddings + results->embedding_offsets[i];
        dimensions = results->embedding_offsets[i + 1] - results->embedding_offsets[i];
    }
    for (int i = 1; i < 3; ++i)
        if (vectors[0] && vectors[i])
            printf("%.3f %s\n", dot(vectors[0], vectors[i], dimensions), texts[i]);
    if (status != BATCHLLM_OK) fprintf(stderr, "%s\n", batchllm_last_error());
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    return status == BATCHLLM_OK ? 0 : 1;
}
