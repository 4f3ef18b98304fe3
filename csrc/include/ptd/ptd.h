/* The C interface of ptd, for any language that can call C: drafting, verification, stop rules and
 * statistics of one text at a time. The model is the caller's.
 *
 *   ptd_session_create(name, ..., &config, &session);
 *   ptd_session_begin(session, prompt, n_prompt, &request);   (and prefill prompt[:-1] yourself)
 *   do {
 *     if (ptd_session_plan(session, block, block_size, &plan)) break;
 *     output = forward(plan);                                 (yours: int32 [n_nodes, stride])
 *     if (ptd_session_commit(session, output, n_output, &step)) break;
 *   } while (step.finish_reason == PTD_RUNNING);
 *   ptd_session_destroy(session);
 *
 * Errors. Every function that can fail returns a ptd_status. What was wrong, field, value and what
 * is allowed, is in ptd_last_error() of the calling thread, and in ptd_session_error() of the
 * handle. A call that returns PTD_ERROR_ARGUMENT, PTD_ERROR_ORDER or PTD_ERROR_BUSY has changed
 * nothing, so the right call may follow; any other error ends the request under way, and
 * ptd_session_begin() starts the next one. No C++ exception leaves the library.
 *
 * Threads. A handle belongs to one thread at a time; it may move between threads. Handles share
 * nothing, so any number of them run at once. A call on a handle that another thread is in returns
 * PTD_ERROR_BUSY.
 *
 * Memory. Pointers that are passed in are read during the call only. Pointers that come back belong
 * to the handle, and each function says until when they hold.
 *
 * Structures begin with struct_size, which the caller sets to sizeof the structure: it tells a
 * later library which fields exist. Fields not listed in an initialiser are zero in C, and zero is
 * every field's default. See docs/embedding.md for what may change from version to version. */
#ifndef PTD_PTD_H_
#define PTD_PTD_H_

#include <stddef.h>
#include <stdint.h>

#include "ptd/version.h"

/* Counts changes of this header that a program compiled before would not survive. */
#define PTD_ABI_VERSION 1

#if defined(__GNUC__)
#define PTD_API __attribute__((visibility("default")))
#else
#define PTD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t ptd_status;
enum {
  PTD_OK = 0,
  PTD_ERROR_ARGUMENT = 1,   /* an argument is not valid: null, a size, a range, a name, JSON */
  PTD_ERROR_ORDER = 2,      /* a call that does not follow the one before */
  PTD_ERROR_NOT_FINITE = 3, /* a row of the accepted path has no next token (-1): NaN or infinity */
  PTD_ERROR_MEMORY = 4,     /* no memory */
  PTD_ERROR_BUSY = 5,       /* another thread is in a call on this handle */
  PTD_ERROR_INTERNAL = 6    /* a mistake of this library; please report the message */
};

/* finish_reason */
enum {
  PTD_RUNNING = 0,       /* the output has not ended */
  PTD_FINISH_STOP = 1,   /* a stop id, the last token of the output, ended it */
  PTD_FINISH_LENGTH = 2, /* max_new_tokens or max_seq_len did */
  PTD_FAILED = 3         /* an error did; in ptd_stats only */
};

/* ptd_plan.flags */
enum {
  PTD_PLAN_MOVES_ROWS = 1, /* some commit_src differs from its destination */
  PTD_PLAN_SAMPLES = 2,    /* some row has a temperature above 0 */
  PTD_PLAN_FILTERS = 4     /* top_k, top_p or min_p is to be applied */
};

typedef struct ptd_session ptd_session;

/* The model and the caller's room, for the life of a handle. */
typedef struct ptd_config {
  size_t struct_size;
  int32_t vocab_size;          /* token ids are 0 .. vocab_size - 1; 1 or more */
  int32_t max_seq_len;         /* tokens of prompt and output together, 2 to 2^30 */
  int32_t output_top_k;        /* successors a row that the forward gives besides the next token;
                                  0: as many as the drafter asks for; at most 1024 */
  int32_t max_path;            /* deepest row of a tree, 1 to 256; 0: 64 */
  int32_t max_nodes;           /* most rows of a step, root included, 1 to 256; 0: 256 */
  int32_t reserved;            /* 0 */
  const int32_t* node_buckets; /* row counts that a step is padded to, each 1 to 256; null: none */
  size_t n_node_buckets;       /* at most 256 */
  const int32_t* eos_ids;      /* nothing is drafted behind them (they do not end an output: see
                                  stop_ids); null: none */
  size_t n_eos_ids;            /* at most 65536 */
} ptd_config;

