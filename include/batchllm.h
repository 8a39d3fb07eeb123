/* libbatchllm: run a language model over a whole data set at once.
 *
 * Add all prompts up front. The library finds the prefixes that they share, computes each one
 * once, fills every step with as many tokens as memory allows, and returns the results in column
 * batches.
 *
 *     #include <batchllm.h>
 *     #include <stdio.h>
 *
 *     int main(int argc, char **argv) {
 *         const char *prompts[] = {"The capital of France is", "The capital of Peru is"};
 *         batchllm_engine_options options;
 *         batchllm_engine_options_init(&options, sizeof options);
 *         options.model_dir = argc > 1 ? argv[1] : ".";
 *         batchllm_engine *engine = NULL;
 *         int32_t status = batchllm_engine_create(&options, &engine);
 *         for (uint64_t i = 0; status == BATCHLLM_OK && i < 2; ++i)
 *             status = batchllm_add_prompt(engine, prompts[i], -1, i, NULL);
 *         if (status == BATCHLLM_OK) status = batchllm_run(engine, NULL, NULL);
 *         batchllm_results *results = NULL;
 *         if (status == BATCHLLM_OK) status = batchllm_poll(engine, 0, &results);
 *         for (int64_t i = 0; results && i < results->count; ++i)
 *             printf("%llu: %.*s\n", (unsigned long long)results->tags[i],
 *                    (int)(results->text_offsets[i + 1] - results->text_offsets[i]),
 *                    results->text + results->text_offsets[i]);
 *         if (status != BATCHLLM_OK) fprintf(stderr, "%s\n", batchllm_last_error());
 *         batchllm_results_free(results);
 *         batchllm_engine_destroy(engine);
 *         return status == BATCHLLM_OK ? 0 : 1;
 *     }
 *
 * Status.    Functions that can fail return int32_t: BATCHLLM_OK (0) or a BATCHLLM_ERROR_ number.
 *            batchllm_last_error() is the text of the calling thread's last failure. No exception,
 *            exit or abort crosses this interface.
 * Threads.   A handle is used by one thread at a time, except where a function says otherwise
 *            (batchllm_cancel, batchllm_interrupt). For an engine this is checked: a call that would
 *            overlap another thread's fails (STATE). Only batchllm_engine_destroy is not checked: all
 *            other calls must have returned. Different handles are independent. Engines have threads
 *            of their own, so a child of fork() must not use its parent's engines.
 * Ownership. Inputs are copied unless a declaration says that they are borrowed. The caller owns
 *            what a function returns through a `**` parameter, and passes it to the matching _free
 *            or _destroy, which ignore NULL, unless the declaration says whose it is. On failure an
 *            out parameter is set to NULL.
 * Structs.   Each options or out struct starts with `struct_size` and only ever grows at its end.
 *            An options struct's _init function sets struct_size; in an out struct, the caller sets
 *            it. Fields beyond the caller's struct_size take their defaults, or are not written. A
 *            caller compiled against a later header may leave fields that this library does not
 *            know at zero; setting one is UNSUPPORTED. `reserved` fields keep the alignment. In
 *            options they must be 0 (INVALID_ARGUMENT otherwise); in out structs they have no
 *            meaning.
 * NULL.      NULL for a pointer that a function needs is INVALID_ARGUMENT. Where NULL is allowed,
 *            the declaration says what it means. For a NULL handle, batchllm_interrupt does
 *            nothing, and functions without a status return 0, NULL or "".
 * Paths.     Writing to a path replaces the file, unless the path names an open descriptor of the
 *            process (/dev/stdout, /dev/fd/3). In that case the output goes to the descriptor, from
 *            its current position on.
 * Columns.   n items in one buffer with n + 1 int64 offsets that never decrease, offsets[0] >= 0;
 *            item i is [offsets[i], offsets[i + 1]). Offsets count tokens, bytes or items as named.
 * Versions.  Everything exists since 0.1 unless a declaration says otherwise. Symbols and numbers
 *            never change their meaning and are never removed.
 */
#ifndef BATCHLLM_H
#define BATCHLLM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(BATCHLLM_BUILD)
#define BATCHLLM_API __attribute__((visibility("default")))
#else
#define BATCHLLM_API
#endif

/* ---- Version, status, errors ----------------------------------------------------------------- */

#define BATCHLLM_VERSION_MAJOR 0
#define BATCHLLM_VERSION_MINOR 1
#define BATCHLLM_VERSION_PATCH 0
/* This header's version, for #if BATCHLLM_VERSION >= ...; batchllm_version() is the library's. */
#define BATCHLLM_VERSION                                                                           \
    ((BATCHLLM_VERSION_MAJOR << 16) | (BATCHLLM_VERSION_MINOR << 8) | BATCHLLM_VERSION_PATCH)

#define BATCHLLM_OK 0
/* The call or the engine as a whole. */
#define BATCHLLM_ERROR_INVALID_ARGUMENT 1
#define BATCHLLM_ERROR_OUT_OF_MEMORY 2
#define BATCHLLM_ERROR_IO 3
#define BATCHLLM_ERROR_STOPPED 4     /* a callback or batchllm_interrupt stopped batchllm_run */
#define BATCHLLM_ERROR_INTERNAL 5    /* a bug in the library: please report it */
#define BATCHLLM_ERROR_UNSUPPORTED 6 /* well-formed, but not supported; the text says what */
#define BATCHLLM_ERROR_STATE 7       /* the call does not fit the handle's state */
/* Files. */
#define BATCHLLM_ERROR_MODEL_FORMAT 20     /* config.json, generation_config.json, safetensors */
#define BATCHLLM_ERROR_TOKENIZER_FORMAT 21 /* tokenizer.json, tokenizer_config.json */
#define BATCHLLM_ERROR_PLAN_FORMAT 22      /* not a plan file, damaged, or of a newer format */
#define BATCHLLM_ERROR_PLAN_MISMATCH 23    /* a plan for other rows or another tokenizer */
#define BATCHLLM_ERROR_JOURNAL_FORMAT 24   /* what resuming needs is damaged, edited or missing */
#define BATCHLLM_ERROR_JOURNAL_MISMATCH                                                            \
    25                                   /* another job's journal; the text names the difference */
#define BATCHLLM_ERROR_JOURNAL_EXISTS 26 /* an output that is to be neither resumed nor replaced */
#define BATCHLLM_ERROR_ADAPTER_FORMAT 27 /* adapter_config.json, adapter_model.safetensors */
/* Backends. */
#define BATCHLLM_ERROR_BACKEND_UNAVAILABLE 40 /* no such backend here: no driver, no device */
#define BATCHLLM_ERROR_DEVICE 41              /* the device failed; the engine stays failed */
/* One row. These come in batchllm_results.statuses. Of all calls, only batchllm_engine_check_params
 * fails with one. */
#define BATCHLLM_ERROR_ROW_EMPTY 60    /* its prompt has no token */
#define BATCHLLM_ERROR_ROW_TOO_LONG 61 /* prompt plus one token exceeds the longest request */
#define BATCHLLM_ERROR_ROW_INVALID_UTF8 62
#define BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN 63     /* a token id outside the vocabulary */
#define BATCHLLM_ERROR_ROW_INVALID_PARAMETER 64 /* out of range, or not for this model */
#define BATCHLLM_ERROR_ROW_TEMPLATE 65          /* chat template failed */
#define BATCHLLM_ERROR_ROW_TOO_LARGE 66         /* needs more KV pages than the pool has */
#define BATCHLLM_ERROR_ROW_NOT_A_NUMBER 67 /* one of its logits or hidden states is not finite */
#define BATCHLLM_ERROR_ROW_CONSTRAINT 68   /* the row's constraint failed; the text says why */
#define BATCHLLM_ERROR_ROW_NULL 69         /* a cell that the row's prompt needs is null */
#define BATCHLLM_ERROR_ROW_ADAPTER 70      /* its adapter cannot be read again, or has changed */
#define BATCHLLM_ERROR_ROW_PICTURE 71      /* a picture cannot be read, or the row cannot have it */

/* (major << 16) | (minor << 8) | patch of the library that runs. Any thread. */
BATCHLLM_API uint32_t batchllm_version(void);

/* "BATCHLLM_ERROR_IO" for 3, and so on; "unknown status" for other numbers. Static. Any thread. */
BATCHLLM_API const char *batchllm_status_name(int32_t status);

/* Text of the calling thread's last failure, UTF-8; "" when there was none. A text of more than
 * 1,023 bytes is cut there, before the character that does not fit. Valid until that thread's next
 * call into the library. */
BATCHLLM_API const char *batchllm_last_error(void);

/* ---- Engine options -------------------------------------------------------------------------- */

/* Which prefixes prompts share (`enlarge` of batchllm_engine_options and batchllm_plan_options).
 *   NONE     share nothing, not even between equal rows or samples of a row
 *   OPTIMAL  the exact optimum of single-level sharing by prefixes of at least min_prefix_tokens
 *   PAPER    BatchLLM's Algorithm 1 */
#define BATCHLLM_ENLARGE_NONE 0
#define BATCHLLM_ENLARGE_OPTIMAL 1 /* default */
#define BATCHLLM_ENLARGE_PAPER 2

/* The order in which groups of rows run (`order` of the same structs). */
#define BATCHLLM_ORDER_DECODE_FIRST 0 /* by BatchLLM's Eq. 4: long answers first; default */
#define BATCHLLM_ORDER_ARRIVAL 1      /* by their first row */

#define BATCHLLM_LOG_ERROR 0
#define BATCHLLM_LOG_WARNING 1
#define BATCHLLM_LOG_INFO 2
#define BATCHLLM_LOG_DEBUG 3

/* message: UTF-8, one line without a line feed, valid during the call. The library may call it from
 * any of its threads. It must not call back into the library. */
typedef void (*batchllm_log_function)(void *user, int32_t level, const char *message);

/* The pictures of rows: see batchllm_pictures_create. */
typedef struct batchllm_pictures batchllm_pictures;

