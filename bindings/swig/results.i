/* Results out: a handle, and its columns as views of the library's own memory. */
%ignore batchllm_poll;
%ignore batchllm_results_free;
%ignore batchllm_results::struct_size;
%ignore batchllm_results::reserved;
%immutable batchllm_results::count;

%{
/* Results that this layer has put together lie in one block and have struct_size 0, which the
 * library's never have. */
static void batchllm_results_release(batchllm_results *results) {
    if (results && results->struct_size == 0) free(results);
    else batchllm_results_free(results);
}
%}
%nodefaultctor batchllm_results;
%batchllm_blocking(batchllm_results::~batchllm_results)
%extend batchllm_results {
    ~batchllm_results() { batchllm_results_release($self); }
}

/* batchllm_results_column_NAME(results): COUNT may use `r`, the results. */
%define %batchllm_results_column(TYPE, NAME, COUNT)
%ignore batchllm_results::NAME;
%inline %{
static batchllm_view_##TYPE batchllm_results_column_##NAME(const batchllm_results *results) {
    const batchllm_results *r = results;
    batchllm_view_##TYPE view = {r->NAME, COUNT};
    return view;
}
%}
%enddef
%batchllm_results_column(u64, tags, r->count)
%batchllm_results_column(i32, statuses, r->count)
%batchllm_results_column(i32, finish_reasons, r->count)
%batchllm_results_column(i32, samples, r->count)
%batchllm_results_column(i64, prompt_tokens, r->count)
%batchllm_results_column(i64, shared_tokens, r->count)
%batchllm_results_column(i64, token_offsets, r->count + 1)
%batchllm_results_column(i32, tokens, r->token_offsets[r->count])
%batchllm_results_column(i64, text_offsets, r->count + 1)
%batchllm_results_column(bytes, text, r->text_offsets[r->count])
%batchllm_results_column(i64, error_offsets, r->count + 1)
%batchllm_results_column(bytes, errors, r->error_offsets[r->count])
%batchllm_results_column(i64, logprob_offsets, r->count + 1)
%batchllm_results_column(f32, logprobs, r->logprob_offsets[r->count])
%batchllm_results_column(i64, top_offsets, r->logprob_offsets[r->count] + 1)
%batchllm_results_column(i32, top_tokens, r->top_offsets[r->logprob_offsets[r->count]])
%batchllm_results_column(f32, top_logprobs, r->top_offsets[r->logprob_offsets[r->count]])
%batchllm_results_column(i64, score_offsets, r->count + 1)
%batchllm_results_column(f64, scores, r->score_offsets[r->count])
%batchllm_results_column(i64, score_token_offsets, r->score_offsets[r->count] + 1)
%batchllm_results_column(f32, score_logprobs, r->score_token_offsets[r->score_offsets[r->count]])

%batchllm_blocking(batchllm_poll_results)
%newobject batchllm_poll_results;
%inline %{
static batchllm_results *batchllm_poll_results(batchllm_engine *engine, int64_t max_results,
                                               batchllm_status *FAILURE) {
    batchllm_results *results = NULL;
    *FAILURE = batchllm_poll(engine, max_results, &results);
    return results;
}
%}

%{
/* Memory for copied columns, one after the other. */
typedef struct {
    char *next;   /* NULL: only the size is wanted */
    int64_t size; /* bytes taken */
} batchllm_block;

static void *batchllm_block_take(batchllm_block *block, int64_t items, size_t item_size) {
    void *taken = block->next ? block->next + block->size : NULL;
    block->size += (items * (int64_t)item_size + 7) / 8 * 8;
    return taken;
}

static const void *batchllm_pick_items(batchllm_block *block, const void *items, size_t item_size,
                                       const int64_t *picked, int64_t count) {
    char *out = batchllm_block_take(block, count, item_size);
    if (out)
        for (int64_t i = 0; i < count; ++i)
            memcpy(out + (size_t)i * item_size, (const char *)items + (size_t)picked[i] * item_size,
                   item_size);
    return out;
}

static const int64_t *batchllm_pick_offsets(batchllm_block *block, const int64_t *offsets,
                                            const int64_t *picked, int64_t count) {
    int64_t *out = batchllm_block_take(block, count + 1, sizeof *out);
    if (out) {
        out[0] = 0;
        for (int64_t i = 0; i < count; ++i)
            out[i + 1] = out[i] + offsets[picked[i] + 1] - offsets[picked[i]];
    }
    return out;
}

/* Items of a range of each picked result: `offsets` of them. */
static const void *batchllm_pick_ranges(batchllm_block *block, const void *items, size_t item_size,
                                        const int64_t *offsets, const int64_t *picked,
                                        int64_t count) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) total += offsets[picked[i] + 1] - offsets[picked[i]];
    char *out = batchllm_block_take(block, total, item_size);
    if (out)
        for (int64_t i = 0; i < count; ++i) {
            const int64_t length = offsets[picked[i] + 1] - offsets[picked[i]];
            if (length == 0) continue;
            memcpy(out, (const char *)items + (size_t)offsets[picked[i]] * item_size,
                   (size_t)length * item_size);
            out += (size_t)length * item_size;
        }
    return out;
}

