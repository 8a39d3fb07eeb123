/* Results out: a handle, and its columns as views of the library's own memory. */
%ignore batchllm_poll;
%ignore batchllm_results_free;
%ignore batchllm_results::struct_size;
%ignore batchllm_results::reserved;
%immutable batchllm_results::count;

%{
/* Results that this layer assembles are in one block and have struct_size 0, which the library's
 * results never have. */
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
%batchllm_results_column(i64, embedding_offsets, r->count + 1)
%batchllm_results_column(f32, embeddings, r->embedding_offsets[r->count])
%batchllm_results_column(i64, label_offsets, r->count + 1)
%batchllm_results_column(f32, label_logits, r->label_offsets[r->count])
%batchllm_results_column(f32, label_probabilities, r->label_offsets[r->count])
%batchllm_results_column(i64, prompt_logprob_offsets, r->count + 1)
%batchllm_results_column(f32, prompt_logprobs, r->prompt_logprob_offsets[r->count])
%batchllm_results_column(i64, prompt_top_offsets, r->prompt_logprob_offsets[r->count] + 1)
%batchllm_results_column(i32, prompt_top_tokens, r->prompt_top_offsets[r->prompt_logprob_offsets[r->count]])
%batchllm_results_column(f32, prompt_top_logprobs, r->prompt_top_offsets[r->prompt_logprob_offsets[r->count]])

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
    char *next;   /* NULL: only compute the size */
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

/* Copies the items of each picked result; `offsets` says where they are. */
static const void *batchllm_pick_ranges(batchllm_block *block, const void *items, size_t item_size,
                                        const int64_t *offsets, const int64_t *picked,
                                        int64_t count) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) total += offsets[picked[i] + 1] - offsets[picked[i]];
    char *out = batchllm_block_take(block, total, item_size), *next = out;
    if (out)
        for (int64_t i = 0; i < count; ++i) {
            const int64_t length = offsets[picked[i] + 1] - offsets[picked[i]];
            if (length == 0) continue;
            memcpy(next, (const char *)items + (size_t)offsets[picked[i]] * item_size,
                   (size_t)length * item_size);
            next += (size_t)length * item_size;
        }
    return out;
}

/* Numbers of items of a level below the results. */
typedef struct {
    int64_t *items, count;
} batchllm_picked;

/* The numbers of the items in the ranges of picked results. items NULL: out of memory. */
static batchllm_picked batchllm_pick_expand(const int64_t *offsets, const int64_t *picked, int64_t count) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; ++i) total += offsets[picked[i] + 1] - offsets[picked[i]];
    int64_t *out = malloc((size_t)total * sizeof *out + 1), *next = out;
    for (int64_t i = 0; out && i < count; ++i)
        for (int64_t j = offsets[picked[i]]; j < offsets[picked[i] + 1]; ++j) *next++ = j;
    return (batchllm_picked){out, total};
}

/* Called twice: with block->next NULL for the size, then for the copy. */
static void batchllm_pick(const batchllm_results *from, const int64_t *picked, int64_t count,
                          batchllm_picked tokens, batchllm_picked prompts, batchllm_picked scored,
                          batchllm_block *block, batchllm_results *to) {
#define ITEMS(NAME) to->NAME = batchllm_pick_items(block, from->NAME, sizeof *from->NAME, picked, count)
#define OFFSETS(NAME) to->NAME = batchllm_pick_offsets(block, from->NAME, picked, count)
#define RANGES(NAME, OFFSETS_NAME, PICKED, COUNT)                                                  \
    to->NAME = batchllm_pick_ranges(block, from->NAME, sizeof *from->NAME, from->OFFSETS_NAME,     \
                                    PICKED, COUNT)
#define BELOW(NAME, PICKED)                                                                        \
    to->NAME = batchllm_pick_offsets(block, from->NAME, PICKED.items, PICKED.count)
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
    BELOW(top_offsets, tokens);
    RANGES(top_tokens, top_offsets, tokens.items, tokens.count);
    RANGES(top_logprobs, top_offsets, tokens.items, tokens.count);
    OFFSETS(prompt_logprob_offsets);
    RANGES(prompt_logprobs, prompt_logprob_offsets, picked, count);
    BELOW(prompt_top_offsets, prompts);
    RANGES(prompt_top_tokens, prompt_top_offsets, prompts.items, prompts.count);
    RANGES(prompt_top_logprobs, prompt_top_offsets, prompts.items, prompts.count);
    OFFSETS(score_offsets);
    RANGES(scores, score_offsets, picked, count);
    BELOW(score_token_offsets, scored);
    RANGES(score_logprobs, score_token_offsets, scored.items, scored.count);
    OFFSETS(embedding_offsets);
    RANGES(embeddings, embedding_offsets, picked, count);
    OFFSETS(label_offsets);
    RANGES(label_logits, label_offsets, picked, count);
    RANGES(label_probabilities, label_offsets, picked, count);
#undef ITEMS
#undef OFFSETS
#undef RANGES
#undef BELOW
}

