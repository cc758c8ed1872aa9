#include "src/comm/staged/group.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/comm/staged/message_group.h"
#include "src/comm/staged/shared_group.h"

namespace tessera::comm {

StagedGroup::StagedGroup(Place place)
    : world_(std::move(place.world)),
      name_(std::move(place.name)),
      global_ranks_(std::move(place.global_ranks)),
      me_(place.me),
      key_(world_->key_of(place.parent, global_ranks_, name_)) {}

std::unique_ptr<StagedGroup> StagedGroup::make(Place place) {
  const bool here = std::all_of(place.global_ranks.begin(), place.global_ranks.end(),
                                [&](int rank) { return place.world->is_here(rank); });
  if (here) return std::make_unique<SharedGroup>(std::move(place));
  return std::make_unique<MessageGroup>(std::move(place));
}

bool StagedGroup::on_one_host() const {
  return std::all_of(global_ranks_.begin(), global_ranks_.end(),
                     [&](int rank) { return world_->is_here(rank); });
}

// ---- reading peers' memory ----

Puller* StagedGroup::open(const void*, std::int64_t, std::chrono::nanoseconds) { return nullptr; }

std::shared_ptr<MappedArenas> StagedGroup::map(const Arena& arena,
                                               const IdVector<SharedArena>& arenas) const {
  auto mapped = std::make_shared<MappedArenas>(arena, world_->rank(), world_->ranks(),
                                               world_->key_of(key_, global_ranks_, "arena"));
  for (int member = 0; member < members(); ++member)
    if (member != me_) mapped->map(global_rank(member), arenas[member]);
  return mapped;
}

// ---- calls ----

StagedGroup::SharedCall::SharedCall(const Call& from, std::uint64_t number) : call(from), sequence(number) {
  std::string_view(from.shown).copy(shown.data(), shown.size() - 1);
  call.shown = nullptr;  // an address of this process
}

Call StagedGroup::SharedCall::local() const {
  Call result = call;
  result.shown = shown.data();
  return result;
}

std::string StagedGroup::SharedCall::status_text() const {
  if (sequence == 0) return "has made no call there";
  const std::string unit = call.unit[0] == '\0' ? "" : fmt::format(" of unit '{}'", call.unit.data());
  return fmt::format("is at #{}, {}{}", sequence, shown.data(), unit);
}

void StagedGroup::check_match(const SharedCall& own, const SharedCall& peer, int member) {
  if (own.call.matches(peer.call)) return;
  report(-1, fmt::format("{} on '{}': rank {} called {}; all must make the same calls in the same order",
                         own.local().full_text(own.sequence), name_, global_rank(member),
                         peer.local().full_text(peer.sequence)));
}

void StagedGroup::check_message(const SharedCall& own, const SharedCall& peer, int member) {
  if (own.call.count == peer.call.count && own.call.unit == peer.call.unit) return;
  report(-1, fmt::format("{} on '{}': rank {} called {}; both must name the same unit and bytes",
                         own.local().full_text(own.sequence), name_, global_rank(member),
                         peer.local().full_text(peer.sequence)));
}

// ---- errors ----

void StagedGroup::report(int culprit, const std::string& message) {
  world_->fail(culprit, message);
  throw CommunicationError(fmt::format("rank {}: {}", world_->rank(), message), culprit);
}

void StagedGroup::throw_missing(std::chrono::nanoseconds deadline, const Missing& missing) {
  std::vector<int> absent, members_absent;
  for (int member = 0; member < members(); ++member) {
    if (member == me_ || !missing(member)) continue;
    members_absent.push_back(member);
    absent.push_back(global_rank(member));
  }
  const SharedWorld& shared = world_->shared();
  const Blame blame = blame_for({.call = current(),
                                 .reporter = world_->rank(),
                                 .ranks = world_->ranks(),
                                 .absent = absent,
                                 .deadline = deadline,
                                 .ended = [&](int rank) { return shared.ended(rank); },
                                 .state = [&](int rank) { return shared.state(rank); },
                                 .status = [&](std::size_t k) { return status_text(members_absent[k]); }});
  report(blame.culprit, blame.message);
}

}  // namespace tessera::comm
