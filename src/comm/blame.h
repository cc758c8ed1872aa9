// Whom to name where peers do not answer in time. The same words for every backend.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tessera::comm {

// What a rank's own thread does, as far as others can see it (Communicator::set_waiting).
enum class RankState : unsigned char { unknown, working, waiting };

// Ranks are those of the world.
struct Absence {
  std::string call;  // what the reporting rank was doing: opens the message
  int reporter = 0;
  int ranks = 0;            // of the world
  std::vector<int> absent;  // who did not answer; may be empty
  std::chrono::nanoseconds deadline{0};
  std::function<bool(int rank)> ended;
  std::function<RankState(int rank)> state;
  std::function<std::string(std::size_t k)> status;  // "is at #3, ...": what absent[k] did last in the group
};

struct Blame {
  int culprit = -1;
  std::string message;
};

// Of several that are absent: one that has ended, for it will never answer, else the first. One that waits
// for peers itself only passes on what it waits for: then the first rank that does not wait is to blame.
Blame blame_for(const Absence& absence);

}  // namespace tessera::comm