typedef struct batchllm_engine_options {
    uint32_t struct_size;
    int32_t reserved; /* 0, else INVALID_ARGUMENT */

    /* What runs, and on what. */
    const char *model_dir; /* Hugging Face directory. NULL is allowed with backend "sim" */
    const char *backend;   /* "auto" (NULL), "cpu", "cuda", "sim" */
    /* Device numbers, "0" or "0,1" or "0-3"; NULL: "0". Each device has the whole model, and KV pages
     * and steps of its own. With tensor_parallel=N in backend_options, so has each group of N devices
     * (on cuda, N > 2 needs NCCL, and so do two without access to each other's memory); NULL: "0" to
     * N - 1, or with "auto" as many of all as it takes. */
    const char *devices;
    const char *compute_type; /* "auto" (NULL), "bf16", "f16", "f32" */
    /* "key=value,key=value", or NULL. Unknown keys and values are errors.
     *   page_tokens   cpu, sim  tokens of a KV page: on cpu a multiple of 16 up to 1,024, on sim 1 to
     *                           4,096; default 16
     *   kv_type       all       type of keys and values: "auto" (the compute type); "fp8" on cuda
     *   quantize      cuda      layers whose products are in fp8: "stored" (default: those that the
     *                           checkpoint has in fp8), "fp8" (all), "none"
     *   state_slots   all       slots for the states of recurrent layers; default: by memory
     *   state_type    all       their type: "f32" (default) or "bf16"
     *   tensor_parallel
     *                 all       so many devices have parts of the model and work as one, or "auto": as
     *                           few as leave room; default 1. On the cpu, groups of threads
     *   kernels       cpu       "portable", "avx2", "avx512", "avx512_bf16", "amx"; default: best
     *   attention     cuda      family of kernels: "auto", "sm90", "sm80"
     *   residual      cuda      type of the residual stream: "element" (compute type) or "f32"
     *   fast_accumulation cuda  1: sums of fp8 products have the tensor cores' precision; default 0
     *   drafts        all       "auto" (default on cuda), "off" (on others), "always": docs/drafts.md
     *   graphs        cuda      0: no CUDA graphs; default 1
     *   pictures      cuda      0: the tower of a model that reads pictures is not loaded; default 1
     *   tuning        cuda      0: cuBLASLt's candidates are not timed; 1 (default), "at_once": they are
     *   tuning_cache  cuda      the file that keeps what was timed, or "none"; default: the user's cache
     * docs/backends.md has those for comparisons, and sim's own. */
    const char *backend_options;

    /* Memory on each device for KV pages and, if layers have a state, for state slots: one for each
     * running row and each shared prefix in use, of batchllm_info.state_slot_bytes. There are as
     * many slots as leave the pages of 512 tokens for each, but slots get at least 1/16 of this
     * memory; backend_options' state_slots sets their number instead. 0: by kv_memory_fraction. */
    int64_t kv_memory_bytes;
    double kv_memory_fraction; /* of the memory free after loading; 0: 0.9 on a GPU, 0.4 on a CPU */

    /* Limits. */
    int64_t step_tokens;        /* maximum tokens computed in a step; 0: chosen by the backend */
    int64_t max_request_tokens; /* longest prompt plus output; 0: what the model states */
    int64_t max_requests;       /* maximum requests running at once; 0: limited only by memory */
    int32_t threads;            /* CPU threads; 0: every core this process may use */
    int32_t reserved2;          /* 0, else INVALID_ARGUMENT */

    /* Sharing and order. */
    int32_t enlarge;           /* BATCHLLM_ENLARGE_ */
    int32_t min_prefix_tokens; /* shorter prefixes are not shared; 0: 16 */
    /* 1: each shared prefix stands alone. 2: shared prefixes may have a common prefix of their own,
     * computed and stored once for all of them. 0 (default): where that is predicted to pay. */
    int32_t levels;
    int32_t order; /* BATCHLLM_ORDER_ */

    /* Mixed into each row's own seed. */
    uint64_t seed;
    /* 1: a row's tokens, log-probabilities, scores, labels and vectors are the same bits whatever
     * rows are computed with it, shared or not, at any step_tokens, KV memory and number of threads
     * and devices. This holds for one version, type of processor or GPU, backend and compute_type.
     * On cuda in types other than f32, it holds only if the row's shared prefix ends at the same
     * place; other rows can move it, except with ENLARGE_NONE. UNSUPPORTED if a matrix product
     * cannot be computed in this way. 0 (default): last bits may differ. */
    int32_t reproducible;

    /* Watching. */
    int32_t log_level;         /* least important BATCHLLM_LOG_ level to log; default warning */
    batchllm_log_function log; /* NULL: nothing is logged */
    void *log_user;
    /* A CSV file with one line per batch, replaced if it exists; NULL: none. Its columns: step,
     * milliseconds, decode_tokens, own_tokens, prefix_tokens, requests, pages_used, device. */
    const char *timeline_path;

    /* Most memory on each device for the adapters of running rows; rows whose adapters do not fit
     * wait. 0: 1/16 of the memory that is free after loading on a CPU, at most 2 GiB; on a GPU at
     * most 2 GiB, taken when the first adapter is loaded. */
    int64_t adapter_memory_bytes;

    /* Where rows find pictures, made for the same model (INVALID_ARGUMENT: for one that prepares
     * pictures in another way); the engine keeps what it needs of it. NULL
     * (default): rows bring their pictures, and name no files. */
    const batchllm_pictures *pictures;
} batchllm_engine_options;

/* Fills in the defaults. struct_size: sizeof(batchllm_engine_options) as the caller compiled it. */
BATCHLLM_API void batchllm_engine_options_init(batchllm_engine_options *options,
                                               size_t struct_size);

/* ---- Parameters of a row --------------------------------------------------------------------- */

/* The kind of a row's result (batchllm_params.task). */
#define BATCHLLM_TASK_GENERATE 0 /* tokens and text */
#define BATCHLLM_TASK_EMBED 1    /* one vector: `embeddings` of the results */
/* Labels, from a model's classification head: `label_logits` and `label_probabilities`. */
#define BATCHLLM_TASK_CLASSIFY 2

/* The vector of a row, from the hidden states after the model's last norm.
 *   MODEL  as modules.json and 1_Pooling/config.json of the model say, as is whether it is
 *          normalised; without these files: LAST
 *   LAST   of the last token: prefixes are shared as in generation
 *   MEAN   the mean over all tokens: only equal rows are shared
 *   FIRST  of the first token, the only one that is computed */
#define BATCHLLM_POOLING_MODEL 0
#define BATCHLLM_POOLING_LAST 1
#define BATCHLLM_POOLING_MEAN 2
#define BATCHLLM_POOLING_FIRST 3

/* A constraint on the output of a row: see batchllm_constraint_create. */
typedef struct batchllm_constraint batchllm_constraint;

/* A change to the model for the rows that name it: see batchllm_adapter_load. */
typedef struct batchllm_adapter batchllm_adapter;

typedef struct batchllm_params {
    uint32_t struct_size;
    int32_t task; /* BATCHLLM_TASK_; default 0: generate */

    /* Any task: how a row's text becomes tokens. */
    int32_t add_special; /* nonzero (default): the tokenizer's template adds BOS and the like */
    /* Nonzero (default): special tokens in the text are special tokens. 0: they are plain text (for
     * untrusted text). */
    int32_t parse_special;

    /* Embed. */
    int32_t pooling;    /* BATCHLLM_POOLING_; default 0: as the model's files say */
    int32_t normalize;  /* 1: scale to length 1; -1: do not; default 0: as the model's files say */
    int32_t dimensions; /* keep this many dimensions, then normalise; default 0: all */

    /* Generate. What follows has no effect with another task, but that a constraint is an error of
     * the row. */
    int32_t max_tokens; /* maximum tokens to generate, >= 1; default 128 */
    /* >= 0 and <= max_tokens; default 0. This many tokens come before any stop token and any EOS id
     * that ends the row, and stop strings count only after them. A row with a constraint still ends,
     * with fewer tokens, as soon as nothing can follow its text. If a constraint allows only tokens
     * that may not come yet, such as an EOS id at the very beginning, the row gets ROW_NOT_A_NUMBER. */
    int32_t min_tokens;
    int32_t ignore_eos; /* nonzero: the model's EOS ids do not stop the row */
    int32_t samples;    /* results for this row, 1 to 65,536; default 1 */

    /* What is returned beside the tokens. */
    /* -1 (default): no log-probabilities; 0: of the chosen tokens; n: also of the n likeliest; at
     * most 20. */
    int32_t logprobs;
    /* The same for the prompt's own tokens: -1 (default): none; 0: of the tokens; n: also of the n
     * likeliest in their places; at most 20. Such a row computes its whole prompt itself and shares
     * no prefix with other rows. Its samples still share its prompt, and equal greedy rows are
     * computed once. */
    int32_t prompt_logprobs;

    /* Which token comes next. */
    float temperature;        /* 0 (default): greedy. Otherwise logits / temperature */
    int32_t top_k;            /* >= 1; default 0: off, as is -1 */
    float top_p;              /* (0, 1]; default 1: off */
    float min_p;              /* [0, 1); default 0: off */
    float repetition_penalty; /* > 0; default 1: off. Over prompt and output, as in CTRL */
    float presence_penalty;   /* [-2, 2]; default 0. Over the output */
    float frequency_penalty;  /* [-2, 2]; default 0. Over the output */
    /* Determines the random numbers, with the engine's seed, the row's tag and the position. */
    uint64_t seed;

    /* A list, here and below, has at most 2^24 items. The texts of stop_strings have at most 65,536
     * bytes together, without their zeros, and so have those of bad_words. More give the row
     * ROW_INVALID_PARAMETER. */

    /* Where the row ends, besides the model's EOS ids. */
    const int32_t *stop_tokens; /* [stop_token_count] */
    int64_t stop_token_count;
    /* [stop_string_count] UTF-8, zero-terminated, not empty; the text is cut before the first one
     * found. */
    const char *const *stop_strings;
    int64_t stop_string_count;

    /* What may come. */
    const batchllm_constraint *constraint; /* of the same engine; NULL: none */
    const int32_t *bias_tokens;            /* [bias_count] */
    const float *bias_values;              /* [bias_count] added to those tokens' logits */
    int64_t bias_count;
    /* [bad_word_count] UTF-8, zero-terminated, not empty: texts that are not generated. Each is
     * tokenized with and without a space before it; where the output ends in all tokens of either
     * but the last, the last is never chosen. Another spelling, or the same text in other tokens,
     * is not affected. */
    const char *const *bad_words;
    int64_t bad_word_count;

    int32_t skip_special; /* nonzero (default): the text has no special tokens; 0: it has them. Stop
                             strings are looked for in the text */

    /* Any task. Of the same engine; NULL (default): none, the model as it is. */
    const batchllm_adapter *adapter;
} batchllm_params;

BATCHLLM_API void batchllm_params_init(batchllm_params *params, size_t struct_size);

/* ---- Engine ---------------------------------------------------------------------------------- */

typedef struct batchllm_engine batchllm_engine;

/* Loads the model and allocates the KV memory. Errors name the file and key at fault. An engine of
 * the backend "cpu" sets the capacity of oneDNN's cache of primitives to 0 for the whole process: a
 * primitive for which memory ran out would stay in it. */
BATCHLLM_API int32_t batchllm_engine_create(const batchllm_engine_options *options,
                                            batchllm_engine **out);
BATCHLLM_API void batchllm_engine_destroy(batchllm_engine *engine);

/* Number of labels of a model with a classification head (*ForSequenceClassification), in the order
 * of label_logits; 0 for other models. Any thread. */
BATCHLLM_API int64_t batchllm_engine_label_count(const batchllm_engine *engine);
/* Name of label `label`, from 0; UTF-8, valid while the engine lives. NULL if there is none. Any
 * thread. */
BATCHLLM_API const char *batchllm_engine_label(const batchllm_engine *engine, int64_t label);

/* Checks whether rows with these parameters can run at all, whatever their prompts. If not, it
 * fails with ROW_INVALID_PARAMETER and the error text that each row would get. Use it before adding
 * rows if they all have the same parameters. Other errors as for batchllm_add_tokens. */
BATCHLLM_API int32_t batchllm_engine_check_params(batchllm_engine *engine,
                                                  const batchllm_params *params);

