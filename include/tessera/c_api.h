/* The engine in C (C99): the verbs of engine.h over opaque handles. Owns handles and error strings; what the
   verbs mean is said in engine.h and docs/embedding.md.

   C++ only are models, modules, schedules of the learning rate and the training loop; of the engine: several
   training programs, recompute and offload of activations chosen unit by unit, placements one by one, the
   cost model behind the advice of an engine that is refused, the search for what fits a budget, recording an
   order, how threads wait, a step's timeline, byte counters, raw state buffers; groups of ranks, and
   collectives besides those below.

   Every function returns TESSERA_OK or the kind of its error; tessera_last_error() then says, per thread,
   what was wrong and what would have been right. No exception leaves a function of this file. Outputs are
   written on success only. A handle is used by the thread of its rank alone. Strings are UTF-8 and end in 0;
   those given to a call are copied. */
#ifndef TESSERA_C_API_H
#define TESSERA_C_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t tessera_status;
enum {
  TESSERA_OK = 0,
  TESSERA_USAGE = 1,         /* the caller's mistake */
  TESSERA_ENVIRONMENT = 2,   /* the machine's refusal: memory, a file, a thread */
  TESSERA_UNSUPPORTED = 3,   /* not in this build or on this machine */
  TESSERA_COMMUNICATION = 4, /* another rank failed, or did not answer within the deadline */
  TESSERA_OTHER = 5,
  TESSERA_USER = 100 /* this and above: free for rank_main to return */
};

/* The message of the last call on this thread that failed, "" before any; valid until the next that fails. */
const char* tessera_last_error(void);

/* -- Ranks -- */

typedef struct tessera_world tessera_world; /* a rank's place among all ranks */

/* What a rank runs. The world is valid until it returns. Anything but TESSERA_OK is a failure of the rank:
   the others are told. Its message is that of the failed call whose status is returned, if there is one. */
typedef tessera_status (*tessera_rank_main)(tessera_world* world, void* user);

/* Runs rank_main for ranks 0 .. ranks-1, each on a thread, rank 0 on this one, and returns when all have
   ended: TESSERA_OK where none failed; what the rank returned that failed first, with its message; or, where
   that rank returned TESSERA_OK, what the first to return anything else did. Where all returned TESSERA_OK
   although one had failed (an engine called out of order, tessera_world_fail), TESSERA_COMMUNICATION with the
   first failure's message. deadline_ms (above 0; a year at most, beyond which it is one) is of every wait for
   a peer. A rank still running that long after the first failure is left behind, and the process should then
   end; rank 0, which runs on the caller's own thread, is always waited for. */
tessera_status tessera_run_ranks(int32_t ranks, int64_t deadline_ms, tessera_rank_main rank_main, void* user);

/* This process as a rank among those that a launcher (mpirun, srun) started. TESSERA_UNSUPPORTED in a build
   without MPI. Destroy the engine first; a rank that goes wrong should call tessera_world_fail before. */
tessera_status tessera_world_create_mpi(int64_t deadline_ms, tessera_world** world);
/* The same for a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun). Meant as the
   host of tessera_world_create_nccl. */
tessera_status tessera_world_create_from_variables(int64_t deadline_ms, tessera_world** world);
/* The ranks of `host` as GPUs, one each, that exchange by NCCL: for engines whose options.device is
   TESSERA_CUDA. Collective. Within a rank_main it is destroyed before that returns. TESSERA_UNSUPPORTED in a
   build without NCCL, TESSERA_ENVIRONMENT where libnccl cannot be loaded. One rank alone needs none. */
tessera_status tessera_world_create_nccl(tessera_world* host, int64_t deadline_ms, tessera_world** world);
/* Of one that was created; NULL is well. TESSERA_USAGE for a rank_main's own, which ends with it. */
tessera_status tessera_world_destroy(tessera_world* world);
/* Tells all other ranks that this one failed: their waits for it end. */
tessera_status tessera_world_fail(tessera_world* world, const char* message);

