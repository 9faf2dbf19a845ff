/* Units, the second half of Terrace's C interface: Terrace owns the parameters, too, in units that
 * the trainer computes one at a time, for instance layers. terrace.h includes this header, and says
 * what holds for all calls.
 *
 * A unit's parameters, gradient and optimizer state live on the host or on NVMe, and are in memory
 * around their use. That use is known ahead, since the step is recorded and compiled before the
 * first one runs. The kernels, and the values that pass between units, stay the trainer's.
 *
 *   terrace_units_create(&options, &units);
 *   terrace_unit_add(units, &unit_options, &u);                 each unit
 *   terrace_units_record(units, u, TERRACE_PASS_FORWARD, 0);    each task of a step, in order
 *   terrace_units_prepare(units);                               compiles, checks, allocates
 *   terrace_units_fill(units, 0, source, user);                 parameters
 *   for each step:
 *     terrace_units_step_begin(units, learning_rate);
 *     for each task:
 *       terrace_unit_acquire(units, u, pass, micro_batch, &memory);
 *       ... compute with memory.parameters, write memory.gradient ...
 *       terrace_unit_release(units, u);
 *     terrace_units_step_end(units, &result);
 *   terrace_units_destroy(units);
 *
 * Errors, threads and forked processes are as with sessions; here all calls run one after the
 * other. After an error of a drive all calls but terrace_units_destroy() return
 * TERRACE_ERROR_FAILED. */
#pragma once

#include "terrace.h"

/* The names are C's: NOLINTBEGIN(readability-identifier-naming) */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct terrace_units terrace_units;

typedef enum terrace_pass { TERRACE_PASS_FORWARD = 0, TERRACE_PASS_BACKWARD = 1 } terrace_pass;

/* Makes updates wait for the norm even if gradients are not clipped. Then a step can be abandoned,
 * and a step whose gradients are not finite changes nothing and does not end the session. */
#define TERRACE_UNITS_CAN_ABANDON 1u

typedef struct terrace_units_options {
  uint32_t struct_size;
  int32_t threads;                    /* for updates; 0: as suits the machine; else as sessions */
  uint64_t host_memory_bytes;         /* at most; 0: nine tenths of what the machine has free */
  const terrace_nvme_directory* nvme; /* several: striped over them */
  uint32_t nvme_count;
  int32_t io_engine;      /* terrace_io_engine */
  int32_t parameter_tier; /* terrace_tier, as are the next three */
  int32_t gradient_tier;
  int32_t optimizer_tier;
  int32_t saved_tier;    /* of the memory that a forward saves */
  int32_t compute_dtype; /* of parameters: TERRACE_DTYPE_FP32 or TERRACE_DTYPE_BF16 */
  int32_t micro_batches; /* of a step; 1 at least */
  const char* rule;      /* as in terrace_group_options, as are the next two */
  const terrace_hyperparameter* hyperparameters;
  uint32_t hyperparameter_count;
  uint32_t flags; /* TERRACE_UNITS_CAN_ABANDON */
  double weight_decay;
  double max_grad_norm;     /* 0: gradients are not clipped */
  terrace_log_callback log; /* NULL: silent */
  void* log_user;
} terrace_units_options;

#define TERRACE_UNIT_FROZEN 1u /* is not updated: it has only parameters */

typedef struct terrace_unit_options {
  uint32_t struct_size;
  uint32_t flags;
  const char* name;         /* for messages; not empty */
  int64_t element_count;    /* of its parameters, one flat sequence; 1 at least */
  int64_t decayed_elements; /* weight decay applies to this many, at the start */
  uint64_t saved_bytes;     /* of memory that a forward leaves for its backward; may be 0 */
} terrace_unit_options;

/* The memory that a task may touch, from acquire to release. */
typedef struct terrace_unit_memory {
  uint32_t struct_size; /* set by the caller */
  int32_t dtype;        /* of the parameters */
  const void* parameters;
  /* element_count elements of fp32; NULL in a forward, and for a frozen unit. The backward of a
   * micro-batch must write each of them: its gradient if adds_gradient is 0, else the value that is
   * there plus its gradient. Complete the gradient by itself before you add it, so that bits do not
   * depend on tiers. */
  float* gradient;
  void* saved; /* saved_bytes of this micro-batch; NULL if there are none */
  int32_t adds_gradient;
  int32_t reserved;
} terrace_unit_memory;

/* Elements that a source is asked for. Never grows. */
typedef struct terrace_state_range {
  int32_t unit;
  int32_t reserved;
  const char* field; /* "master", or a field of the rule: see terrace_state_read() */
  int64_t first_element;
  int64_t element_count;
  float* out; /* to be written */
} terrace_state_range;

/* Writes a range; returns 0, or another number to end the call with TERRACE_ERROR_ARGUMENT. Called
 * by several threads at a time, and maybe twice for an element: it must give the same number
 * then. */
typedef int32_t (*terrace_state_source)(void* user, const terrace_state_range* range);

/* Makes a session of units without units. Sets *units on success only. ARGUMENT. */
TERRACE_EXPORT terrace_error terrace_units_create(const terrace_units_options* options,
                                                  terrace_units** units);
/* Ends a step that is under way, wherever it is, and gives back memory and files. The handle is
 * then gone, except in a forked process (FORKED). NULL is fine. */
TERRACE_EXPORT terrace_error terrace_units_destroy(terrace_units* units);
/* Adds a unit; *unit becomes its number, counted from 0. Before terrace_units_prepare(). */
TERRACE_EXPORT terrace_error terrace_unit_add(terrace_units* units,
                                              const terrace_unit_options* options, int32_t* unit);
