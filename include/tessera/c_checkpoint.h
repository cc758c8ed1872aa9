/* Checkpoints in C (C99): checkpoint.h over the handles of c_api.h, whose rules on errors, outputs and
   strings hold here, too. What is stored, and that it is loaded on any mesh and at any stage, is said in
   checkpoint.h.

   Strings that a call returns are valid until the next call of the same function on the same thread. */
#ifndef TESSERA_C_CHECKPOINT_H
#define TESSERA_C_CHECKPOINT_H

#include <stdint.h>

#include "tessera/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a run must know to continue, besides the states and counters that the engine has. */
typedef struct {
  int64_t step;              /* steps run so far, skipped ones included */
  int64_t samples;           /* samples read by all ranks so far, which is the number of the next one */
  const char* configuration; /* the run's configuration as text; stored, not interpreted; NULL is "" */
  const char* data;          /* describes what was trained on; stored likewise */
  int64_t tokens;            /* tokens, or other elements, trained on so far; stored for reports */
} tessera_run_state;

/* Writes a checkpoint, such as <folder>/step-00000100, completely or not at all. Then removes all but the
   newest `keep` (1 or more) checkpoints. Checkpoints of later steps than this one count as the oldest, so
   give a run that starts from the beginning a folder of its own. Collective, between steps, with equal
   arguments. `world` is any world of the engine's ranks. See save_checkpoint(). */
tessera_status tessera_save_checkpoint(const char* folder, tessera_world* world, tessera_engine* engine,
                                       const tessera_run_state* state, int32_t keep);

/* The same while training goes on. Returns while a thread still reads and writes the states, as they are
   now. The next call that would change them waits until all ranks have read theirs, at most for the
   deadline of `world`. Keep `world` until the checkpoint is finished. See begin_checkpoint(). */
typedef struct tessera_pending_checkpoint tessera_pending_checkpoint;
tessera_status tessera_begin_checkpoint(const char* folder, tessera_world* world, tessera_engine* engine,
                                        const tessera_run_state* state, int32_t keep,
                                        tessera_pending_checkpoint** pending);
/* `written` becomes 1 if this rank's part is on the disk or has failed, else 0. It is always 0 before the
   next call that changes parameters or states. */
tessera_status tessera_pending_checkpoint_written(const tessera_pending_checkpoint* pending,
                                                  int32_t* written);
/* Waits for the rest of the save. When it returns, the checkpoint is complete. Destroys `pending`, also on
   failure. Collective. `path`, the checkpoint's own folder, may be NULL. */
tessera_status tessera_finish_checkpoint(tessera_pending_checkpoint* pending, const char** path);
/* Cancels the save instead of finishing it, on all ranks: stops the writing and removes what was written.
   NULL is allowed. */
tessera_status tessera_pending_checkpoint_destroy(tessera_pending_checkpoint* pending);

/* `path` is a checkpoint's own folder, or the folder of all checkpoints, from which the newest is taken.
   The engine must have the same units and optimizer as the one that saved; ranks and stage may differ.
   Collective, between steps. `state` may be NULL. */
tessera_status tessera_load_checkpoint(const char* path, tessera_world* world, tessera_engine* engine,
                                       tessera_run_state* state);

/* The newest checkpoint in a folder, as rank 0 finds it; the same on all ranks. `path` becomes NULL if
   there is none. Collective; a single process without ranks gives NULL for `world`. */
tessera_status tessera_latest_checkpoint(const char* folder, tessera_world* world, const char** path);

/* A run's lock on the folder it saves into, so that no other run saves there. Makes the folder.
   Collective; a single process without ranks gives NULL for `world`. The lock lasts until it is destroyed
   or the process ends, in whatever way. TESSERA_ENVIRONMENT if another process holds it. */
typedef struct tessera_checkpoint_lock tessera_checkpoint_lock;
tessera_status tessera_checkpoint_lock_create(const char* folder, tessera_world* world,
                                              tessera_checkpoint_lock** lock);
/* On rank 0, if the file system has no locks: why nothing is locked. Otherwise "". */
tessera_status tessera_checkpoint_lock_note(const tessera_checkpoint_lock* lock, const char** note);
tessera_status tessera_checkpoint_lock_destroy(tessera_checkpoint_lock* lock); /* NULL is allowed */

#ifdef __cplusplus
}
#endif

#endif
