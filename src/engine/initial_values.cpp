#include "src/engine/initial_values.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "src/program/holders.h"
#include "tessera/error.h"

namespace tessera {

InitialValues::InitialValues(std::uint64_t identity, const Layout& layout, const Partition& partition,
                             const Mesh& mesh, const Program& program)
    : mesh_(mesh), program_(program), identity_(identity) {
  FlatId flat = 0;
  for (std::vector<int>& holders : holders_of(layout, partition)) {
    if (holders.size() > 1) shared_.push_back({.flat = flat, .holders = std::move(holders)});
    ++flat;
  }
}

void InitialValues::add(FlatId flat, std::span<const float> values) {
  const auto shared = std::ranges::find(shared_, flat, &Shared::flat);
  std::uint64_t& hash = shared == shared_.end() ? own_ : shared->hash;
  hash = XXH3_64bits_withSeed(values.data(), values.size_bytes(), hash);
}

int InitialValues::first_of_copies(int rank, int pipeline_rank) const {
  Coordinates at = mesh_.coordinates(rank);
  at[static_cast<std::size_t>(Axis::pipeline)] = pipeline_rank;
  if (program_.placements.parameters == Placement::replicated) at[static_cast<std::size_t>(Axis::shard)] = 0;
  if (!program_.parameters_over_replicas) at[static_cast<std::size_t>(Axis::replicate)] = 0;
  return mesh_.rank(at);
}

void InitialValues::compare(Communicator& states) const {
  enum : std::size_t { kRank, kIdentity, kOwn, kShared };
  const std::size_t numel = kShared + shared_.size();
  std::vector<std::uint64_t> given(numel), all(numel * static_cast<std::size_t>(states.world()));
  given[kRank] = static_cast<std::uint64_t>(states.global_rank());
  given[kIdentity] = identity_;
  given[kOwn] = own_;
  for (std::size_t k = 0; k < shared_.size(); ++k) given[kShared + k] = shared_[k].hash;
  states.all_gather(given.data(), all.data(), static_cast<std::int64_t>(8 * numel),
                    {"initialize", "comparing what the ranks were given"});

  const auto at = [&](int rank, std::size_t which) {
    return all[static_cast<std::size_t>(rank) * numel + which];
  };
  const auto check = [&](int rank, int first, std::size_t which, const char* what) {
    if (at(rank, which) == at(first, which)) return;
    const int culprit = static_cast<int>(at(rank, kRank));
    throw CommunicationError(
        fmt::format("rank {} was given other values by initialize() than rank {}{}; they must depend on the "
                    "parameter and the element only",
                    culprit, at(first, kRank), what),
        culprit);
  };
  for (int rank = 0; rank < states.world(); ++rank) check(rank, 0, kIdentity, "");
  constexpr const char* kSame = ", which holds the same parameters";
  for (int rank = 0; rank < states.world(); ++rank) {
    const int place = mesh_.place(rank, Axis::pipeline);
    check(rank, first_of_copies(rank, place), kOwn, kSame);
    for (std::size_t k = 0; k < shared_.size(); ++k) {
      const std::vector<int>& holders = shared_[k].holders;
      if (std::ranges::find(holders, place) != holders.end())
        check(rank, first_of_copies(rank, holders[0]), kShared + k, kSame);
    }
  }
}

}  // namespace tessera
