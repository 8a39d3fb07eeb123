/* Engines opened and closed while everything else is working: an engine whose job never ends, a
 * tokenizer, plans and constraints, each in its own thread. The process must not grow.
 *     test_api_company ENGINES   (scripts/long engines: a thousand) */
#include "api_helpers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static int64_t engines = 60;
static atomic_int stop;

#ifdef BATCHLLM_SANITIZED
static const int watch_memory = 0; /* a tool's allocator keeps freed memory */
#else
static const int watch_memory = 1;
#endif

static double resident_mib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* What one thread does over and over; an error text, or NULL. */
typedef const char *(*round_function)(void *);

typedef struct worker {
    const char *name;
    round_function round;
    void *of;
    pthread_t thread;
    const char *wrong;
    int64_t rounds;
} worker;

static void *work(void *user) {
    worker *self = user;
    while (!atomic_load(&stop) && self->wrong == NULL) {
        self->wrong = self->round(self->of);
        ++self->rounds;
    }
    return NULL;
}

#define TRY(call)                                                                                  \
    if ((call) != BATCHLLM_OK) return #call

/* The engine that is always working: rows come in, results go out. */
static const char *serve(void *user) {
    batchllm_engine *engine = user;
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t offsets[] = {0, 3, 8};
    batchllm_params params = params_of(6);
    params.temperature = 1;
    TRY(batchllm_add_tokens(engine, 2, tokens, offsets, NULL, &params, 1));
    for (int i = 0; i < 4; ++i) TRY(batchllm_step(engine, NULL));
    batchllm_results *results = NULL;
    TRY(batchllm_poll(engine, 0, &results));
    batchllm_results_free(results);
    return NULL;
}

static const char *encode(void *user) {
    const char text[] = "one two three, four! five";
    const int64_t offsets[] = {0, 8, 25};
    batchllm_column *tokens = NULL;
    TRY(batchllm_tokenizer_encode(user, 2, text, offsets, 0, 2, &tokens));
    batchllm_column_free(tokens);
    return NULL;
}

static const char *plan(void *user) {
    const token_rows *rows = user;
    batchllm_plan *made = NULL;
    TRY(batchllm_plan_create(rows->n, rows->tokens, rows->offsets, NULL, NULL, NULL, &made));
    batchllm_plan_destroy(made);
    return NULL;
}

static const char *constrain(void *user) {
    batchllm_constraint_options options;
    batchllm_constraint_options_init(&options, sizeof options);
    options.kind = BATCHLLM_CONSTRAINT_REGEX;
    options.text = "[0-9]{1,3}(ab|cd)*";
    batchllm_constraint *made = NULL;
    TRY(batchllm_constraint_create(user, &options, &made));
    batchllm_constraint_destroy(made);
    return NULL;
}

/* The life of one engine: sometimes on sim, sometimes a small model on the CPU; closed when done or
 * in the middle. */
static void live(int64_t i, const char *model, const token_rows *rows) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.threads = 2;
    if (i % 4 == 0) {
        options.backend = "cpu";
        options.model_dir = model;
        options.kv_memory_bytes = 4 << 20;
        batchllm_engine *engine = NULL;
        assert_ok(batchllm_engine_create(&options, &engine));
        const int64_t offsets[] = {0, 9};
        const batchllm_params params = params_of(4);
        assert_ok(batchllm_add_text(engine, 1, "ab cd ef!", offsets, NULL, &params, 1));
        if (i % 8 == 0) batchllm_results_free(run_all(engine));
        batchllm_engine_destroy(engine);
        return;
    }
    options.backend_options = i % 2 ? "vocabulary=1000,overlap=1" : "vocabulary=1000";
    options.devices = i % 3 ? "0" : "0,1";
    batchllm_engine *engine = sim_engine_with(&options);
    add_rows(engine, rows, 5);
    if (i % 5 == 0) {
        for (int step = 0; step < 3; ++step) assert_ok(batchllm_step(engine, NULL));
    } else {
        batchllm_results_free(run_all(engine));
    }
    batchllm_engine_destroy(engine);
}

static void many_engines_with_everything_else_at_work_leave_nothing(void **state) {
    (void)state;
    const char *model = getenv("BATCHLLM_TEXT_MODEL");
    if (model == NULL) skip();
    token_rows rows = make_rows(60, 20, 6);
    batchllm_engine *serving = sim_engine("vocabulary=1000");
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = model;
    batchllm_engine *constraining = sim_engine_with(&options);
    batchllm_tokenizer *tokenizer = NULL;
    assert_ok(batchllm_tokenizer_create(model, &tokenizer));
    worker workers[] = {
        {"an engine at work", serve, serving, 0, NULL, 0},
        {"texts", encode, tokenizer, 0, NULL, 0},
        {"plans", plan, &rows, 0, NULL, 0},
        {"constraints", constrain, constraining, 0, NULL, 0},
    };
    enum { count = sizeof workers / sizeof *workers };
    for (int i = 0; i < count; ++i)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    /* The first engines reach the peak of the allocator and of the libraries. */
    double early = 0;
    for (int64_t i = 0; i < engines; ++i) {
        live(i, model, &rows);
        if (i + 1 == (engines + 3) / 4) early = resident_mib();
    }
    const double late = resident_mib();
    atomic_store(&stop, 1);
    for (int i = 0; i < count; ++i) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].wrong != NULL) fail_msg("%s: %s", workers[i].name, workers[i].wrong);
        print_message("%s: %lld rounds\n", workers[i].name, (long long)workers[i].rounds);
        assert_true(workers[i].rounds > 0);
    }
    print_message(
        "engines: %lld opened and closed, %.1f MiB after a quarter, %.1f MiB at the end\n",
        (long long)engines, early, late);
    batchllm_tokenizer_destroy(tokenizer);
    batchllm_engine_destroy(constraining);
    batchllm_engine_destroy(serving);
    free_rows(&rows);
    /* Threads' arenas grow on their own, but by less than what one engine in a thousand would
     * leave. */
    if (watch_memory) assert_true(late - early < 8);
}

int main(int argc, char **argv) {
    if (argc > 1) engines = atoll(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_engines_with_everything_else_at_work_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