/* ---- Constraints -----------------------------------------------------------------------------
 *
 * A constraint restricts the output of a row to one of a list of texts, a match of a regular
 * expression, JSON that a schema accepts, or a text of a grammar. At each position only tokens that
 * can still lead to a valid text are allowed, and an EOS id only if the text is valid. So a row
 * that finishes with BATCHLLM_FINISH_STOP has a valid text (after `start_after`, if given). A row
 * cut by max_tokens finishes with BATCHLLM_FINISH_LENGTH, and its text is the beginning of a valid
 * one. Stop tokens and stop strings apply as well, and may cut a text short.
 *
 * - The row ends as soon as nothing can follow its text, without an EOS id. It also ends at an EOS
 *   id, regardless of ignore_eos.
 * - Log-probabilities, of the chosen token and of the likeliest, are those of the model's
 *   distribution over the tokens that the constraint allows at that position: these probabilities
 *   add up to 1.
 * - Temperature, top-k, penalties and biases apply to the allowed tokens. A bias of -infinity on all
 *   of them gives the row ROW_NOT_A_NUMBER.
 * - If only one text can come next, its tokens are not sampled but taken from the tokenizer, unless
 *   the row asks for log-probabilities (its own or the prompt's), biases, stop tokens, min_tokens or
 *   bad words.
 * - Special tokens are never used to spell text; EOS ids are allowed only where the text may end.
 */

#define BATCHLLM_CONSTRAINT_CHOICES 1 /* one of `choices` */
/* The whole output matches: Python's `re` with re.ASCII, so \w, \d, \s and \b know ASCII alone;
 * \p{L} is any letter. */
#define BATCHLLM_CONSTRAINT_REGEX 2
#define BATCHLLM_CONSTRAINT_JSON_SCHEMA 3 /* draft 4, 6, 7, 2019-09 or 2020-12 */
#define BATCHLLM_CONSTRAINT_GBNF 4        /* a grammar in llama.cpp's GBNF */
#define BATCHLLM_CONSTRAINT_LARK 5        /* a grammar in Lark's language */

/* JSON_SCHEMA: between the parts of a value. */
#define BATCHLLM_WHITESPACE_COMPACT 0  /* nothing; the default */
#define BATCHLLM_WHITESPACE_FLEXIBLE 1 /* a space, or a line feed and an indent, or nothing */

/* JSON_SCHEMA: the members of an object. */
#define BATCHLLM_MEMBERS_DECLARED 0 /* in the order in which the schema names them; the default */
#define BATCHLLM_MEMBERS_ANY 1      /* in any order */

/* JSON_SCHEMA: how numbers are written. */
#define BATCHLLM_NUMBERS_PLAIN 0 /* without an exponent, integers without ".0"; the default */
#define BATCHLLM_NUMBERS_ANY 1   /* also 12.0 for 12, and exponents */

typedef struct batchllm_constraint_options {
    uint32_t struct_size;
    int32_t kind;               /* BATCHLLM_CONSTRAINT_; 0 (default): not set, an error */
    const char *text;           /* UTF-8: the expression, schema or grammar; NULL for CHOICES */
    int64_t text_bytes;         /* < 0 (default): `text` is zero-terminated */
    const char *const *choices; /* [choice_count] UTF-8, zero-terminated; only for CHOICES */
    int64_t choice_count;       /* at most 2^24 */
    const char *start_after; /* zero-terminated: the constraint begins after the first occurrence of
                                this text in the output, such as "</think>"; until then every token
                                is allowed, and an EOS id ends the row. A special token counts by
                                its spelling. NULL or "": it begins at once */
    int32_t whitespace;      /* BATCHLLM_WHITESPACE_ */
    int32_t member_order;    /* BATCHLLM_MEMBERS_ */
    int32_t loose;   /* JSON_SCHEMA; nonzero: requirements that cannot be enforced exactly are
                        loosened, and batchllm_constraint_warnings lists them; 0 (default): such a
                        requirement is an error */
    int32_t numbers; /* BATCHLLM_NUMBERS_ */
} batchllm_constraint_options;

BATCHLLM_API void batchllm_constraint_options_init(batchllm_constraint_options *options,
                                                   size_t struct_size);

/* Makes a constraint for rows of this engine, since it depends on the model's tokens. One
 * constraint serves any number of rows, which share the work for it; rows with equal prompts are
 * computed once only if they use the same constraint. Nothing of the options is borrowed. Any
 * thread, even while another one uses the engine, but not during batchllm_engine_destroy. Bounded
 * in time and memory. Errors: INVALID_ARGUMENT for an invalid text, with the place in it, and for a
 * schema that no value satisfies; UNSUPPORTED for requirements that cannot be enforced exactly, by
 * keyword and path, for a constraint that is too large (if an engine is given many such, each may
 * take less), and for a tokenizer that constraints cannot work with; STATE if the engine has no
 * tokenizer. */
BATCHLLM_API int32_t batchllm_constraint_create(batchllm_engine *engine,
                                                const batchllm_constraint_options *options,
                                                batchllm_constraint **out);
/* May be called before the rows that use the constraint finish, and before or after the engine is
 * destroyed: rows keep what they need. Any thread. */
BATCHLLM_API void batchllm_constraint_destroy(batchllm_constraint *constraint);

/* The requirements of a loose schema that are not enforced: UTF-8, one line each, without a line
 * feed after the last; "" if there are none. Valid until the constraint is destroyed. Any thread. */
BATCHLLM_API const char *batchllm_constraint_warnings(const batchllm_constraint *constraint);

/* ---- Adapters --------------------------------------------------------------------------------
 *
 * An adapter (LoRA) is a small change to the model: with it, a matrix W of the model counts as
 * W + scale * B A. Each row may name one, for any task, and rows with different adapters and none
 * run together. Rows share prefixes, and equal rows are computed once, only if their adapters have
 * the same content. The engine runs the rows of an adapter one after another where it can, and
 * loads an adapter when its rows are about to start, so any number of adapters needs memory of
 * devices only for those of running rows (batchllm_engine_options.adapter_memory_bytes). The host
 * keeps as many as fit into that, and into 1 GiB at most.
 */

/* Reads an adapter for rows of this engine: a directory as PEFT writes it, with adapter_config.json
 * and adapter_model.safetensors. It is checked against the model and read once. Unless it is one of
 * those that the host keeps, it is read again whenever rows need it, so it must stay as it is until they have finished: rows whose adapter has
 * changed get ROW_ADAPTER.
 *   name   how errors and reports call it: UTF-8, zero-terminated, not empty; need not be unique
 *   path   the directory
 * Any thread, even while another one uses the engine, but not during batchllm_engine_destroy.
 * Errors name the file and the key or tensor: ADAPTER_FORMAT for files that are damaged, do not fit
 * the model or change nothing of it; UNSUPPORTED for kinds of adapters and for matrices that
 * are not supported, by this library or by the engine's backend; OUT_OF_MEMORY if
 * the adapter alone takes more than adapter_memory_bytes; STATE if the engine has no model.
 * engine NULL: an adapter for batchllm_plan_predict alone. It is identified as by
 * batchllm_adapter_identify, and checked against no model. */
BATCHLLM_API int32_t batchllm_adapter_load(batchllm_engine *engine, const char *name,
                                           const char *path, batchllm_adapter **out);
/* May be called before the rows that name the adapter finish, and before or after the engine is
 * destroyed: rows keep what they need. Any thread. */
BATCHLLM_API void batchllm_adapter_destroy(batchllm_adapter *adapter);

typedef struct batchllm_adapter_info {
    uint32_t struct_size;
    int32_t matrices;     /* of the model that it changes, each expert's counted */
    int64_t largest_rank; /* of a matrix */
    int64_t file_bytes;
    int64_t memory_bytes; /* that it takes on a device while its rows run */
    uint64_t salt;        /* for batchllm_plan_options.salts; never 0 */
    char identity[40];    /* 32 hexadecimal digits: a hash of its files' content; zero-terminated */
} batchllm_adapter_info;

/* The caller sets info->struct_size. Any thread. */
BATCHLLM_API int32_t batchllm_adapter_get_info(const batchllm_adapter *adapter,
                                               batchllm_adapter_info *info);

/* The same for an adapter's directory, without an engine: file_bytes, salt and identity; the other
 * fields are 0. Nothing but the presence of the files is checked. Any thread. */
BATCHLLM_API int32_t batchllm_adapter_identify(const char *path, batchllm_adapter_info *info);

/* ---- Rows in --------------------------------------------------------------------------------- */

/* Adds n rows of tokens.
 *   tokens, offsets   column of n prompts; offsets [n + 1] counts tokens
 *   tags              [n] the caller's identifiers of the rows, returned with the results; need not
 *                     be unique; NULL: 0, 1, 2, ... in the order in which rows are added
 *   params            NULL: defaults. Else params_count structs, params->struct_size bytes apart
 *   params_count      1 (for all rows) or n
 * Every row gets a result, even an invalid one. The call fails only if the columns themselves
 * cannot be read (INVALID_ARGUMENT), and then it adds no row. */
BATCHLLM_API int32_t batchllm_add_tokens(batchllm_engine *engine, int64_t n, const int32_t *tokens,
                                         const int64_t *offsets, const uint64_t *tags,
                                         const batchllm_params *params, int64_t params_count);

/* The same from UTF-8 text, offsets in bytes, through the model's tokenizer. STATE, here and in all
 * functions that add texts or conversations, if the engine has none: no model_dir, or no
 * tokenizer.json in it. */
BATCHLLM_API int32_t batchllm_add_text(batchllm_engine *engine, int64_t n, const char *text,
                                       const int64_t *offsets, const uint64_t *tags,
                                       const batchllm_params *params, int64_t params_count);

/* The same from conversations: items of JSON, through the model's own chat template (docs/chat.md).
 * An item is a list of messages, [{"role": "user", "content": "Hello"}, ...], or an object with
 *   "messages"                that list; "content" is a text, or a list of parts:
 *                             {"type": "text", "text": ...}; for pictures, see
 *                             batchllm_picture_column
 *   "tools", "documents"      lists of objects, for templates that use them
 *   "add_generation_prompt"   whether the text ends where the assistant begins; default true
 *   "continue_final_message"  true: the model continues the last message; default false
 *   "chat_template_kwargs"    an object: further variables of the template
 * Other keys are errors. The template's output is tokenized with special tokens parsed and without
 * adding BOS and the like; add_special of the parameters has no effect. With parse_special 0, a
 * conversation whose own text spells a special token is an error (the template's own are still
 * parsed), also if the parts of a message spell it together. What a template makes of other pieces
 * is not detected. An invalid item, and one that the template refuses, gives its row ROW_TEMPLATE. So does
 * every item if the model has no template that this library can render. */
BATCHLLM_API int32_t batchllm_add_chat(batchllm_engine *engine, int64_t n,
                                       const char *conversations, const int64_t *offsets,
                                       const uint64_t *tags, const batchllm_params *params,
                                       int64_t params_count);

/* One row of text. bytes < 0: `text` is zero-terminated. params NULL: defaults. */
BATCHLLM_API int32_t batchllm_add_prompt(batchllm_engine *engine, const char *text, int64_t bytes,
                                         uint64_t tag, const batchllm_params *params);

/* Adds n rows to be scored: each gets the log-probability of every given continuation after the
 * row's prompt, and nothing is generated. A continuation of one token is a candidate: all of a
 * row's candidates cost one position of logits.
 *   continuation_rows     [n + 1] offsets: which continuations are row i's (at least one each)
 *   continuation_offsets  [continuation_rows[n] + 1] counts tokens in `continuations`
 * The results have `scores`, and no generated tokens. Sampling parameters have no effect: scores
 * are those of the model's own distribution. */
BATCHLLM_API int32_t batchllm_add_scores(batchllm_engine *engine, int64_t n, const int32_t *tokens,
                                         const int64_t *offsets, const int32_t *continuations,
                                         const int64_t *continuation_offsets,
                                         const int64_t *continuation_rows, const uint64_t *tags);

