/*
 * The C interface of Terrace: exact optimizer updates whose state lives in host memory or on NVMe,
 * for a trainer that owns its parameters and computes its gradients by itself.
 *
 *   terrace_session* session = NULL;
 *   terrace_session_options options = {sizeof options};
 *   options.state_tier = TERRACE_TIER_HOST;
 *   terrace_session_create(&options, &session);
 *   terrace_group_add(session, &group_options, &group);       one for each set of hyperparameters
 *   terrace_tensor_add(session, group, &tensor_options, &i);  one for each parameter tensor
 *   terrace_session_prepare(session);                         checks budgets, allocates
 *   for each step:
 *     terrace_gradient_add(session, i, &gradient);            of each tensor, once or more often
 *     terrace_step(session, &step_options, &result);          the parameters are updated in place
 *   terrace_save(session, "state");
 *   terrace_session_destroy(session);
 *
 * docs/embedding-c.md describes its use, and examples/c_trainer.c is a whole training. For trainers
 * whose parameters Terrace owns and moves there is terrace_units.h, which this header includes.
 *
 * Errors. Every function that can fail returns a terrace_error, and terrace_last_error() then says
 * what happened, where, and what to do. A function that fails has changed nothing, unless its
 * comment says otherwise. No C++ exception leaves the library, and no argument makes it abort,
 * except a pointer that does not point where it should.
 *
 * Memory. Whatever is passed in is borrowed for the duration of the call, except parameters: see
 * terrace_tensor_options. Text is UTF-8 and ends with a NUL.
 *
 * Threads. A session may be used by any thread. Its calls run one after the other; only
 * terrace_wait_parameter() and terrace_wait_norm() run beside other calls, even beside
 * terrace_step_end() and terrace_step(). Different sessions are independent of each other. In a
 * forked process every call with a session of its parent returns TERRACE_ERROR_FORKED and changes
 * nothing: use "spawn".
 *
 * GPUs. Parameters and gradients may be in memory of GPUs (TERRACE_DEVICE_CUDA), state and updates
 * are on the host. The CUDA driver is loaded when the first such tensor is added, and works in the
 * GPU's primary context, as the CUDA runtime does. A gradient is copied to the host on the stream
 * of its buffer, that is, after the work that the stream was given before the call; it has been
 * read when the call returns. A parameter is read and written on a stream of the library. Its
 * accesses come after the work that the stream of its buffer was given before the call that begins
 * the step, that completes the tensor's gradient, or that reads or writes the parameter between
 * steps. It is written when terrace_wait_parameter() or terrace_step_end() returns: work that any
 * stream is given after that sees the new values. If other streams have work on the parameter, the
 * caller orders it before the library's accesses. NULL is the GPU's default stream,
 * cudaStreamPerThread the default stream of the calling thread. A parameter's stream must exist
 * until the session is destroyed. If the driver fails, the call that copies returns
 * TERRACE_ERROR_ENVIRONMENT. If updates or state were half done then, the session has failed, as
 * after TERRACE_ERROR_IO.
 *
 * Versions. A struct that begins with struct_size may grow at its end: set struct_size to its
 * sizeof, and set to zero every field that you do not use: zero is the default of every field. The
 * other structs, and the values of all enums, never change.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The names are C's: NOLINTBEGIN(readability-identifier-naming) */

