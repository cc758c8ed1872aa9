// Models and specs for the tests of programs: small chains with activations, ties and frozen parameters.
#pragma once

#include <string>
#include <vector>

#include "tessera/link.h"
#include "tessera/memory_plan.h"
#include "tessera/plan_memory.h"
#include "tessera/program.h"
#include "tessera/step_spec.h"
#include "tessera/verify.h"

namespace tessera::testing {

// `units` equal blocks of about `numel` elements each.
inline std::vector<UnitSpec> chain(int units, std::int64_t numel, DType dtype = DType::bf16) {
  std::vector<UnitSpec> result;
  for (int unit = 0; unit < units; ++unit) {
    const std::string name = "block." + std::to_string(unit);
    result.push_back({name,
                      {{.name = name + ".weight", .shape = {numel}, .dtype = dtype},
                       {.name = name + ".bias", .shape = {7}, .dtype = dtype}}});
  }
  return result;
}

// An embedding, blocks, and a head tied to the embedding; a frozen parameter and a norm of another dtype.
inline std::vector<UnitSpec> tied_model(int blocks) {
  std::vector<UnitSpec> result = {{"embedding", {{.name = "wte", .shape = {96, 8}, .dtype = DType::bf16}}}};
  for (int block = 0; block < blocks; ++block) {
    const std::string name = "block." + std::to_string(block);
    result.push_back({name,
                      {{.name = name + ".norm", .shape = {8}},
                       {.name = name + ".weight", .shape = {8, 24}, .dtype = DType::bf16},
                       {.name = name + ".mask", .shape = {8}, .dtype = DType::bf16, .trainable = false}}});
  }
  result.push_back({"head", {{.name = "lm_head", .shape = {96, 8}, .dtype = DType::bf16, .tied_to = "wte"}}});
  return result;
}

inline ActivationSpec activations(int units) {
  ActivationSpec spec{.units = {}, .batch_bytes = 512};
  for (int unit = 0; unit < units; ++unit)
    spec.units.push_back(UnitActivations{
        .output_bytes = 4096, .saved_bytes = 10240, .recomputable_bytes = 5120, .workspace_bytes = 2048});
  return spec;
}

// A built program with its plan and links, ready to verify.
struct Planned {
  IdVector<Program> programs;
  MemoryPlan plan;

  explicit Planned(std::vector<Program> built) : programs(std::move(built)), plan(plan_memory(programs)) {
    for (int index = 0; index < programs.count(); ++index) link(programs[index], &plan, index);
  }
};

}  // namespace tessera::testing
