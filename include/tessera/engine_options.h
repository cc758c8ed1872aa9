// What an engine is made with, and what programs it then builds.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/activations.h"
#include "tessera/communicator.h"
#include "tessera/cost_model.h"
#include "tessera/device_type.h"
#include "tessera/loss_scaler.h"
#include "tessera/memory_budget.h"
#include "tessera/mesh.h"
#include "tessera/numerics.h"
#include "tessera/optimizer.h"
#include "tessera/strategy.h"
#include "tessera/unit_spec.h"
#include "tessera/use.h"
#include "tessera/waiting.h"

namespace tessera {

// Defined in tessera/layout.h, program.h, prove.h and step_spec.h.
struct Instruction;
class Layout;
struct Program;
struct RankPrograms;
struct StepSpec;

// A program that an embedder asks an engine for. When the engine is made it builds, plans and verifies each,
// from the StepSpec that step_specs() makes of it and of the other options.
struct EngineProgram {
  StepKind kind = StepKind::train;
  // As in StepSpec: rounds of microbatches, and how many data ranks have one in the last. Rounds::of() makes
  // both of a step's microbatches. A rank that rests in the last round makes no use there.
  int microbatches = 1;
  int last_round_ranks = 0;
  ActivationSpec activations = {};  // of a trainer with modules; empty where the embedder keeps its own
};

// How ranks wait for each other.
struct EngineWaits {
  // Bounds every wait for a peer, also in other calls of the communicator that the engine is made of, from
  // then on; a year at most. 0: as the communicator has it.
  std::chrono::milliseconds deadline{0};
  Waiting waiting = Waiting::automatic;
};

// For finding faults, and for tests. Costs time; results have the same bits.
struct EngineDebug {
  static constexpr std::int64_t kGuardBytes = 4096;
  bool strict_order = false;  // one instruction after the other on the calling thread
  bool poison = false;  // fills dead memory with NaN, and hides it from AddressSanitizer's point of view
  // Leaves kGuardBytes free on both sides of each buffer and compares them behind each instruction that
  // touches the buffer. A write beyond it fails the step with an Error that names both. The plan takes more
  // memory for them. Buffers on the disk are not looked at.
  bool guards = false;
  // Microseconds that an instruction of the engine's own takes longer, asleep.
  std::function<double(const Program& program, const Instruction& instruction)> delay_us = {};
};

// One training program of one microbatch.
std::vector<EngineProgram> default_programs();

struct EngineOptions {
  static constexpr int kMostThreads = 4096;
  Mesh mesh = {};  // its world must be the communicator's
  Strategy strategy = {};
  std::vector<EngineProgram> programs = default_programs();
  std::vector<Use> order = {};  // uses per microbatch; by default forward in unit order, backward in reverse
  Optimizer optimizer = {};
  GradientClip clip = {};                             // max_norm 0: none
  std::optional<LossScaleOptions> loss_scaling = {};  // without: the scale is 1; advisable in fp16
  std::string disk_directory = {};                    // on a local disk, of what the strategy offloads there
  // False: gradients begin at 0, and a trainer adds to them. True: it overwrites a gradient where
  // UnitLease::gradient_beta() is 0, and adds where that is 1. This saves a pass over the gradients; what the
  // trainer leaves out is then garbage.
  bool overwrites_gradients = false;
  bool parameter_norms = false;  // StepResult::parameter_norms is filled
  // On a GPU, Engine::next_step() offers to capture a program's step as one CUDA graph behind kEagerSteps
  // steps of it, and to replay that from then on. False: it never does.
  bool graphs = true;
  static constexpr int kEagerSteps = 2;
  // The trainer splits layers over mesh.tensor ranks itself: each lease gives these ranks' collectives
  // (UnitLease::tensor). They take a communicator of their own, on a GPU with NcclOptions::staging_bytes.
  bool splits_layers = false;
  // What of the trainer's own compute enters the bits: for each unit what it computes and all that this
  // depends on, the batch and seeds. Part of numerics(). Where it is empty, equal fingerprints promise
  // nothing of the compute.
  std::vector<NumericFact> compute = {};
  DeviceType device = DeviceType::cpu;
  int device_ordinal = 0;  // which GPU
  // Called once by the thread that makes the engine, before memory is taken, with the stream of compute
  // (Engine::stream()). For handles of libraries that the trainer computes by: the memory of a GPU that they
  // take here is measured and counts in the budget (Engine::library_bytes()).
  std::function<void(void* stream)> open_libraries = {};
  // Address space before the device's arena, in bytes, that takes no memory (ArenaOptions). A trainer that
  // indexes one array over several units subtracts from a lease's pointer; see tessera/arrays.h.
  std::int64_t address_space_before = 0;
  int threads_per_rank = 1;  // of the update and of local sums; kMostThreads at most
  // One rank may take so much. Exceeding it is refused here. The embedder's own activations count as its
  // external_bytes. On a GPU what libraries have taken counts, too.
  MemoryBudget budget = {};
  CostModel cost = {};  // by which changes are told that would fit where the budget is exceeded
  EngineWaits waits = {};
  EngineDebug debug = {};
};

// What an engine with these options builds, a spec for each of its programs.
std::vector<StepSpec> step_specs(const EngineOptions& options);
// A fact of Numerics: no where updates run as soon as a gradient is reduced (Strategy::update). That changes
// bits only where a step would be clipped or skipped.
inline constexpr std::string_view kUpdateWaits = "an update waits for the step's norm";
// Proves the programs of an engine with these options, as it does before its first step, and says what
// decides the bits of its steps. `of_ranks` as for prove_all(). Throws Error where they do not prove: that is
// a defect of Tessera.
Numerics prove_engine(const Layout& layout, const EngineOptions& options,
                      std::span<const RankPrograms> of_ranks);

// Writes EngineOptions::order while a trainer runs one microbatch on its own, without an engine: call begin
// and end around every use of a unit.
class OrderRecorder {
 public:
  void begin(UnitId unit, Pass pass);
  // Ends the innermost use that has begun; UsageError where that is another.
  void end(UnitId unit, Pass pass);
  // UsageError while a use is open.
  std::vector<Use> order() const;

 private:
  std::vector<Use> order_;
  std::vector<std::size_t> open_;
};

}  // namespace tessera
