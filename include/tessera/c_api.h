/* The engine in C (C99): the calls of engine.h over opaque handles. Owns handles and error strings.
   engine.h and docs/embedding.md say what the calls mean; docs/embed-in-c.md has a whole recipe. c_arrays.h
   adds trainers that keep every kind of parameter in one array, c_checkpoint.h checkpoints.

   These exist in C++ only: models, modules, learning-rate schedules and the training loop; groups of
   ranks, and collectives other than those below; and of the engine: several training programs, recompute
   and offload of activations chosen unit by unit, placements one by one, the cost model behind the advice
   of an engine that is refused, the search for what fits a budget, recording an order, how threads wait, a
   step's timeline, byte counters, raw state buffers.

   Every function returns TESSERA_OK or the kind of its error. After an error, tessera_last_error() says on
   that thread what was wrong and what would have been right. No function lets an exception out. Outputs
   are written on success only. Only the thread of a rank may use that rank's handles. Strings are UTF-8
   and end in 0; a call copies the strings that it is given. */
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
  TESSERA_SKIPPED = 6, /* a training step changed nothing; all ranks get this, and no rank has failed */
  TESSERA_USER = 100   /* this and above: free for rank_main to return */
};

/* The message of the last call on this thread that failed; "" if none has. Valid until the next call on
   this thread fails. */
const char* tessera_last_error(void);

/* For programs that end at the first error: evaluates `call` and, if it does not give TESSERA_OK, writes its
   place, the call and the message to stderr, tells the other ranks, and ends the process with status 1. */
#define TESSERA_MUST(call) tessera_must((call), #call, __FILE__, __LINE__)
void tessera_must(tessera_status status, const char* call, const char* file, int line);

/* -- Ranks -- */

typedef struct tessera_world tessera_world; /* one rank's connection to all ranks */

/* The function that a rank runs. `world` is valid until it returns. A result other than TESSERA_OK means
   that the rank failed, and the other ranks are told. Only TESSERA_SKIPPED does not: all ranks get it from
   the same step. The failure's message is that of the failed call whose status is returned, if there is one.
 */
typedef tessera_status (*tessera_rank_main)(tessera_world* world, void* user);

/* Runs rank_main for ranks 0 .. ranks-1, each on a thread of its own, rank 0 on the calling thread.
   Returns when all have ended: TESSERA_OK if none failed, else the status and message of the rank that
   failed first, or TESSERA_SKIPPED if none failed and one returned that. If that rank returned TESSERA_OK,
   the result is that of the first rank that returned something else. If all returned TESSERA_OK although one
   had failed (an engine called out of order, tessera_world_fail), the result is TESSERA_COMMUNICATION with
   the first failure's message. deadline_ms limits every wait for a peer; it is above 0, and more than a year
   counts as a year. A rank that still runs that long after the first failure is left behind; so is, half a
   second after it, one whose failure is that it did not answer for so long. The process should then end. Rank
   0 is always waited for, because it runs on the calling thread. */
tessera_status tessera_run_ranks(int32_t ranks, int64_t deadline_ms, tessera_rank_main rank_main, void* user);

/* The main function of one rank: tessera_rank_main with the program's arguments. */
typedef tessera_status (*tessera_launch_main)(tessera_world* world, int argc, char** argv);
/* Runs one program on one rank or several, as it was started: under mpirun or srun, or a launcher that sets
   RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, this process is one rank. Otherwise ranks 0 .. threads-1 are
   threads of this process, as by tessera_run_ranks. Writes one line to stderr that says which, and a message
   if a rank fails. Waits for a peer end after 60 s; tessera_options.deadline_ms changes that for an engine's
   world. The result is that of tessera_run_ranks, or of this process's rank. main can return it. */
tessera_status tessera_launch(int argc, char** argv, int32_t threads, tessera_launch_main rank_main);

/* Makes this process a rank among those that a launcher (mpirun, srun) started. TESSERA_UNSUPPORTED in a
   build without MPI. Destroy the engine before the world. A rank that fails should call tessera_world_fail
   before it destroys them. */
tessera_status tessera_world_create_mpi(int64_t deadline_ms, tessera_world** world);
/* The same for a launcher (`tessera launch`, torchrun) that sets RANK, WORLD_SIZE, MASTER_ADDR and
   MASTER_PORT. Ranks share memory on a host, and send by UCX between hosts. In a build without UCX what ranks
   on several hosts exchange passes through rank 0: that is for what is small, such as the `host` of
   tessera_world_create_nccl. */
