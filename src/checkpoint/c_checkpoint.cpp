// tessera/c_checkpoint.h over tessera/checkpoint.h.
#include "tessera/c_checkpoint.h"

#include <optional>
#include <string>
#include <utility>

#include "src/engine/c_api_handles.h"
#include "src/engine/c_api_support.h"
#include "tessera/checkpoint.h"

struct tessera_checkpoint_lock {
  tessera::CheckpointLock lock;
};
struct tessera_pending_checkpoint {
  tessera::PendingCheckpoint pending;
};

namespace tessera::c_api {
namespace {

std::string text_of(const char* text) { return text == nullptr ? std::string() : text; }

Communicator communicator_of(const tessera_world* world) {
  return world == nullptr ? Communicator() : world->communicator;
}

RunState state_of(const tessera_run_state& state) {
  return {.step = state.step,
          .samples = state.samples,
          .configuration = text_of(state.configuration),
          .data = text_of(state.data),
          .tokens = state.tokens};
}

// Gives `text` to the caller, for as long as this thread does not call again.
const char* lend(std::string& kept, std::string text) {
  kept = std::move(text);
  return kept.c_str();
}

}  // namespace
}  // namespace tessera::c_api

using namespace tessera;
using namespace tessera::c_api;

tessera_status tessera_save_checkpoint(const char* folder, tessera_world* world, tessera_engine* engine,
                                       const tessera_run_state* state, int32_t keep) {
  return guarded([&] {
    const char* const to = &given(folder, "folder");
    const Communicator& ranks = given(world, "world").communicator;
    Engine& saved = given(engine, "engine").engine;
    save_checkpoint(to, ranks, saved, state_of(given(state, "state")), keep);
  });
}

tessera_status tessera_begin_checkpoint(const char* folder, tessera_world* world, tessera_engine* engine,
                                        const tessera_run_state* state, int32_t keep,
                                        tessera_pending_checkpoint** pending) {
  return guarded([&] {
    tessera_pending_checkpoint*& out = given(pending, "pending");
    const char* const to = &given(folder, "folder");
    const Communicator& ranks = given(world, "world").communicator;
    Engine& saved = given(engine, "engine").engine;
    auto begun = std::make_unique<tessera_pending_checkpoint>();
    begun->pending = begin_checkpoint(to, ranks, saved, state_of(given(state, "state")), keep);
    out = begun.release();
  });
}

tessera_status tessera_pending_checkpoint_written(const tessera_pending_checkpoint* pending,
                                                  int32_t* written) {
  return guarded([&] { given(written, "written") = given(pending, "pending").pending.written() ? 1 : 0; });
}

tessera_status tessera_finish_checkpoint(tessera_pending_checkpoint* pending, const char** path) {
  return guarded([&] {
    const std::unique_ptr<tessera_pending_checkpoint> begun(&given(pending, "pending"));
    thread_local std::string kept;
    const std::filesystem::path there = begun->pending.finish();
    if (path != nullptr) *path = lend(kept, there.string());
  });
}

tessera_status tessera_pending_checkpoint_destroy(tessera_pending_checkpoint* pending) {
  return guarded([&] { delete pending; });
}

tessera_status tessera_load_checkpoint(const char* path, tessera_world* world, tessera_engine* engine,
                                       tessera_run_state* state) {
  return guarded([&] {
    const char* const from = &given(path, "path");
    const Communicator& ranks = given(world, "world").communicator;
    RunState loaded = load_checkpoint(from, ranks, given(engine, "engine").engine);
    if (state == nullptr) return;
    thread_local std::string configuration, data;
    *state = {.step = loaded.step,
              .samples = loaded.samples,
              .configuration = lend(configuration, std::move(loaded.configuration)),
              .data = lend(data, std::move(loaded.data)),
              .tokens = loaded.tokens};
  });
}

tessera_status tessera_latest_checkpoint(const char* folder, tessera_world* world, const char** path) {
  return guarded([&] {
    const char*& out = given(path, "path");
    const auto latest = latest_checkpoint(&given(folder, "folder"), communicator_of(world));
    thread_local std::string kept;
    out = latest ? lend(kept, latest->string()) : nullptr;
  });
}

tessera_status tessera_checkpoint_lock_create(const char* folder, tessera_world* world,
                                              tessera_checkpoint_lock** lock) {
  return guarded([&] {
    tessera_checkpoint_lock*& out = given(lock, "lock");
    out = new tessera_checkpoint_lock{CheckpointLock(&given(folder, "folder"), communicator_of(world))};
  });
}

tessera_status tessera_checkpoint_lock_note(const tessera_checkpoint_lock* lock, const char** note) {
  return guarded([&] {
    thread_local std::string kept;
    given(note, "note") = lend(kept, given(lock, "lock").lock.note());
  });
}

tessera_status tessera_checkpoint_lock_destroy(tessera_checkpoint_lock* lock) {
  return guarded([&] { delete lock; });
}