/* The same from text. A continuation is tokenized by itself, without special tokens, and appended.
 * params: NULL, or one struct for all rows; its add_special and parse_special apply to prompts, and
 * its adapter to all. */
BATCHLLM_API int32_t batchllm_add_score_text(batchllm_engine *engine, int64_t n, const char *text,
                                             const int64_t *offsets, const char *continuations,
                                             const int64_t *continuation_offsets,
                                             const int64_t *continuation_rows, const uint64_t *tags,
                                             const batchllm_params *params);

/* batchllm_add_scores with parameters: NULL, or one struct for all rows, of which only the adapter
 * has an effect. */
BATCHLLM_API int32_t batchllm_add_score_tokens(batchllm_engine *engine, int64_t n,
                                               const int32_t *tokens, const int64_t *offsets,
                                               const int32_t *continuations,
                                               const int64_t *continuation_offsets,
                                               const int64_t *continuation_rows,
                                               const uint64_t *tags, const batchllm_params *params);

/* ---- Pictures --------------------------------------------------------------------------------
 *
 * Rows of a model that reads pictures may have them, for any task. A picture is a file (JPEG, PNG,
 * WebP) in memory or at a path, and takes a number of the row's tokens that depends on its size.
 * Equal files are one picture: the engine prepares it once, and rows whose prompts begin alike,
 * pictures included, share that beginning. So put the picture before the question.
 *
 *     const int64_t rows[] = {0, 1, 2};               two rows with a picture each
 *     const int64_t offsets[] = {0, size, 2 * size};  whose bytes are one after another
 *     batchllm_picture_column pictures = {sizeof pictures};
 *     pictures.rows = rows;
 *     pictures.bytes = bytes;
 *     pictures.offsets = offsets;
 *     batchllm_add_pictures(engine, 2, text, text_offsets, &pictures, NULL, NULL, 0);
 *
 * The network is never asked. The bytes of a file in memory are kept as long as a row needs them; a
 * file at a path is read again when its rows are about to start, so it must stay as it is until they
 * have finished. A picture that is damaged, missing, too large or changed gives its rows ROW_PICTURE,
 * as does one for a model or backend without pictures; the text says which.
 */

/* What an item of batchllm_picture_column is. */
#define BATCHLLM_PICTURE_BYTES 0 /* a file's bytes; default */
/* UTF-8: a path, a URL "file:///path" or "file:/path" (%20: space), or a "data:" URL in base64. */
#define BATCHLLM_PICTURE_NAME 1

/* The pictures of n rows. Borrowed for the call; bytes are copied.
 * Text has the model's own placeholder ("<|image_pad|>" or the like) once for each of the row's
 * pictures, in their order; another number is ROW_PICTURE. In a conversation, each part
 * {"type": "image"} stands for the row's next picture, and the model's template writes the
 * placeholder. A part may also bring its own: {"type": "image", "image": NAME},
 * {"type": "image_url", "image_url": {"url": NAME}} and what transformers and OpenAI write else. */
typedef struct batchllm_picture_column {
    uint32_t struct_size;
    int32_t chat;           /* nonzero: the rows' texts are conversations, as for batchllm_add_chat;
                               default 0: texts */
    const int64_t *rows;    /* [n + 1] offsets: which pictures are row i's. NULL: rows have none but
                               those that conversations bring */
    const uint8_t *bytes;   /* the items */
    const int64_t *offsets; /* [rows[n] + 1] bytes */
    const uint8_t *kinds;   /* [rows[n]] BATCHLLM_PICTURE_; NULL: all are BYTES */
} batchllm_picture_column;

typedef struct batchllm_pictures_options {
    uint32_t struct_size;
    int32_t reserved;      /* 0, else INVALID_ARGUMENT */
    const char *model_dir; /* Hugging Face directory; required */
    /* [folder_count] rows may name files in these and below them; without any, no files. A relative
     * path is looked for in each. Links are followed, and must not lead out of them. */
    const char *const *folders;
    int64_t folder_count;
} batchllm_pictures_options;

BATCHLLM_API void batchllm_pictures_options_init(batchllm_pictures_options *options,
                                                 size_t struct_size);

/* Makes what knows the pictures of rows: for one engine or several, of the same model
 * (batchllm_engine_options.pictures), or for plans without an engine. Any thread may use it, while
 * others do. Errors: IO if a folder is not there; those of a tokenizer. A model without pictures is
 * no error: rows that have some are told so. */
BATCHLLM_API int32_t batchllm_pictures_create(const batchllm_pictures_options *options,
                                              batchllm_pictures **out);
/* Before or after engines and columns that have to do with it are gone. */
BATCHLLM_API void batchllm_pictures_destroy(batchllm_pictures *pictures);

/* Adds n rows of text, or conversations, with their pictures. Otherwise as batchllm_add_text and
 * batchllm_add_chat. A text with pictures needs parse_special. */
BATCHLLM_API int32_t batchllm_add_pictures(batchllm_engine *engine, int64_t n, const char *text,
                                           const int64_t *offsets,
                                           const batchllm_picture_column *column,
                                           const uint64_t *tags, const batchllm_params *params,
                                           int64_t params_count);

/* Adds n rows to be scored, as batchllm_add_score_text does, whose prompts are texts or conversations
 * with pictures. A continuation follows what the model's template ends a conversation with. */
BATCHLLM_API int32_t batchllm_add_score_pictures(
    batchllm_engine *engine, int64_t n, const char *text, const int64_t *offsets,
    const batchllm_picture_column *column, const char *continuations,
    const int64_t *continuation_offsets, const int64_t *continuation_rows, const uint64_t *tags,
    const batchllm_params *params);

/* ---- Groups, steps --------------------------------------------------------------------------- */

/* Plans all rows that were added and have not started: finds what they share, and their order. A
 * step does this by itself if there are unplanned rows, so add many rows at a time. A row starts
 * when the scheduler takes it, a step or so before its first token is computed. */
BATCHLLM_API int32_t batchllm_build_groups(batchllm_engine *engine);

typedef struct batchllm_progress {
    uint32_t struct_size;
    int32_t reserved;
    int64_t rows_waiting;
    int64_t rows_running;
    int64_t rows_done;     /* finished, polled or not */
    int64_t decode_tokens; /* of this step */
    int64_t own_tokens;    /* prompt tokens of this step that are one row's own */
    int64_t prefix_tokens; /* prompt tokens of this step that rows share */
    int64_t pages_used;    /* of all devices */
    int64_t pages_total;
    int64_t tokens_left; /* prompt tokens to compute plus the maximum tokens to generate */
    int64_t tokens_done; /* prompt tokens computed plus tokens generated, of all steps */
    double seconds;      /* since the engine's first step */
} batchllm_progress;

/* Runs one iteration: waits for the outputs of the batch that is ready first, while all devices work.
 * progress may be NULL. Returns OK with rows_waiting + rows_running = 0 if nothing is left to do. A
 * failure concerns the whole engine, which stays failed: poll what has finished, destroy the engine
 * and create another for the rows that are left. */
BATCHLLM_API int32_t batchllm_step(batchllm_engine *engine, batchllm_progress *progress);

/* Called after each step. Nonzero: stop. It may call any function on the engine except
 * batchllm_step and batchllm_run, which fail (STATE), and batchllm_engine_destroy. Meanwhile
 * another thread may make the same calls, one thread at a time; the run continues when they have
 * returned. */
typedef int32_t (*batchllm_progress_function)(void *user, const batchllm_progress *progress);

/* Steps until every row has its result. callback may be NULL. Returns BATCHLLM_ERROR_STOPPED when
 * the callback or batchllm_interrupt stopped it: call again to continue. */
BATCHLLM_API int32_t batchllm_run(batchllm_engine *engine, batchllm_progress_function callback,
                                  void *user);

/* Makes the batchllm_run in progress, or else the next one, return BATCHLLM_ERROR_STOPPED after its
 * current step, even if that step was the last. Any thread, and safe in a signal handler. */
BATCHLLM_API void batchllm_interrupt(batchllm_engine *engine);

/* Cancels every unfinished row with this tag; each ends at the next step with what it has generated
 * and finish reason CANCELLED. Rows added later are unaffected. Any thread. Unknown tags are
 * ignored. */
BATCHLLM_API int32_t batchllm_cancel(batchllm_engine *engine, uint64_t tag);

/* The same for every unfinished row, whatever its tag. Any thread. */
BATCHLLM_API int32_t batchllm_cancel_all(batchllm_engine *engine);

/* ---- Results --------------------------------------------------------------------------------- */

#define BATCHLLM_FINISH_STOP 1   /* an EOS id, stop token or stop string */
#define BATCHLLM_FINISH_LENGTH 2 /* max_tokens, or the longest request */
#define BATCHLLM_FINISH_CANCELLED 3
#define BATCHLLM_FINISH_ERROR 4 /* see statuses and errors */
#define BATCHLLM_FINISH_SCORED 5
#define BATCHLLM_FINISH_EMBEDDED 6
#define BATCHLLM_FINISH_CLASSIFIED 7

/* "stop" for BATCHLLM_FINISH_STOP, and so on; "error" for other numbers. Static. Any thread. */
BATCHLLM_API const char *batchllm_finish_name(int32_t reason);

/* A column batch of results: one result per row, or `samples` adjacent ones (of a row whose
 * parameters are invalid, one). Columns without an item may be NULL. Read-only; outlives
 * the engine. An EOS or stop token that ended a row is its last token but not part of its text. */
typedef struct batchllm_results {
    uint32_t struct_size;
    int32_t reserved;
    int64_t count;
    const uint64_t *tags;          /* [count] */
    const int32_t *samples;        /* [count] which of the row's samples, from 0 */
    const int32_t *statuses;       /* [count] BATCHLLM_OK or BATCHLLM_ERROR_ROW_... */
    const int64_t *error_offsets;  /* [count + 1] bytes */
    const char *errors;            /* UTF-8 text of each row's error */
    const int32_t *finish_reasons; /* [count] BATCHLLM_FINISH_ */
    const int64_t *text_offsets;   /* [count + 1] bytes */
    const char *text;              /* UTF-8; empty when the engine has no tokenizer */
    const int64_t *token_offsets;  /* [count + 1] */
    const int32_t *tokens;         /* [token_offsets[count]] generated */
    const int64_t *prompt_tokens;  /* [count] tokens of the prompt */
    const int64_t *shared_tokens;  /* [count] how many of them were not computed for it alone */

    /* For rows that asked for logprobs. */
    const int64_t *logprob_offsets; /* [count + 1] generated tokens */
    const float *logprobs;          /* [logprob_offsets[count]] natural log, of the chosen token */
    const int64_t *top_offsets;     /* [logprob_offsets[count] + 1] per such token */
    const int32_t *top_tokens;      /* [top_offsets[logprob_offsets[count]]] likeliest first */
    const float *top_logprobs;      /* the same shape */

    /* For rows that asked for prompt_logprobs, in their sample 0: the tokens of the prompt from the
     * second on, since nothing comes before the first. */
    const int64_t *prompt_logprob_offsets; /* [count + 1] */
    const float *prompt_logprobs;          /* [prompt_logprob_offsets[count]] */
    const int64_t *prompt_top_offsets;     /* [prompt_logprob_offsets[count] + 1] per such token */
    const int32_t *prompt_top_tokens;      /* likeliest first */
    const float *prompt_top_logprobs;      /* the same shape */

    /* For scored rows. */
    const int64_t *score_offsets; /* [count + 1]: continuations */
    const double *scores;         /* [score_offsets[count]] sum of a continuation's log-probs */
    const int64_t *score_token_offsets; /* [score_offsets[count] + 1] */
    const float *score_logprobs;        /* log-prob of each token of each continuation */

    /* For embedded rows. */
    const int64_t *embedding_offsets; /* [count + 1]: dimensions */
    const float *embeddings;          /* [embedding_offsets[count]]: [count, dimensions] where all
                                         rows are embedded with the same dimensions */

    /* For classified rows. */
    const int64_t *label_offsets;     /* [count + 1]: labels */
    const float *label_logits;        /* [label_offsets[count]] in the order of the labels */
    const float *label_probabilities; /* the same shape. By the model's problem_type: softmax over
                                         the labels; sigmoid of each, also for a single label;
                                         regression: the logits */
} batchllm_results;

