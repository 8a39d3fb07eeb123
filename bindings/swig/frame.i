/* A table's columns while they are collected: languages fill them, and table.i makes a table from
 * them. */
%{
typedef struct {
    char *name, *text;
    int64_t *offsets; /* [rows + 1] */
    uint8_t *validity;
    int64_t rows, room_rows; /* room_rows: the capacity of offsets and validity */
    int64_t room_bytes;
} batchllm_frame_column;

/* Columns that grow a cell at a time. */
typedef struct batchllm_frame {
    int64_t count;
    batchllm_frame_column *columns; /* [count] */
    int32_t *pictures;              /* [picture_rows] how many a row has; NULL: none */
    int64_t picture_rows;
} batchllm_frame;

static void batchllm_frame_free(batchllm_frame *frame) {
    if (!frame) return;
    for (int64_t i = 0; i < frame->count; ++i) {
        free(frame->columns[i].name);
        free(frame->columns[i].text);
        free(frame->columns[i].offsets);
        free(frame->columns[i].validity);
    }
    free(frame->columns);
    free(frame->pictures);
    free(frame);
}

/* text NULL: a null. Returns 0 if out of memory. */
static int batchllm_frame_append(batchllm_frame_column *column, const char *text, int64_t bytes) {
    if (column->rows == column->room_rows || !column->offsets) {
        const int64_t room = column->room_rows ? 2 * column->room_rows : 1024;
        int64_t *offsets = realloc(column->offsets, (size_t)(room + 1) * sizeof *offsets);
        if (!offsets) return 0;
        if (!column->offsets) offsets[0] = 0;
        column->offsets = offsets;
        uint8_t *validity = realloc(column->validity, (size_t)room / 8 + 1);
        if (!validity) return 0;
        column->validity = validity;
        column->room_rows = room;
    }
    const int64_t used = column->offsets[column->rows];
    if (used + bytes > column->room_bytes) {
        const int64_t room = 2 * (used + bytes) + 4096;
        char *grown = realloc(column->text, (size_t)room);
        if (!grown) return 0;
        column->text = grown;
        column->room_bytes = room;
    }
    if (text && bytes) memcpy(column->text + used, text, (size_t)bytes);
    uint8_t *bits = &column->validity[column->rows / 8];
    if (column->rows % 8 == 0) *bits = 0;
    if (text) *bits = (uint8_t)(*bits | 1u << column->rows % 8);
    column->offsets[++column->rows] = used + (text ? bytes : 0);
    return 1;
}
%}
