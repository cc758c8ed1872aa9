#include "src/engine/compare_given.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "tessera/id_vector.h"
#include "tessera/layout.h"

namespace tessera {
namespace {

constexpr std::size_t kBlockNumel = std::size_t{1} << 16;

struct Summary {
  std::int64_t rank, parameter, state, begin, numel;
  std::uint64_t hash;
};

std::span<const float> block(std::span<const float> values, std::size_t index) {
  const std::size_t begin = index * kBlockNumel;
  return values.subspan(begin, std::min(kBlockNumel, values.size() - begin));
}

std::uint64_t hash_of(std::span<const float> values) {
  return XXH3_64bits(values.data(), values.size_bytes());
}

std::string in_words(const Layout& layout, const Summary& of) {
  return fmt::format("{} values of {} of '{}' from element {} on", of.numel,
                     name_of(static_cast<StateKind>(of.state)),
                     layout.parameter(static_cast<ParameterId>(of.parameter)).name, of.begin);
}

constexpr CallLabel kLabel{"values", "comparing what write() was given"};

// What rank 0 and another rank have in place of `own`, which is as long on all ranks.
template <typename T>
struct Both {
  std::vector<T> first, other;
};

// Collective.
template <typename T>
Both<T> both(Communicator& ranks, int other, const std::vector<T>& own) {
  Both<T> found{.first = own, .other = own};
  const auto bytes = static_cast<std::int64_t>(own.size() * sizeof(T));
  ranks.broadcast(found.first.data(), bytes, 0, kLabel);
  ranks.broadcast(found.other.data(), bytes, other, kLabel);
  return found;
}

// The first block in which the rank's values are not rank 0's. Collective.
std::size_t first_block(Communicator& ranks, int other, std::span<const float> values) {
  std::vector<std::uint64_t> own((values.size() + kBlockNumel - 1) / kBlockNumel);
  for (std::size_t k = 0; k < own.size(); ++k) own[k] = hash_of(block(values, k));
  const Both<std::uint64_t> hashes = both(ranks, other, own);
  return static_cast<std::size_t>(std::ranges::mismatch(hashes.first, hashes.other).in1 -
                                  hashes.first.begin());
}

struct Difference {
  std::int64_t element = 0;  // in the parameter
  float first = 0, other = 0;
};

// Collective.
Difference find_difference(Communicator& ranks, int other, const GivenValues& given) {
  const std::size_t index = first_block(ranks, other, given.values);
  const std::span<const float> own = block(given.values, index);
  const auto [here, there] = both(ranks, other, std::vector<float>(own.begin(), own.end()));
  std::size_t at = 0;
  while (at + 1 < own.size() &&
         std::bit_cast<std::uint32_t>(here[at]) == std::bit_cast<std::uint32_t>(there[at]))
    ++at;
  return {.element = given.begin + static_cast<std::int64_t>(index * kBlockNumel + at),
          .first = here[at],
          .other = there[at]};
}

}  // namespace

void compare_given(Communicator& ranks, const GivenValues& given) {
  const Summary own{.rank = ranks.global_rank(),
                    .parameter = given.parameter,
                    .state = static_cast<std::int64_t>(given.state),
                    .begin = given.begin,
                    .numel = static_cast<std::int64_t>(given.values.size()),
                    .hash = hash_of(given.values)};
  IdVector<Summary> all(ranks.world());
  ranks.all_gather(&own, all.data(), sizeof own, kLabel);
  const auto arguments = [](const Summary& of) {
    return std::array{of.parameter, of.state, of.begin, of.numel};
  };
  for (const Summary& one : all)
    if (arguments(one) != arguments(all[0]))
      throw CommunicationError(
          fmt::format("write: rank {} gives {}, and rank {} {}; all ranks make the same calls", one.rank,
                      in_words(given.layout, one), all[0].rank, in_words(given.layout, all[0])),
          static_cast<int>(one.rank));
  for (int rank = 1; rank < all.count(); ++rank) {
    if (all[rank].hash == all[0].hash) continue;
    const Difference found = find_difference(ranks, rank, given);
    throw CommunicationError(
        fmt::format("write: the ranks were given other values of {} of '{}': element {} is {} on rank {} and "
                    "{} on rank {}; give all ranks the same",
                    name_of(given.state), given.layout.parameter(given.parameter).name, found.element,
                    found.first, all[0].rank, found.other, all[rank].rank),
        static_cast<int>(all[rank].rank));
  }
}

}  // namespace tessera