/* Removes and returns up to max_results finished results (0: all), in the order in which they
 * finished. A row's samples are never split, so a first row may exceed the limit. *out has count 0
 * if nothing has finished. An engine keeps results until they are polled, so a large job should
 * poll now and then, for example in batchllm_run's callback. */
BATCHLLM_API int32_t batchllm_poll(batchllm_engine *engine, int64_t max_results,
                                   batchllm_results **out);
BATCHLLM_API void batchllm_results_free(batchllm_results *results);

/* ---- Engine information and statistics ------------------------------------------------------- */

/* The effective options on one of the engine's devices, with "auto" and 0 resolved, and the model's
 * sizes. Fixed when the engine is created. The strings belong to the engine. */
typedef struct batchllm_info {
    uint32_t struct_size;
    int32_t device_count;     /* the engine's devices: those of batchllm_engine_options.devices */
    const char *backend;      /* "cpu", "cuda" or "sim" */
    const char *compute_type; /* "f32", "bf16", "bf16, products in fp8 (e4m3)", "bf16, keys and
                                  values in fp8 (e4m3)", ... */
    const char *device;       /* for display: the processor or GPU, and what is used of it */
    int32_t device_number;    /* as in batchllm_engine_options.devices */
    int32_t vocabulary;       /* token ids are less than this */
    int32_t hidden;           /* size of a hidden state, and so of a full embedding */
    int32_t page_tokens;      /* positions in a KV page */
    int32_t kv_groups;        /* groups of layers whose keys and values have pages of their own */
    int32_t reproducible;     /* as in batchllm_engine_options */
    int64_t kv_pages;         /* of this device */
    int64_t kv_page_bytes;
    int64_t step_tokens;        /* maximum tokens of a batch on this device */
    int64_t max_request_tokens; /* maximum tokens of a row: prompt and output */
    int64_t state_slots;        /* of this device; 0: no layer has a state (docs/scheduling.md) */
    int64_t state_slot_bytes;
    double common_prefix_cost;    /* for batchllm_plan_options; 0: not known */
    int64_t adapter_memory_bytes; /* most memory for adapters, on this device; 0: it has none */
    int64_t adapter_slots;        /* most adapters at the same time, on this device */
    int64_t picture_slots;  /* most pictures at the same time, on this device; 0: it has none */
    int64_t picture_tokens; /* most tokens of those pictures together */
    int64_t weight_bytes;   /* memory that the model's weights take on this device; 0: not known.
                                     compute_type says whether those in four bits stay so */
} batchllm_info;

/* device: in [0, device_count), the index in batchllm_engine_options.devices; 0 always exists. The
 * caller sets info->struct_size. INVALID_ARGUMENT: no such device. Any thread. */
BATCHLLM_API int32_t batchllm_engine_info(const batchllm_engine *engine, int32_t device,
                                          batchllm_info *info);

typedef struct batchllm_stats {
    uint32_t struct_size;
    int32_t reserved;
    /* Rows. */
    int64_t rows; /* added */
    int64_t rows_done;
    int64_t rows_failed;         /* of those done, with an error status */
    int64_t rows_deduplicated;   /* answered by an equal greedy row */
    int64_t constrained_results; /* of rows with a constraint, that ended by STOP or LENGTH */
    int64_t cut_off_results; /* of these, by LENGTH, or by the row's own stop strings or stop tokens
                                before the text was valid: only beginnings of valid texts. If many
                                are, the log has a warning */
    /* Tokens. */
    int64_t logical_prompt_tokens;   /* of rows that have started, cancelled or not, counting n
                                        samples as n rows. A row starts with the first step that
                                        has tokens of it alone */
    int64_t processed_prompt_tokens; /* computed, once on each device, without recomputation; also
                                        of prefixes whose rows have not started */
    int64_t shared_prompt_tokens;    /* logical - processed, or 0 if that is less */
    double saving_ratio;             /* shared / logical, BatchLLM Eq. 2 */
    int64_t recomputed_tokens;       /* computed again after preemption */
    int64_t completion_tokens;
    /* Scheduling. */
    int64_t groups;
    int64_t steps; /* batches */
    int64_t preemptions;
    /* Memory. */
    int64_t kv_pages_total; /* of all devices */
    int64_t kv_pages_peak;  /* sum of each device's peak */
    int64_t kv_page_bytes;
    int64_t state_slots_total; /* of all devices; 0: no layer has a state */
    int64_t state_slots_peak;  /* sum of each device's peak */
    int64_t state_slot_bytes;
    /* Adapters. */
    int64_t adapters;            /* different ones that rows have started with */
    int64_t adapter_loads;       /* onto devices, repeated ones included */
    int64_t adapter_load_bytes;  /* loaded in all */
    int64_t adapter_bytes_peak;  /* on devices at the same time: sum of each device's peak */
    double adapter_wait_seconds; /* that steps waited for adapters to be read */
    /* Time. */
    double load_seconds; /* create */
    double tokenize_seconds;
    double plan_seconds;
    double schedule_seconds;
    double backend_seconds; /* in the model, on the busiest device; with backend "sim" the modelled
                               time */
    double run_seconds;     /* in step */
    /* Pictures. */
    int64_t row_pictures;           /* of rows that have started, each row's counted */
    int64_t picture_loads;          /* computed on devices, repeated ones included */
    double picture_prepare_seconds; /* read, decoded and resized: on all threads */
    double picture_wait_seconds;    /* that steps waited for it */
    /* Drafts. */
    int64_t draft_tokens;          /* proposed and computed (docs/drafts.md) */
    int64_t draft_tokens_accepted; /* of these, right: tokens that needed no step of their own */
} batchllm_stats;

/* The caller sets stats->struct_size. */
BATCHLLM_API int32_t batchllm_engine_stats(const batchllm_engine *engine, batchllm_stats *stats);

/* ---- Plans ----------------------------------------------------------------------------------- */

typedef struct batchllm_plan batchllm_plan;

typedef struct batchllm_plan_options {
    uint32_t struct_size;
    int32_t enlarge;           /* BATCHLLM_ENLARGE_ */
    int32_t min_prefix_tokens; /* shorter prefixes are not shared; 0: 16 */
    int32_t levels;            /* as in batchllm_engine_options */
    /* With levels 0: what a common prefix of prefixes costs each token below it, in computed
     * tokens: batchllm_info.common_prefix_cost. 0: not known, so prefixes share none. */
    double common_prefix_cost;
    int32_t order;                  /* BATCHLLM_ORDER_ of the groups */
    int32_t self_contained;         /* nonzero: the plan keeps the rows' tokens */
    uint64_t tokenizer_fingerprint; /* batchllm_tokenizer_fingerprint; 0: unknown, never compared */
    /* [n] batchllm_adapter_info.salt of each row's adapter; 0: the row has none. Rows with different
     * salts share nothing, and with DECODE_FIRST the groups of each salt but 0 run one after
     * another. NULL (default): no row has an adapter. */
    const uint64_t *salts;
} batchllm_plan_options;

BATCHLLM_API void batchllm_plan_options_init(batchllm_plan_options *options, size_t struct_size);

/* Plans n rows of tokens, without an engine or a model. options NULL: defaults.
 * decode_lengths: [n] expected tokens to generate, for the order of groups (Eq. 4); NULL: equal.
 * previous: NULL, or a plan of an earlier version of the rows: rows with equal tokens keep their
 * groups, and only new or changed rows are planned again. */
BATCHLLM_API int32_t batchllm_plan_create(int64_t n, const int32_t *tokens, const int64_t *offsets,
                                          const int32_t *decode_lengths,
                                          const batchllm_plan_options *options,
                                          const batchllm_plan *previous, batchllm_plan **out);
BATCHLLM_API void batchllm_plan_destroy(batchllm_plan *plan);

/* Writes the plan file (docs/plan-file.md) atomically: an existing file is replaced or, on any
 * error, left as it was. */
BATCHLLM_API int32_t batchllm_plan_save(const batchllm_plan *plan, const char *path);
BATCHLLM_API int32_t batchllm_plan_load(const char *path, batchllm_plan **out);

typedef struct batchllm_plan_stats {
    uint32_t struct_size;
    int32_t enlarge;
    int32_t levels; /* as asked for: 0, 1 or 2 */
    int32_t self_contained;
    int64_t rows;
    int64_t groups; /* with a shared prefix of at least one token */
    int64_t grouped_rows;
    int64_t reused_rows;      /* kept from the previous plan */
    int64_t logical_tokens;   /* sum of prompt lengths */
    int64_t processed_tokens; /* each group's prefix once, plus rows' own tokens */
    int64_t longest_prefix;
    int64_t largest_group; /* rows */
    double saving_ratio;
    double seconds; /* spent on planning; 0 for a loaded plan */
    uint64_t tokenizer_fingerprint;
    int64_t known_rows; /* that the previous plan has too, alone or in groups, if both have the same
                           enlarge and min_prefix_tokens; otherwise 0 */
} batchllm_plan_stats;

/* The caller sets stats->struct_size. */
BATCHLLM_API int32_t batchllm_plan_get_stats(const batchllm_plan *plan, batchllm_plan_stats *stats);

typedef struct batchllm_plan_group_info {
    uint32_t struct_size;
    int32_t reserved;
    int64_t prefix_tokens;        /* length of the shared prefix; 0: a row that shares nothing */
    int64_t common_prefix_tokens; /* how many of them other groups share too (0 with levels 1) */
    int64_t row_count;
    const int64_t *rows; /* [row_count] row numbers; borrowed from the plan */
} batchllm_plan_group_info;

/* COMMON_FIRST: rows have much in common, but not shared, because it comes after a part that
 * differs. Put the common part first. EARLY_DIFFERENCE: the same, and only a few tokens near the
 * beginning differ, such as a time or an id. Put those last. */
#define BATCHLLM_ADVICE_NONE 0
#define BATCHLLM_ADVICE_COMMON_FIRST 1
#define BATCHLLM_ADVICE_EARLY_DIFFERENCE 2

/* What a plan shares, and what it could share if the rows' texts were put together in another
 * order. Computed from a sample of the rows when the plan is made, and kept in its file. */
typedef struct batchllm_plan_advice {
    uint32_t struct_size;
    int32_t kind;          /* BATCHLLM_ADVICE_; NONE: the fields below mean nothing, text is "" */
    int64_t rows;          /* in the sample */
    int64_t common_tokens; /* tokens that a row has in common with many others but does not share;
                              the mean over the sample */
    int64_t row;           /* an example: its row number in the plan, */
    int64_t begin;         /* and the tokens [begin, end) of its longest such stretch */
    int64_t end;
    double saving_ratio;   /* of the plan as it is */
    double possible_ratio; /* estimated, with the common parts put first */
    const char *text;      /* the same in words: UTF-8, one line, zero-terminated. Valid until the
                              plan is destroyed */
} batchllm_plan_advice;

