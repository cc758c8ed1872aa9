#include "src/cli/evaluate/score.h"

#include <algorithm>

namespace tessera::cli {

namespace {

constexpr std::int64_t kShortest = 16;  // tokens; a shorter batch saves no time that can be measured

std::size_t shape_of(std::span<const BatchShape> shapes, const Piece& piece) {
  const auto fits = [&](const BatchShape& shape) { return shape.length >= piece.length; };
  return static_cast<std::size_t>(std::ranges::find_if(shapes, fits) - shapes.begin());
}

}  // namespace

std::int64_t TokenStore::numel() const {
  if (const auto* source = std::get_if<TokenSource>(&tokens_)) return source->numel();
  return static_cast<std::int64_t>(std::get<0>(tokens_)->size());
}

void TokenStore::read(std::int64_t begin, std::span<std::int32_t> tokens) const {
  if (const auto* source = std::get_if<TokenSource>(&tokens_)) return source->read(begin, tokens);
  std::copy_n(std::get<0>(tokens_)->begin() + begin, tokens.size(), tokens.begin());
}

void TokenStore::read_targets(std::int64_t begin, std::span<std::int32_t> targets) const {
  if (const auto* source = std::get_if<TokenSource>(&tokens_)) return source->read_targets(begin, targets);
  read(begin, targets);
}

std::vector<BatchShape> shapes_for(std::span<const Piece> pieces, const BatchShape& longest) {
  std::vector<BatchShape> shapes = {longest};
  while (shapes.back().length % 2 == 0 && shapes.back().length / 2 >= kShortest)
    shapes.push_back({.sequences = shapes.back().sequences * 2, .length = shapes.back().length / 2});
  std::ranges::reverse(shapes);
  std::vector<bool> used(shapes.size());
  for (const Piece& piece : pieces) used[shape_of(shapes, piece)] = true;
  std::vector<BatchShape> needed;
  for (std::size_t k = 0; k < shapes.size(); ++k)
    if (used[k]) needed.push_back(shapes[k]);
  return needed;
}

std::vector<Score> score(const InferenceRank& rank, std::span<const BatchShape> shapes,
                         std::span<const TokenStore> stores, std::span<const Piece> pieces,
                         const std::function<void(std::int64_t tokens)>& progress) {
  std::vector<std::vector<std::size_t>> of_shape(shapes.size());
  for (std::size_t k = 0; k < pieces.size(); ++k) of_shape[shape_of(shapes, pieces[k])].push_back(k);
  std::vector<Score> scores(pieces.size());
  std::vector<std::int32_t> inputs, targets;
  std::vector<float> losses;
  std::int64_t done = 0;
  for (std::size_t shape = 0; shape < shapes.size(); ++shape) {
    const auto length = static_cast<std::size_t>(shapes[shape].length);
    const auto at_once = static_cast<std::size_t>(rank.trainer.scored_at_once(static_cast<int>(shape)));
    for (std::size_t first = 0; first < of_shape[shape].size(); first += at_once) {
      const auto batch =
          std::span(of_shape[shape]).subspan(first, std::min(at_once, of_shape[shape].size() - first));
      inputs.assign(batch.size() * length, 0);
      targets.assign(inputs.size(), kNotCounted);
      losses.resize(inputs.size());
      for (std::size_t row = 0; row < batch.size(); ++row) {
        const Piece& piece = pieces[batch[row]];
        const auto numel = static_cast<std::size_t>(piece.length);
        const auto uncounted = static_cast<std::size_t>(piece.uncounted);
        const TokenStore& store = stores[static_cast<std::size_t>(piece.store)];
        store.read(piece.begin, std::span(inputs).subspan(row * length, numel));
        store.read_targets(piece.begin + 1 + piece.uncounted,
                           std::span(targets).subspan(row * length + uncounted, numel - uncounted));
        done += piece.length;
      }
      rank.trainer.losses(static_cast<int>(shape), inputs, targets, losses);
      for (std::size_t row = 0; row < batch.size(); ++row)
        for (std::size_t at = row * length; at < (row + 1) * length; ++at) {
          if (targets[at] == kNotCounted) continue;
          scores[batch[row]].loss += losses[at];
          ++scores[batch[row]].counted;
        }
      if (rank.first) progress(done);
    }
  }
  return scores;
}

}  // namespace tessera::cli
