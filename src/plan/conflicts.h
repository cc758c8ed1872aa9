// Which items of a packing are alive together, and what that says about the least height. Places nothing.
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

// In order of position; starts come before ends, as ends are included.
std::vector<LifeEvent> events_of(std::span<const PackItem> items);

// Live bytes at each position up to the last event.
std::vector<std::int64_t> live_curve(std::span<const PackItem> items, std::span<const LifeEvent> events);

// A set of items.
using ItemSet = std::vector<std::uint64_t>;

// Which items may not share addresses: a symmetric relation. A matrix of bits or, of many items of which few
// are alive at a time, for each start of a life what is alive then, which is less to keep and to look
// through.
class Conflicts {
 public:
  // What `items` spans outlives this.
  Conflicts(std::span<const PackItem> items, std::span<const LifeEvent> events);

  bool is_matrix() const { return starts_.empty(); }
  bool test(std::size_t a, std::size_t b) const {
    return is_matrix() ? ((bits_[a * words_ + b / 64] >> (b % 64)) & 1) != 0 : meet(a, b);
  }
  // The items that conflict with `item`, of a matrix.
  std::span<const std::uint64_t> row(std::size_t item) const { return {&bits_[item * words_], words_}; }
  // Calls visit(other) for the items that conflict with `item`, some of them several times; not of a matrix.
  template <typename Visit>
  void each(std::size_t item, Visit visit) const {
    for (std::size_t k = first_start_[item]; k < starts_.size(); k = starts_[k].next) {
      const Start& start = starts_[k];
      for (std::size_t i = start.alive; i < start.alive_end; ++i) visit(std::size_t{alive_[i]});
      for (std::size_t i = k + 1; i < start.until; ++i) visit(starts_[i].item);
    }
  }

 private:
  // Of a life.
  struct Start {
    std::size_t item = 0;
    std::size_t alive = 0, alive_end = 0;  // in alive_: the others alive then
    std::size_t until = 0;                 // the first start behind the life's end
    std::size_t next = 0;                  // the start of the item's next life; as many as there are: none
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

// The most bytes found in any set of items that all conflict with each other: at one address per item, no
// packing is lower. Starts from sets that live together, so it is at least the largest of them; items with
// several lives can form heavier sets that never live at one position. Of a matrix.
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