/* The caller sets advice->struct_size. Any thread, but not during batchllm_plan_destroy. Errors:
 * INVALID_ARGUMENT for NULL and for an impossible struct_size. */
BATCHLLM_API int32_t batchllm_plan_get_advice(const batchllm_plan *plan,
                                              batchllm_plan_advice *advice);

/* Number of groups, including a group of one for each row that shares nothing. */
BATCHLLM_API int64_t batchllm_plan_group_count(const batchllm_plan *plan);

/* Group `group` in scheduling order, from 0. The caller sets info->struct_size. */
BATCHLLM_API int32_t batchllm_plan_group(const batchllm_plan *plan, int64_t group,
                                         batchllm_plan_group_info *info);

/* The next batchllm_build_groups (or first step) uses this plan for the rows added since the last
 * one. A plan of exactly these rows in this order, made with the engine's options, is used as it
 * is: its groups run in their order, after earlier groups that have not started. It may contain
 * rows that failed when they were added. Any other plan contributes its groups: rows are matched by
 * their tokens, at any position, and the plan may have more, fewer or other rows. Rows whose tokens
 * the plan does not have are planned again; a warning in the log says so if it has none of
 * them. The plan is copied. PLAN_MISMATCH if the tokenizer's fingerprint differs. */
BATCHLLM_API int32_t batchllm_engine_use_plan(batchllm_engine *engine, const batchllm_plan *plan);

/* Returns the plan of the rows taken by the last batchllm_build_groups, for saving. */
BATCHLLM_API int32_t batchllm_engine_get_plan(const batchllm_engine *engine, batchllm_plan **out);

/* ---- Tokenizer ------------------------------------------------------------------------------- */

typedef struct batchllm_tokenizer batchllm_tokenizer;

/* path: a tokenizer.json, or a model directory that has one. Immutable once created: any number of
 * threads may use it at once. */
BATCHLLM_API int32_t batchllm_tokenizer_create(const char *path, batchllm_tokenizer **out);
BATCHLLM_API void batchllm_tokenizer_destroy(batchllm_tokenizer *tokenizer);

/* A hash of everything that affects how text becomes tokens. Never 0. */
BATCHLLM_API uint64_t batchllm_tokenizer_fingerprint(const batchllm_tokenizer *tokenizer);
BATCHLLM_API int64_t batchllm_tokenizer_vocabulary(const batchllm_tokenizer *tokenizer);

/* A column made by the library. */
typedef struct batchllm_column {
    uint32_t struct_size;
    int32_t reserved;
    int64_t count;
    const int64_t *offsets;       /* [count + 1] */
    const int32_t *tokens;        /* encode: [offsets[count]]; else NULL */
    const char *text;             /* decode, chat, tables: [offsets[count]] bytes; else NULL */
    const int32_t *statuses;      /* [count] BATCHLLM_OK or BATCHLLM_ERROR_ROW_...; such an item is
                                empty */
    const int64_t *error_offsets; /* [count + 1] bytes */
    const char *errors;           /* UTF-8 text of each item's error */
} batchllm_column;

#define BATCHLLM_ENCODE_ADD_SPECIAL 1   /* add what the tokenizer's template adds */
#define BATCHLLM_ENCODE_PARSE_SPECIAL 2 /* special tokens in the text are special tokens */
#define BATCHLLM_DECODE_SKIP_SPECIAL 1  /* leave special tokens out of the text */
/* End after the last message, unless the conversation says otherwise. */
#define BATCHLLM_CHAT_NO_GENERATION_PROMPT 1
/* A conversation whose own text spells a special token is an error, as with parse_special 0. */
#define BATCHLLM_CHAT_REFUSE_SPECIAL 2

/* Encodes n texts; offsets [n + 1] in bytes; threads 0: every core; at most n, and 1,024. */
BATCHLLM_API int32_t batchllm_tokenizer_encode(const batchllm_tokenizer *tokenizer, int64_t n,
                                               const char *text, const int64_t *offsets,
                                               uint32_t flags, int32_t threads,
                                               batchllm_column **out);
BATCHLLM_API int32_t batchllm_tokenizer_decode(const batchllm_tokenizer *tokenizer, int64_t n,
                                               const int32_t *tokens, const int64_t *offsets,
                                               uint32_t flags, int32_t threads,
                                               batchllm_column **out);
/* Renders conversations (see batchllm_add_chat) to the text that the model sees. Encode it with
 * BATCHLLM_ENCODE_PARSE_SPECIAL only. offsets [n + 1] in bytes; threads 0: every core. */
BATCHLLM_API int32_t batchllm_tokenizer_apply_chat_template(const batchllm_tokenizer *tokenizer,
                                                            int64_t n, const char *conversations,
                                                            const int64_t *offsets, uint32_t flags,
                                                            int32_t threads, batchllm_column **out);
/* Encodes n texts, or conversations, with their pictures; offsets [n + 1] in bytes; flags: those of
 * batchllm_tokenizer_encode, of which conversations have only PARSE_SPECIAL: without it, one whose
 * own text spells a special token is an error. column NULL: texts without pictures. A picture's
 * tokens have ids of 2^30 and more, which come from its content and serve in any function that takes
 * a row's tokens (plans, batchllm_add_tokens and _add_score_tokens of an engine with these pictures)
 * until *out is freed; rows that have been added keep what they need. threads 0: every core. */
BATCHLLM_API int32_t batchllm_pictures_encode(batchllm_pictures *pictures, int64_t n,
                                              const char *text, const int64_t *offsets,
                                              const batchllm_picture_column *column, uint32_t flags,
                                              int32_t threads, batchllm_column **out);

BATCHLLM_API void batchllm_column_free(batchllm_column *column);

/* ---- Tables ----------------------------------------------------------------------------------
 *
 * A table has columns of text, and a template that makes each row's prompt from them:
 *
 *     "Is this review kind? Answer yes or no.\nTitle: {title}\nReview: {text}\nAnswer:"
 *
 * {name} stands for the row's cell in the column of that name; {{ and }} write a brace. Columns
 * that the template does not name are ignored.
 *
 * With BATCHLLM_FIELDS_REORDER each row gets its fields in the order in which the rows share most:
 * a value that many rows have comes before one that few have. Fields move as lines. The lines of
 * the template from its first field to its last must have one field each, and each field once.
 * These lines move; the text before and after them stays. A line with nothing but blanks before its
 * field is written as "name: value", so that the value is labelled in any position. A model's
 * answers may change with the order of fields, so this is never the default. The order depends only
 * on the rows and the template: the same table gives the same prompts.
 *
 * A table is immutable: any number of threads may read it, and add it to their own engines, at the
 * same time.
 */

typedef struct batchllm_table batchllm_table;

#define BATCHLLM_FIELDS_GIVEN 0   /* as the template has them */
#define BATCHLLM_FIELDS_REORDER 1 /* in each row's own order */

/* A column of n cells. Borrowed for the call. */
typedef struct batchllm_table_column {
    uint32_t struct_size;    /* sizeof(batchllm_table_column), the same in each of an array */
    int32_t reserved;        /* 0, else INVALID_ARGUMENT */
    const char *name;        /* UTF-8, zero-terminated; required */
    const char *text;        /* UTF-8, zero bytes allowed; NULL only if every cell is empty. A cell
                                that is not UTF-8 is an error of its row when it is added */
    const int64_t *offsets;  /* [n + 1] bytes; NULL only if n is 0 */
    const uint8_t *validity; /* [(n + 7) / 8] as in Arrow: bit i % 8 (lowest first) of byte i / 8 is
                                0 if cell i is null. There is no bit offset, which Arrow's slices
                                have: the first cell's bit is the lowest of byte 0. NULL: no cell is
                                null. A row whose template names a null cell has no prompt, and the
                                status ROW_NULL */
} batchllm_table_column;

typedef struct batchllm_table_options {
    uint32_t struct_size;
    int32_t fields;              /* BATCHLLM_FIELDS_; default given */
    const char *template_text;   /* UTF-8; required */
    int64_t template_bytes;      /* < 0 (default): template_text is zero-terminated */
    int32_t chat;                /* nonzero: prompts are conversations as for batchllm_add_chat,
                                  with the template's text as the user's message;
                                  default 0: they are text */
    int32_t reserved;            /* 0, else INVALID_ARGUMENT */
    const char *system;          /* chat: a system message before it, UTF-8, zero-terminated, the
                                  same for all rows; NULL (default) or "": none */
    int32_t (*stop)(void *user); /* with reordering: called now and then during the search for an
                                    order, on the calling thread; nonzero: the call fails (STOPPED).
                                    It must not call into the library. NULL (default): never */
    void *stop_user;
    /* [n] chat: how many pictures each row has (batchllm_add_table_pictures). So many parts
     * {"type": "image"} come before the template's text. NULL (default): none. In text, the template
     * has the placeholders. */
    const int32_t *pictures;
} batchllm_table_options;

BATCHLLM_API void batchllm_table_options_init(batchllm_table_options *options, size_t struct_size);

/* Makes the prompts of n rows.
 *   columns        column_count structs, columns->struct_size bytes apart; columns that the template
 *                  names must have different names. NULL is allowed with column_count 0
 *   options        required, for its template
 * Errors: INVALID_ARGUMENT for columns that cannot be read, and for a template that cannot be read
 * (with the place), that names no column or a missing one, or whose lines cannot be moved (with
 * reordering). UNSUPPORTED for more than 2^31 - 2 rows to reorder. Nothing is borrowed afterwards.
 * Takes memory for all prompts at once. Any thread. */
BATCHLLM_API int32_t batchllm_table_create(int64_t n, const batchllm_table_column *columns,
                                           int64_t column_count,
                                           const batchllm_table_options *options,
                                           batchllm_table **out);
BATCHLLM_API void batchllm_table_destroy(batchllm_table *table);

/* The prompts, in the order of the rows; for conversations, their JSON. Items that are not OK have
 * no prompt. Read-only, valid until the table is destroyed; do not pass it to batchllm_column_free.
 * NULL if table is NULL. Any thread. */
BATCHLLM_API const batchllm_column *batchllm_table_prompts(const batchllm_table *table);

/* Adds the table's rows, in their order, as text or as conversations; tags, params, params_count
 * and errors as for batchllm_add_text and batchllm_add_chat. Each row gets a result, even one
 * without a prompt, which gets its status. The table is only read; it may be destroyed afterwards. */
BATCHLLM_API int32_t batchllm_add_table(batchllm_engine *engine, const batchllm_table *table,
                                        const uint64_t *tags, const batchllm_params *params,
                                        int64_t params_count);
/* The same for rows with pictures. column: as for batchllm_add_pictures; the table says whether its
 * prompts are conversations. */
BATCHLLM_API int32_t batchllm_add_table_pictures(
    batchllm_engine *engine, const batchllm_table *table, const batchllm_picture_column *column,
    const uint64_t *tags, const batchllm_params *params, int64_t params_count);

/* How rows and fields were ordered. A hit rate is the share of all bytes in moving lines that
 * belong to whole lines with which a row begins exactly like the row before it. It is 0 with
 * BATCHLLM_FIELDS_GIVEN. */
