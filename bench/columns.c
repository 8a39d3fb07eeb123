/* A job of token columns on the sim backend, from a file; bench/python_overhead.py compares Python's
   time and memory with it. Usage:
   columns write FILE ROWS LENGTH    makes the file: ROWS rows of LENGTH tokens
   columns run FILE LENGTH           prints seconds, peak kilobytes, rows and tokens generated */
#include <batchllm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* Sixteen rows share three quarters of their prompt. */
static int write_file(const char *path, int64_t rows, int64_t length) {
    FILE *out = fopen(path, "wb");
    int32_t *row = malloc((size_t)length * sizeof *row);
    for (int64_t i = 0; out && row && i < rows; ++i) {
        for (int64_t j = 0; j < length; ++j) {
            const uint64_t seed = j < length * 3 / 4 ? (uint64_t)i / 16 : ~(uint64_t)i;
            row[j] =
                (int32_t)((seed * 0x9e3779b97f4a7c15u + (uint64_t)j * 0xbf58476d1ce4e5b9u) >> 40) &
                0xffff;
        }
        if (fwrite(row, sizeof *row, (size_t)length, out) != (size_t)length) return 1;
    }
    free(row);
    return !out || fclose(out) != 0;
}

static int32_t *read_file(const char *path, int64_t *count) {
    FILE *in = fopen(path, "rb");
    if (!in || fseek(in, 0, SEEK_END) != 0) return NULL;
    *count = (int64_t)ftell(in) / (int64_t)sizeof(int32_t);
    rewind(in);
    int32_t *tokens = malloc((size_t)*count * sizeof *tokens);
    if (tokens && fread(tokens, sizeof *tokens, (size_t)*count, in) != (size_t)*count) return NULL;
    fclose(in);
    return tokens;
}

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int run_file(const char *path, int64_t length) {
    int64_t count = 0;
    int32_t *tokens = read_file(path, &count);
    const int64_t rows = count / length;
    int64_t *offsets = malloc((size_t)(rows + 1) * sizeof *offsets);
    if (!tokens || !offsets) return 1;
    for (int64_t i = 0; i <= rows; ++i) offsets[i] = i * length;

    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "sim";
    options.step_tokens = 8192;
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 8;
    batchllm_engine *engine = NULL;
    batchllm_results *results = NULL;
    int32_t status = batchllm_engine_create(&options, &engine);
    const double start = seconds();
    if (status == BATCHLLM_OK)
        status = batchllm_add_tokens(engine, rows, tokens, offsets, NULL, &params, 1);
    if (status == BATCHLLM_OK) status = batchllm_run(engine, NULL, NULL);
    if (status == BATCHLLM_OK) status = batchllm_poll(engine, 0, &results);
    const double end = seconds();
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (status == BATCHLLM_OK)
        printf("%.4f %ld %lld %lld\n", end - start, usage.ru_maxrss, (long long)results->count,
               (long long)results->token_offsets[results->count]);
    else
        fprintf(stderr, "%s\n", batchllm_last_error());
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    free(tokens);
    free(offsets);
    return status != BATCHLLM_OK;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "write") == 0)
        return write_file(argv[2], atoll(argv[3]), atoll(argv[4]));
    if (argc == 4 && strcmp(argv[1], "run") == 0) return run_file(argv[2], atoll(argv[3]));
    return 2;
}