tessera_status tessera_world_rank(const tessera_world* world, int32_t* rank);
tessera_status tessera_world_ranks(const tessera_world* world, int32_t* ranks);

enum { TESSERA_SUM = 0, TESSERA_MAX = 1 }; /* operation */

/* For what a trainer measures itself. Collective: all ranks make these calls in one order, on memory of the
   host, also where a world's engines are on GPUs; during a step, too. The deadline is the world's, or that of
   the engine made last on it. TESSERA_COMMUNICATION where a rank does not come, or calls something else; the
   world has then failed. */
tessera_status tessera_world_barrier(tessera_world* world); /* returns when all ranks have called it */
/* In place, element by element the ranks' sum, added in rank order, or their largest, NaN where a rank's is
   NaN: the same bits on all ranks. numel and operation are the same on all ranks. After an error what
   `values` hold is undefined. */
tessera_status tessera_world_all_reduce(tessera_world* world, int32_t operation, double* values,
                                        int64_t numel);

/* -- What is trained -- */

enum { TESSERA_FP32 = 0, TESSERA_BF16 = 1, TESSERA_FP16 = 2 }; /* dtype */

/* One parameter; all fields that are 0 mean a trainable fp32 scalar of group 0. */
typedef struct tessera_parameter {
  const char* name;     /* unique over the model */
  const int64_t* shape; /* dims, outermost first */
  int32_t dims;
  int32_t dtype;
  int32_t frozen; /* 1: gathered, but has no gradient and no optimizer state */
  int32_t group;
  const char* tied_to; /* name of the parameter that this one is; NULL: of its own */
} tessera_parameter;

/* The parameters that are gathered and released together. Units and, over all units, parameters are numbered
   in the order of declaration. Set what is not used to 0. */
typedef struct tessera_unit {
  const char* name;
  const tessera_parameter* parameters;
  int32_t parameter_count;
  int32_t read_in_forward_only; /* 1: backward does not read them (an embedding's tables) */
  /* For a microbatch on one rank; 0: none, or in memory of the trainer's own. Lies where
     tessera_lease_handover says. Needs the default order (tessera_options.order NULL). */
  int64_t output_bytes;       /* what it hands on to the next unit: needed by a pipeline */
  int64_t saved_bytes;        /* kept from its forward to its backward, unless recompute is full */
  int64_t recomputable_bytes; /* the same, unless recompute is selective or full */
  int64_t workspace_bytes;    /* the most that any pass needs, within a lease */
} tessera_unit;

/* -- Options -- */

enum { TESSERA_FORWARD = 0, TESSERA_RECOMPUTE = 1, TESSERA_BACKWARD = 2 };                /* pass */
enum { TESSERA_WHOLE = 0, TESSERA_OPEN = 1, TESSERA_CLOSE = 2 };                          /* edge of a use */
enum { TESSERA_TRAIN = 0, TESSERA_EVALUATE = 1 };                                         /* kind of a step */
enum { TESSERA_REDUCE_AUTOMATIC = 0, TESSERA_REDUCE_EACH = 1, TESSERA_REDUCE_LAST = 2 };  /* reduce */
enum { TESSERA_REDUCTION_EXACT = 0, TESSERA_REDUCTION_NATIVE = 1 };                       /* reduction */
enum { TESSERA_UPDATE_DECIDED = 0, TESSERA_UPDATE_REDUCED = 1, TESSERA_UPDATE_NEXT = 2 }; /* update */
enum { TESSERA_1F1B = 0, TESSERA_GPIPE = 1, TESSERA_INTERLEAVED = 2, TESSERA_LOOPED = 3 }; /* schedule */
enum { TESSERA_RECOMPUTE_NONE = 0, TESSERA_RECOMPUTE_SELECTIVE = 1, TESSERA_RECOMPUTE_FULL = 2 };
enum { TESSERA_DEVICE = 0, TESSERA_HOST = 1, TESSERA_DISK = 2 };                 /* space */
enum { TESSERA_CPU = 0, TESSERA_CUDA = 1 };                                      /* device */
enum { TESSERA_ADAMW = 0, TESSERA_ADAM = 1, TESSERA_SGD = 2, TESSERA_LION = 3 }; /* optimizer */

