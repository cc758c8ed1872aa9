// Deals out the tags of groups' messages.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "src/comm/staged/transport.h"

namespace tessera::comm {

// Has the tags from `first` to `last`. Any thread may call it.
class GroupTags {
 public:
  GroupTags(std::uint64_t first, std::uint64_t last)
      : first_(first), groups_((last - first) / Transport::kGroupTags) {}

  // These two do what Transport says of take_tags() and give_back_tags().
  std::uint64_t take(const GroupKey& key, const std::string& name, const std::vector<int>& ranks);
  void give_back(const GroupKey& key);

 private:
  struct Taken {
    std::uint64_t tags = 0;
    std::string name;
    std::vector<int> ranks;
  };

  const std::uint64_t first_, groups_;
  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Taken> taken_;  // by the group's key; guarded by mutex_
};

}  // namespace tessera::comm