typedef struct batchllm_table_info {
    uint32_t struct_size;
    int32_t fields; /* of the template, each counted once */
    int64_t rows;
    const int64_t *row_order;    /* [rows] the order in which neighbours share most, rows without
                                    a prompt last; with BATCHLLM_FIELDS_GIVEN as given. An engine
                                    finds it by itself. Valid until the table is destroyed, as is
                                    field_orders */
    const int32_t *field_orders; /* [rows * fields] row i's begin at i * fields: column numbers in
                                    the order of the row's prompt; for a row without a prompt, in
                                    the order of the template */
    double given_hit_rate;       /* with rows and fields in the given order */
    double sorted_hit_rate;      /* with fields as given and rows sorted by them, as an engine does
                                    by itself */
    double hit_rate;             /* with rows and fields in the order that was found */
    double seconds;              /* spent on finding it */
} batchllm_table_info;

/* The caller sets info->struct_size. Any thread. Errors: as for batchllm_plan_get_advice. */
BATCHLLM_API int32_t batchllm_table_get_info(const batchllm_table *table,
                                             batchllm_table_info *info);

/* Splits a template: item 0 of the column is a text, item 1 the name of the column that follows it,
 * and so on; the last item is a text. So a caller can make prompts where there is no table, such as
 * in a query. Braces are read.
 *   template_bytes   < 0: template_text is zero-terminated
 *   order            [order_count] the template's columns, numbered as they first appear, in the order
 *                    in which they are to stand: lines move as with BATCHLLM_FIELDS_REORDER.
 *                    NULL: as given
 * Errors: as for batchllm_table_create. The caller frees *out with batchllm_column_free. Any
 * thread. */
BATCHLLM_API int32_t batchllm_template_split(const char *template_text, int64_t template_bytes,
                                             const int32_t *order, int64_t order_count,
                                             batchllm_column **out);

/* Finds the one order of a template's columns in which rows share most, for rows that are too many,
 * or too far apart, for a table, from a sample of them.
 *   cells            [n * order_count] numbers: row i's begin at i * order_count; columns numbered as
 *                    they first appear. Equal numbers are equal cells of a column: hashes will do
 *   cell_bytes       [n * order_count] the lengths of their texts
 *   order            [order_count] receives it, for batchllm_template_split
 * Tries the given order, that of how often values repeat, and a greedy search. Any thread. */
BATCHLLM_API int32_t batchllm_template_order(const char *template_text, int64_t template_bytes,
                                             int64_t n, const uint64_t *cells,
                                             const int32_t *cell_bytes, int32_t *order,
                                             int64_t order_count);

/* ---- Ranges ----------------------------------------------------------------------------------
 *
 * For programs that spread rows over several engines: ranges of prompts with about the same work,
 * so that rows that share a prefix meet. In sorted order, such rows are neighbours. A boundary
 * between two rows costs what they have in common, since that is computed on both sides; so each
 * boundary is where neighbours have least in common, near the point that balances the work. A
 * prefix with more rows than fit a range is divided among several.
 *
 * Prompts are bytes whose unsigned order is the order of the prompts: UTF-8, or four big-endian
 * bytes for each token. The start of a prompt is its first start_bytes bytes. Rows with equal starts
 * are ordered by their places, numbers that the caller derives from their keys.
 */

typedef struct batchllm_ranges_options {
    uint32_t struct_size;
    int32_t reserved;        /* 0, else INVALID_ARGUMENT */
    int64_t partitions;      /* how many ranges there should be; default 1 */
    int64_t rows;            /* of which the sample was drawn; 0 (default): it has all */
    int64_t start_bytes;     /* default 1024 */
    int64_t expected_tokens; /* generated by a row: each weighs as much as four bytes of a prompt;
                                default 1 */
} batchllm_ranges_options;

BATCHLLM_API void batchllm_ranges_options_init(batchllm_ranges_options *options,
                                               size_t struct_size);

/* Boundaries in ascending order. Range i has the rows from boundary i - 1 up to, but not including,
 * boundary i: a row's range is the number of boundaries (start, place) that are not above its own.
 * Read-only. */
typedef struct batchllm_ranges {
    uint32_t struct_size;
    /* 1: most sampled prompts have equal starts and are longer: a higher start_bytes is needed to put
     * rows together. */
    int32_t blind;
    /* Of boundaries: one less than ranges, of which there are at most as many as sampled rows. */
    int64_t count;
    const char *starts;
    const int64_t *offsets; /* [count + 1] bytes. A start is as short as it can be to separate */
    const int64_t *places;  /* [count] */
} batchllm_ranges;

/* Chooses boundaries from a uniform sample of n rows, in any order.
 *   starts, offsets   [n + 1] their starts; longer ones are cut to start_bytes
 *   lengths          [n] bytes of their whole prompts
 *   places           [n]
 * options NULL: defaults. The caller frees *out. Any thread. */
BATCHLLM_API int32_t batchllm_ranges_choose(int64_t n, const char *starts, const int64_t *offsets,
                                            const int64_t *lengths, const int64_t *places,
                                            const batchllm_ranges_options *options,
                                            batchllm_ranges **out);
BATCHLLM_API void batchllm_ranges_free(batchllm_ranges *ranges);

/* ---- Predictions -----------------------------------------------------------------------------
 *
 * Predicts how long a plan's rows will take on a device, and how many steps and pages they need,
 * before anything runs. The engine's own planner, scheduler and memory management process the rows,
 * which takes seconds. A description of the device gives the time of each step, from its matrix
 * products, the arithmetic and bytes of attention, memory traffic and launches.
 *
 * The number of tokens that a model generates before it ends a row is not known in advance: every
 * row is assumed to run to its max_tokens, or to expected_tokens.
 */

typedef struct batchllm_predict_options {
    uint32_t struct_size;
    int32_t reserved;   /* 0, else INVALID_ARGUMENT */
    const char *device; /* the name of a built-in description, "h200" or "h100", or the path of a
                           description file, which has a slash or ends in .json. NULL (default), ""
                           or "here": the first of the engine options' devices on this machine,
                           which is measured the first time, for some seconds; its description is
                           kept in the user's cache: $XDG_CACHE_HOME/batchllm or ~/.cache/batchllm */
    int64_t expected_tokens; /* generated by a row that the model may end; 0 (default): its
                                max_tokens */
} batchllm_predict_options;

BATCHLLM_API void batchllm_predict_options_init(batchllm_predict_options *options,
                                                size_t struct_size);

typedef struct batchllm_prediction {
    uint32_t struct_size;
    int32_t devices;
    int64_t rows;
    int64_t steps;                   /* of all devices, like the figures below */
    int64_t logical_prompt_tokens;   /* of all rows, counting n samples as n rows */
    int64_t processed_prompt_tokens; /* computed */
    int64_t recomputed_tokens;       /* computed again after preemption */
    int64_t completion_tokens;       /* generated */
    int64_t preemptions;
    int64_t kv_pages_peak;
    int64_t kv_pages_total;
    int64_t kv_page_bytes;
    double saving_ratio;       /* 1 - processed / logical */
    double common_prefix_cost; /* on the device, for batchllm_plan_options; 0: not known */
    double seconds;            /* in steps, on the busiest device */
    double linear_seconds;     /* on all devices: the products of the layers, */
    double attention_seconds;  /* attention, */
    double other_seconds;      /* norms, activations, states, logits, exchanges, launches */
    char device[96];           /* for display: UTF-8, zero-terminated, truncated if longer */
    int64_t weight_bytes;      /* memory that the model's weights take on each device; of these, */
    int64_t four_bit_bytes;    /* those of matrices that stay in four bits */
    int64_t adapters;          /* different ones that rows have */
    int64_t adapter_loads;     /* onto a device, one adapter each */
    int64_t adapter_load_bytes;
    double adapter_seconds; /* on all devices: what adapters add to products */
} batchllm_prediction;

/* Predicts the run of a plan's rows.
 *   plan              its groups in their order; its enlarge, levels and order replace those of the
 *                     engine options
 *   tokens, offsets   as for batchllm_report_add_plan. NULL for both: those in a self-contained plan;
 *                     STATE if it has none
 *   params            as for batchllm_add_tokens. Constraints are not modelled. Adapters may be of
 *                     any engine or of none; their files are read. engine_options->pictures knows
 *                     the pictures among the tokens
 *   engine_options    those of the engine that would run the rows. model_dir is required: its
 *                     config.json is read, but no weights. backend selects the device of this machine
 *                     that is measured if options name none. NULL devices: one
 *   options           NULL: defaults
 *   out               the caller sets out->struct_size
 * Takes as much memory as the job, and about 10 us per step and 0.5 us per generated token. Errors:
 * INVALID_ARGUMENT for an unknown device; BACKEND_UNAVAILABLE if there is none to measure;
 * UNSUPPORTED if no description of a device has the model's costs (layers in fp8 on a GPU, layers
 * with a state). */
BATCHLLM_API int32_t batchllm_plan_predict(const batchllm_plan *plan, const int32_t *tokens,
                                           const int64_t *offsets, const batchllm_params *params,
                                           int64_t params_count,
                                           const batchllm_engine_options *engine_options,
                                           const batchllm_predict_options *options,
                                           batchllm_prediction *out);

/* Adds the prediction for a part of a job that runs after the others to their sum, which keeps its device
 * and pool. A sum without rows becomes the part. Both have their struct_size. INVALID_ARGUMENT if a
 * figure is negative or not finite. */
BATCHLLM_API int32_t batchllm_prediction_add(batchllm_prediction *sum,
                                             const batchllm_prediction *part);

/* ---- Reports ---------------------------------------------------------------------------------
 *
 * A report shows what a job did as one HTML page that needs no other file and no network: what was
 * shared, token batches and KV pages over time, lengths, finish reasons, errors, the slowest
 * groups, advice.
 *
 *     batchllm_report *report = NULL;
 *     batchllm_report_create(&report);
 *     batchllm_engine_set_report(engine, report);
 *     ... add rows, run, poll ...
 *     batchllm_report_save(report, NULL, "job.html");
 *     batchllm_report_destroy(report);
 *
 * A report takes about 40 MiB of memory at most, and its page less than 1 MB, for any number of
 * rows. The page contains words of prompts, so it is as confidential as they are.
 */

typedef struct batchllm_report batchllm_report;

typedef struct batchllm_report_options {
    uint32_t struct_size;
    int32_t reserved;  /* 0, else INVALID_ARGUMENT */
    const char *title; /* UTF-8, zero-terminated; NULL (default): "batchllm" */
    double seconds;    /* of the whole job, for rows per second; 0 (default): those in steps */
    double tokenize_seconds; /* spent outside the engine: added to its own; default 0 */
    double plan_seconds;     /* likewise */
} batchllm_report_options;

BATCHLLM_API void batchllm_report_options_init(batchllm_report_options *options,
                                               size_t struct_size);

/* An empty report. */
BATCHLLM_API int32_t batchllm_report_create(batchllm_report **out);
/* May be called before or after the engine that writes to it is destroyed. */
BATCHLLM_API void batchllm_report_destroy(batchllm_report *report);

/* From now on, the engine records in the report what it plans, computes and returns from
 * batchllm_poll. NULL: recording stops. One engine at a time writes to a report, during that
 * engine's calls; no other thread may use the report meanwhile. An engine has one report: a second
 * one replaces the first. STATE if the report belongs to another engine. If memory for the report
 * runs out, no step fails: the page then says that it is incomplete. */
BATCHLLM_API int32_t batchllm_engine_set_report(batchllm_engine *engine, batchllm_report *report);

