/* Which of some answers fits best: nothing is generated, the answers are scored. Answers of one token cost one
   position of logits together. Usage: rank MODEL_DIRECTORY */
#include <batchllm.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    static const char prompts[] = "Is water wet? Answer:Is fire cold? Answer:";
    static const int64_t prompt_offsets[] = {0, 21, 42};
    /* The same three answers for both prompts: one buffer, named twice. */
    static const char answers[] = " yes no perhaps yes no perhaps";
    static const int64_t answer_offsets[] = {0, 4, 7, 15, 19, 22, 30};
    static const int64_t answer_rows[] = {0, 3, 6};

    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = argc > 1 ? argv[1] : ".";
    batchllm_engine *engine = NULL;
    int32_t status = batchllm_engine_create(&options, &engine);
    if (status == BATCHLLM_OK)
        status = batchllm_add_score_text(engine, 2, prompts, prompt_offsets, answers,
                                         answer_offsets, answer_rows, NULL, NULL);
    if (status == BATCHLLM_OK) status = batchllm_run(engine, NULL, NULL);
    batchllm_results *results = NULL;
    if (status == BATCHLLM_OK) status = batchllm_poll(engine, 0, &results);
    for (int64_t i = 0; results && i < results->count; ++i) {
        if (results->statuses[i] != BATCHLLM_OK) continue;
        const int64_t row = (int64_t)results->tags[i];
        int64_t best = 0;
        for (int64_t c = 0; c < 3; ++c) {
            const int64_t at = answer_rows[row] + c;
            const double score = results->scores[results->score_offsets[i] + c];
            if (score > results->scores[results->score_offsets[i] + best]) best = c;
            printf("%.*s%.*s: %.3f\n", 21, prompts + prompt_offsets[row],
                   (int)(answer_offsets[at + 1] - answer_offsets[at]), answers + answer_offsets[at],
                   score);
        }
        const int64_t at = answer_rows[row] + best;
        printf("->%.*s\n", (int)(answer_offsets[at + 1] - answer_offsets[at]),
               answers + answer_offsets[at]);
    }
    if (status != BATCHLLM_OK) fprintf(stderr, "%s\n", batchllm_last_error());
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    return status == BATCHLLM_OK ? 0 : 1;
}
