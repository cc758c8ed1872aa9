#include "src/comm/staged/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

namespace tessera::comm {

StagedWorld::StagedWorld(Place place, const StagedOptions& options)
    : place_(std::move(place)),
      options_(options),
      policy_(device::WaitPolicy::choose(options.waiting, place_.hosts.ranks_here())),
      arenas_(std::make_shared<RegisteredArenas>()) {
  shared().enter(rank());
}

StagedWorld::~StagedWorld() {
  const bool failed = shared().failed();
  shared().end(rank());
  if (place_.wire) place_.wire->tell_ended(failed);
}

void StagedWorld::fail(int culprit, const std::string& message) {
  if (shared().fail(rank(), culprit, message) && place_.wire) place_.wire->tell_failure(shared().failure());
}

void StagedWorld::look_around() {
  shared().show(rank());
  if (shared().look_for_dead(rank()) && place_.wire) place_.wire->tell_failure(shared().failure());
  if (place_.wire) place_.wire->listen(shared());
}

void StagedWorld::throw_failed(const std::string& call) const {
  const Failure failure = this->failure().value_or(Failure{});
  throw CommunicationError(fmt::format("rank {}: {}: {}", rank(), call, told_to(rank(), failure)),
                           failure.culprit);
}

std::optional<Failure> StagedWorld::failure() const {
  if (!shared().failed()) return std::nullopt;
  const SharedFailure found = shared().failure();
  return Failure{found.reporter, found.culprit, found.message.data()};
}

void StagedWorld::rethrow_failure(const std::string& call) {
  look_around();
  if (shared().failed()) throw_failed(call);
}

void StagedWorld::leave(int group) noexcept {
  const bool waits = !shared().failed() && !waited_to_leave_.load();
  const auto limit = waits ? options_.deadline : std::chrono::milliseconds(0);
  if (!shared().leave(rank(), group, limit)) waited_to_leave_.store(true);
}

GroupKey StagedWorld::key_of(const GroupKey& parent, const std::vector<int>& ranks, const std::string& name) {
  const std::string arguments =
      fmt::format("{:x}-{:x}|{}|{}", parent.high, parent.low, fmt::join(ranks, ","), name);
  const std::lock_guard lock(mutex_);
  const std::string text = fmt::format("{}|{}", occurrences_[arguments]++, arguments);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace tessera::comm
