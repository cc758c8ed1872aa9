#include "tessera/memory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "src/plan/memory_page.h"
#include "tessera/error.h"

namespace tessera {
namespace {

const Buffer& buffer_of(IdSpan<const Program> programs, const LiveBuffer& live) {
  return programs[live.program].buffers[live.buffer];
}

std::vector<LiveBuffer> persistent_of(IdSpan<const Program> programs, const MemoryPlan& plan, Space space) {
  std::vector<LiveBuffer> found;
  for (const auto [program, id] : persistent_buffers(programs)) {
    const LiveBuffer live{program, id, 0, plan.offset(program, id)};
    if (buffer_of(programs, live).space == space) found.push_back(live);
  }
  return found;
}

std::string lifetime_words(const Program& program, const Buffer& buffer, int lifetime) {
  if (buffer.persistent) return "always";
  const Lifetime& life = buffer.lifetimes[static_cast<std::size_t>(lifetime)];
  return fmt::format("{} to {}", describe(program, life.first), describe(program, life.last));
}

nlohmann::json instructions_json(const Program& program, std::string_view name) {
  nlohmann::json instructions = nlohmann::json::array();
  for (InstructionId id = 0; id < program.instructions.count(); ++id)
    instructions.push_back(describe(program, id));
  return {{"name", name},
          {"kind", name_of(program.kind)},
          {"microbatches", program.microbatches},
          {"instructions", std::move(instructions)}};
}

nlohmann::json buffers_json(const Program& program, int index, const MemoryPlan& plan, Space space) {
  nlohmann::json buffers = nlohmann::json::array();
  for (BufferId id = 0; id < program.buffers.count(); ++id) {
    const Buffer& buffer = program.buffers[id];
    if (buffer.space != space || buffer.persistent || buffer.lifetimes.empty() || buffer.bytes == 0) continue;
    nlohmann::json lives = nlohmann::json::array();
    for (std::size_t k = 0; k < buffer.lifetimes.size(); ++k)
      lives.push_back({buffer.lifetimes[k].first, buffer.lifetimes[k].last, plan.offset(index, id, k)});
    buffers.push_back({{"name", buffer.name},
                       {"category", static_cast<int>(buffer.category)},
                       {"bytes", buffer.bytes},
                       {"lives", std::move(lives)}});
  }
  return buffers;
}

nlohmann::json space_json(IdSpan<const Program> programs, const MemoryPlan& plan, Space space) {
  const SpacePlan& peak = plan.space(space);
  nlohmann::json persistent = nlohmann::json::array(), buffers = nlohmann::json::array(),
                 largest = nlohmann::json::array();
  for (const LiveBuffer& live : persistent_of(programs, plan, space)) {
    const Buffer& buffer = buffer_of(programs, live);
    persistent.push_back({{"name", buffer.name},
                          {"category", static_cast<int>(buffer.category)},
                          {"bytes", buffer.bytes},
                          {"offset", live.offset}});
  }
  for (int index = 0; index < programs.count(); ++index)
    buffers.push_back(buffers_json(programs[index], index, plan, space));
  for (const LiveBuffer& live : largest_at_peak(programs, plan, space, 10)) {
    const Buffer& buffer = buffer_of(programs, live);
    largest.push_back({{"name", buffer.name},
                       {"category", static_cast<int>(buffer.category)},
                       {"bytes", buffer.bytes},
                       {"alive", lifetime_words(programs[live.program], buffer, live.lifetime)}});
  }
  return {{"space", name_of(space)},
          {"arena", peak.arena_bytes},
          {"live_peak", peak.live_peak_bytes},
          {"peak_program", peak.peak_program},
          {"peak_instruction", peak.peak_instruction},
          {"peak", programs.empty() ? "" : describe_peak(programs, peak)},
          {"persistent", std::move(persistent)},
          {"buffers", std::move(buffers)},  // by program
          {"largest", std::move(largest)}};
}

nlohmann::json rank_json(const PagePlan& rank) {
  if (rank.memory == nullptr) throw UsageError(fmt::format("memory_page: '{}' has no plan", rank.label));
  nlohmann::json programs = nlohmann::json::array(), spaces = nlohmann::json::array();
  for (std::size_t k = 0; k < rank.programs.size(); ++k)
    programs.push_back(instructions_json(rank.programs[k], k < rank.names.size()
                                                               ? std::string_view(rank.names[k])
                                                               : name_of(rank.programs[k].kind)));
  for (const Space space : spaces_held(*rank.memory))
    spaces.push_back(space_json(rank.programs, *rank.memory, space));
  return {{"label", rank.label}, {"programs", std::move(programs)}, {"spaces", std::move(spaces)}};
}

void replace(std::string& text, std::string_view what, std::string_view with) {
  if (const std::size_t at = text.find(what); at != std::string::npos) text.replace(at, what.size(), with);
}

}  // namespace

std::vector<LiveBuffer> largest_at_peak(IdSpan<const Program> programs, const MemoryPlan& plan, Space space,
                                        int most) {
  const SpacePlan& peak = plan.space(space);
  std::vector<LiveBuffer> found = persistent_of(programs, plan, space);
  if (peak.peak_program < programs.count()) {
    const IdVector<Buffer>& buffers = programs[peak.peak_program].buffers;
    for (BufferId id = 0; id < buffers.count(); ++id) {
      const Buffer& buffer = buffers[id];
      const int lifetime = lifetime_at(buffer, peak.peak_instruction);
      if (buffer.persistent || buffer.space != space || lifetime < 0) continue;
      found.push_back({peak.peak_program, id, lifetime,
                       plan.offset(peak.peak_program, id, static_cast<std::size_t>(lifetime))});
    }
  }
  std::ranges::sort(found, [&](const LiveBuffer& a, const LiveBuffer& b) {
    const std::int64_t of_a = buffer_of(programs, a).bytes, of_b = buffer_of(programs, b).bytes;
    return of_a != of_b ? of_a > of_b : a.offset < b.offset;
  });
  if (found.size() > static_cast<std::size_t>(most)) found.resize(static_cast<std::size_t>(most));
  return found;
}

std::string describe_largest(IdSpan<const Program> programs, const MemoryPlan& plan, Space space, int most) {
  const std::vector<LiveBuffer> largest = largest_at_peak(programs, plan, space, most);
  std::size_t width = 6;
  for (const LiveBuffer& live : largest) width = std::max(width, buffer_of(programs, live).name.size());
  std::string text = fmt::format("{:>16}  {:<20} {:<{}}  alive\n", "bytes", "category", "buffer", width);
  for (const LiveBuffer& live : largest) {
    const Buffer& buffer = buffer_of(programs, live);
    text += fmt::format("{:>16}  {:<20} {:<{}}  {}\n", buffer.bytes, name_of(buffer.category), buffer.name,
                        width, lifetime_words(programs[live.program], buffer, live.lifetime));
  }
  return text;
}

std::vector<Space> spaces_held(const MemoryPlan& plan) {
  std::vector<Space> held = {Space::device};
  for (const Space space : {Space::host, Space::disk})
    if (plan.space(space).arena_bytes > 0) held.push_back(space);
  return held;
}

std::string describe_peak(IdSpan<const Program> programs, const SpacePlan& space) {
  if (space.live_peak_bytes == space.persistent_bytes) return "all times";
  const Program& program = programs[space.peak_program];
  return fmt::format("{} of the {} program", describe(program, space.peak_instruction),
                     name_of(program.kind));
}

std::string memory_page(std::span<const PagePlan> ranks, const std::string& title, std::size_t shown) {
  if (shown >= ranks.size())
    throw UsageError(fmt::format("memory_page: rank {} is to be shown first, of {}", shown, ranks.size()));
  nlohmann::json data = {{"title", title},
                         {"categories", nlohmann::json::array()},
                         {"shown", shown},
                         {"ranks", nlohmann::json::array()}};
  for (int category = 0; category < kCategories; ++category)
    data["categories"].push_back(name_of(static_cast<Category>(category)));
  for (const PagePlan& rank : ranks) data["ranks"].push_back(rank_json(rank));
  std::string text = data.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  // Inside a script element only "</" could end it.
  for (std::size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3)
    text.insert(at + 1, 1, '\\');
  std::string page(kMemoryPage);
  replace(page, "__DATA__", text);
  return page;
}

std::string memory_page(IdSpan<const Program> programs, const MemoryPlan& plan, const std::string& title,
                        std::span<const std::string> names) {
  const PagePlan rank{.label = "", .programs = programs, .memory = &plan, .names = names};
  return memory_page(std::span(&rank, 1), title);
}

}  // namespace tessera
