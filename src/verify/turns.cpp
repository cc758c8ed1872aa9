#include <fmt/format.h>

#include <iterator>
#include <map>
#include <string>
#include <string_view>

#include "src/verify/checks.h"

namespace tessera {
namespace {

struct Place {
  const Buffer* buffer = nullptr;
  std::int64_t offset = 0;
  std::int64_t end() const { return offset + buffer->bytes; }
};

class Turns {
 public:
  Turns(std::span<const Program> programs, const MemoryPlan& plan, Findings& findings)
      : programs_(programs), plan_(plan), findings_(findings) {}

  void run() {
    for (const BufferOf& first : persistent_buffers(programs_)) place(first);
    for (int program = 0; program < programs_.count(); ++program)
      for (BufferId id = 0; id < buffers_of(program).count(); ++id) check(program, id);
  }

 private:
  const IdVector<Buffer>& buffers_of(int program) const { return programs_[program].buffers; }
  const Buffer& buffer(const BufferOf& of) const { return buffers_of(of.program)[of.buffer]; }

  void report(int program, std::string what) {
    findings_.add(Fault::malformed, program, {}, std::move(what));
  }

  void place(const BufferOf& of) {
    const Place here{&buffer(of), plan_.offset(of.program, of.buffer, 0)};
    known_.emplace(here.buffer->name, here);
    if (here.buffer->bytes == 0) return;
    check_free(of.program, here);
    persistent_[here.buffer->space].emplace(here.offset, here);
  }

  void check(int program, BufferId id) {
    const Buffer& one = buffers_of(program)[id];
    if (one.persistent || one.one_address) check_same(program, {&one, plan_.offset(program, id, 0)});
    if (one.persistent || one.bytes == 0) return;
    for (std::size_t life = 0; life < one.lifetimes.size(); ++life)
      check_free(program, {&one, plan_.offset(program, id, life)});
  }

  // What has this name lies there, and nowhere else.
  void check_same(int program, const Place& here) {
    if (!here.buffer->persistent && here.buffer->lifetimes.empty()) return;  // of which this program has none
    const Place& known = known_.try_emplace(here.buffer->name, here).first->second;
    const Buffer &a = *known.buffer, &b = *here.buffer;
    if (a.space != b.space || a.bytes != b.bytes || a.persistent != b.persistent ||
        known.offset != here.offset)
      report(program,
             fmt::format("the plan has '{}' of {} bytes at {} on the {}, but in an earlier program of {} "
                         "bytes at {} on the {}",
                         b.name, b.bytes, here.offset, name_of(b.space), a.bytes, known.offset,
                         name_of(a.space)));
  }

  void check_free(int program, const Place& here) {
    const auto& taken = persistent_[here.buffer->space];
    auto next = taken.upper_bound(here.offset);
    if (next != taken.begin() && std::prev(next)->second.end() > here.offset) --next;
    if (next == taken.end() || next->first >= here.end() || next->second.end() <= here.offset) return;
    report(program, fmt::format("the plan gives '{}' bytes of '{}', which persists in another program",
                                here.buffer->name, next->second.buffer->name));
  }

  IdSpan<const Program> programs_;
  const MemoryPlan& plan_;
  Findings& findings_;
  std::map<std::string_view, Place> known_;                     // what persists or has one address, by name
  IdArray<std::map<std::int64_t, Place>, kSpaces> persistent_;  // by offset
};

}  // namespace

VerifyReport verify_turns(std::span<const Program> programs, const MemoryPlan& plan) {
  VerifyReport report;
  Findings findings(report.findings);
  Turns(programs, plan, findings).run();
  return report;
}

}  // namespace tessera