/* Records the next task of every step: a pass of a unit in a micro-batch, counted from 0. A unit
 * may be used several times. If nothing is recorded, each micro-batch goes forward through all
 * units in the order of their numbers, then back. Before terrace_units_prepare(). ARGUMENT,
 * ORDER. */
TERRACE_EXPORT terrace_error terrace_units_record(terrace_units* units, int32_t unit, int32_t pass,
                                                  int32_t micro_batch);
/* Compiles and verifies the step, checks the budgets, and allocates. Called once. After a failure
 * the session can only be destroyed. ARGUMENT (tasks that cannot be a step, named), DOES_NOT_FIT,
 * IO, FULL_DISK, ENVIRONMENT. */
TERRACE_EXPORT terrace_error terrace_units_prepare(terrace_units* units);
/* Sets parameters and state to the values that the source gives, as they are after `steps` steps.
 * For a training that begins, `steps` is 0 and the source gives zeros for all fields but "master".
 * For a training that goes on, the source gives the values that terrace_units_state_read() gave.
 * Called before the first step, and at any time when no step is under way. `steps` is 2^53 at most;
 * after the first step it must be the number of steps that were made. If the source refuses
 * (ARGUMENT), and after IO, FULL_DISK and CORRUPT, a part of the state is set and the session has
 * failed; other ARGUMENT, and ORDER, change nothing. */
TERRACE_EXPORT terrace_error terrace_units_fill(terrace_units* units, int64_t steps,
                                                terrace_state_source source, void* user);
/* Begins a step. The updates of the last step may run while it computes. ARGUMENT, ORDER. */
TERRACE_EXPORT terrace_error terrace_units_step_begin(terrace_units* units, double learning_rate);
/* Waits until a unit is in the memory where it is computed, and fills *memory. The tasks of a step
 * are acquired in the order of the recording, one at a time: any other task is ORDER, which names
 * the task that is next, and changes nothing. Fails as the step does: IO, CORRUPT, FULL_DISK. */
TERRACE_EXPORT terrace_error terrace_unit_acquire(terrace_units* units, int32_t unit, int32_t pass,
                                                  int32_t micro_batch, terrace_unit_memory* memory);
/* Gives back the unit that is acquired: its task is computed. ORDER. */
TERRACE_EXPORT terrace_error terrace_unit_release(terrace_units* units, int32_t unit);
/* The part of an acquired unit that is leased. */
typedef enum terrace_unit_part {
  TERRACE_PART_PARAMETERS = 0, /* read-only, which the lease says */
  TERRACE_PART_GRADIENT = 1
} terrace_unit_part;
/* Leases memory of the unit that is acquired, as terrace_gradient_lease() does: element_count
 * elements, flat. *lease becomes NULL for a gradient if the task has none. While a lease is out,
 * terrace_unit_release() of the unit is ORDER; terrace_units_destroy() is not. ARGUMENT, ORDER. */
TERRACE_EXPORT terrace_error terrace_unit_lease(terrace_units* units, int32_t unit, int32_t part,
                                                struct DLManagedTensorVersioned** lease);
/* Takes elements of a unit's gradient. Called by a thread of the library. */
typedef void (*terrace_gradient_sink)(void* user, int32_t unit, int64_t first_element,
                                      int64_t element_count, const float* gradient);
/* Gives up the step that is under way, at any time before terrace_units_step_end(): that call will
 * update nothing, and give the gradients that the step has summed to the sink, each element once.
 * The remaining tasks are acquired and released before it as usual; a backward that has nothing to
 * add writes zeros where adds_gradient is 0. ORDER, also without TERRACE_UNITS_CAN_ABANDON. */
TERRACE_EXPORT terrace_error terrace_units_step_abandon(terrace_units* units,
                                                        terrace_gradient_sink sink, void* user);
/* Waits for the norm of the step, whose tasks are all released, and ends it. `result` may be NULL.
 * ORDER (names the task that is missing, and changes nothing); IO, CORRUPT, FULL_DISK: the session
 * has failed; NOT_FINITE: it has failed, too, unless TERRACE_UNITS_CAN_ABANDON is set: then nothing
 * has changed, and another step may be begun. */
TERRACE_EXPORT terrace_error terrace_units_step_end(terrace_units* units,
                                                    terrace_step_result* result);
/* Reads the state of a unit as terrace_state_read() does; waits for the last updates. The field
 * "parameter" has the values that a step computes with, in the type of `out`: fp32, or bf16 if that
 * is the compute_dtype. */
TERRACE_EXPORT terrace_error terrace_units_state_read(terrace_units* units, int32_t unit,
                                                      const char* field, int64_t first_element,
                                                      const terrace_buffer* out);
/* Pauses units as terrace_pause() does, between steps and after terrace_units_fill(). It runs the
 * last step's updates first, writes parameters, gradients and state that are on the host to files
 * without a name, and gives all memory back. The files are in `directory` or, if that is NULL, in
 * the units' own NVMe directories within their budgets. Then every call but terrace_units_resume()
 * and _destroy() returns ORDER. After an error the units are as they were, or, if those updates
 * failed, the session has failed. ARGUMENT (no directory), DOES_NOT_FIT, FULL_DISK, IO, CORRUPT,
 * ENVIRONMENT, ORDER. */
TERRACE_EXPORT terrace_error terrace_units_pause(terrace_units* units, const char* directory);
/* Takes the memory again, with every bit as it was. After an error the units are still paused, and
 * may be resumed later; after CORRUPT that fails again. DOES_NOT_FIT, IO, CORRUPT, ORDER. */
TERRACE_EXPORT terrace_error terrace_units_resume(terrace_units* units);
/* Writes the ledger of the compiled step as terrace_ledger_json() does. */
TERRACE_EXPORT terrace_error terrace_units_ledger_json(terrace_units* units, char* text,
                                                       uint64_t capacity, uint64_t* size);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(readability-identifier-naming) */
