// The losses of many pieces of text, of whatever lengths, by Trainer::losses(): which shapes of batches they
// take, and which piece is in which batch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "src/cli/inference.h"
#include "tessera/data.h"

namespace tessera::cli {

// Tokens that pieces are cut from: in memory, or in token files. Copies share them.
class TokenStore {
 public:
  explicit TokenStore(std::vector<std::int32_t> tokens)
      : tokens_(std::make_shared<const std::vector<std::int32_t>>(std::move(tokens))) {}
  explicit TokenStore(TokenSource source) : tokens_(std::move(source)) {}

  std::int64_t numel() const;
  // Tokens [begin, begin + tokens.size()). Throws as TokenSource::read() does.
  void read(std::int64_t begin, std::span<std::int32_t> tokens) const;
  // The same as targets: kNotCounted where a mask says so.
  void read_targets(std::int64_t begin, std::span<std::int32_t> targets) const;

 private:
  std::variant<std::shared_ptr<const std::vector<std::int32_t>>, TokenSource> tokens_;
};

// Inputs [begin, begin + length) of a store, whose targets are one token later. The first `uncounted` targets
// do not count.
struct Piece {
  std::int32_t store = 0;
  std::int32_t length = 0, uncounted = 0;
  std::int64_t begin = 0;
};

struct Score {
  double loss = 0.0;         // Σ −ln p of the targets that count, in their order
  std::int64_t counted = 0;  // how many these are
};

// The shapes of batches for these pieces, ascending by length: `longest` and its halves, each where it has
// pieces, of as many tokens. A piece takes the shortest that holds it, so at most half of a batch's rows are
// padding, of pieces longer than the shortest shape.
std::vector<BatchShape> shapes_for(std::span<const Piece> pieces, const BatchShape& longest);

// The scores of pieces, by piece. `shapes` are those of shapes_for() and the trainer's
// TrainerOptions::scored. Collective; the same on all ranks. `progress` gets the tokens that were computed on
// so far, padding left out, and is called behind each batch.
std::vector<Score> score(const InferenceRank& rank, std::span<const BatchShape> shapes,
                         std::span<const TokenStore> stores, std::span<const Piece> pieces,
                         const std::function<void(std::int64_t tokens)>& progress);

}  // namespace tessera::cli
