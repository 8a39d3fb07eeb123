/* Exports results as an Arrow struct array through the C data interface. The array uses the
 * library's own memory and keeps it alive; only finish reasons (as indices into a dictionary) and
 * error texts are created for it. The text of a row that failed is null. */
%{
/* A column, or a child of one. */
typedef struct batchllm_arrow_field {
    const char *name, *format;
    int64_t count;
    const int64_t *offsets;                       /* of texts and lists */
    const void *items;                            /* of texts and numbers */
    const struct batchllm_arrow_field *children;  /* of lists and structs */
    int64_t child_count;
    const uint8_t *validity;                      /* NULL: nothing is null */
    int64_t null_count;
    const struct batchllm_arrow_field *dictionary;
} batchllm_arrow_field;

/* A node of an exported array owns its struct's parts and holds a reference to the memory's owner. */
typedef struct {
    PyObject *owner;
    const void *buffers[3];
    struct ArrowArray **children;
} batchllm_arrow_node;

static void batchllm_arrow_drop_part(struct ArrowArray *array) {
    if (array && array->release) array->release(array);
    free(array);
}

static void batchllm_arrow_release_array(struct ArrowArray *array) {
    batchllm_arrow_node *node = array->private_data;
    for (int64_t i = 0; i < array->n_children; ++i) batchllm_arrow_drop_part(array->children[i]);
    batchllm_arrow_drop_part(array->dictionary);
    free(node->children);
    if (Py_IsInitialized()) {
        const PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(node->owner);
        PyGILState_Release(state);
    }
    free(node);
    array->release = NULL;
}

static void batchllm_arrow_drop_schema_part(struct ArrowSchema *schema) {
    if (schema && schema->release) schema->release(schema);
    free(schema);
}

static void batchllm_arrow_release_schema(struct ArrowSchema *schema) {
    for (int64_t i = 0; i < schema->n_children; ++i) batchllm_arrow_drop_schema_part(schema->children[i]);
    batchllm_arrow_drop_schema_part(schema->dictionary);
    free(schema->children);
    schema->release = NULL;
}

/* Makes room for children, all marked as released. 0: out of memory. */
static int batchllm_arrow_make_children(struct ArrowArray *array, struct ArrowSchema *schema, int64_t children) {
    batchllm_arrow_node *node = array->private_data;
    if (children == 0) return 1;
    node->children = calloc((size_t)children, sizeof *node->children);
    schema->children = calloc((size_t)children, sizeof *schema->children);
    array->children = node->children;
    if (!node->children || !schema->children) return 0;
    for (int64_t i = 0; i < children; ++i) {
        node->children[i] = calloc(1, sizeof **node->children);
        schema->children[i] = calloc(1, sizeof **schema->children);
        if (!node->children[i] || !schema->children[i]) {
            free(node->children[i]);
            free(schema->children[i]);
            return 0;
        }
        array->n_children = schema->n_children = i + 1;
    }
    return 1;
}

static int batchllm_arrow_fill(struct ArrowArray *array, struct ArrowSchema *schema, PyObject *owner,
                               const batchllm_arrow_field *field) {
    static const int64_t nothing = 0;
    memset(array, 0, sizeof *array);
    memset(schema, 0, sizeof *schema);
    batchllm_arrow_node *node = calloc(1, sizeof *node);
    if (!node) return 0;
    node->owner = Py_NewRef(owner);
    array->length = field->count;
    array->null_count = field->null_count;
    array->buffers = node->buffers;
    array->private_data = node;
    array->release = batchllm_arrow_release_array;
    schema->format = field->format;
    schema->name = field->name;
    schema->flags = field->validity ? 2 : 0; /* nullable */
    schema->release = batchllm_arrow_release_schema;
    const void *items = field->items ? field->items : &nothing;
    node->buffers[0] = field->validity;
    if (field->offsets) node->buffers[1] = field->offsets;
    else if (!field->children) node->buffers[1] = items;
    if (field->offsets && !field->children) node->buffers[2] = items;
    array->n_buffers = field->offsets ? field->children ? 2 : 3 : field->children ? 1 : 2;
    if (!batchllm_arrow_make_children(array, schema, field->child_count)) return 0;
    for (int64_t i = 0; i < field->child_count; ++i)
        if (!batchllm_arrow_fill(array->children[i], schema->children[i], owner, &field->children[i])) return 0;
    if (!field->dictionary) return 1;
    array->dictionary = calloc(1, sizeof *array->dictionary);
    schema->dictionary = calloc(1, sizeof *schema->dictionary);
    return array->dictionary && schema->dictionary &&
           batchllm_arrow_fill(array->dictionary, schema->dictionary, owner, field->dictionary);
}

static void batchllm_arrow_drop_exported_array(PyObject *capsule) {
    batchllm_arrow_drop_part(PyCapsule_GetPointer(capsule, "arrow_array"));
}
static void batchllm_arrow_drop_exported_schema(PyObject *capsule) {
    batchllm_arrow_drop_schema_part(PyCapsule_GetPointer(capsule, "arrow_schema"));
}

/* Indexed by BATCHLLM_FINISH_ - 1. */
static const char batchllm_finish_names[] = "stoplengthcancellederrorscoredembeddedclassified";
static const int64_t batchllm_finish_offsets[] = {0, 4, 10, 19, 24, 30, 38, 48};
enum { batchllm_finish_count = 7 };

/* The parts of results that need another form in Arrow, in one block of bytes. */
typedef struct {
    PyObject *block;
    int64_t *error_offsets;
    uint8_t *failed, *good; /* bitmaps */
    int8_t *finish;
    char *errors;
    int64_t failures;
} batchllm_arrow_made;

/* "ROW_NULL" of BATCHLLM_ERROR_ROW_NULL. */
static const char *batchllm_error_name(int32_t status) {
    const char *name = batchllm_status_name(status);
    const size_t common = strlen("BATCHLLM_ERROR_");
    return strncmp(name, "BATCHLLM_ERROR_", common) == 0 ? name + common : name;
}

static int64_t batchllm_arrow_error_bytes(const batchllm_results *r, int64_t i) {
    if (r->statuses[i] == BATCHLLM_OK) return 0;
    return (int64_t)strlen(batchllm_error_name(r->statuses[i])) + 2 + r->error_offsets[i + 1] - r->error_offsets[i];
}

static int batchllm_arrow_make(const batchllm_results *r, batchllm_arrow_made *made) {
    const size_t n = (size_t)r->count, bits = (n + 63) / 64 * 8;
    size_t text = 0;
    for (int64_t i = 0; i < r->count; ++i) text += (size_t)batchllm_arrow_error_bytes(r, i);
    made->block = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((n + 1) * sizeof(int64_t) + 2 * bits + n + text));
    if (!made->block) return 0;
    made->error_offsets = (int64_t *)PyBytes_AsString(made->block);
    made->failed = (uint8_t *)(made->error_offsets + n + 1);
    made->good = made->failed + bits;
    made->finish = (int8_t *)(made->good + bits);
    made->errors = (char *)(made->finish + n);
    made->failures = 0;
    memset(made->failed, 0, bits);
    memset(made->good, 0xff, bits);
    made->error_offsets[0] = 0;
    for (int64_t i = 0; i < r->count; ++i) {
        const int64_t bytes = batchllm_arrow_error_bytes(r, i), at = made->error_offsets[i];
        made->error_offsets[i + 1] = at + bytes;
        made->finish[i] = (int8_t)(r->finish_reasons[i] - 1);
        if (bytes == 0) continue;
        const char *name = batchllm_error_name(r->statuses[i]);
        const size_t named = strlen(name);
        memcpy(made->errors + at, name, named);
        memcpy(made->errors + at + named, ": ", 2);
        memcpy(made->errors + at + named + 2, r->errors + r->error_offsets[i], (size_t)bytes - named - 2);
        made->failed[i / 8] = (uint8_t)(made->failed[i / 8] | 1u << i % 8);
        made->good[i / 8] = (uint8_t)(made->good[i / 8] & ~(1u << i % 8));
        ++made->failures;
    }
    return 1;
}

