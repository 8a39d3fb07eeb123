/* Many questions about a few documents: each document is computed once. The plan is saved, and used again by
   the next run, which plans only what has changed. Usage: shared_prefix MODEL_DIRECTORY PLAN_FILE */
#include <batchllm.h>
#include <stdio.h>
#include <string.h>

static const char *const documents[] = {
    "Lighthouses: The first ones were fires on hills. Towers with lamps and mirrors came later; "
    "the lens "
    "of rings that Fresnel built in 1822 threw the light of one lamp over thirty kilometres.",
    "Bees: A hive of honey bees has one queen, some hundred drones and up to sixty thousand "
    "workers. A "
    "worker tells the others where food is by a dance whose angle to the vertical is that to the "
    "sun."};
static const char *const questions[] = {
    " Question: who is named? Answer:", " Question: which number is largest? Answer:",
    " Question: what is it about? Answer:"};

enum { document_count = 2, question_count = 3, row_count = document_count * question_count };

/* All prompts in one buffer, as a data platform holds them. */
static void fill(char *text, size_t size, int64_t *offsets) {
    size_t end = 0;
    offsets[0] = 0;
    for (int row = 0; row < row_count; ++row) {
        end += (size_t)snprintf(text + end, size - end, "%s%s", documents[row / question_count],
                                questions[row % question_count]);
        offsets[row + 1] = (int64_t)end;
    }
}

static int32_t use_saved_plan(batchllm_engine *engine, const char *path) {
    batchllm_plan *plan = NULL;
    int32_t status = batchllm_plan_load(path, &plan);
    if (status == BATCHLLM_ERROR_IO) return BATCHLLM_OK; /* the first run: there is none */
    if (status == BATCHLLM_OK) status = batchllm_engine_use_plan(engine, plan);
    batchllm_plan_destroy(plan);
    return status;
}

static int32_t save_plan(const batchllm_engine *engine, const char *path) {
    batchllm_plan *plan = NULL;
    int32_t status = batchllm_engine_get_plan(engine, &plan);
    batchllm_plan_stats stats;
    stats.struct_size = sizeof stats;
    if (status == BATCHLLM_OK) status = batchllm_plan_get_stats(plan, &stats);
    if (status == BATCHLLM_OK)
        printf("%lld rows in %lld groups, %lld kept from the saved plan\n", (long long)stats.rows,
               (long long)stats.groups, (long long)stats.reused_rows);
    if (status == BATCHLLM_OK) status = batchllm_plan_save(plan, path);
    batchllm_plan_destroy(plan);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL_DIRECTORY PLAN_FILE\n", argv[0]);
        return 2;
    }
    char text[4096];
    int64_t offsets[row_count + 1];
    fill(text, sizeof text, offsets);

    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = argv[1];
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 16;

    batchllm_engine *engine = NULL;
    int32_t status = batchllm_engine_create(&options, &engine);
    if (status == BATCHLLM_OK) status = use_saved_plan(engine, argv[2]);
    if (status == BATCHLLM_OK)
        status = batchllm_add_text(engine, row_count, text, offsets, NULL, &params, 1);
    if (status == BATCHLLM_OK) status = batchllm_build_groups(engine);
    if (status == BATCHLLM_OK) status = save_plan(engine, argv[2]);
    if (status == BATCHLLM_OK) status = batchllm_run(engine, NULL, NULL);
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    if (status == BATCHLLM_OK) status = batchllm_engine_stats(engine, &stats);
    if (status == BATCHLLM_OK)
        printf("%lld prompt tokens, %lld computed: %.0f %% saved\n",
               (long long)stats.logical_prompt_tokens, (long long)stats.processed_prompt_tokens,
               100 * stats.saving_ratio);
    if (status != BATCHLLM_OK) fprintf(stderr, "%s\n", batchllm_last_error());
    batchllm_engine_destroy(engine);
    return status == BATCHLLM_OK ? 0 : 1;
}