tessera_status tessera_world_create_from_variables(int64_t deadline_ms, tessera_world** world);
/* Makes a world of the ranks of `host` in which each rank has one GPU and data travel by NCCL. For engines
   whose options.device is TESSERA_CUDA; a single rank needs none. Collective. If it was made within a
   rank_main, destroy it before that returns. TESSERA_UNSUPPORTED in a build without NCCL,
   TESSERA_ENVIRONMENT if libnccl cannot be loaded. */
tessera_status tessera_world_create_nccl(tessera_world* host, int64_t deadline_ms, tessera_world** world);
/* Destroys a world that a tessera_world_create_ function made. NULL is allowed. TESSERA_USAGE for the
   world that a rank_main was given: it ends when rank_main returns. */
tessera_status tessera_world_destroy(tessera_world* world);
/* Tells all other ranks that this one failed. Their waits for it then end. */
tessera_status tessera_world_fail(tessera_world* world, const char* message);

tessera_status tessera_world_rank(const tessera_world* world, int32_t* rank);
tessera_status tessera_world_ranks(const tessera_world* world, int32_t* ranks);

enum { TESSERA_SUM = 0, TESSERA_MAX = 1 }; /* operation */

/* Collectives for values that a trainer measures itself. All ranks make these calls in the same order,
   also during a step. The memory is the host's, also if the world's engines are on GPUs. The deadline is
   that of the engine made last on the world, or the world's. TESSERA_COMMUNICATION if a rank does not come
   or calls something else; the world has then failed. */
tessera_status tessera_world_barrier(tessera_world* world); /* returns when all ranks have called it */
/* Replaces each element by the sum over the ranks, added in rank order, or by the largest of the ranks'
   values, NaN if any is NaN. All ranks get the same bits. numel and operation are the same on all ranks.
   After an error the contents of `values` are undefined. */
tessera_status tessera_world_all_reduce(tessera_world* world, int32_t operation, double* values,
                                        int64_t numel);

/* -- What is trained -- */

enum { TESSERA_FP32 = 0, TESSERA_BF16 = 1, TESSERA_FP16 = 2 }; /* dtype */

/* How a parameter is cut over the ranks along the tensor axis: each has an equal part of each segment, one
   behind the other (Cut in tessera/cut.h). On one rank along the axis the parameter is whole. */
typedef struct tessera_cut {
  int32_t dim;             /* of the shape, along which it is cut */
  int32_t padded;          /* 1: the ranks need not divide the dim. Each has its length divided by the ranks,
                              rounded up; places behind the end are 0, and so are their gradients */
  const int64_t* segments; /* lengths along the dim of parts that are each cut by themselves, such as queries,
                              keys and values; the ranks divide each. NULL: one part, the dim */
  int32_t segment_count;
} tessera_cut;

enum { TESSERA_GRADIENT_COPIED = 0, TESSERA_GRADIENT_PARTIAL = 1 }; /* gradient_over_tensor */

/* One parameter. `name` is required. With all other fields 0 it is a trainable fp32 scalar of group 0. */
typedef struct tessera_parameter {
  const char* name;     /* unique over the model */
  const int64_t* shape; /* dims, outermost first; of the whole parameter, also where it is cut */
  int32_t dims;
  int32_t dtype;
  int32_t frozen; /* 1: gathered, but has no gradient and no optimizer state */
  int32_t group;
  const char* tied_to;          /* name of the parameter that this one shares its values with; NULL: none */
  const tessera_cut* cut;       /* over the tensor axis; NULL: each of its ranks has a copy */
  int32_t gradient_over_tensor; /* of a trainable parameter that is not cut. Copied: each of these ranks makes
                                   the whole gradient. Partial: each makes a part, and the engine adds them */
} tessera_parameter;

/* The parameters that are gathered and released together. Units are numbered in the order of declaration,
   and so are parameters, over all units. Set fields that are not used to 0. */