/* The struct of the columns of every result and of those that are asked for, by bit, as a pair of capsules. */
static PyObject *batchllm_arrow_export(const batchllm_results *r, uint32_t asked, const batchllm_arrow_made *made,
                                       PyObject *owner) {
    const int64_t n = r->count, tokens = r->logprob_offsets[n], tops = r->top_offsets[tokens];
    const int64_t prompts = r->prompt_logprob_offsets[n], prompt_tops = r->prompt_top_offsets[prompts];
    const int64_t scored = r->score_offsets[n], pieces = r->score_token_offsets[scored];
    const batchllm_arrow_field reasons = {.name = "", .format = "U", .count = batchllm_finish_count,
                                          .offsets = batchllm_finish_offsets, .items = batchllm_finish_names};
#define NUMBERS(NAME, FORMAT, COUNT, ITEMS) {.name = NAME, .format = FORMAT, .count = COUNT, .items = ITEMS}
#define LISTS(NAME, COUNT, OFFSETS, CHILD) \
    {.name = NAME, .format = "+L", .count = COUNT, .offsets = OFFSETS, .children = CHILD, .child_count = 1}
    const batchllm_arrow_field token_items = NUMBERS("item", "i", r->token_offsets[n], r->tokens);
    const batchllm_arrow_field logprob_items = NUMBERS("item", "f", tokens, r->logprobs);
    const batchllm_arrow_field pair[] = {NUMBERS("token", "i", tops, r->top_tokens),
                                         NUMBERS("logprob", "f", tops, r->top_logprobs)};
    const batchllm_arrow_field pairs = {.name = "item", .format = "+s", .count = tops, .children = pair, .child_count = 2};
    const batchllm_arrow_field top_lists = LISTS("item", tokens, r->top_offsets, &pairs);
    const batchllm_arrow_field prompt_items = NUMBERS("item", "f", prompts, r->prompt_logprobs);
    const batchllm_arrow_field prompt_pair[] = {NUMBERS("token", "i", prompt_tops, r->prompt_top_tokens),
                                                NUMBERS("logprob", "f", prompt_tops, r->prompt_top_logprobs)};
    const batchllm_arrow_field prompt_pairs = {.name = "item", .format = "+s", .count = prompt_tops,
                                               .children = prompt_pair, .child_count = 2};
    const batchllm_arrow_field prompt_lists = LISTS("item", prompts, r->prompt_top_offsets, &prompt_pairs);
    const batchllm_arrow_field score_items = NUMBERS("item", "g", scored, r->scores);
    const batchllm_arrow_field piece_items = NUMBERS("item", "f", pieces, r->score_logprobs);
    const batchllm_arrow_field piece_lists = LISTS("item", scored, r->score_token_offsets, &piece_items);
    const batchllm_arrow_field vector_items = NUMBERS("item", "f", r->embedding_offsets[n], r->embeddings);
    const batchllm_arrow_field logit_items = NUMBERS("item", "f", r->label_offsets[n], r->label_logits);
    const batchllm_arrow_field share_items = NUMBERS("item", "f", r->label_offsets[n], r->label_probabilities);
    const batchllm_arrow_field all[] = {
        NUMBERS("tag", "L", n, r->tags),
        NUMBERS("sample", "i", n, r->samples),
        {.name = "text", .format = "U", .count = n, .offsets = r->text_offsets, .items = r->text,
         .validity = made->good, .null_count = made->failures},
        LISTS("tokens", n, r->token_offsets, &token_items),
        {.name = "finish_reason", .format = "c", .count = n, .items = made->finish, .dictionary = &reasons},
        NUMBERS("status", "i", n, r->statuses),
        {.name = "error", .format = "U", .count = n, .offsets = made->error_offsets, .items = made->errors,
         .validity = made->failed, .null_count = n - made->failures},
        NUMBERS("prompt_tokens", "l", n, r->prompt_tokens),
        NUMBERS("shared_tokens", "l", n, r->shared_tokens),
        LISTS("logprobs", n, r->logprob_offsets, &logprob_items),
        LISTS("top_logprobs", n, r->logprob_offsets, &top_lists),
        LISTS("prompt_logprobs", n, r->prompt_logprob_offsets, &prompt_items),
        LISTS("prompt_top_logprobs", n, r->prompt_logprob_offsets, &prompt_lists),
        LISTS("scores", n, r->score_offsets, &score_items),
        LISTS("score_logprobs", n, r->score_offsets, &piece_lists),
        LISTS("embedding", n, r->embedding_offsets, &vector_items),
        LISTS("label_logits", n, r->label_offsets, &logit_items),
        LISTS("label_probabilities", n, r->label_offsets, &share_items)};
#undef NUMBERS
#undef LISTS
    enum { always = 9, most = sizeof all / sizeof *all };
    batchllm_arrow_field columns[most];
    batchllm_arrow_field table = {.name = "", .format = "+s", .count = n, .children = columns};
    for (int i = 0; i < most; ++i)
        if (i < always || asked >> (i - always) & 1) columns[table.child_count++] = all[i];
    struct ArrowArray *array = calloc(1, sizeof *array);
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    PyObject *array_capsule = array ? PyCapsule_New(array, "arrow_array", batchllm_arrow_drop_exported_array) : NULL;
    PyObject *schema_capsule =
        schema ? PyCapsule_New(schema, "arrow_schema", batchllm_arrow_drop_exported_schema) : NULL;
    if (!array_capsule) free(array);
    if (!schema_capsule) free(schema);
    if (array_capsule && schema_capsule && batchllm_arrow_fill(array, schema, owner, &table))
        return Py_BuildValue("(NN)", schema_capsule, array_capsule);
    Py_XDECREF(array_capsule);
    Py_XDECREF(schema_capsule);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
}
%}

/* The exported array keeps the results alive. */
%typemap(in) (const batchllm_results *OWNED, PyObject *owner) {
    void *pointer = NULL;
    if (!SWIG_IsOK(SWIG_ConvertPtr($input, &pointer, $descriptor(batchllm_results *), 0)) ||
        !pointer)
        SWIG_exception_fail(SWIG_TypeError, "results are expected");
    $1 = pointer;
    $2 = $input;
}

%inline %{
/* Results as a pair of capsules: a struct array with a field for each column. asked: a bit for each of ASKED. */
static PyObject *batchllm_arrow_write(const batchllm_results *OWNED, PyObject *owner, uint32_t asked) {
    batchllm_arrow_made made;
    if (!batchllm_arrow_make(OWNED, &made)) return NULL;
    PyObject *both = PyTuple_Pack(2, owner, made.block);
    Py_DECREF(made.block);
    if (!both) return NULL;
    PyObject *capsules = batchllm_arrow_export(OWNED, asked, &made, both);
    Py_DECREF(both);
    return capsules;
}
%}
