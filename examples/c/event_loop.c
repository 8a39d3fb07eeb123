/* A program with an event loop of its own: it steps the engine, hands out results as they finish, and cancels
   a row that is not wanted any more. Usage: event_loop MODEL_DIRECTORY */
#include <batchllm.h>
#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t stop_wanted;

static void on_signal(int number) {
    (void)number;
    stop_wanted = 1;
}

static int32_t hand_out(batchllm_engine *engine) {
    batchllm_results *results = NULL;
    const int32_t status = batchllm_poll(engine, 0, &results);
    for (int64_t i = 0; results && i < results->count; ++i) {
        const char *how = results->finish_reasons[i] == BATCHLLM_FINISH_CANCELLED ? "cancelled"
                          : results->finish_reasons[i] == BATCHLLM_FINISH_ERROR   ? "failed"
                                                                                  : "done";
        printf("row %llu %s after %lld tokens\n", (unsigned long long)results->tags[i], how,
               (long long)(results->token_offsets[i + 1] - results->token_offsets[i]));
    }
    batchllm_results_free(results);
    return status;
}

int main(int argc, char **argv) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = argc > 1 ? argv[1] : ".";
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 24;
    params.ignore_eos = 1;
    signal(SIGINT, on_signal);

    batchllm_engine *engine = NULL;
    int32_t status = batchllm_engine_create(&options, &engine);
    for (uint64_t tag = 0; status == BATCHLLM_OK && tag < 4; ++tag)
        status = batchllm_add_prompt(engine, "Once upon a time", -1, tag, &params);

    batchllm_progress progress = {0};
    progress.struct_size = sizeof progress;
    for (int steps = 0; status == BATCHLLM_OK && !stop_wanted; ++steps) {
        status = batchllm_step(engine, &progress);
        if (status != BATCHLLM_OK || progress.rows_waiting + progress.rows_running == 0) break;
        if (steps == 8) status = batchllm_cancel(engine, 2); /* from any thread */
        if (status == BATCHLLM_OK) status = hand_out(engine);
        /* ... and whatever else the program has to do between two steps */
    }
    if (status == BATCHLLM_OK) status = hand_out(engine);
    if (status != BATCHLLM_OK) fprintf(stderr, "%s\n", batchllm_last_error());
    batchllm_engine_destroy(engine);
    return status == BATCHLLM_OK ? 0 : 1;
}