/* Adds what a plan shares, for a plan that is not run.
 *   tokens, offsets   the plan's rows; offsets [rows + 1] counts tokens. NULL for both: those in a
 *                     self-contained plan, else prefixes are identified only by their lengths
 *   tokenizer         for the words of prefixes; NULL: token numbers
 * Nothing is borrowed afterwards. INVALID_ARGUMENT if the rows cannot be the plan's. */
BATCHLLM_API int32_t batchllm_report_add_plan(batchllm_report *report, const batchllm_plan *plan,
                                              const int32_t *tokens, const int64_t *offsets,
                                              const batchllm_tokenizer *tokenizer);

/* Adds a prediction, which the page shows beside the achieved figures. Several are taken as parts
 * of a job that run one after another, and the page shows their sums. prediction->struct_size says
 * how many fields are set. */
BATCHLLM_API int32_t batchllm_report_add_prediction(batchllm_report *report,
                                                    const batchllm_prediction *prediction);

/* Counts a row that failed before it was added to an engine. kind: such as "ROW_FORMAT"; message:
 * why. Both are UTF-8 and zero-terminated. tag: the row's, for the example that the page shows. */
BATCHLLM_API int32_t batchllm_report_add_failure(batchllm_report *report, uint64_t tag,
                                                 const char *kind, const char *message);

/* Adds a line to the page's list of facts: "Input", "rows.jsonl". UTF-8, zero-terminated. Using a
 * name again replaces its value. INVALID_ARGUMENT for more than 64. */
BATCHLLM_API int32_t batchllm_report_add_fact(batchllm_report *report, const char *name,
                                              const char *value);

/* Returns the current page: UTF-8, `bytes` long, followed by a zero; valid until the next call with
 * this report. options NULL: defaults. */
BATCHLLM_API int32_t batchllm_report_html(batchllm_report *report,
                                          const batchllm_report_options *options, const char **html,
                                          int64_t *bytes);

/* Writes the page atomically: an existing file is replaced or, on any error, left as it was. */
BATCHLLM_API int32_t batchllm_report_save(batchllm_report *report,
                                          const batchllm_report_options *options, const char *path);

/* ---- Journals --------------------------------------------------------------------------------
 *
 * A journal makes a job resumable. It says which rows are done, refuses to continue another job,
 * keeps other runs away from the output, and keeps results so that the process may be killed, and
 * the machine may crash, at any moment. It needs no engine.
 *
 *     batchllm_journal_options options;
 *     batchllm_journal_options_init(&options, sizeof options);
 *     options.output_path = "answers.jsonl";
 *     options.input_path = "questions.jsonl";
 *     options.model_dir = "path/to/model";
 *     options.existing = BATCHLLM_JOURNAL_RESUME;
 *     batchllm_journal *journal = NULL;
 *     batchllm_journal_open(&options, &journal);
 *     batchllm_journal_info info = {sizeof info};
 *     batchllm_journal_get_info(journal, &info);
 *     ... add the rows that are not in info.done; with the results of each batchllm_poll:
 *     batchllm_journal_append_lines(journal, n, rows, failed, text, offsets);
 *     ... when all rows have results:
 *     batchllm_journal_sync(journal);
 *     batchllm_journal_destroy(journal);
 *
 * Rows are numbered from 0, in any way that stays the same when the job is resumed, such as by
 * their place in the input. OUTPUT.state, beside the output, holds what identifies the job and a
 * record for each row that is done (docs/formats.md). Keep it as long as the job may be resumed.
 *
 * Results are kept in one of two ways. BATCHLLM_JOURNAL_LINES: the output is a file of lines, one
 * for each row, in the order in which rows finish. BATCHLLM_JOURNAL_BLOCKS, for any other output:
 * OUTPUT.blocks holds blocks of bytes, each with the results of some rows in the caller's own form.
 * When all rows are done, the caller makes the output of them and calls batchllm_journal_finish.
 */

typedef struct batchllm_journal batchllm_journal;

#define BATCHLLM_JOURNAL_LINES 0
#define BATCHLLM_JOURNAL_BLOCKS 1

#define BATCHLLM_JOURNAL_REFUSE 0    /* an output that exists is an error */
#define BATCHLLM_JOURNAL_RESUME 1    /* its job continues; if there is no output, the job starts */
#define BATCHLLM_JOURNAL_OVERWRITE 2 /* the job starts over */
#define BATCHLLM_JOURNAL_RETRY 3     /* RESUME, to run the rows again that failed */

typedef struct batchllm_journal_options {
    uint32_t struct_size;
    int32_t kind;            /* BATCHLLM_JOURNAL_LINES (default) or _BLOCKS */
    int32_t existing;        /* BATCHLLM_JOURNAL_REFUSE (default), _RESUME, _OVERWRITE or _RETRY */
    int32_t keep_state;      /* nonzero (default); 0, only for lines: there is no state, and the
                                output cannot be resumed */
    const char *output_path; /* "-": stdout. Lines may go to a pipe, a device or an open descriptor
                                too: there is no state then. NULL (default): there are no files; the
                                caller keeps batchllm_journal_info.state, for an output that is not
                                on this machine */
    /* What identifies the job: it cannot be resumed if any of this differs. */
    const char *input_path;         /* a regular file: its size and a hash of its content, by
                                        samples above 1 GiB. NULL (default): none */
    const char *model_dir;          /* hashes of its configuration, tokenizer and templates, and of
                                        samples of its weights. NULL (default): none */
    const char *const *part_names;  /* [part_count] everything else that changes results, such as
                                        "temperature"; all different. UTF-8, zero-terminated, as are
                                        part_values */
    const char *const *part_values; /* [part_count] shown in the error if they differ. A part
                                        "adapter NAME" may be new, or have been "none" before: no row
                                        with a result can have had that adapter */
    int64_t part_count;
    const char *earlier_state; /* without output_path: the state that an earlier run kept;
                                  NULL (default): none */
} batchllm_journal_options;

BATCHLLM_API void batchllm_journal_options_init(batchllm_journal_options *options,
                                                size_t struct_size);

/* Opens a journal. A regular file is locked against other journals, in this process and others,
 * until the journal is destroyed. Nothing that exists is changed before the first call that appends
 * or syncs, except that RESUME removes blocks left behind when the job was complete: destroyed
 * before, a journal leaves no trace.
 * RETRY, lines: rows that failed are not done. That first call replaces the output by one without
 * their lines, which it makes as OUTPUT.retry; if that fails, the output is as it was.
 * RETRY, blocks: as RESUME. But if the job is complete and rows of it failed, the output must be what
 * batchllm_journal_finish has left, and is locked until the journal is destroyed: results can be
 * taken from it for a job that begins again.
 * Errors: STATE if another run is writing to the output. JOURNAL_EXISTS with REFUSE, if there is an
 * output that is not empty. With RESUME, RETRY: JOURNAL_MISMATCH for another job; JOURNAL_FORMAT if
 * lines of the output have been changed (RETRY, blocks: anything; or if an early version finished
 * it), or if there is an output and no state. INVALID_ARGUMENT if the output is the input, or if it
 * cannot be resumed or cannot appear in one piece and has to; with RETRY, if there is an OUTPUT.retry
 * that no run of the job has left. */
BATCHLLM_API int32_t batchllm_journal_open(const batchllm_journal_options *options,
                                           batchllm_journal **out);
/* Does not sync. */
BATCHLLM_API void batchllm_journal_destroy(batchllm_journal *journal);

typedef struct batchllm_journal_info {
    uint32_t struct_size;
    int32_t started;     /* 1: this run has changed the output, or begun one */
    int32_t resumable;   /* 1: there is a state, from which the job can be resumed */
    int32_t complete;    /* 1: the output was finished by an earlier run or this one */
    int64_t created;     /* when the job was first started, in seconds since 1970 */
    const uint8_t *done; /* [done_bytes] rows that earlier runs have done: bit r % 8 (lowest
                                first) of byte r / 8; rows beyond the end are not done. Never
                                changes; any thread may read it until the journal is destroyed */
    int64_t done_bytes;
    int64_t rows_done;      /* how many these are */
    int64_t failed_done;    /* how many of them failed */
    int64_t rows_lost;      /* results of earlier runs that a crash of the machine has damaged:
                                these rows are not done */
    int64_t rows_written;   /* by this run */
    int64_t failed_written; /* how many of them failed */
    int64_t blocks;         /* of all runs, for batchllm_journal_read_block */
    const char *state;      /* for a caller that keeps it: one line; NULL: none. Valid until the
                                journal is destroyed */
} batchllm_journal_info;

/* The caller sets info->struct_size. */
BATCHLLM_API int32_t batchllm_journal_get_info(const batchllm_journal *journal,
                                               batchllm_journal_info *info);

/* For a job whose rows name pictures at paths (batchllm_pictures_options.folders): OUTPUT.pictures,
 * beside the output, lists the files that `pictures` reads for rows from now on. Call it once, before
 * such rows are read. Neither handle needs the other to live on. Costs a line of about 100 bytes for
 * each file; with RESUME, a look at each listed file's size and time, and reading again those of
 * which these differ. A journal without a state lists nothing.
 * JOURNAL_MISMATCH: a file has another content than when an earlier run read it; the text names it.
 * Files that are gone have not changed. */
BATCHLLM_API int32_t batchllm_journal_use_pictures(batchllm_journal *journal,
                                                   const batchllm_pictures *pictures);

/* Appends a line for each of n rows.
 *   rows             [n] from 0 to 2^40 - 2; each row once in all runs. A journal takes memory for
 *                    each number up to the largest, a bit or two
 *   failed           [n] nonzero: the row failed; NULL: none did. It is counted, and is done
 *   text, offsets    [n + 1] bytes; each line has one LF, at its end, and no zero byte
 * The lines are in the file when the call returns, so they survive the process. IO: the disk is
 * full, or the path no longer leads to the file. As many whole lines as fit are kept and counted. */
BATCHLLM_API int32_t batchllm_journal_append_lines(batchllm_journal *journal, int64_t n,
                                                   const int64_t *rows, const uint8_t *failed,
                                                   const char *text, const int64_t *offsets);

/* Appends the results of n >= 1 rows as one block of `bytes` bytes, or, on an error, nothing of it.
 * Otherwise as for lines. */
BATCHLLM_API int32_t batchllm_journal_append_block(batchllm_journal *journal, int64_t n,
                                                   const int64_t *rows, const uint8_t *failed,
                                                   const void *block, int64_t bytes);

/* Reads a block: its `*n` rows and its `*size` bytes, both valid until the next call with this
 * journal. rows and n may be NULL, or bytes and size: that part is not read.
 * block: in [0, batchllm_journal_info.blocks). */
BATCHLLM_API int32_t batchllm_journal_read_block(batchllm_journal *journal, int64_t block,
                                                 const int64_t **rows, int64_t *n,
                                                 const void **bytes, int64_t *size);

/* Syncs to disk: what has been appended survives a crash of the machine. */
BATCHLLM_API int32_t batchllm_journal_sync(batchllm_journal *journal);

/* For blocks, when the output has been made from all of them. path: where it is, in the folder of
 * output_path: it is synced and renamed to output_path. NULL: the output is in its place and
 * synced. It is read once more, for a hash of it. The blocks are removed, and nothing more can be
 * appended. The state says from now on that the job is complete. A call that failed can be repeated with the same path, even if the output
 * has its name already. */
BATCHLLM_API int32_t batchllm_journal_finish(batchllm_journal *journal, const char *path);

#ifdef __cplusplus
}
#endif

#endif
