/* Adapters of rows. */
%ignore batchllm_adapter_load;
%ignore batchllm_adapter_destroy;
%ignore batchllm_adapter_info;
%ignore batchllm_adapter_get_info;
%ignore batchllm_adapter_identify;

%nodefaultctor batchllm_adapter;
struct batchllm_adapter {};
%extend batchllm_adapter {
    ~batchllm_adapter() { batchllm_adapter_destroy($self); }
}

%batchllm_blocking(batchllm_adapter_open)
%newobject batchllm_adapter_open;
%newobject batchllm_adapter_identity;
%inline %{
static batchllm_adapter *batchllm_adapter_open(batchllm_engine *engine, const char *name, const char *path,
                                               batchllm_status *FAILURE) {
    batchllm_adapter *adapter = NULL;
    *FAILURE = batchllm_adapter_load(engine, name, path, &adapter);
    return adapter;
}

/* What identifies the content of an adapter. */
static char *batchllm_adapter_identity(const batchllm_adapter *adapter, batchllm_status *FAILURE) {
    batchllm_adapter_info info = {0};
    info.struct_size = sizeof info;
    *FAILURE = batchllm_adapter_get_info(adapter, &info);
    char *copy = *FAILURE == BATCHLLM_OK ? malloc(sizeof info.identity) : NULL;
    if (copy) memcpy(copy, info.identity, sizeof info.identity);
    return copy;
}

/* Sets the adapter of these rows, or of all rows if none are given. The column does not keep the
 * adapter alive: the caller must, until the rows have been added. */
static batchllm_status batchllm_params_set_adapter(batchllm_params_column *column, batchllm_view_i64 rows,
                                                   const batchllm_adapter *adapter) {
    for (int64_t i = 0; i < rows.count; ++i) {
        if (rows.data[i] < 0 || rows.data[i] >= column->count)
            return batchllm_layer_fail(BATCHLLM_ERROR_INVALID_ARGUMENT, "adapter: no row %lld", (long long)rows.data[i]);
        column->items[rows.data[i]].adapter = adapter;
    }
    for (int64_t i = 0; rows.count == 0 && i < column->count; ++i) column->items[i].adapter = adapter;
    return BATCHLLM_OK;
}
%}
