#include "tessera/verify.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/program/opcodes.h"
#include "src/verify/checks.h"
#include "tessera/error.h"

namespace tessera {
namespace {

void check_arguments(const WorldPrograms& world, std::span<const PlannedProgram> plans) {
  if (world.programs.empty()) throw UsageError("verify: there is no program; at least one is needed");
  world.mesh.check(world.mesh.world());
  const auto ranks = world.program_of_rank.count();
  if (ranks != 0 && ranks != world.mesh.world())
    throw UsageError(fmt::format("verify: program_of_rank has {} ranks, but the mesh {} has {}", ranks,
                                 to_string(world.mesh), world.mesh.world()));
  for (int rank = 0; rank < ranks; ++rank) {
    const int program = world.program_of_rank[rank];
    if (program < 0 || program >= world.programs.count())
      throw UsageError(fmt::format("verify: rank {} runs program {}, but there are {}", rank, program,
                                   world.programs.size()));
  }
  if (!plans.empty() && plans.size() != world.programs.size())
    throw UsageError(fmt::format("verify: {} plans are given for {} programs; give one each, or none",
                                 plans.size(), world.programs.size()));
}

// A program that sends names the other rank by its coordinate: only ranks at its own can run it.
void check_places(const WorldPrograms& world, Findings& findings) {
  IdVector<bool> sends;
  for (const Program& program : world.programs)
    sends.push_back(
        std::ranges::any_of(program.instructions, [](const Instruction& i) { return is_message(i.op); }));
  for (int rank = 0; rank < world.mesh.world(); ++rank) {
    const int index = world.program_of(rank);
    const Program& program = world.programs[index];
    const int place = world.mesh.place(rank, Axis::pipeline);
    if (place == program.pipeline_rank || !sends[index]) continue;
    findings.add(Fault::malformed, index, {},
                 fmt::format("is for pipeline rank {}, but rank {}, which runs it, is at {}",
                             program.pipeline_rank, rank, place));
  }
}

void check_program(const Program& program, int index, const PlannedProgram& planned, Findings& findings) {
  const HappensBefore order(program);
  check_lifetimes(program, index, findings);
  check_microbatches(program, index, findings);
  check_leases(program, index, findings);
  check_accesses(program, index, planned, order, findings);
  check_waits(program, index, order, findings);
}

}  // namespace

std::string_view name_of(Fault fault) {
  switch (fault) {
    case Fault::collective_mismatch:
      return "collective mismatch";
    case Fault::deadlock:
      return "deadlock";
    case Fault::unordered_access:
      return "unordered access";
    case Fault::outside_lifetime:
      return "outside lifetime";
    case Fault::read_before_write:
      return "read before write";
    case Fault::microbatch_order:
      return "microbatch order";
    case Fault::never_released:
      return "never released";
    case Fault::redundant_wait:
      return "redundant wait";
    case Fault::wrong_meaning:
      return "wrong meaning";
    case Fault::malformed:
      return "malformed";
  }
  return "?";
}

std::string VerifyReport::to_string() const {
  std::string text;
  for (const Finding& finding : findings)
    text += fmt::format("program {}: {}: {}\n", finding.program, name_of(finding.fault), finding.message);
  return text;
}

VerifyReport verify(const WorldPrograms& world, IdSpan<const PlannedProgram> plans) {
  check_arguments(world, plans);
  VerifyReport report;
  Findings findings(report.findings);
  const auto programs = world.programs.count();
  const auto plan_of = [&](int index) { return plans.empty() ? PlannedProgram{} : plans[index]; };
  for (int index = 0; index < programs; ++index)
    check_structure(world.programs[index], index, world.mesh, findings);
  check_places(world, findings);
  // The other checks follow the ids, so they need them sound.
  if (!report.ok()) return report;
  for (int index = 0; index < programs; ++index)
    check_plan(world.programs[index], index, plan_of(index), findings);
  if (!report.ok()) return report;

  check_collectives(world, findings);
  for (int index = 0; index < programs; ++index)
    check_program(world.programs[index], index, plan_of(index), findings);
  return report;
}

}  // namespace tessera