typedef struct tessera_use {
  int32_t unit;
  int32_t pass;
  int32_t edge;
} tessera_use;

/* An optimizer group: what a parameter's `group` counts. A factor that is given and not marked as its own is
   refused. */
typedef struct tessera_group {
  const char* name;
  int32_t own_weight_decay;         /* 1: weight_decay below, 0: the options' */
  int32_t own_learning_rate_factor; /* 1: learning_rate_factor below, 0: 1 */
  double weight_decay;
  double learning_rate_factor; /* times the step's learning rate; 0 freezes the group's values */
} tessera_group;

/* Set all by tessera_options_init, then change what differs. Defaults are in brackets. */
typedef struct tessera_options {
  size_t struct_bytes;         /* set by tessera_options_init */
  int32_t pipeline;            /* ranks along the mesh's pipeline axis: parts of the chain of units [1] */
  int32_t replicate;           /* along its replicate axis [1] */
  int32_t shard;               /* and along its shard axis [0: as many as the others leave] */
  int32_t stage;               /* ZeRO, 0 to 3 [0] */
  int32_t reduce;              /* [TESSERA_REDUCE_AUTOMATIC] */
  int32_t reduction;           /* how ranks add, see tessera/reduction.h [TESSERA_REDUCTION_EXACT] */
  int32_t update;              /* when states are updated, see Strategy::update [TESSERA_UPDATE_DECIDED] */
  int32_t prefetch;            /* uses ahead whose parameters are gathered [1] */
  int32_t resident_units;      /* see Strategy::resident_units [0] */
  int32_t microbatches;        /* of a training step [1] */
  int32_t evaluation;          /* 1: there are evaluations too, of one microbatch [0] */
  int32_t state_over_replicas; /* 1: see Strategy::state_over_replicas [0] */
  int32_t parameters_over_replicas; /* 1: see Strategy::parameters_over_replicas [0] */

  int32_t schedule;    /* of a pipeline's passes [TESSERA_1F1B] */
  int32_t chunks;      /* runs of units on each pipeline rank: interleaved, looped [1] */
  const int32_t* cuts; /* first unit of every chunk but the first, ascending [NULL: equal counts] */
  int32_t cut_count;
  int32_t gather_once; /* 1: see Pipeline::gather_once [0] */

  int32_t states;             /* where master weights and moments live [TESSERA_DEVICE] */
  double states_on_device;    /* share of the units whose states stay there all the same [0] */
  int32_t parameters;         /* where parameter shards live; stage 3 only [TESSERA_DEVICE] */
  int32_t staged;             /* see Offload::staged [2] */
  int32_t activations;        /* not the disk; see Offload::activations [TESSERA_DEVICE] */
  int32_t recompute;          /* what uses in TESSERA_RECOMPUTE, one before each backward of every unit but
                                 the last, make again; see Recompute [TESSERA_RECOMPUTE_NONE] */
  const char* disk_directory; /* of the file for what lives on the disk [NULL: nothing does] */

  int32_t optimizer;           /* [TESSERA_ADAMW] */
  double beta1;                /* adamw, adam, lion [0.9] */
  double beta2;                /* adamw, adam, lion [0.999; LionOptions has 0.99] */
  double epsilon;              /* adamw, adam [1e-8] */
  double weight_decay;         /* adamw, lion: decoupled; adam, sgd: L2 [0; AdamWOptions has 0.01] */
  double momentum;             /* sgd [0] */
  int32_t nesterov;            /* sgd [0] */
  int32_t moment_type;         /* TESSERA_BF16: see Optimizer::moment_type [TESSERA_FP32] */
  const tessera_group* groups; /* [NULL: one] */
  int32_t group_count;
  double clip;             /* largest global norm of the mean gradient [0: none] */
  int32_t parameter_norms; /* 1: tessera_step_result.parameter_norms is filled [0] */

  /* Dynamic loss scaling, for fp16. All but the interval are powers of two. */
  double initial_loss_scale;          /* [0: none, and the rest means nothing] */
  double loss_scale_growth_factor;    /* above 1 [2] */
  int64_t loss_scale_growth_interval; /* steps applied in a row before it grows, 1 or more [2000] */
  double loss_scale_backoff_factor;   /* times this after a step that was not finite, below 1 [0.5] */
  double min_loss_scale;              /* [1] */
  double max_loss_scale;              /* 2^127 at most [2^24] */

  const tessera_use* order; /* of one microbatch [NULL: forward in unit order, then backward in reverse] */
  int32_t order_count;
  int32_t zero_gradients;      /* 1: gradients begin as 0 and are always added to [0] */
  int32_t device;              /* where it trains [TESSERA_CPU] */
  int32_t device_ordinal;      /* of TESSERA_CUDA: which GPU [0] */
  int32_t threads;             /* of a rank's updates and sums [1] */
  int64_t deadline_ms;         /* of every wait for a peer [0: as the world's] */
  int64_t device_memory_bytes; /* a rank's budget; more is refused at create [0: none] */
  int64_t host_memory_bytes;   /* likewise, of what it keeps in the host's arena [0: none] */
  int64_t external_bytes;      /* what the caller's own activations take of device_memory_bytes [0] */
  int32_t strict_order;        /* 1: one instruction after the other, for debugging; the same bits [0] */
  int32_t poison;              /* 1: fills dead memory with NaN, for debugging; the same bits [0] */
} tessera_options;