typedef struct tessera_unit {
  const char* name;
  const tessera_parameter* parameters;
  int32_t parameter_count;
  int32_t read_in_forward_only; /* 1: backward does not read them (an embedding's tables) */
  /* Activation memory for one microbatch on one rank. 0: none, or in memory of the trainer's own.
     tessera_lease_handover says where it lies. Needs the default order (tessera_options.order NULL). */
  int64_t output_bytes;       /* what it hands on to the next unit; a pipeline needs it */
  int64_t saved_bytes;        /* kept from its forward to its backward, unless recompute is full */
  int64_t recomputable_bytes; /* the same, unless recompute is selective or full */
  int64_t workspace_bytes;    /* the most that any pass needs, during a lease */
  /* 1: TESSERA_ZB_H1 may run its backward as two passes. TESSERA_BACKWARD makes the gradient of the input and
     leaves what was kept as it is, under any schedule. TESSERA_WEIGHT_GRADIENT makes all gradients of
     parameters later, to the same bits. Parameters are not gathered for it: what it needs of them, backward
     leaves in memory of the trainer's own. */
  int32_t splits_backward;
} tessera_unit;

/* -- Options -- */

/* Passes. The last is of schedules that split backward. */
enum { TESSERA_FORWARD = 0, TESSERA_RECOMPUTE = 1, TESSERA_BACKWARD = 2, TESSERA_WEIGHT_GRADIENT = 3 };
enum { TESSERA_WHOLE = 0, TESSERA_OPEN = 1, TESSERA_CLOSE = 2 };                          /* edge of a use */
enum { TESSERA_TRAIN = 0, TESSERA_EVALUATE = 1 };                                         /* kind of a step */
enum { TESSERA_REDUCE_AUTOMATIC = 0, TESSERA_REDUCE_EACH = 1, TESSERA_REDUCE_LAST = 2 };  /* reduce */
enum { TESSERA_REDUCTION_EXACT = 0, TESSERA_REDUCTION_NATIVE = 1 };                       /* reduction */
enum { TESSERA_UPDATE_DECIDED = 0, TESSERA_UPDATE_REDUCED = 1, TESSERA_UPDATE_NEXT = 2 }; /* update */
/* Schedules. */
enum {
  TESSERA_1F1B = 0,
  TESSERA_GPIPE = 1,
  TESSERA_INTERLEAVED = 2,
  TESSERA_LOOPED = 3,
  TESSERA_ZB_H1 = 4,
  TESSERA_ZB_V = 5
};
enum { TESSERA_RECOMPUTE_NONE = 0, TESSERA_RECOMPUTE_SELECTIVE = 1, TESSERA_RECOMPUTE_FULL = 2 };
enum { TESSERA_DEVICE = 0, TESSERA_HOST = 1, TESSERA_DISK = 2 };                 /* space */
enum { TESSERA_CPU = 0, TESSERA_CUDA = 1 };                                      /* device */
enum { TESSERA_ADAMW = 0, TESSERA_ADAM = 1, TESSERA_SGD = 2, TESSERA_LION = 3 }; /* optimizer */

typedef struct tessera_use {
  int32_t unit;
  int32_t pass;
  int32_t edge;
} tessera_use;

/* An optimizer group. A parameter's `group` is its index. A learning_rate_factor other than 0 and 1 that
   is not marked as the group's own is refused. */
typedef struct tessera_group {
  const char* name;
  int32_t own_weight_decay;         /* 1: weight_decay below, 0: the options' */
  int32_t own_learning_rate_factor; /* 1: learning_rate_factor below, 0: 1 */
  double weight_decay;
  double learning_rate_factor; /* times the step's learning rate; 0 freezes the group's values */
} tessera_group;