/* What a handle needs of its caller. */
typedef struct ptd_needs {
  size_t struct_size;
  size_t plan_bytes;      /* of a block: the largest plan */
  int32_t max_nodes;      /* most rows in use of a step (ptd_plan.n_nodes), root included; with
                             node_buckets a plan's arrays may have more: ptd_plan.bucket */
  int32_t output_stride;  /* ids a row of the output: 1 + output_top_k */
  int32_t prompt_outputs; /* 1: drafts better with ptd_session_observe_prompt() */
  int32_t step_cost;      /* 1: drafts better with ptd_session_set_step_cost() */
  float top_p;            /* above 0: successors behind the smallest set with this share of a row's
                             probability may come as -1 */
  int32_t reserved;
} ptd_needs;

/* One request. */
typedef struct ptd_request {
  size_t struct_size;
  int32_t max_new_tokens;  /* 0 or more; 0 ends the output at once */
  float temperature;       /* 0: greedy; at most 1e6 */
  int32_t top_k;           /* 0: off */
  float top_p;             /* 0 to 1; 0 and 1: off */
  float min_p;             /* 0 to 1; 0: off */
  int32_t reserved;        /* 0 */
  uint64_t seed;           /* of the sampling */
  const int32_t* stop_ids; /* the first of them ends the output and stays in it; null: none */
  size_t n_stop_ids;       /* at most 65536 */
} ptd_request;

/* One step, for the forward pass. The pointers lead into the caller's block. N = bucket,
 * W = mask_words, P = max_path; the block's layout is that of step_plan.h. */
typedef struct ptd_plan {
  size_t struct_size;
  int32_t bucket;            /* rows of the arrays: n_nodes, or the next node bucket */
  int32_t n_nodes;           /* rows in use: root, then candidates, then draft rows */
  int32_t n_verify;          /* root and candidates */
  int32_t prefix_len;        /* committed KV rows; row i is KV row prefix_len + i */
  int32_t n_commit;          /* entries of commit_src in use */
  int32_t flags;             /* PTD_PLAN_... */
  int32_t mask_words;        /* W = (N + 63) / 64 */
  int32_t max_path;          /* P */
  const int32_t* token_ids;  /* [N]; padding repeats row 0 */
  const int32_t* positions;  /* [N] prefix_len + depth */
  const int32_t* commit_src; /* [P] before the forward, KV row commit_src[i] moves to row
                                prefix_len - n_commit + i; sources rise and lie at or behind it */
  const float* temperature;  /* [N] 0 = argmax (draft rows always) */
  const float* uniform;      /* [N] the number in [0, 1) that a sampled row draws its token by */
  const float* sampling;     /* [4] top_k (0 = off), top_p (1 = off), min_p (0 = off), and the
                                top_p of the listed successors (0 = off) */
  const uint64_t* mask;      /* [N, W] bit j % 64 of word j / 64: row j is visible to the row,
                                besides the whole prefix */
} ptd_plan;

/* What a step added to the output. */
typedef struct ptd_step {
  size_t struct_size;
  const int32_t* tokens; /* [n_tokens] until the next commit, begin or destroy */
  size_t n_tokens;       /* 1 or more */
  int32_t n_accepted;    /* how many of them were candidates */
  int32_t finish_reason; /* PTD_RUNNING, PTD_FINISH_STOP or PTD_FINISH_LENGTH */
} ptd_step;

/* Counters of the request under way, or of the last one. Prefill is not a step. */
typedef struct ptd_stats {
  size_t struct_size;
  int64_t steps;
  int64_t tokens;          /* of the output */
  int64_t hit_steps;       /* steps with candidates */
  int64_t hit_tokens;      /* tokens of those steps */
  int64_t candidate_nodes; /* of all steps */
  int64_t draft_nodes;     /* of all steps */
  int64_t accepted;        /* tokens that were candidates */
  int32_t prompt_len;      /* 0: no request has begun */
  int32_t kv_len;          /* KV rows that are committed once the pending moves ran */
  int32_t finish_reason;   /* PTD_RUNNING ... PTD_FAILED */
  int32_t reserved;
} ptd_stats;

