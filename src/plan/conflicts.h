// Which items of a packing are alive together, and lower bounds on the height that follow. Places nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/plan/packing.h"

namespace tessera {

// The start or end of a life.
struct LifeEvent {
  InstructionId position;
  bool end;
  std::size_t item;
};

// The events in order of position. Starts come before ends at the same position, because a life includes its
// end.
std::vector<LifeEvent> events_of(std::span<const PackItem> items);

// The live bytes at each position up to the last event.
IdVector<std::int64_t> live_curve(std::span<const PackItem> items, std::span<const LifeEvent> events);

// A set of items, one bit for each.
using ItemSet = std::vector<std::uint64_t>;

// Which items must not share addresses: a symmetric relation. Stored as a matrix of bits or, for many items
// of which few are alive at a time, as a list of what is alive at each start of a life, which is smaller and
// faster to search.
class Conflicts {
 public:
  // The items that `items` points to must outlive this object.
  Conflicts(std::span<const PackItem> items, std::span<const LifeEvent> events);

  bool is_matrix() const { return starts_.empty(); }
  bool test(std::size_t a, std::size_t b) const {
    return is_matrix() ? ((bits_[a * words_ + b / 64] >> (b % 64)) & 1) != 0 : meet(a, b);
  }
  // The items that conflict with `item`, as bits. Only if is_matrix().
  std::span<const std::uint64_t> row(std::size_t item) const { return {&bits_[item * words_], words_}; }
  // Calls visit(other) for the items that conflict with `item`, for some of them several times. Only if not
  // is_matrix().
  template <typename Visit>
  void each(std::size_t item, Visit visit) const {
    for (std::size_t k = first_start_[item]; k < starts_.size(); k = starts_[k].next) {
      const Start& start = starts_[k];
      for (std::size_t i = start.alive; i < start.alive_end; ++i) visit(std::size_t{alive_[i]});
      for (std::size_t i = k + 1; i < start.until; ++i) visit(starts_[i].item);
    }
  }

 private:
  // The start of a life.
  struct Start {
    std::size_t item = 0;
    std::size_t alive = 0, alive_end = 0;  // range in alive_ of the other items alive then
    std::size_t until = 0;                 // index of the first start after the life's end
    std::size_t next = 0;                  // index of the start of the item's next life; the number of starts
                                           // if there is none
  };

  void fill_matrix(std::span<const LifeEvent> events);
  void fill_starts(std::span<const LifeEvent> events);
  void mirror(std::size_t below, std::size_t beside);
  bool meet(std::size_t a, std::size_t b) const;

  std::span<const PackItem> items_;
  std::size_t words_ = 0;
  std::vector<std::uint64_t> bits_;
  std::vector<Start> starts_;             // in order of position
  std::vector<std::size_t> first_start_;  // by item
  std::vector<std::uint32_t> alive_;
};

// The most bytes found in any set of items that all conflict with each other. With one address per item, no
// packing is lower. The search starts from sets that are alive together, so the result is at least the
// largest of those. Items with several lives can form heavier sets that are never all alive at one position.
// Only if conflicts.is_matrix().
std::int64_t heaviest_clique(std::span<const PackItem> items, std::span<const LifeEvent> events,
                             const Conflicts& conflicts);

template <typename Visit>
void for_each(std::span<const std::uint64_t> set, Visit visit) {
  for (std::size_t word = 0; word < set.size(); ++word) {
    for (std::uint64_t rest = set[word]; rest != 0; rest &= rest - 1) {
      visit(word * 64 + static_cast<std::size_t>(std::countr_zero(rest)));
    }
  }
}

}  // namespace tessera