/* Set all members with tessera_options_init, then change those that differ. Defaults are in brackets. */
typedef struct tessera_options {
  size_t struct_bytes;    /* set by tessera_options_init */
  int32_t pipeline;       /* ranks along the mesh's pipeline axis: parts of the chain of units [1] */
  int32_t replicate;      /* ranks along its replicate axis [1] */
  int32_t shard;          /* ranks along its shard axis [0: as many as the other axes leave] */
  int32_t tensor;         /* ranks along its tensor axis, over which the trainer splits its layers; they work
                             on the same samples [1] */
  int32_t splits_layers;  /* 1: leases have the collectives along the tensor axis, see
                             tessera_lease_all_reduce. On a GPU they take staging memory [0] */
  int32_t stage;          /* ZeRO, 0 to 3 [0] */
  int32_t reduce;         /* [TESSERA_REDUCE_EACH] */
  int32_t reduction;      /* how ranks add, see tessera/reduction.h [TESSERA_REDUCTION_EXACT] */
  int32_t update;         /* when states are updated, see Strategy::update [TESSERA_UPDATE_DECIDED] */
  int32_t prefetch;       /* number of uses ahead of the running one whose parameters are gathered [1] */
  int32_t resident_units; /* see Strategy::resident_units [0] */
  int32_t microbatches;   /* microbatches of one rank in a training step [1] */
  int32_t microbatches_per_step; /* instead, those of all ranks of the shard and replicate axes; they need not
                                    divide evenly, see tessera_microbatches [0: not given] */
  int32_t blocks;                /* of microbatches, see Strategy::blocks [1] */
  int32_t evaluation;            /* 1: there are also evaluations, of one microbatch each [0] */
  int32_t state_over_replicas;   /* 1: see Strategy::state_over_replicas [0] */
  int32_t parameters_over_replicas; /* 1: see Strategy::parameters_over_replicas [0] */

  int32_t schedule;    /* order of a pipeline's passes [TESSERA_1F1B] */
  int32_t chunks;      /* chunks of units on each pipeline rank, as many as the schedule takes [1] */
  const int32_t* cuts; /* first unit of every chunk but the first, ascending [NULL: equal counts] */
  int32_t cut_count;
  int32_t gather_once; /* 1: see Pipeline::gather_once [0] */

  int32_t states;          /* where master weights and moments live [TESSERA_DEVICE] */
  double states_on_device; /* share of the units whose states stay on the device nevertheless [0] */
  int32_t parameters;      /* where parameter shards live; stage 3 only [TESSERA_DEVICE] */
  int32_t staged;          /* see Offload::staged [2] */
  int32_t activations;     /* device or host, see Offload::activations [TESSERA_DEVICE] */
  int32_t recompute; /* what is made again before a backward, see Recompute. Unless none, every unit but the
                        last has a use in TESSERA_RECOMPUTE before each backward [TESSERA_RECOMPUTE_NONE] */
  const char* disk_directory; /* folder of the file for what lives on the disk [NULL: nothing does] */

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
  double clip;             /* largest global norm of the mean gradient [0: no clipping] */
  int32_t parameter_norms; /* 1: tessera_step_result.parameter_norms is filled [0] */

  /* Dynamic loss scaling, for fp16. All but the interval are powers of two. */
  double initial_loss_scale;          /* [0: no scaling; the other members are then ignored] */
  double loss_scale_growth_factor;    /* above 1 [2] */
  int64_t loss_scale_growth_interval; /* steps applied in a row before the scale grows, 1 or more [2000] */
  double loss_scale_backoff_factor;   /* the scale's factor after a step that was not finite, below 1 [0.5] */
  double min_loss_scale;              /* [1] */
  double max_loss_scale;              /* 2^127 at most [2^24] */

  const tessera_use* order; /* for a microbatch [NULL: forward in unit order, then backward in reverse] */
  int32_t order_count;
  int32_t overwrite_gradients; /* 0: gradients begin at 0; add to them. 1: overwrite them where their view's
                                  beta is 0, which saves a pass over them [0] */
  int32_t device;              /* where it trains [TESSERA_CPU] */
  int32_t device_ordinal;      /* which GPU, for TESSERA_CUDA [0] */
  int32_t threads;             /* CPU threads of a rank's updates and sums [1] */
  int64_t deadline_ms;         /* limit of every wait for a peer [0: the world's] */
  int64_t device_memory_bytes; /* a rank's budget; an engine that needs more is refused [0: none] */
  int64_t host_memory_bytes;   /* likewise, for the rank's host arena [0: none] */
  int64_t external_bytes;      /* part of device_memory_bytes that the caller's own activations take [0] */
  int32_t strict_order; /* 1: runs one instruction after the other, for debugging; gives the same bits [0] */
  int32_t poison;       /* 1: fills dead memory with NaN, for debugging; gives the same bits [0] */
  int32_t guards; /* 1: a write beyond a buffer fails the step, for debugging; takes more memory and gives the
                     same bits, see EngineDebug::guards [0] */
} tessera_options;

/* Sets all members to their defaults. `bytes` is sizeof(tessera_options). TESSERA_USAGE if the library was
   built with another size. */
tessera_status tessera_options_init(tessera_options* options, size_t bytes);

/* -- The engine -- */

typedef struct tessera_engine tessera_engine;
typedef struct tessera_lease tessera_lease; /* belongs to its engine: end it, do not destroy it */

/* Collective: every rank makes an engine with equal arguments. Destroy it before the rank ends. If a lease
   is still open then, the other ranks fail. */