/* bytes: sizeof(tessera_options). TESSERA_USAGE where header and library differ in it. */
tessera_status tessera_options_init(tessera_options* options, size_t bytes);

/* -- The engine -- */

typedef struct tessera_engine tessera_engine;
typedef struct tessera_lease tessera_lease; /* of its engine: ended, not destroyed */

/* Collective: every rank makes one with equal arguments. Destroy it before the rank ends; a lease still open
   then fails the other ranks. */
tessera_status tessera_engine_create(tessera_world* world, const tessera_unit* units, int32_t unit_count,
                                     const tessera_options* options, tessera_engine** engine);
tessera_status tessera_engine_destroy(tessera_engine* engine); /* NULL is well */

tessera_status tessera_find_parameter(const tessera_engine* engine, const char* name, int32_t* parameter);

/* Sets `numel` values of a parameter from element `begin`, row-major; equal on all ranks, and whenever it is
   asked: TESSERA_USAGE where it gives others the second time. Called for what this rank holds, and for up to
   16 elements of every parameter; these, and what several ranks hold, the ranks compare (collective).
   Anything but TESSERA_OK stops, and is what tessera_initialize returns. */
typedef tessera_status (*tessera_fill)(int32_t parameter, int64_t begin, float* values, int64_t numel,
                                       void* user);
tessera_status tessera_initialize(tessera_engine* engine, tessera_fill fill, void* user);

tessera_status tessera_begin(tessera_engine* engine, int32_t kind, int32_t microbatches);
/* A training step with TESSERA_UPDATE_REDUCED: the learning rate, and exactly what the ranks' weights will
   add up to in tessera_step. */
tessera_status tessera_begin_on_terms(tessera_engine* engine, int32_t microbatches, double learning_rate,
                                      double weight);

/* An evaluation right behind another one, with which it goes on: what tessera_add_loss added there counts
   again, so that the last of several gives the loss of all, with the bits that one of all their microbatches
   gives. */
tessera_status tessera_continue_evaluation(tessera_engine* engine, int32_t microbatches);

/* The next use of the program; returns when the unit's parameters are gathered. */
tessera_status tessera_use_unit(tessera_engine* engine, int32_t unit, int32_t pass, tessera_lease** lease);
/* Instead: contributes nothing (its gradients, and what it hands on, are zeros), still meets every
   collective. Of a use that has others inside it only these can be skipped. */
tessera_status tessera_skip_unit(tessera_engine* engine, int32_t unit, int32_t pass);

/* -- A mesh's own part of a step -- */

enum { TESSERA_PIPELINE = 0, TESSERA_REPLICATE = 1, TESSERA_SHARD = 2 }; /* axis */

