// The memory that a run may take. Plain data; tessera/budget.h fits a run into it.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

struct MemoryPlan;

// What messages call a budget's bytes: by default as an embedder writes them in EngineOptions. A tool gives
// the names of the keys that its user set.
struct BudgetNames {
  std::string device = "budget.device_bytes";
  std::string host = "budget.host_bytes";
  std::string external = "budget.external_bytes";
};

// The memory that one rank may take, in bytes. 0 means no limit.
struct MemoryBudget {
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;      // bounds the host's arena only, also where the device is the CPU
  std::int64_t external_bytes = 0;  // the part of device_bytes that the embedder itself uses
  BudgetNames names = {};

  // Throws UsageError for bytes below 0.
  void check() const;
  bool holds(const MemoryPlan& plan) const { return missing_bytes(plan) == 0; }
  // The bytes by which the plan exceeds the budget, device and host added; 0 where it fits.
  std::int64_t missing_bytes(const MemoryPlan& plan) const;
};

}  // namespace tessera