tessera_status tessera_engine_create(tessera_world* world, const tessera_unit* units, int32_t unit_count,
                                     const tessera_options* options, tessera_engine** engine);
tessera_status tessera_engine_destroy(tessera_engine* engine); /* NULL is allowed */

tessera_status tessera_find_parameter(const tessera_engine* engine, const char* name, int32_t* parameter);

/* Sets `numel` values of a parameter from element `begin` on, row-major. It must give the same values on
   all ranks and at every call; tessera_initialize returns TESSERA_USAGE if a second call gives others. It
   is called for the elements that this rank holds, and for up to 16 elements of every parameter. The ranks
   compare those, and the elements that several ranks hold. A result other than TESSERA_OK stops the
   initialization and becomes the result of tessera_initialize, which is collective. */
typedef tessera_status (*tessera_fill)(int32_t parameter, int64_t begin, float* values, int64_t numel,
                                       void* user);
tessera_status tessera_initialize(tessera_engine* engine, tessera_fill fill, void* user);

/* Of a training step: the rounds of microbatches, one of each rank of the shard and replicate axes, which
   tessera_begin takes, and in how many of them this rank has one. Microbatch g of all is in round g / ranks.
   Where the last round is not full, some ranks make no use in it. */
tessera_status tessera_microbatches(const tessera_engine* engine, int32_t* rounds, int32_t* own);

tessera_status tessera_begin(tessera_engine* engine, int32_t kind, int32_t microbatches);
/* Begins a training step with TESSERA_UPDATE_REDUCED. `learning_rate` is that of tessera_step, and
   `weight` is exactly the sum over ranks of the weights that tessera_step will be given. */
tessera_status tessera_begin_on_terms(tessera_engine* engine, int32_t microbatches, double learning_rate,
                                      double weight);

/* Begins an evaluation that continues the evaluation directly before it: the sums that tessera_add_loss
   made there are kept. So the last of several gives the loss of all of them, with the same bits as one
   evaluation of all their microbatches. */
tessera_status tessera_continue_evaluation(tessera_engine* engine, int32_t microbatches);

/* Begins the next use of the program. Returns when the unit's parameters are gathered. */
tessera_status tessera_use_unit(tessera_engine* engine, int32_t unit, int32_t pass, tessera_lease** lease);
/* Skips the next use instead: it contributes nothing but still takes part in every collective. Its
   gradients are zeros, and so is what it hands on. If a use has others inside it, only those can be
   skipped. */
tessera_status tessera_skip_unit(tessera_engine* engine, int32_t unit, int32_t pass);

/* -- A mesh's own part of a step -- */

enum { TESSERA_PIPELINE = 0, TESSERA_REPLICATE = 1, TESSERA_SHARD = 2, TESSERA_TENSOR = 3 }; /* axis */

/* This rank's coordinate along an axis. Ranks with equal coordinates along replicate and shard work on the
   same samples. */
tessera_status tessera_place(const tessera_engine* engine, int32_t axis, int32_t* place);

typedef struct tessera_scheduled_use {
  int32_t unit;
  int32_t pass;
  int32_t edge; /* TESSERA_CLOSE is not a use of its own: here the lease of the matching TESSERA_OPEN ends */
  int32_t microbatch;
} tessera_scheduled_use;

/* The uses of the step that has begun, in the order in which this rank makes them. With a pipeline these
   are the uses of this rank's units only. The engine owns the list; it is valid until the next begin.
   TESSERA_USAGE if no step is running. */
tessera_status tessera_scheduled_uses(tessera_engine* engine, const tessera_scheduled_use** uses,
                                      int32_t* count);

/* Where the activations that tessera_unit's bytes declare lie during a lease. Every pass reads input. A
   forward writes output. A backward reads output_gradient and writes input_gradient; a weight gradient reads
   output_gradient, too. A member is NULL if
   the unit has no such memory, or the pass does not use it. The engine moves activations between pipeline
   ranks, and to the host and back. */
typedef struct tessera_handover {
  const void* input;
  void* output;
  const void* output_gradient;
  void* input_gradient;
  void* saved; /* forward writes it, backward reads it; a full recompute writes it again, a selective one
                  reads it */
  void* recomputable; /* forward and recompute write it; backward reads it, and may overwrite it */
  void* workspace;    /* for any pass; contains garbage at first */
} tessera_handover;

