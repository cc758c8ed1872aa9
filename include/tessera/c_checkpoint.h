/* Checkpoints in C (C99): checkpoint.h over the handles of c_api.h, whose rules on errors, outputs and
   strings hold here, too. What is stored, and that it is loaded on any mesh and at any stage, is said in
   checkpoint.h.

   Strings that a call gives are valid until the next call of the same function on the same thread. */
#ifndef TESSERA_C_CHECKPOINT_H
#define TESSERA_C_CHECKPOINT_H

#include <stdint.h>

#include "tessera/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a run must know to continue, besides the engine's own states and counters. */
typedef struct {
  int64_t step;              /* steps run, skipped ones included */
  int64_t samples;           /* samples read by all ranks: the number of the next one */
  const char* configuration; /* the run's, as text; kept, not interpreted; NULL is "" */
  const char* data;          /* what was trained on, likewise */
  int64_t tokens;            /* or other elements, in all; kept for reports */
} tessera_run_state;

/* Writes <folder>/step-00000100, say, whole or not at all, then removes all but the newest `keep` (1 or
   more), of which those of later steps are the oldest: a run that begins anew has a folder of its own.
   Collective, between steps, with equal arguments; `world` is any of the engine's ranks. See
   save_checkpoint(). */
tessera_status tessera_save_checkpoint(const char* folder, tessera_world* world, tessera_engine* engine,
                                       const tessera_run_state* state, int32_t keep);

/* The same beside training: returns while a thread still reads the states and writes them, as they are now;
   what would change them waits until all ranks have read theirs, at most for the deadline of `world`, which
   lives until the checkpoint is finished. See begin_checkpoint(). */
typedef struct tessera_pending_checkpoint tessera_pending_checkpoint;
tessera_status tessera_begin_checkpoint(const char* folder, tessera_world* world, tessera_engine* engine,
                                        const tessera_run_state* state, int32_t keep,
                                        tessera_pending_checkpoint** pending);
/* 1 where this rank's part is on the disk, or has failed; else 0, and always before the next call that
   changes parameters or states. */
tessera_status tessera_pending_checkpoint_written(const tessera_pending_checkpoint* pending,
                                                  int32_t* written);
/* Waits for the rest; the checkpoint is there then, and `pending` is gone, also where it failed. Collective.
   `path`, the checkpoint's own folder, may be NULL. */
tessera_status tessera_finish_checkpoint(tessera_pending_checkpoint* pending, const char** path);
/* Instead, on all ranks: ends the writing and removes what there is of it. NULL is well. */
tessera_status tessera_pending_checkpoint_destroy(tessera_pending_checkpoint* pending);

/* `path` is a checkpoint's own folder, or the folder of all: the newest is taken. The engine has the same
   units and optimizer as the one that saved, on as many ranks and at the stage that it likes. Collective,
   between steps. `state` may be NULL. */
tessera_status tessera_load_checkpoint(const char* path, tessera_world* world, tessera_engine* engine,
                                       tessera_run_state* state);

/* The newest checkpoint in a folder, as rank 0 finds it, for all ranks; NULL where there is none. Collective;
   or without ranks, `world` NULL. */
tessera_status tessera_latest_checkpoint(const char* folder, tessera_world* world, const char** path);

/* A run's hold on the folder it saves into, against another run's saves; makes the folder. Collective, or
   without ranks, `world` NULL. Until it is destroyed, or the process ends, however it ends.
   TESSERA_ENVIRONMENT where another process holds it. */
typedef struct tessera_checkpoint_lock tessera_checkpoint_lock;
tessera_status tessera_checkpoint_lock_create(const char* folder, tessera_world* world,
                                              tessera_checkpoint_lock** lock);
/* On rank 0: why nothing is held, on a file system without locks; otherwise "". */
tessera_status tessera_checkpoint_lock_note(const tessera_checkpoint_lock* lock, const char** note);
tessera_status tessera_checkpoint_lock_destroy(tessera_checkpoint_lock* lock); /* NULL is well */

#ifdef __cplusplus
}
#endif

#endif