#ifdef __cplusplus
extern "C" {
#endif

/* Grows by one when a struct or a function is added to; everything that was there stays. Version 1
 * is the version of the first release. */
#define TERRACE_ABI_VERSION 1

#if defined(__GNUC__)
#define TERRACE_EXPORT __attribute__((visibility("default")))
#else
#define TERRACE_EXPORT
#endif

typedef enum terrace_error {
  TERRACE_OK = 0,
  TERRACE_ERROR_ARGUMENT = 1,     /* an argument is missing, out of range or of a wrong size */
  TERRACE_ERROR_ORDER = 2,        /* the call does not fit what was called before */
  TERRACE_ERROR_DTYPE = 3,        /* a type of elements that this call does not take */
  TERRACE_ERROR_UNSUPPORTED = 4,  /* this library does not have it */
  TERRACE_ERROR_DOES_NOT_FIT = 5, /* a budget or the machine is too small */
  TERRACE_ERROR_ENVIRONMENT = 6,  /* the system lacks something, or a setting is wrong */
  TERRACE_ERROR_IO = 7,           /* a file or a drive failed */
  TERRACE_ERROR_FULL_DISK = 8,    /* a file system, or a user's part of it, is full */
  TERRACE_ERROR_CORRUPT = 9,      /* bytes are not as they were written */
  TERRACE_ERROR_MISMATCH = 10,    /* saved state is of other tensors or groups */
  TERRACE_ERROR_MISSING_GRADIENT = 11,
  TERRACE_ERROR_PARAMETER_CHANGED = 12, /* since its last update: see terrace_parameter_adopt() */
  TERRACE_ERROR_NOT_FINITE = 13,        /* a gradient is not finite, or not so once it is scaled */
  TERRACE_ERROR_FORKED = 14,            /* a session of the parent process */
  TERRACE_ERROR_FAILED = 15, /* the session failed before: load a saved state, or destroy it */
  TERRACE_ERROR_INTERNAL = 99
} terrace_error;

/* Types of elements. */
typedef enum terrace_dtype {
  TERRACE_DTYPE_FP32 = 1,
  TERRACE_DTYPE_BF16 = 2,
  TERRACE_DTYPE_FP16 = 3
} terrace_dtype;

/* Where state lives between updates. */
typedef enum terrace_tier {
  TERRACE_TIER_AUTO = 0, /* host memory first; the part beyond the budget on NVMe */
  TERRACE_TIER_HOST = 1,
  TERRACE_TIER_NVME = 2 /* all of it: read and written in every step */
} terrace_tier;

typedef enum terrace_io_engine {
  TERRACE_IO_AUTO = 0, /* io_uring, or POSIX calls where the system refuses it */
  TERRACE_IO_URING = 1,
  TERRACE_IO_POSIX = 2
} terrace_io_engine;

/* Where memory is, with DLPack's numbers (DLDeviceType). */
typedef enum terrace_device_type {
  TERRACE_DEVICE_CPU = 1,
  TERRACE_DEVICE_CUDA = 2 /* of parameters and gradients; else TERRACE_ERROR_UNSUPPORTED */
} terrace_device_type;

typedef enum terrace_log_level { TERRACE_LOG_INFO = 0, TERRACE_LOG_WARNING = 1 } terrace_log_level;

typedef struct terrace_session terrace_session;

/* Gets messages for people to read. It is called by any thread of the library, by several at a time
 * too, and must not call the library. `line` is good until it returns. */
typedef void (*terrace_log_callback)(int32_t level, const char* line, void* user);

/* Elements in memory, dense, row by row. Never grows. */
typedef struct terrace_buffer {
  void* data;            /* aligned to the size of an element */
  int64_t element_count; /* at least 1 */
  int32_t dtype;         /* terrace_dtype */
  int32_t device_type;   /* terrace_device_type */
  int32_t device_id;     /* 0 for the CPU, else as the CUDA runtime counts in this process */
  int32_t reserved;      /* 0 */
  void* stream;          /* cudaStream_t: see "GPUs"; NULL for the CPU */
} terrace_buffer;

typedef struct terrace_nvme_directory { /* never grows */
  const char* path;                     /* an existing directory; the session removes its files */
  uint64_t budget_bytes;                /* at most this much of it; 0: no limit */
} terrace_nvme_directory;

typedef struct terrace_session_options {
  uint32_t struct_size;
  int32_t threads; /* for updates; 0: as many as may be used; at most 4 a processor, or 256 */
  uint64_t host_memory_bytes;         /* at most; 0: nine tenths of what the machine has free */
  int32_t state_tier;                 /* terrace_tier */
  int32_t io_engine;                  /* terrace_io_engine */
  const terrace_nvme_directory* nvme; /* several: striped over them */
  uint32_t nvme_count;
  uint32_t reserved;        /* 0 */
  terrace_log_callback log; /* NULL: silent */
  void* log_user;           /* handed to it */
} terrace_session_options;

/* A hyperparameter of a rule, named as the key of the program's configuration file. Never grows.
 *   adamw  adam_beta1 (0.9), adam_beta2 (0.95), adam_epsilon (1e-8)
 *   torch_adamw  likewise, with adam_beta2 0.999: in the order of torch.optim.AdamW's operations
 *   lion   lion_beta1 (0.9), lion_beta2 (0.99)
 *   sgd    sgd_momentum (0.9) */
typedef struct terrace_hyperparameter {
  const char* name;
  double value;
} terrace_hyperparameter;

/* Tensors that are updated by one rule with one set of hyperparameters. */
typedef struct terrace_group_options {
  uint32_t struct_size;
  uint32_t hyperparameter_count;
  const char* rule;                              /* "adamw", "torch_adamw", "lion" or "sgd" */
  const terrace_hyperparameter* hyperparameters; /* the others have their default */
  double weight_decay;                           /* of all tensors of the group */
} terrace_group_options;

#define TERRACE_TENSOR_FROZEN 1u /* is not updated: it has no gradient and no state */

typedef struct terrace_tensor_options {
  uint32_t struct_size;
  uint32_t flags;
  /* Not empty, unique in the session, the same whenever state is loaded; not "__metadata__". */
  const char* name;
  /* The caller's parameter, with its first values when terrace_session_prepare() is called. The
   * memory stays the caller's, and where it is, until the session is destroyed. An fp32 parameter
   * is its own master: it may be changed between steps. A bf16 or fp16 one has an fp32 master in
   * the state: updates write it rounded (bf16: ties away from zero, fp16: to nearest even). */
  terrace_buffer parameter;
  const int64_t* shape; /* of `dimension_count` sizes, whose product is the element count */
  int32_t dimension_count;
  int32_t reserved; /* 0 */
} terrace_tensor_options;

/* Tensors without a gradient stay as they are, with their state. Without this flag they are an
 * error, MISSING_GRADIENT. */
#define TERRACE_STEP_SKIP_MISSING 1u
/* The step begins before all gradients are added: terrace_gradient_add() may go on while it runs,
 * and terrace_gradient_complete() of a tensor starts its update, during a backward pass for
 * instance. terrace_step_end() completes all tensors that have a gradient; the other tensors are
 * left as they are. Nothing is clipped: max_grad_norm must be 0, since updates cannot wait for the
 * norm of all gradients. */
#define TERRACE_STEP_GRADIENTS_ARRIVE 2u

typedef struct terrace_step_options {
  uint32_t struct_size;
  uint32_t flags;
  const double* learning_rates; /* one for each group, in the order of their numbers */
  uint32_t learning_rate_count;
  uint32_t reserved; /* 0 */
  /* These and the learning rates are 0 or more, and finite in fp32, in which updates compute. */
  double max_grad_norm;  /* gradients of a larger norm are scaled down to it; 0: never */
  double gradient_scale; /* every gradient is multiplied by it before all else; 0 stands for 1 */
  double known_norm;     /* the step's gradient_norm if you know it, finite; 0: it is computed */
} terrace_step_options;

typedef struct terrace_step_result {
  uint32_t struct_size;     /* set by the caller */
  uint32_t skipped_tensors; /* had no gradient */
  int64_t step;             /* of the session, counted from 1 */
  double gradient_norm;     /* the 2-norm over all gradients, scaled, before clipping */
  double clip_coefficient;  /* what clipping has multiplied them by; 1: nothing */
} terrace_step_result;

/* ---- the library ---------------------------------------------------------------------------- */

/* Returns the library's TERRACE_ABI_VERSION. The library works with every header whose version is
 * not larger. */
TERRACE_EXPORT int32_t terrace_abi_version(void);
/* Returns the library's version, such as "0.4.0". */
TERRACE_EXPORT const char* terrace_version(void);
/* Returns the message of the calling thread's last call that failed; "" if none did. It is good
 * until the thread's next call that fails. */
TERRACE_EXPORT const char* terrace_last_error(void);
/* Returns the name of an error, such as "TERRACE_ERROR_IO"; "unknown" for any other number. */
TERRACE_EXPORT const char* terrace_error_name(int32_t error);

/* ---- a session ------------------------------------------------------------------------------ */

/* Makes a session without tensors. Sets *session on success only. ARGUMENT, ENVIRONMENT. */
TERRACE_EXPORT terrace_error terrace_session_create(const terrace_session_options* options,
                                                    terrace_session** session);
/* Waits for a step that is under way, and gives back memory and files. The handle is then gone,
 * whatever is returned, except in a forked process (FORKED), where the parent still has it. NULL
 * is fine. The parameters are as the last updates left them. */
TERRACE_EXPORT terrace_error terrace_session_destroy(terrace_session* session);

/* Adds a group; *group becomes its number, counted from 0. Before terrace_session_prepare().
 * ARGUMENT (names the rule or the hyperparameter), ORDER. */
TERRACE_EXPORT terrace_error terrace_group_add(terrace_session* session,
                                               const terrace_group_options* options,
                                               int32_t* group);
/* Adds a parameter tensor to a group; *tensor becomes its number, counted from 0. Before
 * terrace_session_prepare(). A tensor with the memory, type, group and stream of an earlier one is
 * tied to it and gets its number: gradients of both are added. ARGUMENT (also where tensors overlap
 * in another way, or are not in memory of the named GPU), DTYPE, ORDER, ENVIRONMENT (no such GPU,
 * or no driver). */
TERRACE_EXPORT terrace_error terrace_tensor_add(terrace_session* session, int32_t group,
                                                const terrace_tensor_options* options,
                                                int32_t* tensor);
/* Checks the budgets, allocates all memory and files of the session, and makes the first state:
 * masters are the parameters' values, everything else is zero. Called once. After a failure the
 * session can only be destroyed. DOES_NOT_FIT, FULL_DISK, IO, ENVIRONMENT, ORDER. */
TERRACE_EXPORT terrace_error terrace_session_prepare(terrace_session* session);

/* ---- a step --------------------------------------------------------------------------------- */

/* Adds to the gradient of a tensor, which is summed in fp32 in the order of the calls: micro-batch
 * by micro-batch, use by use of a tied tensor. The first call since the last step sets it. The
 * gradient has the tensor's element count and is fp32, bf16 or fp16, on the host or on the GPU of
 * the tensor; it is read before the call returns. The call is not allowed while a step is under
 * way, except in a step with TERRACE_STEP_GRADIENTS_ARRIVE until terrace_gradient_complete() of the
 * tensor. After ENVIRONMENT (of a GPU) the tensor has no gradient. ARGUMENT, DTYPE, ORDER. */
TERRACE_EXPORT terrace_error terrace_gradient_add(terrace_session* session, int32_t tensor,
                                                  const terrace_buffer* gradient);
/* Adds a gradient as terrace_gradient_add() does, but without a copy if it is fp32 on the host and
 * nothing was added before. Then *is_borrowed becomes 1, and the memory must stay as it is until a
 * step has used it, gradients are forgotten, more is added to the tensor's gradient, the gradient
 * is leased, or terrace_pause() is called. Else the gradient is copied, and *is_borrowed becomes
 * 0. */
TERRACE_EXPORT terrace_error terrace_gradient_borrow(terrace_session* session, int32_t tensor,
                                                     const terrace_buffer* gradient,
                                                     int32_t* is_borrowed);
/* Sets *gradient to the sum that was added since the last step, fp32 in host memory, good until the
 * next call that begins a step. Its data is NULL if nothing was added. Values that are written
 * there count. */
TERRACE_EXPORT terrace_error terrace_gradient_view(terrace_session* session, int32_t tensor,
                                                   terrace_buffer* gradient);
/* ---- leases ---------------------------------------------------------------------------------
 *
 * Memory of Terrace as a managed tensor of DLPack 1.0, which torch.from_dlpack() and others take
 * without a copy; the structs are declared in dlpack.h, which this header does not need. The tensor
 * is dense, with strides, and a byte_offset of 0. The deleter is a C function, and may be called by
 * any thread, without Python's GIL, after the session was destroyed and at the end of the process:
 * the memory is given back when the session and all leases are gone. In a forked process it does
 * nothing. While a lease of a session is out, terrace_pause() is ORDER. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

/* Leases the memory that terrace_gradient_view() shows, in the tensor's shape. *lease becomes NULL
 * if nothing was added. Values that are written there before the next step count in that step;
 * afterwards later gradients overwrite the memory. ARGUMENT, ORDER. */
TERRACE_EXPORT terrace_error terrace_gradient_lease(terrace_session* session, int32_t tensor,
                                                    struct DLManagedTensorVersioned** lease);
/* Sets *unversioned to the same lease in the form of DLPack before 1.0, for a consumer that knows
 * only that form. It takes the lease's place: call the deleter of one of the two. ARGUMENT (a lease
 * that the library has not made); UNSUPPORTED for read-only memory. */
TERRACE_EXPORT terrace_error terrace_lease_unversioned(struct DLManagedTensorVersioned* lease,
                                                       struct DLManagedTensor** unversioned);
/* The destructor of a PyCapsule of Python that has a lease, for bindings: calls the deleter if the
 * capsule has not been consumed. It is a C function, so that an exception that Python is raising
 * stays. */
TERRACE_EXPORT void terrace_capsule_end(void* capsule);

/* Sets *sum to the sum of squares of the gradient that was added since the last step, in fp64, with
 * the same bits for every number of threads; 0 if nothing was added. It is for a norm over more
 * tensors than this session's. The sum is not scaled: you scale the norm by gradient_scale. ORDER
 * while a step is under way. */
TERRACE_EXPORT terrace_error terrace_gradient_square_sum(terrace_session* session, int32_t tensor,
                                                         double* sum);
/* Forgets all gradients since the last step. ORDER while a step is under way. */
TERRACE_EXPORT terrace_error terrace_gradients_discard(terrace_session* session);

/* A whole step: terrace_step_begin() and terrace_step_end(). `result` may be NULL. */
TERRACE_EXPORT terrace_error terrace_step(terrace_session* session,
                                          const terrace_step_options* options,
                                          terrace_step_result* result);
/* Starts a step on the gradients that were added, and returns: norm and updates run on threads of
 * the session, tensor by tensor in the order of their numbers. Until terrace_step_end() no
 * parameter may be written, and none may be read before terrace_wait_parameter() of it.
 * ARGUMENT, ORDER, MISSING_GRADIENT (nothing is started, and the gradients are kept). */
TERRACE_EXPORT terrace_error terrace_step_begin(terrace_session* session,
                                                const terrace_step_options* options);
/* In a step with TERRACE_STEP_GRADIENTS_ARRIVE: declares that nothing more is added to the gradient
 * of this tensor, and that its parameter is not read before terrace_wait_parameter(). Its update
 * runs after the updates of all tensors that were complete before. If the step fails,
 * terrace_step_end() says so. ORDER, MISSING_GRADIENT (nothing was added). */
TERRACE_EXPORT terrace_error terrace_gradient_complete(terrace_session* session, int32_t tensor);
/* Waits until the step that is under way has updated this tensor; returns at once if none is under
 * way. If that step fails, the call fails in the same way, see terrace_step_end(), however soon
 * another thread ends the step. ORDER where the tensor's gradient may still arrive. */
TERRACE_EXPORT terrace_error terrace_wait_parameter(terrace_session* session, int32_t tensor);
/* Waits until the step's gradient norm is known: terrace_step_result.gradient_norm. Fails as the
 * step does, see terrace_step_end(). ORDER where none is under way, or gradients still arrive. */
TERRACE_EXPORT terrace_error terrace_wait_norm(terrace_session* session, double* gradient_norm);
/* Waits for all updates, and ends the step, however it went. `result` may be NULL.
 *   NOT_FINITE         nothing was updated, the step does not count, its gradients are forgotten;
 *                      also where they are too large for fp32 once scaled, or are scaled by 0
 *   PARAMETER_CHANGED  nothing was updated, the step does not count, its gradients are kept;
 *                      found for bf16 and fp16 parameters, whose new values would be lost. On a GPU
 *                      2048 elements at the start of each 2^20 are looked at: a change of a few
 *                      others is not seen, and is lost
 *   MISSING_GRADIENT   a step with TERRACE_STEP_GRADIENTS_ARRIVE got none: it does not count
 *   NOT_FINITE of a step with TERRACE_STEP_GRADIENTS_ARRIVE that has updated other tensors before,
 *   IO, FULL_DISK, CORRUPT, ENVIRONMENT (of a GPU), INTERNAL   some parameters may be updated and
 *                      others not: the session has failed, and goes on after terrace_load() only
 *   ORDER              no step is under way */
TERRACE_EXPORT terrace_error terrace_step_end(terrace_session* session,
                                              terrace_step_result* result);

/* ---- state ---------------------------------------------------------------------------------- */

/* Sets *steps to the number of steps that were made. A loaded state brings its own number. */
TERRACE_EXPORT terrace_error terrace_step_count(terrace_session* session, int64_t* steps);
/* Sets the master of a bf16 or fp16 parameter to the values that the caller has written into the
 * parameter. The other fields of its state stay. After IO, CORRUPT or ENVIRONMENT the session has
 * failed, unless a GPU failed before anything was read. ARGUMENT, ORDER, IO, CORRUPT, ENVIRONMENT
 * (of a GPU). */
TERRACE_EXPORT terrace_error terrace_parameter_adopt(terrace_session* session, int32_t tensor);
/* Copies elements [first_element, first_element + out->element_count) of a field of a tensor's
 * state to `out`, fp32. The fields are "master" and the fields of the rule: "exp_avg" and
 * "exp_avg_sq" (adamw, torch_adamw), "exp_avg" (lion), "momentum_buffer" (sgd). ARGUMENT, DTYPE,
 * ORDER, IO, ENVIRONMENT (of a GPU that has the field: the master of an fp32 parameter). */
TERRACE_EXPORT terrace_error terrace_state_read(terrace_session* session, int32_t tensor,
                                                const char* field, int64_t first_element,
                                                const terrace_buffer* out);
/* Sets elements of a field, as terrace_state_read() gets them. A new master changes the parameter
 * too, to the value that an update would write for it. After IO, CORRUPT or ENVIRONMENT the session
 * has failed, unless a GPU failed first. ARGUMENT, DTYPE, ORDER, IO, CORRUPT, ENVIRONMENT. */
TERRACE_EXPORT terrace_error terrace_state_write(terrace_session* session, int32_t tensor,
                                                 const char* field, int64_t first_element,
                                                 const terrace_buffer* values);
/* Sets *updates to the number of times that a tensor was updated: less than the session's steps if
 * its gradient was missing. */
TERRACE_EXPORT terrace_error terrace_tensor_updates(terrace_session* session, int32_t tensor,
                                                    int64_t* updates);
/* Sets that number, for state that terrace_state_write() brings. If the session's number of steps
 * is smaller, it becomes the same. At most 2^53. ARGUMENT, ORDER. */
TERRACE_EXPORT terrace_error terrace_tensor_set_updates(terrace_session* session, int32_t tensor,
                                                        int64_t updates);
/* Writes masters, state, and the step's number into a directory, which is made if it is not there;
 * its parent must be there. The directory holds the state that was saved last: it has the whole old
 * state until the new one is whole and synced. The state is a few safetensors files and
 * terrace_state.json. No other files are removed or replaced. Between steps. After a failure the
 * old state is still there. ARGUMENT where another session, of any process, is saving into the
 * directory (ranks save on one of them, or each into its own), and where it is a checkpoint of
 * "terrace train". FULL_DISK, IO, CORRUPT, ORDER, ENVIRONMENT (of a GPU that has an fp32
 * parameter). */
TERRACE_EXPORT terrace_error terrace_save(terrace_session* session, const char* directory);
/* Loads a saved state, and writes all trained parameters of the caller from it. Its tensors must
 * have the names, sizes and rules of the session's tensors; types of parameters, tiers and
 * hyperparameters may differ. Gradients that were added are forgotten. Loading twice is the same as
 * loading once. MISMATCH and ORDER change nothing, nor does a terrace_state.json that cannot be
 * read (IO, CORRUPT). After IO or CORRUPT of another file or of a drive, whose message names it,
 * and after ENVIRONMENT of a GPU during a copy, the session has failed until another load
 * succeeds. */
TERRACE_EXPORT terrace_error terrace_load(terrace_session* session, const char* directory);

/* ---- a pause --------------------------------------------------------------------------------
 *
 * Gives back all memory that the session holds: state on the host and gradients that were added go
 * to files without a name, which are gone when the process ends, and the rest is freed. They are
 * made in `directory`, or, where that is NULL, in the session's own NVMe directories, whose budgets
 * they count against. Parameters are the caller's and stay. Between steps. Then every other call,
 * except terrace_resume() and terrace_session_destroy(), returns ORDER. After an error the session
 * is as it was. Takes as long as the drive needs to write the bytes. ARGUMENT (there is no
 * directory), DOES_NOT_FIT (names the directory that has no room), FULL_DISK, IO, ENVIRONMENT,
 * ORDER. */
TERRACE_EXPORT terrace_error terrace_pause(terrace_session* session, const char* directory);
/* Takes the memory again, with every bit as it was. After an error the session is paused as before:
 * it may be resumed again. DOES_NOT_FIT (too little is free), IO, CORRUPT, ENVIRONMENT, ORDER. */
TERRACE_EXPORT terrace_error terrace_resume(terrace_session* session);

/* ---- reports -------------------------------------------------------------------------------- */

/* Both write JSON with a NUL into `text`, if `capacity` bytes are enough for it. They set *size to
 * the number of bytes that are enough, NUL included: ask with a capacity of 0 first, for which
 * `text` may be NULL. ARGUMENT where the capacity is not 0 and not enough.
 *
 * The ledger has "budget_bytes" (null: no limit), "peak_bytes" and "accounts" of each tier. After
 * terrace_session_prepare(). */
TERRACE_EXPORT terrace_error terrace_ledger_json(terrace_session* session, char* text,
                                                 uint64_t capacity, uint64_t* size);
/* The metrics are "step", "gradient_norm", "clip_coefficient" and "step_s" of the last step, and
 * "nvme_read_bytes", "nvme_write_bytes", "update_s" and "nvme_wait_s" of all steps. Between
 * steps. */
TERRACE_EXPORT terrace_error terrace_metrics_json(terrace_session* session, char* text,
                                                  uint64_t capacity, uint64_t* size);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(readability-identifier-naming) */

#include "terrace_units.h"