static const void *batchllm_join_items(batchllm_block *block, const void *a, int64_t a_count,
                                       const void *b, int64_t b_count, size_t size) {
    char *out = batchllm_block_take(block, a_count + b_count, size);
    if (out && a_count) memcpy(out, a, (size_t)a_count * size);
    if (out && b_count) memcpy(out + (size_t)a_count * size, b, (size_t)b_count * size);
    return out;
}

static const int64_t *batchllm_join_offsets(batchllm_block *block, const int64_t *a, int64_t a_count,
                                            const int64_t *b, int64_t b_count) {
    int64_t *out = batchllm_block_take(block, a_count + b_count + 1, sizeof *out);
    if (out) {
        memcpy(out, a, (size_t)(a_count + 1) * sizeof *out);
        for (int64_t i = 1; i <= b_count; ++i) out[a_count + i] = a[a_count] + b[i] - b[0];
    }
    return out;
}

/* Called twice, like batchllm_pick. All columns begin at offset 0, as in the library. */
static void batchllm_join(const batchllm_results *a, const batchllm_results *b, batchllm_block *block,
                          batchllm_results *to) {
    const int64_t a_tokens = a->logprob_offsets[a->count], b_tokens = b->logprob_offsets[b->count];
    const int64_t a_scored = a->score_offsets[a->count], b_scored = b->score_offsets[b->count];
    const int64_t a_prompts = a->prompt_logprob_offsets[a->count];
    const int64_t b_prompts = b->prompt_logprob_offsets[b->count];
#define ITEMS(NAME, A_COUNT, B_COUNT)                                                              \
    to->NAME = batchllm_join_items(block, a->NAME, A_COUNT, b->NAME, B_COUNT, sizeof *a->NAME)
#define OFFSETS(NAME, A_COUNT, B_COUNT)                                                            \
    to->NAME = batchllm_join_offsets(block, a->NAME, A_COUNT, b->NAME, B_COUNT)
    to->struct_size = 0;
    to->count = a->count + b->count;
    ITEMS(tags, a->count, b->count);
    ITEMS(statuses, a->count, b->count);
    ITEMS(finish_reasons, a->count, b->count);
    ITEMS(samples, a->count, b->count);
    ITEMS(prompt_tokens, a->count, b->count);
    ITEMS(shared_tokens, a->count, b->count);
    OFFSETS(token_offsets, a->count, b->count);
    ITEMS(tokens, a->token_offsets[a->count], b->token_offsets[b->count]);
    OFFSETS(text_offsets, a->count, b->count);
    ITEMS(text, a->text_offsets[a->count], b->text_offsets[b->count]);
    OFFSETS(error_offsets, a->count, b->count);
    ITEMS(errors, a->error_offsets[a->count], b->error_offsets[b->count]);
    OFFSETS(logprob_offsets, a->count, b->count);
    ITEMS(logprobs, a_tokens, b_tokens);
    OFFSETS(top_offsets, a_tokens, b_tokens);
    ITEMS(top_tokens, a->top_offsets[a_tokens], b->top_offsets[b_tokens]);
    ITEMS(top_logprobs, a->top_offsets[a_tokens], b->top_offsets[b_tokens]);
    OFFSETS(prompt_logprob_offsets, a->count, b->count);
    ITEMS(prompt_logprobs, a_prompts, b_prompts);
    OFFSETS(prompt_top_offsets, a_prompts, b_prompts);
    ITEMS(prompt_top_tokens, a->prompt_top_offsets[a_prompts], b->prompt_top_offsets[b_prompts]);
    ITEMS(prompt_top_logprobs, a->prompt_top_offsets[a_prompts], b->prompt_top_offsets[b_prompts]);
    OFFSETS(score_offsets, a->count, b->count);
    ITEMS(scores, a_scored, b_scored);
    OFFSETS(score_token_offsets, a_scored, b_scored);
    ITEMS(score_logprobs, a->score_token_offsets[a_scored], b->score_token_offsets[b_scored]);
    OFFSETS(embedding_offsets, a->count, b->count);
    ITEMS(embeddings, a->embedding_offsets[a->count], b->embedding_offsets[b->count]);
    OFFSETS(label_offsets, a->count, b->count);
    ITEMS(label_logits, a->label_offsets[a->count], b->label_offsets[b->count]);
    ITEMS(label_probabilities, a->label_offsets[a->count], b->label_offsets[b->count]);
#undef ITEMS
#undef OFFSETS
}

