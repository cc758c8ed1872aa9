// What engine options ask for, and whether they mean anything.
#include <fmt/format.h>

#include "src/device/wait.h"
#include "src/engine/engine_impl.h"
#include "src/layout/enumerators.h"
#include "tessera/step_spec.h"

namespace tessera {

std::vector<EngineProgram> default_programs() { return {{.kind = StepKind::train, .microbatches = 1}}; }

std::vector<StepSpec> step_specs(const EngineOptions& options) {
  std::vector<StepSpec> specs;
  for (const EngineProgram& program : options.programs)
    specs.push_back({.kind = program.kind,
                     .microbatches = program.microbatches,
                     .last_round_ranks = program.last_round_ranks,
                     .strategy = options.strategy,
                     .moments = options.optimizer.moments(),
                     .moment_type = options.optimizer.moment_type,
                     .parameter_norms = options.parameter_norms,
                     .zero_gradients = !options.overwrites_gradients,
                     .guard_bytes = options.debug.guards ? EngineDebug::kGuardBytes : 0,
                     .activations = program.activations,
                     .order = options.order});
  return specs;
}

namespace {

void check_options(const Communicator& world, const EngineOptions& options,
                   const std::vector<UnitSpec>& units) {
  if (!world) throw UsageError("world: an empty communicator; make one with make_local_world or run_local");
  options.mesh.check(world.world());
  check_enumerator("device", options.device, DeviceType::cuda);
  check_enumerator("waits.waiting", options.waits.waiting, Waiting::block);
  for (const EngineProgram& program : options.programs)
    check_enumerator("programs: the kind of one", program.kind, StepKind::evaluate);
  options.optimizer.check();
  options.clip.check();
  if (options.loss_scaling) options.loss_scaling->check();
  if (options.programs.empty()) throw UsageError("programs is empty; an engine runs at least one");
  if (units.empty()) throw UsageError("units is empty; a model has at least one");
  if (options.threads_per_rank < 1 || options.threads_per_rank > EngineOptions::kMostThreads)
    throw UsageError(fmt::format("threads_per_rank is {}; it must be 1 to {}", options.threads_per_rank,
                                 EngineOptions::kMostThreads));
  if (options.strategy.update == UpdateWhen::reduced && options.clip.max_norm > 0)
    throw UsageError(fmt::format(
        "clip.max_norm is {} and strategy.update is reduced, where updates run before the norm is known; "
        "switch clipping off (0), or update when decided",
        options.clip.max_norm));
  if (options.strategy.update == UpdateWhen::reduced && options.loss_scaling)
    throw UsageError(
        "loss_scaling is given and strategy.update is reduced, where no step can be skipped; train in bf16 "
        "or fp32, or update when decided");
  if (!world.reaches(options.device))
    throw UnsupportedError(fmt::format(
        "device is {}: {} ranks exchange what lies in memory of the host only; use one rank, or a "
        "world of make_nccl_world",
        name_of(options.device), world.world()));
  if (options.strategy.reduction == Reduction::native && options.device == DeviceType::cpu)
    throw UsageError(
        "strategy.reduction is native and device is cpu; only GPUs have a reduction of their own: use exact");
  if (options.strategy.offload.on_disk() && options.disk_directory.empty())
    throw UsageError(
        "disk_directory is empty, and strategy.offload has the disk hold something; name a "
        "directory on a local disk");
  if (options.address_space_before < 0)
    throw UsageError(
        fmt::format("address_space_before is {}; it must be 0 or more", options.address_space_before));
  options.budget.check();
  const int groups = static_cast<int>(options.optimizer.groups.size());
  for (const UnitSpec& unit : units)
    for (const ParameterSpec& parameter : unit.parameters)
      if (parameter.group < 0 || parameter.group >= groups)
        throw UsageError(fmt::format("parameter '{}' is in group {}; the optimizer has groups 0 to {}",
                                     parameter.name, parameter.group, groups - 1));
}

}  // namespace

EngineOptions checked_options(EngineOptions options, const Communicator& world,
                              const std::vector<UnitSpec>& units) {
  check_options(world, options, units);
  std::chrono::milliseconds& deadline = options.waits.deadline;
  deadline = deadline.count() == 0 ? world.deadline() : device::checked_deadline(deadline, "waits.deadline");
  return options;
}

}  // namespace tessera