/* This rank's place along an axis. Ranks of one place along replicate and shard work on the same samples. */
tessera_status tessera_place(const tessera_engine* engine, int32_t axis, int32_t* place);

typedef struct tessera_scheduled_use {
  int32_t unit;
  int32_t pass;
  int32_t edge; /* TESSERA_CLOSE: here the lease of the matching TESSERA_OPEN ends; no use of its own */
  int32_t microbatch;
} tessera_scheduled_use;

/* The uses of the step that has begun, in the order in which this rank makes them: with a pipeline those of
   its units only. Valid until the next begin. TESSERA_USAGE where no step is running. */
tessera_status tessera_scheduled_uses(tessera_engine* engine, const tessera_scheduled_use** uses,
                                      int32_t* count);

/* What units hand on and keep (tessera_unit's bytes), where it lies during a lease. Every pass reads input; a
   forward writes output; a backward reads output_gradient, and writes input_gradient. NULL where there is
   none, and in the other passes. Between ranks of a pipeline, and to the host and back, they travel by
   themselves. */
typedef struct tessera_handover {
  const void* input;
  void* output;
  const void* output_gradient;
  void* input_gradient;
  void* saved;        /* a forward writes it, backward reads it; a full recompute writes it again, a selective
                         one reads it */
  void* recomputable; /* forward and recompute write it; backward reads it, and may overwrite it */
  void* workspace;    /* in any pass; holds garbage at first */
} tessera_handover;

/* Of the innermost open lease. On a GPU these and a lease's views are memory of that GPU. */
tessera_status tessera_lease_handover(const tessera_lease* lease, tessera_handover* handover);

typedef struct tessera_view {
  void* data; /* valid until the lease ends */
  int64_t numel;
  int32_t dtype;
  float beta; /* of a gradient. 0: overwrite, the memory holds garbage; 1: add to what is there */
} tessera_view;

tessera_status tessera_lease_parameter(const tessera_lease* lease, int32_t parameter, tessera_view* view);
/* In backward, of a trainable parameter: where the gradient of loss scale * sum of the loss goes. */
tessera_status tessera_lease_gradient(const tessera_lease* lease, int32_t parameter, tessera_view* view);
/* The lease has ended even where this fails; the handle must not be used again. */
tessera_status tessera_lease_end(tessera_lease* lease);

/* -- On a GPU -- */

/* A cudaStream_t: what a unit's work is to be enqueued on, within its lease; NULL on the CPU. */
tessera_status tessera_stream(const tessera_engine* engine, void** stream);
/* Copies between memory of the host and of the device, behind what is enqueued; returns when it is there. */
tessera_status tessera_transfer(tessera_engine* engine, void* to, const void* from, int64_t bytes);
/* From the host to the device likewise; returns when `from` may be changed, without waiting for the GPU. */
tessera_status tessera_upload(tessera_engine* engine, void* to, const void* from, int64_t bytes);

typedef struct tessera_loss_total {
  double sum;      /* of losses */
  int64_t counted; /* of what they are of, tokens say: adds to the step's weight */
} tessera_loss_total;

/* Adds, behind what is enqueued, to the loss and weight that tessera_step is given: for sums that lie on the
   device, as `total` does. Within a step. */
tessera_status tessera_add_loss(tessera_engine* engine, const tessera_loss_total* total);

typedef struct tessera_step_inputs {
  double learning_rate; /* 0 or more, equal on all ranks */
  double weight;        /* what the loss is divided by, summed over ranks; finite, 0 or more */
  double loss;          /* sum of the loss on this rank */
} tessera_step_inputs;

enum { /* reason */
       TESSERA_APPLIED = 0,
       TESSERA_NOT_FINITE = 1,
       TESSERA_ABANDONED = 2,
       TESSERA_NO_WEIGHT = 3
};