/* `lease` must be the innermost open lease. On a GPU these pointers and a lease's views are memory of that
   GPU. */
tessera_status tessera_lease_handover(const tessera_lease* lease, tessera_handover* handover);

/* Of a parameter that is cut, this rank's share. */
typedef struct tessera_view {
  void* data; /* valid until the lease ends */
  int64_t numel;
  int32_t dtype;
  float beta; /* for a gradient. 1: add to what is there, 0 at first; 0, only with
                 options.overwrite_gradients: overwrite, the memory contains garbage */
} tessera_view;

tessera_status tessera_lease_parameter(const tessera_lease* lease, int32_t parameter, tessera_view* view);
/* In backward, for a trainable parameter: where to write the gradient of loss scale * sum of the loss. */
tessera_status tessera_lease_gradient(const tessera_lease* lease, int32_t parameter, tessera_view* view);
/* The same two as pointers to fp32. TESSERA_USAGE, naming the parameter and its type, if it has another; and
   for a gradient with options.overwrite_gradients, since a pointer cannot say where to overwrite. */
tessera_status tessera_lease_fp32(const tessera_lease* lease, int32_t parameter, float** values);
tessera_status tessera_lease_gradient_fp32(const tessera_lease* lease, int32_t parameter, float** gradient);
/* `writes` becomes 1 if the use writes gradients of parameters, else 0. One in TESSERA_BACKWARD does, unless
   its unit's weight gradients run apart (tessera_unit.splits_backward); then one in TESSERA_WEIGHT_GRADIENT
   does. */
tessera_status tessera_lease_writes_gradients(const tessera_lease* lease, int32_t* writes);
/* The lease has ended even if this fails. Do not use the handle again. */
tessera_status tessera_lease_end(tessera_lease* lease);

/* -- Layers that the trainer splits over tensor ranks -- */

/* These need tessera_options.splits_layers. They are collectives: all ranks along the tensor axis make the
   same calls, in the same order, while their leases of the use are open. Arguments besides pointers are equal
   on all. Memory is that of the engine's device, anywhere on it. On the CPU a call returns when its result is
   there; on a GPU it is enqueued on tessera_stream. Sums are fp32, added in rank order. With `tensor` 1 a
   call is what one rank makes of it: a copy, or nothing. TESSERA_USAGE for memory and counts that mean
   nothing; the engine has then failed on all ranks. TESSERA_COMMUNICATION if a rank does not come, or calls
   something else. A use that makes such calls is skipped by all ranks along the axis, or by none; so is the
   rest of a step (tessera_abandon). */

/* The part of rank r along the axis, `part_bytes` bytes, comes to byte r * part_bytes of `whole`. `part` may
   be this rank's place in `whole`; otherwise they do not overlap. */
tessera_status tessera_lease_all_gather(const tessera_lease* lease, const void* part, void* whole,
                                        int64_t part_bytes);
/* `whole` is as many parts as there are ranks, of part_numel elements of `dtype` each. `part` becomes the sum
   over the ranks of part r of their wholes, where r is this rank's place. If dtype is TESSERA_FP32, `part`
   may be part r of `whole`; otherwise they do not overlap. */
tessera_status tessera_lease_reduce_scatter(const tessera_lease* lease, const void* whole, int32_t dtype,
                                            float* part, int64_t part_numel);
/* Replaces each value by the sum over the ranks. All get the same bits. */
tessera_status tessera_lease_all_reduce(const tessera_lease* lease, float* values, int64_t numel);

/* -- On a GPU -- */

/* The cudaStream_t on which to enqueue a unit's work during its lease; NULL on the CPU. */
tessera_status tessera_stream(const tessera_engine* engine, void** stream);
/* Copies `bytes` bytes between memory of the host and of the device, after the work that is enqueued on
   the stream. Returns when the copy is complete. */
tessera_status tessera_transfer(tessera_engine* engine, void* to, const void* from, int64_t bytes);
/* Copies from the host to the device in the same order. Returns when `from` may be changed, without
   waiting for the GPU to reach the copy. */
tessera_status tessera_upload(tessera_engine* engine, void* to, const void* from, int64_t bytes);

typedef struct tessera_loss_total {
  double sum;      /* of losses */
  int64_t counted; /* number of items, such as tokens, that `sum` covers; added to the step's weight */
} tessera_loss_total;