/* The numbers of the items in the ranges of picked results, for what lies a level below. */
static int64_t *batchllm_pick_expand(const int64_t *offsets, const int64_t *picked, int64_t count,
                                     int64_t *expanded) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) total += offsets[picked[i] + 1] - offsets[picked[i]];
    int64_t *out = malloc((size_t)total * sizeof *out + 1);
    *expanded = total;
    if (!out) return NULL;
    int64_t *next = out;
    for (int64_t i = 0; i < count; ++i)
        for (int64_t j = offsets[picked[i]]; j < offsets[picked[i] + 1]; ++j) *next++ = j;
    return out;
}

/* Called twice: with block->next NULL for the size, then for the copy. */
static void batchllm_pick(const batchllm_results *from, const int64_t *picked, int64_t count,
                          const int64_t *tokens, int64_t token_count, const int64_t *scored,
                          int64_t scored_count, batchllm_block *block, batchllm_results *to) {
#define ITEMS(NAME) to->NAME = batchllm_pick_items(block, from->NAME, sizeof *from->NAME, picked, count)
#define OFFSETS(NAME) to->NAME = batchllm_pick_offsets(block, from->NAME, picked, count)
#define RANGES(NAME, OFFSETS_NAME, PICKED, COUNT)                                                  \
    to->NAME = batchllm_pick_ranges(block, from->NAME, sizeof *from->NAME, from->OFFSETS_NAME,     \
                                    PICKED, COUNT)
    to->struct_size = 0;
    to->count = count;
    ITEMS(tags);
    ITEMS(statuses);
    ITEMS(finish_reasons);
    ITEMS(samples);
    ITEMS(prompt_tokens);
    ITEMS(shared_tokens);
    OFFSETS(token_offsets);
    RANGES(tokens, token_offsets, picked, count);
    OFFSETS(text_offsets);
    RANGES(text, text_offsets, picked, count);
    OFFSETS(error_offsets);
    RANGES(errors, error_offsets, picked, count);
    OFFSETS(logprob_offsets);
    RANGES(logprobs, logprob_offsets, picked, count);
    to->top_offsets = batchllm_pick_offsets(block, from->top_offsets, tokens, token_count);
    RANGES(top_tokens, top_offsets, tokens, token_count);
    RANGES(top_logprobs, top_offsets, tokens, token_count);
    OFFSETS(score_offsets);
    RANGES(scores, score_offsets, picked, count);
    to->score_token_offsets =
        batchllm_pick_offsets(block, from->score_token_offsets, scored, scored_count);
    RANGES(score_logprobs, score_token_offsets, scored, scored_count);
#undef ITEMS
#undef OFFSETS
#undef RANGES
}

/* Copies of the results `picked`, in that order. */
static batchllm_results *batchllm_results_gather(const batchllm_results *results,
                                                 const int64_t *picked, int64_t count) {
    int64_t token_count = 0, scored_count = 0;
    int64_t *tokens =
        batchllm_pick_expand(results->logprob_offsets, picked, count, &token_count);
    int64_t *scored = batchllm_pick_expand(results->score_offsets, picked, count, &scored_count);
    batchllm_results sizes, *made = NULL;
    batchllm_block block = {NULL, 0};
    if (tokens && scored) {
        batchllm_pick(results, picked, count, tokens, token_count, scored, scored_count, &block,
                      &sizes);
        made = malloc(sizeof *made + (size_t)block.size);
    }
    if (made) {
        memset(made, 0, sizeof *made);
        block.next = (char *)(made + 1);
        block.size = 0;
        batchllm_pick(results, picked, count, tokens, token_count, scored, scored_count, &block,
                      made);
    }
    free(tokens);
    free(scored);
    return made;
}
%}

%batchllm_blocking(batchllm_results_of_rows)
%newobject batchllm_results_of_rows;
%inline %{
/* Of some results those with tags in [first_tag, first_tag + rows), by tag and, of equal tags, as
 * they stand, with first_tag taken off their tags; with inside = 0 the others, as they are. */
static batchllm_results *batchllm_results_of_rows(const batchllm_results *results,
                                                  uint64_t first_tag, int64_t rows, int32_t inside,
                                                  batchllm_status *FAILURE) {
    const int64_t count = results->count;
    int64_t *starts = calloc(inside ? (size_t)rows + 1 : 1, sizeof *starts);
    int64_t *picked = malloc((size_t)count * sizeof *picked + 1);
    batchllm_results *made = NULL;
    if (starts && picked) {
        int64_t found = 0;
        for (int64_t i = 0; i < count; ++i) {
            const uint64_t row = results->tags[i] - first_tag;
            if (row < (uint64_t)rows && inside) ++starts[row + 1];
            else if (row >= (uint64_t)rows && !inside) picked[found++] = i;
        }
        if (inside) {
            for (int64_t row = 0; row < rows; ++row) starts[row + 1] += starts[row];
            found = starts[rows];
            for (int64_t i = 0; i < count; ++i) {
                const uint64_t row = results->tags[i] - first_tag;
                if (row < (uint64_t)rows) picked[starts[row]++] = i;
            }
        }
        made = batchllm_results_gather(results, picked, found);
        if (made && inside)
            for (int64_t i = 0; i < found; ++i) ((uint64_t *)made->tags)[i] -= first_tag;
    }
    free(starts);
    free(picked);
    *FAILURE = made ? BATCHLLM_OK
                    : batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for results");
    return made;
}
%}
