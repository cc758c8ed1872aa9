// What a memory plan says of a program: every buffer has its addresses, within the arena, and none of two
// that hold something at once.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "src/verify/checks.h"

namespace tessera {
namespace {

// A stretch of instructions during which a buffer holds its addresses.
struct Hold {
  Lifetime life;
  BufferId buffer = 0;
  std::int64_t begin = 0;  // bytes
  std::int64_t end = 0;
};

std::vector<Hold> holds_of(const Program& program, const PlannedProgram& planned, Space space) {
  const auto last = program.instructions.count() - 1;
  std::vector<Hold> holds;
  for (BufferId id = 0; id < program.buffers.count(); ++id) {
    const Buffer& buffer = program.buffers[id];
    if (buffer.space != space || buffer.bytes == 0) continue;
    const auto add = [&](const Lifetime& life, std::size_t number) {
      const std::int64_t begin = planned.plan->offset(planned.index, id, number);
      holds.push_back({.life = life, .buffer = id, .begin = begin, .end = begin + buffer.bytes});
    };
    if (buffer.persistent) add({0, last}, 0);
    for (std::size_t k = 0; k < buffer.lifetimes.size(); ++k) add(buffer.lifetimes[k], k);
  }
  std::ranges::sort(
      holds, {}, [](const Hold& hold) { return std::tuple(hold.life.first, hold.buffer, hold.life.last); });
  return holds;
}

// Walks the holds by their start, keeping those that have not ended, by address: a new one may only meet the
// two beside it.
void check_shared_addresses(const Program& program, int index, const PlannedProgram& planned, Space space,
                            Findings& findings) {
  const std::vector<Hold> holds = holds_of(program, planned, space);
  std::map<std::int64_t, const Hold*> active;  // by begin
  std::multimap<InstructionId, const Hold*> ends;
  const auto clash = [&](const Hold& a, const Hold& b) {
    findings.add(Fault::malformed, index, {std::max(a.life.first, b.life.first)},
                 fmt::format("the plan gives '{}' and '{}' the same bytes, but both hold something at {}",
                             program.buffers[a.buffer].name, program.buffers[b.buffer].name,
                             describe(program, std::max(a.life.first, b.life.first))));
  };
  for (const Hold& hold : holds) {
    while (!ends.empty() && ends.begin()->first < hold.life.first) {
      active.erase(ends.begin()->second->begin);
      ends.erase(ends.begin());
    }
    const auto next = active.lower_bound(hold.begin);
    bool free = true;
    if (next != active.end() && next->second->begin < hold.end) {
      clash(*next->second, hold);
      free = false;
    }
    if (next != active.begin() && std::prev(next)->second->end > hold.begin) {
      clash(*std::prev(next)->second, hold);
      free = false;
    }
    if (!free) continue;
    active.emplace(hold.begin, &hold);
    ends.emplace(hold.life.last, &hold);
  }
}

template <typename Report>
void check_place(const Buffer& buffer, std::int64_t offset, const MemoryPlan& plan, Report report) {
  if (offset % alignment_of(buffer.space) != 0)
    report(fmt::format("the plan places '{}' at {}, which is not a multiple of {} bytes", buffer.name, offset,
                       alignment_of(buffer.space)));
  const bool lives = buffer.persistent || !buffer.lifetimes.empty();
  if (offset < 0 || (lives && offset + buffer.bytes > plan.space(buffer.space).arena_bytes))
    report(fmt::format("the plan places '{}' at {} to {}, outside the arena of {} bytes", buffer.name, offset,
                       offset + buffer.bytes, plan.space(buffer.space).arena_bytes));
}

}  // namespace

void check_plan(const Program& program, int index, const PlannedProgram& planned, Findings& findings) {
  if (planned.plan == nullptr) return;
  const auto report = [&](const std::string& what) { findings.add(Fault::malformed, index, {}, what); };
  const auto& offsets = planned.plan->offsets;
  if (planned.index < 0 || planned.index >= offsets.count())
    return report(fmt::format("runs as program {} of its plan, which has {}", planned.index, offsets.size()));
  const auto& places = offsets[planned.index];
  if (places.size() != program.buffers.size())
    return report(
        fmt::format("has {} buffers, but its plan places {}", program.buffers.size(), places.size()));
  for (std::size_t id = 0; id < program.buffers.size(); ++id) {
    const Buffer& buffer = program.buffers[id];
    const std::size_t lives = std::max<std::size_t>(buffer.lifetimes.size(), 1);
    if (places[id].size() != lives)
      return report(fmt::format("the plan gives '{}' {} addresses, but it has {} lifetimes", buffer.name,
                                places[id].size(), lives));
    for (const std::int64_t offset : places[id]) check_place(buffer, offset, *planned.plan, report);
    if (buffer.one_address && std::ranges::any_of(places[id], [&](auto at) { return at != places[id][0]; }))
      report(fmt::format("the plan gives '{}' several addresses, but it must keep one", buffer.name));
  }
  for (int space = 0; space < kSpaces; ++space)
    check_shared_addresses(program, index, planned, static_cast<Space>(space), findings);
}

}  // namespace tessera