/* Adds `total` to the loss and weight that tessera_step is given, after the work that is enqueued on the
   stream. For sums that lie on the device, where `total` must lie. Within a step. */
tessera_status tessera_add_loss(tessera_engine* engine, const tessera_loss_total* total);

typedef struct tessera_step_inputs {
  double learning_rate; /* 0 or more, equal on all ranks */
  double weight;        /* the loss is divided by the sum of this over ranks; finite, 0 or more */
  double loss;          /* sum of the loss on this rank; of ranks along the tensor axis the first one's loss
                           and weight count */
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
  /* Norms of the mean gradient by parameter, before clipping. A tied parameter's norm covers all its uses;
     a frozen one's is 0. NULL unless tessera_options.parameter_norms is set, for a skipped step, and for
     an evaluation. Valid until the engine's next step. */
  const double* parameter_norms;
  int32_t parameter_norm_count;
} tessera_step_result;

/* Ends a step: reduces, decides and updates. Call it after the last use. `result` may be NULL; then
   TESSERA_SKIPPED says that a training step was not applied, and tessera_last_error why. With a result, look
   at `applied`. */
tessera_status tessera_step(tessera_engine* engine, const tessera_step_inputs* inputs,
                            tessera_step_result* result);
/* Ends an evaluation whose loss nobody wants, instead of tessera_step: inference. */
tessera_status tessera_end_evaluation(tessera_engine* engine);
/* Drops the rest of a step, on all ranks. `result` may be NULL. */
tessera_status tessera_abandon(tessera_engine* engine, tessera_step_result* result);

/* With TESSERA_UPDATE_NEXT: does the updates that the last step left to the next one. Collective, between
   steps. */
tessera_status tessera_finish_updates(tessera_engine* engine);

/* The factor by which this step's gradients are scaled; 1 without loss scaling. */
tessera_status tessera_loss_scale(const tessera_engine* engine, float* scale);
/* Updates applied so far. Loading a checkpoint sets the count to the checkpoint's. */
tessera_status tessera_steps_applied(const tessera_engine* engine, int64_t* steps);

enum { TESSERA_MASTER = 0, TESSERA_ROUNDED = 1, TESSERA_MOMENT1 = 2, TESSERA_MOMENT2 = 3 }; /* state */

/* Elements [begin, begin + numel) of a state, in fp32. Collective, between steps, with equal arguments. What
   is written is compared over the ranks first: TESSERA_COMMUNICATION names the element that differs. */
tessera_status tessera_read(tessera_engine* engine, int32_t parameter, int32_t state, int64_t begin,
                            float* values, int64_t numel);
tessera_status tessera_write(tessera_engine* engine, int32_t parameter, int32_t state, int64_t begin,
                             const float* values, int64_t numel);
/* Elements of a reduced gradient, in a training step, after its last use and before tessera_step. See
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
       TESSERA_CACHE = 7,
       TESSERA_CATEGORIES = 8
};

/* This rank's memory in a space (TESSERA_DEVICE and so on), in bytes: the arena, and what lives in it at
   the plan's peak, by category. `at_peak` may be NULL. */
tessera_status tessera_plan_bytes(const tessera_engine* engine, int32_t space, int64_t* arena,
                                  int64_t at_peak[TESSERA_CATEGORIES]);

/* A step's timing on this rank, in microseconds. */
typedef struct tessera_timing {
  double total_us;         /* until the step is complete, by the host's clock */
  double issue_us;         /* until all lanes had their work; on the CPU the caller also computes */
  double communication_us; /* collectives, messages, copies and host updates off the compute lane */
  double exposed_us;       /* time in which the compute lane waited for other lanes */
} tessera_timing;

/* Times the next steps if `on` is not 0. Costs two clock readings per instruction; on a GPU it costs two
   events per instruction, and a wait for the GPU when a step begins. Between steps. */
tessera_status tessera_set_tracing(tessera_engine* engine, int32_t on);
/* The timing of the last traced step; all 0 if there is none. */
tessera_status tessera_step_timing(const tessera_engine* engine, tessera_timing* timing);

/* Notes for the user on how the engine works on this machine, one per line: why an exchange between
   processes or GPUs needs an extra copy, how the disk is used, and what the device does slower than it
   could. "" if there are none. Valid until the
   next call of tessera_notes on this engine, or until the engine is destroyed. */
tessera_status tessera_notes(tessera_engine* engine, const char** notes);

#ifdef __cplusplus
}
#endif

#endif