/* "MAJOR.MINOR.PATCH" of the library that runs, and its PTD_ABI_VERSION: compare both with the
 * header's before the first other call. */
PTD_API const char* ptd_version(void);
PTD_API int32_t ptd_abi_version(void);

/* The message of this thread's last call that failed, "" before the first; never null. Holds until
 * the next call that fails in this thread. At most 511 bytes, printable ASCII. */
PTD_API const char* ptd_last_error(void);

/* The message of the last call on this handle that failed, "" if none did; for callers that the
 * language's runtime moves from thread to thread (Go). Holds until the next such call. Calls that
 * returned PTD_ERROR_BUSY leave no message here. For a null handle: "". */
PTD_API const char* ptd_session_error(const ptd_session* session);

/* The drafters' names, one a line: "none\nptd\n...". */
PTD_API const char* ptd_drafter_names(void);

/* Writes the options of a drafter with their defaults, a JSON object and a null byte, to `buffer`;
 * *n_needed (may be null) is its size with the null byte, also when buffer_size is too small, which
 * is a PTD_ERROR_ARGUMENT. What the options mean: docs/embedding.md. */
PTD_API ptd_status ptd_drafter_options(const char* name, size_t name_size, char* buffer,
                                       size_t buffer_size, size_t* n_needed);

/* A handle for texts with this drafter. Options are a flat JSON object of numbers, booleans and
 * strings, such as {"width": 4, "layout": "sibling"}, in at most 65536 bytes; those left out, and
 * all of them where options is null or options_size 0, have their defaults. Strings need no null
 * byte. *session is null after an error. */
PTD_API ptd_status ptd_session_create(const char* drafter, size_t drafter_size, const char* options,
                                      size_t options_size, const ptd_config* config,
                                      ptd_session** session);

/* Ends the handle and all that it owns; null is allowed. No other call may be under way. */
PTD_API void ptd_session_destroy(ptd_session* session);

PTD_API ptd_status ptd_session_needs(ptd_session* session, ptd_needs* needs);

/* What a step takes, measured between two requests: seconds[i] with rows[i] rows behind an empty
 * prefix, and seconds_per_token[i] more for each token of it; n of each, rows rising from 1 on.
 * A drafter that does not ask for it ignores it. ORDER while a request runs. */
PTD_API ptd_status ptd_session_set_step_cost(ptd_session* session, const int32_t* rows,
                                             const double* seconds, const double* seconds_per_token,
                                             size_t n);

/* Begins a request; one that still runs is dropped. The caller computes the KV rows of
 * prompt[0 .. n_prompt - 2]; the last token of the prompt is the first step's root. Needs 1 to
 * max_seq_len - 1 tokens. */
PTD_API ptd_status ptd_session_begin(ptd_session* session, const int32_t* prompt, size_t n_prompt,
                                     const ptd_request* request);

/* What the model says to the prompt's tokens at first, first + 1, ...: ids [n, output_stride] as in
 * ptd_session_commit(), n_outputs = n * output_stride of them, none of the prompt's last token.
 * ORDER after the first plan. */
PTD_API ptd_status ptd_session_observe_prompt(ptd_session* session, size_t first,
                                              const int32_t* outputs, size_t n_outputs);

/* Drafts the next step into `block` (pinned memory, for one) of at least ptd_needs.plan_bytes,
 * aligned to 8 bytes, and fills `plan`. ORDER without a running request, or with a step planned
 * that was not committed. */
PTD_API ptd_status ptd_session_plan(ptd_session* session, void* block, size_t block_size,
                                    ptd_plan* plan);

/* Takes the forward's answer to the planned step: ids [n_nodes, output_stride], rows in order; in a
 * row first its next token (the argmax, ties to the lowest id, or drawn by the plan's numbers),
 * then its likeliest ids, best first. -1: none (of the first: the row's logits are not finite).
 * n_output counts ids, n_nodes * output_stride to bucket * output_stride of them. */
PTD_API ptd_status ptd_session_commit(ptd_session* session, const int32_t* output, size_t n_output,
                                      ptd_step* step);

/* The output of the request under way, or of the last one; holds as ptd_step.tokens does. */
PTD_API ptd_status ptd_session_output(ptd_session* session, const int32_t** tokens,
                                      size_t* n_tokens);

PTD_API ptd_status ptd_session_stats(ptd_session* session, ptd_stats* stats);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PTD_PTD_H_ */