/* Copies the results `picked`, in that order. */
static batchllm_results *batchllm_results_gather(const batchllm_results *results,
                                                 const int64_t *picked, int64_t count) {
    const batchllm_picked tokens = batchllm_pick_expand(results->logprob_offsets, picked, count);
    const batchllm_picked prompts = batchllm_pick_expand(results->prompt_logprob_offsets, picked, count);
    const batchllm_picked scored = batchllm_pick_expand(results->score_offsets, picked, count);
    batchllm_results sizes, *made = NULL;
    batchllm_block block = {NULL, 0};
    if (tokens.items && prompts.items && scored.items) {
        batchllm_pick(results, picked, count, tokens, prompts, scored, &block, &sizes);
        made = malloc(sizeof *made + (size_t)block.size);
    }
    if (made) {
        memset(made, 0, sizeof *made);
        block.next = (char *)(made + 1);
        block.size = 0;
        batchllm_pick(results, picked, count, tokens, prompts, scored, &block, made);
    }
    free(tokens.items);
    free(prompts.items);
    free(scored.items);
    return made;
}
%}

%batchllm_blocking(batchllm_results_of_rows)
%batchllm_blocking(batchllm_results_join)
%newobject batchllm_results_join;
%newobject batchllm_results_take;
%newobject batchllm_results_none;
%newobject batchllm_results_of_rows;
%inline %{
/* With inside = 1, the results with tags in [first_tag, first_tag + rows), sorted by tag (stable),
 * with first_tag subtracted from their tags. With inside = 0, the other results, unchanged. */
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

/* How many rows the results belong to: a row's samples are adjacent and count once. */
static int64_t batchllm_results_rows(const batchllm_results *results) {
    int64_t rows = 0;
    for (int64_t i = 0; i < results->count; ++i)
        rows += i == 0 || results->tags[i] != results->tags[i - 1];
    return rows;
}

/* A copy of up to max_results results (0: all), starting with number `first`. The samples of a row
 * are not split, as in batchllm_poll. */
static batchllm_results *batchllm_results_take(const batchllm_results *results, int64_t first,
                                               int64_t max_results, batchllm_status *FAILURE) {
    const int64_t count = results->count;
    int64_t end = first;
    if (first < 0 || first > count || max_results < 0) {
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "up to %lld results from %lld on, of %lld",
                                       (long long)max_results, (long long)first, (long long)count);
        return NULL;
    }
    while (end < count && (max_results == 0 || end - first < max_results)) {
        int64_t next = end + 1;
        while (next < count && results->samples[next] > 0) ++next;
        if (max_results > 0 && end > first && next - first > max_results) break;
        end = next;
    }
    int64_t *picked = malloc((size_t)(end - first) * sizeof *picked + 1);
    batchllm_results *made = NULL;
    for (int64_t i = first; picked && i < end; ++i) picked[i - first] = i;
    if (picked) made = batchllm_results_gather(results, picked, end - first);
    free(picked);
    *FAILURE = made ? BATCHLLM_OK
                    : batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for results");
    return made;
}

/* No results. */
static batchllm_results *batchllm_results_none(batchllm_status *FAILURE) {
    static const int64_t zero = 0;
    batchllm_results empty;
    memset(&empty, 0, sizeof empty);
    empty.token_offsets = empty.text_offsets = empty.error_offsets = empty.logprob_offsets = &zero;
    empty.top_offsets = empty.score_offsets = empty.score_token_offsets = &zero;
    empty.embedding_offsets = empty.label_offsets = &zero;
    empty.prompt_logprob_offsets = empty.prompt_top_offsets = &zero;
    batchllm_results *made = batchllm_results_gather(&empty, NULL, 0);
    *FAILURE = made ? BATCHLLM_OK
                    : batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for results");
    return made;
}

/* A copy of the results of `a` followed by those of `b`. */
static batchllm_results *batchllm_results_join(const batchllm_results *a, const batchllm_results *b,
                                               batchllm_status *FAILURE) {
    batchllm_results *made = NULL;
    batchllm_block block = {NULL, 0};
    batchllm_results sizes;
    batchllm_join(a, b, &block, &sizes);
    made = malloc(sizeof *made + (size_t)block.size);
    if (made) {
        memset(made, 0, sizeof *made);
        block.next = (char *)(made + 1);
        block.size = 0;
        batchllm_join(a, b, &block, made);
    }
    *FAILURE = made ? BATCHLLM_OK
                    : batchllm_layer_fail(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for results");
    return made;
}
%}
