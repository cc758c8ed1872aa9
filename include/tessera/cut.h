// Parameters that are cut over the ranks along the tensor axis: how a module declares it, and which elements
// each of these ranks has. Pure arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/mesh.h"
#include "tessera/shape.h"

namespace tessera {

// Along which dim a parameter is cut over an axis of the mesh, before shards are made of what each rank then
// has. The k-th of t ranks has the k-th of t equal parts of each segment, one behind the other. On one rank
// along the axis, and without blocks, the parameter is whole. This version cuts over Axis::tensor only.
//
//   segments [4, 2] of dim 6, two ranks:  | 0 1 2 3 | 4 5 |  ->  rank 0: | 0 1 | 4 |   rank 1: | 2 3 | 5 |
//   dim 5, padded, two ranks:             | 0 1 2 3 4 |      ->  rank 0: | 0 1 2 |     rank 1: | 3 4 – |
struct Cut {
  int dim = -1;  // of the shape; −1: not cut, every rank along the axis has all of it
  Axis axis = Axis::tensor;
  // Lengths along the dim of parts that are each cut by themselves, so that every rank has a share of all: of
  // queries, keys and values in one matrix, say. Empty: one part. The ranks must divide each.
  std::vector<std::int64_t> segments = {};
  // The ranks need not divide the dim, which is one segment: each has its length divided by the ranks,
  // rounded up. Places behind the dim's end are padding, which belongs to no element and is always 0.
  bool padded = false;
  // A multiple of the ranks, or 1. With several, the dim is cut as over that many ranks. A rank has
  // consecutive ones of these shares, the blocks, one behind the other in memory.
  //
  //   dim 6, 3 blocks, one rank, of a matrix of 2 rows:  | 00 01 10 11 | 02 03 12 13 | 04 05 14 15 |
  int blocks = 1;
  bool operator==(const Cut&) const = default;
};

// Places along a padded dim that each of so many ranks has.
constexpr std::int64_t padded_part(std::int64_t length, int ranks) { return (length + ranks - 1) / ranks; }

// "dim 0", "dim 1, segments [8, 8]", "dim 0, padded"; "none".
std::string to_string(const Cut& cut);

// What ranks along the tensor axis have of the gradient of a parameter that is not cut, so that all of them
// have a copy.
enum class GradientOver : std::uint8_t {
  copied,  // each the same: all compute it from the same
  partial  // each a part of a sum
};

// Elements in a row that are next to each other both in a parameter and in a rank's share of it.
struct ShareRun {
  int tensor_rank = 0;
  std::int64_t local = 0;   // first element within the rank's share, row-major within its block
  std::int64_t global = 0;  // first element, row-major within the parameter
  std::int64_t numel = 0;
  bool operator==(const ShareRun&) const = default;
};

// What each rank along the tensor axis has of one parameter, its share: all of the parameter if it is not
// cut. All shares have the same shape. Elements are counted row-major: `local` ones within a share, `global`
// ones within the parameter.
class TensorShares {
 public:
  // Throws UsageError, naming the parameter, for fewer than 1 rank, a dim that the shape does not have,
  // segments that do not make up the dim, blocks that the ranks do not divide, and a segment that the ranks,
  // or blocks, do not divide and that is not padded. Throws UnsupportedError for another axis.
  TensorShares(const std::string& parameter, const Shape& shape, const Cut& cut, int ranks);

  // Whether each rank has all elements, in their order.
  bool is_whole() const { return blocks_ == 1; }
  int blocks() const { return blocks_; }  // of all ranks; 1 if it is whole
  // The number of the run's block among those of all ranks: its rank's, where each has one.
  int block_of(const ShareRun& run) const {
    return is_whole() ? 0 : run.tensor_rank * own_blocks() + static_cast<int>(run.local / block_numel());
  }
  const Shape& shape() const { return shape_; }  // of a block, padding included
  std::int64_t block_numel() const { return outer_ * local_row(); }
  std::int64_t numel() const { return own_blocks() * block_numel(); }  // of a share
  std::int64_t global_numel() const { return outer_ * global_row(); }

  // The elements that local elements [begin, end) of a rank's share are, ascending. Padding is left out.
  // UsageError for a rank that does not exist, and unless 0 ≤ begin ≤ end ≤ numel().
  std::vector<ShareRun> of_share(int tensor_rank, std::int64_t begin, std::int64_t end) const;
  // Where global elements [begin, end) are, ascending. They are covered exactly once: for a parameter that is
  // not cut, by tensor rank 0. UsageError unless 0 ≤ begin ≤ end ≤ global_numel().
  std::vector<ShareRun> of_parameter(std::int64_t begin, std::int64_t end) const;
  // Whether each rank has the same elements in the same order.
  bool operator==(const TensorShares&) const = default;

 private:
  // Along the dim.
  struct Segment {
    std::int64_t global = 0, global_length = 0;  // in the parameter
    std::int64_t local = 0, length = 0;          // in a share
    bool operator==(const Segment&) const = default;
  };
  std::int64_t local_row() const { return (segments_.back().local + segments_.back().length) * inner_; }
  std::int64_t global_row() const {
    return (segments_.back().global + segments_.back().global_length) * inner_;
  }

  int own_blocks() const { return is_whole() ? 1 : blocks_ / ranks_; }

  int ranks_;
  int blocks_;              // that have different elements; 1 if it is not cut
  std::int64_t outer_ = 1;  // rows, each of which is cut in the same way: the product of the dims before
  std::int64_t inner_ = 1;  // elements that stay together: the product of the dims behind
  std::vector<Segment> segments_;
  Shape shape_;
};

}  // namespace tessera
