#include "src/comm/staged/tags.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "tessera/error.h"

namespace tessera::comm {

std::uint64_t GroupTags::take(const GroupKey& key, const std::string& name, const std::vector<int>& ranks) {
  Taken own = {.tags = first_ + Transport::kGroupTags * (key.low % groups_), .name = name, .ranks = ranks};
  std::ranges::sort(own.ranks);
  const std::lock_guard lock(mutex_);
  for (const auto& [other_key, other] : taken_) {
    if (other.tags != own.tags) continue;
    std::vector<int> common;
    std::ranges::set_intersection(own.ranks, other.ranks, std::back_inserter(common));
    if (common.size() >= 2)
      throw EnvironmentError(fmt::format(
          "the communicators '{}' and '{}' would have the same of the {} tags that there are for messages "
          "between hosts: give one of them another name",
          other.name, own.name, Transport::kGroupTags * groups_));
  }
  const std::uint64_t tags = own.tags;
  taken_.insert_or_assign({key.low, key.high}, std::move(own));
  return tags;
}

void GroupTags::give_back(const GroupKey& key) {
  const std::lock_guard lock(mutex_);
  taken_.erase({key.low, key.high});
}

}  // namespace tessera::comm
