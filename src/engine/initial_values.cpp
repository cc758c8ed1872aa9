#include "src/engine/initial_values.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>

#include "src/build/holders.h"
#include "src/engine/engine_impl.h"
#include "tessera/error.h"

namespace tessera {

InitialValues::InitialValues(std::uint64_t identity, const Layout& layout, const Partition& partition,
                             const Mesh& mesh, const Spread& parameters)
    : layout_(layout), mesh_(mesh), parameters_(parameters), identity_(identity) {
  FlatId flat = 0;
  for (std::vector<int>& holders : holders_of(layout, partition)) {
    if (holders.size() > 1) shared_.push_back({.flat = flat, .holders = std::move(holders)});
    ++flat;
  }
}

void InitialValues::add(FlatId flat, std::span<const float> values) {
  const auto shared = std::ranges::find(shared_, flat, &Shared::flat);
  std::uint64_t& own = is_cut(flat) ? own_cut_ : own_copied_;
  std::uint64_t& hash = shared == shared_.end() ? own : shared->hash;
  hash = XXH3_64bits_withSeed(values.data(), values.size_bytes(), hash);
}

int InitialValues::first_of_copies(int rank, int pipeline_rank, bool cut) const {
  Coordinates at = mesh_.coordinates(rank);
  at[Axis::pipeline] = pipeline_rank;
  if (!cut) at[Axis::tensor] = 0;
  for (const Axis axis : {Axis::shard, Axis::replicate})
    if (!parameters_.axes.contains(axis)) at[axis] = 0;
  return mesh_.rank(at);
}

void InitialValues::compare(Communicator& states) const {
  enum : std::size_t { kRank, kIdentity, kOwnCopied, kOwnCut, kShared };
  const std::size_t numel = kShared + shared_.size();
  std::vector<std::uint64_t> given(numel), all(numel * static_cast<std::size_t>(states.world()));
  given[kRank] = static_cast<std::uint64_t>(states.global_rank());
  given[kIdentity] = identity_;
  given[kOwnCopied] = own_copied_;
  given[kOwnCut] = own_cut_;
  for (std::size_t k = 0; k < shared_.size(); ++k) given[kShared + k] = shared_[k].hash;
  states.all_gather(given.data(), all.data(), static_cast<std::int64_t>(8 * numel),
                    {"set-up", "comparing initial values"});

  const auto at = [&](int rank, std::size_t which) {
    return all[static_cast<std::size_t>(rank) * numel + which];
  };
  const auto check = [&](int rank, int first, std::size_t which, const char* what) {
    if (at(rank, which) == at(first, which)) return;
    const int culprit = static_cast<int>(at(rank, kRank));
    throw CommunicationError(
        fmt::format("rank {} was given other initial values than rank {}{}: of another seed or file, or by a "
                    "function of more than parameter and element",
                    culprit, at(first, kRank), what),
        culprit);
  };
  for (int rank = 0; rank < states.world(); ++rank) check(rank, 0, kIdentity, "");
  constexpr const char* kSame = ", which holds the same parameters";
  for (int rank = 0; rank < states.world(); ++rank) {
    const int place = mesh_.place(rank, Axis::pipeline);
    check(rank, first_of_copies(rank, place, false), kOwnCopied, kSame);
    check(rank, first_of_copies(rank, place, true), kOwnCut, kSame);
    for (std::size_t k = 0; k < shared_.size(); ++k) {
      const std::vector<int>& holders = shared_[k].holders;
      if (std::ranges::find(holders, place) != holders.end())
        check(rank, first_of_copies(rank, holders[0], is_cut(shared_[k].flat)), kShared + k, kSame);
    }
  }
}

namespace {

void check_fill(const Engine::Fill& fill) {
  if (!fill)
    throw UsageError("initialize: fill is empty; give a function that sets the elements it is asked for");
}

// One run of elements of each parameter, the same on all ranks.
std::uint64_t sample_of(const Layout& layout, const Engine::Fill& fill) {
  constexpr std::int64_t kSampled = 16;
  std::uint64_t hash = 0;
  for (ParameterId id = 0; id < layout.parameters(); ++id) {
    if (layout.place(id).home != id) continue;  // tied
    std::array<float, kSampled> values{};
    const std::int64_t all = layout.shares(id).global_numel(), numel = std::min(kSampled, all);
    const auto begin =
        static_cast<std::int64_t>(XXH3_64bits(&id, sizeof id) % static_cast<std::uint64_t>(all - numel + 1));
    fill(id, begin, std::span(values).first(static_cast<std::size_t>(numel)));
    hash = XXH3_64bits_withSeed(values.data(), sizeof values, hash);
  }
  return hash;
}

}  // namespace

void Engine::initialize(const Fill& fill) { impl_->initialize(fill, std::nullopt); }
void Engine::initialize(const Fill& fill, std::uint64_t identity) { impl_->initialize(fill, identity); }

void Engine::Impl::initialize(const Fill& fill, std::optional<std::uint64_t> identity) {
  guarded(
      "initialize", [&] { check_fill(fill); },
      [&] {
        check_between_steps("initialize");
        const std::uint64_t first = identity ? *identity : sample_of(layout, fill);
        before_change();
        const InitialValues values = fill_states(fill, first);
        if (!identity && sample_of(layout, fill) != first)
          throw UsageError(
              "initialize: fill gives other values when it is asked for the same elements again; they must "
              "depend on the parameter and the element only, since each rank asks for what it holds");
        values.compare(states);
        loading.reset();
      });
}

// Sets this rank's share of a parameter, from local element `begin` on.
void Engine::Impl::fill_share(const Fill& fill, ParameterId parameter, std::int64_t begin,
                              std::span<float> values) const {
  const TensorShares& shares = layout.shares(parameter);
  if (shares.is_whole()) return fill(parameter, begin, values);
  std::ranges::fill(values, 0.0f);  // padding stays so
  const std::int64_t end = begin + static_cast<std::int64_t>(values.size());
  for (const ShareRun& run : shares.of_share(coordinates[Axis::tensor], begin, end))
    fill(parameter, run.global,
         values.subspan(static_cast<std::size_t>(run.local - begin), static_cast<std::size_t>(run.numel)));
}

InitialValues Engine::Impl::fill_states(const Fill& fill, std::uint64_t identity) {
  executor->drop_carried();
  steps_applied = 0;
  scaler = LossScaler(options.loss_scaling.value_or(LossScaleOptions{}));
  InitialValues initial(identity, layout, partition, options.mesh, spreads.parameters);
  std::vector<float> values(static_cast<std::size_t>(kChunkNumel));
  for (FlatId flat = 0; flat < layout.flats().count(); ++flat) {
    for (StateKind state : {StateKind::parameter, StateKind::master, StateKind::moment1, StateKind::moment2})
      if (const BufferId buffer = own_buffer(flat, state); buffer >= 0) executor->clear_persistent(buffer);
    if (buffer_of(flat, StateKind::parameter) < 0) continue;  // another pipeline rank's
    const auto [first, last] = held(flat, StateKind::parameter);
    for (const Piece& piece : layout.pieces(flat, first, last)) {
      for (std::int64_t done = 0; done < piece.numel; done += kChunkNumel) {
        const std::span<float> chunk(values.data(),
                                     static_cast<std::size_t>(std::min(kChunkNumel, piece.numel - done)));
        fill_share(fill, piece.parameter, piece.begin + done, chunk);
        initial.add(flat, chunk);
        store(flat, StateKind::parameter, piece.offset + done, chunk);
        store(flat, StateKind::master, piece.offset + done, chunk);
      }
    }
  }
  return initial;
}

}  // namespace tessera