typedef struct tessera_step_result {
  int64_t step; /* updates applied so far */
  int32_t applied;
  int32_t reason;
  const char* first_nonfinite; /* the parameter, or ""; valid until the engine's next step */
  double loss;                 /* mean over all ranks and microbatches */
  double weight;
  double gradient_norm; /* of the mean gradient, before clipping; NaN where it is not finite */
  double loss_scale;
  double learning_rate;
  /* Of the mean gradient, before clipping, by parameter: of all its uses for a tied one, 0 for a frozen one.
     NULL unless tessera_options.parameter_norms, and for a step that was skipped or an evaluation. Valid
     until the engine's next step. */
  const double* parameter_norms;
  int32_t parameter_norm_count;
} tessera_step_result;

/* After the last use. `result` may be NULL. */
tessera_status tessera_step(tessera_engine* engine, const tessera_step_inputs* inputs,
                            tessera_step_result* result);
/* Instead of the rest of a step: all ranks drop it. */
tessera_status tessera_abandon(tessera_engine* engine, tessera_step_result* result);

/* With TESSERA_UPDATE_NEXT: does what the last step left to the next. Collective, between steps. */
tessera_status tessera_finish_updates(tessera_engine* engine);

/* The scale that the gradients of this step carry: 1 without loss scaling. */
tessera_status tessera_loss_scale(const tessera_engine* engine, float* scale);
/* Updates applied so far; a checkpoint that is loaded brings its count. */
tessera_status tessera_steps_applied(const tessera_engine* engine, int64_t* steps);

enum { TESSERA_MASTER = 0, TESSERA_ROUNDED = 1, TESSERA_MOMENT1 = 2, TESSERA_MOMENT2 = 3 }; /* state */

/* Elements [begin, begin + numel) of a state, in fp32. Collective, between steps, with equal arguments. */
tessera_status tessera_read(tessera_engine* engine, int32_t parameter, int32_t state, int64_t begin,
                            float* values, int64_t numel);
tessera_status tessera_write(tessera_engine* engine, int32_t parameter, int32_t state, int64_t begin,
                             const float* values, int64_t numel);
/* The same of a reduced gradient, in a training step, behind its last use and before tessera_step: see
   Engine::read_gradient. */
tessera_status tessera_read_gradient(tessera_engine* engine, int32_t parameter, int64_t begin, float* values,
                                     int64_t numel);

enum { /* category */
       TESSERA_PARAMETERS = 0,
       TESSERA_GATHERED_PARAMETERS = 1,
       TESSERA_GRADIENTS = 2,
       TESSERA_OPTIMIZER_STATE = 3,
       TESSERA_ACTIVATIONS = 4,
       TESSERA_COMMUNICATION_BUFFERS = 5,
       TESSERA_WORKSPACE = 6,
       TESSERA_CATEGORIES = 7
};

/* Memory of this rank in a space (TESSERA_DEVICE and so on): what the arena takes, and what lives in it at
   the plan's peak, by category. `at_peak` may be NULL. */
tessera_status tessera_plan_bytes(const tessera_engine* engine, int32_t space, int64_t* arena,
                                  int64_t at_peak[TESSERA_CATEGORIES]);

/* A step's timing on this rank, in microseconds. */
typedef struct tessera_timing {
  double total_us;         /* by the host's clock, until the step is complete */
  double issue_us;         /* until all lanes had been given their work; on the CPU the caller computes */
  double communication_us; /* collectives, messages, copies and host updates off the compute lane */
  double exposed_us;       /* the compute lane waited for other lanes */
} tessera_timing;

/* Times the next steps where `on` is not 0. Costs two clock readings an instruction; on a GPU two of its
   events, and waits for the GPU when a step begins. Between steps. */
tessera_status tessera_set_tracing(tessera_engine* engine, int32_t on);
/* Of the last step that was traced; all 0 before any. */
tessera_status tessera_step_timing(const tessera_engine* engine, tessera_timing* timing);

/* What people should know of how the engine works on this machine, a line each: an exchange between processes
   or GPUs that costs a copy more, and why; how the disk is used. "" where there is nothing. Valid until the
   next call. */
tessera_status tessera_notes(tessera_engine* engine, const char** notes);

#ifdef __cplusplus
}
#endif

#endif
