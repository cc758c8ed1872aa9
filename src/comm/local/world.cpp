#include "src/comm/local/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "src/comm/local/group.h"

namespace tessera::comm {
namespace {

LocalOptions checked(LocalOptions options) {
  options.deadline = device::checked_deadline(options.deadline, "deadline");
  return options;
}

}  // namespace

LocalWorld::LocalWorld(int ranks, const LocalOptions& options)
    : ranks_(ranks),
      options_(checked(options)),
      policy_(device::WaitPolicy::choose(options.waiting, ranks)),
      ended_(ranks),
      states_(ranks) {}

void LocalWorld::fail(int reporter, int culprit, const std::string& message, const std::vector<int>& late) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    late_ = late;
    failure_ = {.reporter = reporter, .culprit = culprit, .message = message, .time = device::Clock::now()};
    failed_.store(true);  // waits look every few milliseconds
  }
  device::wake_all();
}

std::optional<Failure> LocalWorld::first_failure() const {
  const std::lock_guard lock(mutex_);
  return failed_.load() ? std::optional(failure_) : std::nullopt;
}

bool LocalWorld::late(int rank) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::find(late_, rank) != late_.end();
}

void LocalWorld::throw_failed(int rank, const std::string& call) const {
  const Failure failure = first_failure().value_or(Failure{});
  throw CommunicationError(fmt::format("rank {}: {}: {}", rank, call, told_to(rank, failure)),
                           failure.culprit);
}

void LocalWorld::end(int rank) noexcept {
  ended_[rank].store(true);
  ended_count_.fetch_add(1);
  device::wake_all();
}

bool LocalWorld::ended(int rank) const noexcept { return ended_[rank].load(); }

std::shared_ptr<LocalGroup> LocalWorld::join_group(const LocalGroup* parent, const std::vector<int>& ranks,
                                                   const std::string& name, int member) {
  const std::string arguments =
      fmt::format("{}|{}|{}", static_cast<const void*>(parent), name, fmt::join(ranks, ","));
  const std::lock_guard lock(mutex_);
  const int occurrence = occurrences_[{member, arguments}]++;
  const std::string key = fmt::format("{}|{}", arguments, occurrence);
  Pending& pending = pending_[key];
  if (pending.group == nullptr) pending.group = std::make_shared<LocalGroup>(*this, name, ranks);
  std::shared_ptr<LocalGroup> group = pending.group;
  if (++pending.joined == ranks.size()) pending_.erase(key);
  return group;
}

}  // namespace tessera::comm
