#include "src/engine/memory.h"

#include <algorithm>
#include <set>

namespace tessera {
namespace {

struct Range {
  std::int64_t begin, bytes;
};

// What poison works on: a buffer at `offset` with its guards. No memory is shared within the bytes that it is
// rounded up to, but the arena may end there.
Range covered(const Arena& arena, const Buffer& buffer, std::int64_t offset, std::int64_t guard_bytes) {
  const std::int64_t begin = offset - guard_bytes;
  const std::int64_t rounded = round_up(buffer.bytes + 2 * guard_bytes,
                                        buffer.space == Space::device ? 8 : alignment_of(buffer.space));
  return {begin, std::min(rounded, arena.bytes() - begin)};
}

}  // namespace

StepMemory::StepMemory(Device& device, const IdVector<Program>& programs, const MemoryPlan& plan,
                       const Options& options)
    : device_(device),
      programs_(programs),
      plan_(plan),
      options_(options),
      counters_{&device.counters(), &own_counters_[1], &own_counters_[2]},
      poison_(options.poison),
      guards_(device, plan.guard_bytes) {}

void StepMemory::take() {
  // First what may not be there: a disk without room is found before memory is taken.
  if (const std::int64_t bytes = plan_.space(Space::disk).arena_bytes; bytes > 0)
    disk_ = std::make_unique<device::Disk>(
        device::DiskOptions{.directory = options_.disk_directory, .bytes = bytes});
  arena() = device_.make_arena(plan_.space(Space::device).arena_bytes, options_.shared, options_.source,
                               options_.address_space_before);
  Arena& host = arenas_[Space::host];
  if (const std::int64_t bytes = plan_.space(Space::host).arena_bytes; bytes > 0)
    host = device_.make_host_arena(bytes);
  if (disk_) disk_->register_memory(host.base(), host.bytes());
  for (std::size_t space = 0; space < arenas_.size(); ++space) bases_[space] = arenas_[space].base();
  for (const auto [program, id] : persistent_buffers(programs_)) {
    const Buffer& buffer = programs_[program].buffers[id];
    counters_[buffer.space]->add(buffer.category, buffer.bytes);
  }
  for (std::size_t index = 0; index < programs_.size(); ++index)
    watches_.push_back(watch(static_cast<int>(index), programs_[index]));
  if (guards_) guard_persistent();
  if (!poison_) return;
  for (std::size_t index = 0; index < programs_.size(); ++index)
    for (const Tenancy& tenancy : watches_[index].tenancies)
      hide(programs_[index].buffers[tenancy.buffer], tenancy);
}

void StepMemory::guard_persistent() {
  const std::unique_ptr<Stream> stream =
      device_.make_stream({.name = "guards", .on_caller = true, .cpus = {}});
  for (const auto [program, id] : persistent_buffers(programs_))
    guards_.fill(*stream, address(program, id, 0), programs_[program].buffers[id]);
  stream->synchronize();
}

void StepMemory::hide(const Buffer& buffer, const Tenancy& tenancy) {
  Arena& arena = arenas_[buffer.space];
  const auto [begin, bytes] = covered(arena, buffer, tenancy.offset, plan_.guard_bytes);
  arena.poison(begin, bytes);
}

void StepMemory::begin(const Buffer& buffer, const Tenancy& tenancy, Stream& stream) {
  counters_[buffer.space]->add(buffer.category, buffer.bytes);
  if (poison_) {
    Arena& arena = arenas_[buffer.space];
    const auto [begin, bytes] = covered(arena, buffer, tenancy.offset, plan_.guard_bytes);
    arena.unpoison(begin, bytes);
  }
  if (guards_) guards_.fill(stream, bases_[buffer.space] + tenancy.offset, buffer);
}

void StepMemory::end(const Buffer& buffer, const Tenancy& tenancy) {
  counters_[buffer.space]->add(buffer.category, -buffer.bytes);
  if (poison_) hide(buffer, tenancy);
}

void StepMemory::check_guards(int program, InstructionId over, Stream& stream) const {
  const Watch& watch = watches_[program];
  const Program& running = programs_[program];
  for (const int tenancy : watch.touches[over]) {
    const Tenancy& touched = watch.tenancies[tenancy];
    const Buffer& buffer = running.buffers[touched.buffer];
    guards_.check(stream, bases_[buffer.space] + touched.offset, buffer, running, over);
  }
  for (const BufferId id : watch.persistent[over])
    guards_.check(stream, address(program, id, 0), running.buffers[id], running, over);
}

StepMemory::Watch StepMemory::watch(int index, const Program& program) const {
  Watch watch;
  watch.begins.resize(program.instructions.size());
  watch.touches.resize(program.instructions.size());
  if (guards_) watch.persistent.resize(program.instructions.size());
  IdVector<int> first(program.buffers.size());  // index of the buffer's first tenancy
  for (std::size_t id = 0; id < program.buffers.size(); ++id) {
    const Buffer& buffer = program.buffers[id];
    first[id] = watch.tenancies.count();
    for (std::size_t k = 0; k < buffer.lifetimes.size(); ++k) {
      watch.tenancies.push_back(
          {.buffer = static_cast<BufferId>(id), .offset = plan_.offset(index, static_cast<BufferId>(id), k)});
    }
  }
  for (std::size_t at = 0; at < program.instructions.size(); ++at) {
    const Instruction& instruction = program.instructions[at];
    std::set<BufferId> touched;
    for (const Operand& operand : instruction.operands) touched.insert(operand.buffer);
    for (BufferId id : touched) {
      const Buffer& buffer = program.buffers[id];
      const int lifetime = lifetime_at(buffer, static_cast<InstructionId>(at));
      if (buffer.persistent && guards_) watch.persistent[at].push_back(id);
      if (buffer.persistent || lifetime < 0) continue;
      const int tenancy = first[id] + lifetime;
      watch.touches[at].push_back(tenancy);
      Tenancy& touched_now = watch.tenancies[tenancy];
      if (touched_now.accesses++ > 0) continue;
      // Its lifetime may begin sooner, at an instruction that the first access need not wait for.
      touched_now.first = static_cast<InstructionId>(at);
      watch.begins[at].push_back(tenancy);
    }
  }
  watch.remaining = std::make_unique<std::atomic<int>[]>(watch.tenancies.size());
  return watch;
}

void StepMemory::begin_step(int program) {
  const Watch& watch = watches_[program];
  for (std::size_t k = 0; k < watch.tenancies.size(); ++k)
    watch.remaining[k].store(watch.tenancies[k].accesses);
}

void StepMemory::before(int program, InstructionId instruction, Stream& stream) {
  const Watch& watch = watches_[program];
  for (int tenancy : watch.begins[instruction]) {
    const Tenancy& begun = watch.tenancies[tenancy];
    begin(programs_[program].buffers[begun.buffer], begun, stream);
  }
}

void StepMemory::after(int program, InstructionId instruction, Stream& stream) {
  if (guards_) check_guards(program, instruction, stream);
  const Watch& watch = watches_[program];
  for (int tenancy : watch.touches[instruction]) {
    if (watch.remaining[static_cast<std::size_t>(tenancy)].fetch_sub(1) != 1) continue;
    const Tenancy& ended = watch.tenancies[tenancy];
    end(programs_[program].buffers[ended.buffer], ended);
  }
}

}  // namespace tessera
