/* Ranges of prompts, chosen from a sample. */
%ignore batchllm_ranges_options;
%ignore batchllm_ranges_options_init;
%ignore batchllm_ranges_choose;
%ignore batchllm_ranges_free;
%ignore batchllm_ranges::struct_size;
%ignore batchllm_ranges::starts;
%ignore batchllm_ranges::offsets;
%ignore batchllm_ranges::places;
%immutable batchllm_ranges::blind;
%immutable batchllm_ranges::count;

%nodefaultctor batchllm_ranges;
%extend batchllm_ranges {
    ~batchllm_ranges() { batchllm_ranges_free($self); }
}

%batchllm_blocking(batchllm_ranges_choose_from)
%newobject batchllm_ranges_choose_from;
%inline %{
static batchllm_ranges *batchllm_ranges_choose_from(batchllm_view_bytes starts,
                                                    batchllm_view_i64 offsets,
                                                    batchllm_view_i64 lengths,
                                                    batchllm_view_i64 places, int64_t partitions,
                                                    int64_t rows, int64_t start_bytes,
                                                    int64_t expected_tokens,
                                                    batchllm_status *FAILURE) {
    batchllm_ranges *ranges = NULL;
    const int64_t n = batchllm_rows_of("starts", offsets, starts.count);
    if (n < 0) {
        *FAILURE = BATCHLLM_ERROR_INVALID_ARGUMENT;
        return NULL;
    }
    if (lengths.count != n || places.count != n) {
        *FAILURE = batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT,
                                       "%lld lengths and %lld places for %lld starts",
                                       (long long)lengths.count, (long long)places.count,
                                       (long long)n);
        return NULL;
    }
    batchllm_ranges_options options;
    batchllm_ranges_options_init(&options, sizeof options);
    options.partitions = partitions;
    options.rows = rows;
    options.start_bytes = start_bytes;
    options.expected_tokens = expected_tokens;
    *FAILURE = batchllm_ranges_choose(n, starts.data, offsets.data, lengths.data, places.data,
                                      &options, &ranges);
    return ranges;
}

static batchllm_view_bytes batchllm_ranges_column_starts(const batchllm_ranges *ranges) {
    const batchllm_view_bytes view = {ranges->starts, ranges->offsets[ranges->count]};
    return view;
}
static batchllm_view_i64 batchllm_ranges_column_offsets(const batchllm_ranges *ranges) {
    const batchllm_view_i64 view = {ranges->offsets, ranges->count + 1};
    return view;
}
static batchllm_view_i64 batchllm_ranges_column_places(const batchllm_ranges *ranges) {
    const batchllm_view_i64 view = {ranges->places, ranges->count};
    return view;
}
%}
