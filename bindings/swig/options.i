/* batchllm_engine_options and batchllm_plan_options: objects whose fields start with the library's
 * defaults. Texts are copied and freed with the object. */
%ignore batchllm_engine_options_init;
%ignore batchllm_engine_options::struct_size;
%ignore batchllm_engine_options::log;      /* each language has its own, in language.i */
%ignore batchllm_engine_options::log_user;
%ignore batchllm_log_function;
%ignore batchllm_plan_options_init;
%ignore batchllm_plan_options::struct_size;
%ignore batchllm_plan_options::salts;

/* A text field owns its text. */
%typemap(memberin) const char * {
    char *copy = $input ? strdup($input) : NULL;
    free((void *)$1);
    $1 = copy;
}

%ignore batchllm_engine_options::reserved;
%ignore batchllm_engine_options::reserved2;
%extend batchllm_engine_options {
    batchllm_engine_options() {
        batchllm_engine_options *options = calloc(1, sizeof *options);
        if (options) batchllm_engine_options_init(options, sizeof *options);
        return options;
    }
    ~batchllm_engine_options() {
        free((void *)$self->model_dir);
        free((void *)$self->backend);
        free((void *)$self->devices);
        free((void *)$self->compute_type);
        free((void *)$self->backend_options);
        free((void *)$self->timeline_path);
        free($self);
    }
}

%extend batchllm_plan_options {
    batchllm_plan_options() {
        batchllm_plan_options *options = calloc(1, sizeof *options);
        if (options) batchllm_plan_options_init(options, sizeof *options);
        return options;
    }
    ~batchllm_plan_options() { free($self); }
}
