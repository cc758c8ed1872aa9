#include "src/engine/memory.h"

#include <algorithm>

namespace tessera {
namespace {

// What poison works on.
std::int64_t rounded(std::int64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

StepMemory::StepMemory(Device& device, const std::vector<Program>& programs, const MemoryPlan& plan,
                       const Options& options)
    : plan_(plan),
      counters_(device.counters()),
      poison_(options.poison),
      arena_(device.make_arena(plan.space(Space::device).arena_bytes, options.shared)) {
  for (const auto [program, id] : persistent_buffers(programs)) {
    const Buffer& buffer = programs[static_cast<std::size_t>(program)].buffers[static_cast<std::size_t>(id)];
    counters_.add(buffer.category, buffer.bytes);
  }
  for (std::size_t index = 0; index < programs.size(); ++index)
    watches_.push_back(watch(static_cast<int>(index), programs[index]));
  if (!poison_) return;
  for (const Watch& watch : watches_)
    for (const Tenancy& tenancy : watch.tenancies) arena_.poison(tenancy.offset, rounded(tenancy.bytes));
}

void StepMemory::begin(const Tenancy& tenancy) {
  counters_.add(tenancy.category, tenancy.bytes);
  if (poison_) arena_.unpoison(tenancy.offset, rounded(tenancy.bytes));
}

void StepMemory::end(const Tenancy& tenancy) {
  counters_.add(tenancy.category, -tenancy.bytes);
  if (poison_) arena_.poison(tenancy.offset, rounded(tenancy.bytes));
}

StepMemory::Watch StepMemory::watch(int index, const Program& program) const {
  Watch watch;
  watch.begins.resize(program.instructions.size());
  watch.touches.resize(program.instructions.size());
  std::vector<int> first(program.buffers.size());  // index of the buffer's first tenancy
  for (std::size_t id = 0; id < program.buffers.size(); ++id) {
    const Buffer& buffer = program.buffers[id];
    first[id] = static_cast<int>(watch.tenancies.size());
    for (std::size_t k = 0; k < buffer.lifetimes.size(); ++k) {
      watch.begins[static_cast<std::size_t>(buffer.lifetimes[k].first)].push_back(
          static_cast<int>(watch.tenancies.size()));
      watch.tenancies.push_back(
          {plan_.offset(index, static_cast<BufferId>(id), k), buffer.bytes, buffer.category, 0});
    }
  }
  for (std::size_t at = 0; at < program.instructions.size(); ++at) {
    const Instruction& instruction = program.instructions[at];
    std::vector<BufferId> touched = instruction.reads;
    touched.insert(touched.end(), instruction.writes.begin(), instruction.writes.end());
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    for (BufferId id : touched) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(id)];
      const int lifetime = lifetime_at(buffer, static_cast<InstructionId>(at));
      if (buffer.persistent || lifetime < 0) continue;
      const int tenancy = first[static_cast<std::size_t>(id)] + lifetime;
      watch.touches[at].push_back(tenancy);
      ++watch.tenancies[static_cast<std::size_t>(tenancy)].accesses;
    }
  }
  watch.remaining = std::make_unique<std::atomic<int>[]>(watch.tenancies.size());
  return watch;
}

void StepMemory::begin_step(int program) {
  const Watch& watch = watches_[static_cast<std::size_t>(program)];
  for (std::size_t k = 0; k < watch.tenancies.size(); ++k)
    watch.remaining[k].store(watch.tenancies[k].accesses);
}

void StepMemory::before(int program, InstructionId instruction) {
  const Watch& watch = watches_[static_cast<std::size_t>(program)];
  for (int tenancy : watch.begins[static_cast<std::size_t>(instruction)])
    begin(watch.tenancies[static_cast<std::size_t>(tenancy)]);
}

void StepMemory::after(int program, InstructionId instruction) {
  const Watch& watch = watches_[static_cast<std::size_t>(program)];
  for (int tenancy : watch.touches[static_cast<std::size_t>(instruction)])
    if (watch.remaining[static_cast<std::size_t>(tenancy)].fetch_sub(1) == 1)
      end(watch.tenancies[static_cast<std::size_t>(tenancy)]);
}

}  // namespace tessera
