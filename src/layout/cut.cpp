#include "tessera/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "src/layout/enumerators.h"
#include "tessera/error.h"

namespace tessera {
namespace {

// Whether the cut itself means something, whatever the number of ranks.
void check_cut(const std::string& parameter, const Shape& shape, const Cut& cut) {
  const std::string what = fmt::format("parameter '{}' of shape {}: ", parameter, to_string(shape));
  check_enumerator("the axis of the cut of parameter '" + parameter + "'", cut.axis, Axis::world);
  if (cut.axis != Axis::tensor)
    throw UnsupportedError(
        what + fmt::format("cut.axis is {}; this version cuts over the tensor axis only", name_of(cut.axis)));
  if (cut.blocks < 1)
    throw UsageError(what + fmt::format("cut.blocks is {}; it must be 1 or more", cut.blocks));
  if (cut.dim == -1) {
    if (!cut.segments.empty() || cut.padded || cut.blocks > 1)
      throw UsageError(what + fmt::format("cut.{} is set while cut.dim is -1, which means that it is not cut",
                                          cut.padded       ? "padded"
                                          : cut.blocks > 1 ? "blocks"
                                                           : "segments"));
    return;
  }
  const int dims = static_cast<int>(shape.size());
  if (cut.dim < 0 || cut.dim >= dims)
    throw UsageError(what + fmt::format("cut.dim is {}; ", cut.dim) +
                     (dims == 0 ? "a scalar has no dim to cut: it must be -1"
                                : fmt::format("it must be 0 to {}, or -1 for no cut", dims - 1)));
  if (cut.segments.empty()) return;
  const std::int64_t length = shape[static_cast<std::size_t>(cut.dim)];
  std::int64_t left = length;
  for (const std::int64_t segment : cut.segments) {
    if (segment < 1)
      throw UsageError(what + fmt::format("cut.segments {} has a segment of {}; each must be 1 or more",
                                          to_string(cut.segments), segment));
    left = segment > left ? -1 : left - segment;
    if (left < 0) break;
  }
  if (left != 0)
    throw UsageError(what + fmt::format("cut.segments {} must add up to the length of dim {}, {}",
                                        to_string(cut.segments), cut.dim, length));
  if (cut.padded && cut.segments.size() > 1)
    throw UsageError(what +
                     fmt::format("cut.padded is set with cut.segments {}; only a cut of one segment is "
                                 "padded",
                                 to_string(cut.segments)));
}

// Into how many parts each segment is cut.
int blocks_of(const std::string& parameter, const Cut& cut, int ranks) {
  if (cut.dim < 0) return 1;
  if (cut.blocks > 1 && cut.blocks % ranks != 0)
    throw UsageError(fmt::format(
        "parameter '{}' is cut into {} blocks over {} tensor ranks: each has as many, so make cut.blocks a "
        "multiple of {}",
        parameter, cut.blocks, ranks, ranks));
  return std::max(cut.blocks, ranks);
}

// How long each part of a segment is.
std::int64_t part_of_segment(const std::string& parameter, const Shape& shape, const Cut& cut,
                             std::size_t segment, std::int64_t length, int parts) {
  if (cut.padded || length % parts == 0) return padded_part(length, parts);
  throw UsageError(
      fmt::format("parameter '{}' of shape {} is cut along dim {} over {} {}; they do not divide its segment "
                  "{}, of length {}: it must be a multiple of {}{}",
                  parameter, to_string(shape), cut.dim, parts, cut.blocks > 1 ? "blocks" : "tensor ranks",
                  segment, length, parts, cut.segments.size() > 1 ? "" : ", or cut.padded must be set"));
}

std::int64_t product(std::span<const std::int64_t> dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

void check_range(std::int64_t begin, std::int64_t end, std::int64_t numel, const char* what) {
  if (begin < 0 || end < begin || end > numel)
    throw UsageError(
        fmt::format("elements {} to {} are not a range of {}, which has {}", begin, end, what, numel));
}

}  // namespace

std::string to_string(const Cut& cut) {
  if (cut.dim < 0) return "none";
  return fmt::format(
      "dim {}{}{}{}", cut.dim, cut.segments.empty() ? "" : ", segments " + to_string(cut.segments),
      cut.padded ? ", padded" : "", cut.blocks > 1 ? fmt::format(", {} blocks", cut.blocks) : "");
}

TensorShares::TensorShares(const std::string& parameter, const Shape& shape, const Cut& cut, int ranks)
    : ranks_(ranks), blocks_(1), shape_(shape) {
  if (ranks < 1)
    throw UsageError(
        fmt::format("parameter '{}' is cut over {} tensor ranks; there must be 1 or more", parameter, ranks));
  check_cut(parameter, shape, cut);
  blocks_ = blocks_of(parameter, cut, ranks);
  if (is_whole()) {
    const std::int64_t numel = numel_of(shape);
    segments_ = {{.global_length = numel, .length = numel}};
    return;
  }
  const auto dim = static_cast<std::size_t>(cut.dim);
  outer_ = product(std::span(shape).first(dim));
  inner_ = product(std::span(shape).subspan(dim + 1));
  const std::vector<std::int64_t> lengths =
      cut.segments.empty() ? std::vector<std::int64_t>{shape[dim]} : cut.segments;
  Segment next;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    next.global_length = lengths[i];
    next.length = part_of_segment(parameter, shape, cut, i, lengths[i], blocks_);
    segments_.push_back(next);
    next.global += next.global_length;
    next.local += next.length;
  }
  shape_[dim] = next.local;
}

std::vector<ShareRun> TensorShares::of_share(int rank, std::int64_t begin, std::int64_t end) const {
  if (rank < 0 || rank >= ranks_)
    throw UsageError(fmt::format("tensor rank {} does not exist; there are {}", rank, ranks_));
  check_range(begin, end, numel(), "a rank's share of the parameter");
  std::vector<ShareRun> runs;
  std::int64_t at = begin;
  while (at < end) {
    const auto own = static_cast<int>(at / block_numel());
    const int block = is_whole() ? 0 : rank * own_blocks() + own;
    const std::int64_t block_begin = own * block_numel();
    const std::int64_t row = (at - block_begin) / local_row(), row_begin = block_begin + row * local_row();
    for (const Segment& segment : segments_) {
      const std::int64_t from = row_begin + segment.local * inner_;
      const std::int64_t to = std::min(end, from + segment.length * inner_);
      if (to <= at) continue;
      const std::int64_t first = block * segment.length;
      const std::int64_t length = std::clamp(segment.global_length - first, std::int64_t{0}, segment.length);
      const std::int64_t numel = std::min(to, from + length * inner_) - at;
      if (numel > 0)
        runs.push_back({.tensor_rank = rank,
                        .local = at,
                        .global = row * global_row() + (segment.global + first) * inner_ + (at - from),
                        .numel = numel});
      at = to;
      if (at == end) break;
    }
  }
  return runs;
}

std::vector<ShareRun> TensorShares::of_parameter(std::int64_t begin, std::int64_t end) const {
  check_range(begin, end, global_numel(), "the parameter");
  std::vector<ShareRun> runs;
  std::int64_t at = begin;
  while (at < end) {
    const std::int64_t row = at / global_row(), row_begin = row * global_row();
    for (const Segment& segment : segments_) {
      const std::int64_t from = row_begin + segment.global * inner_;
      const std::int64_t to = std::min(end, from + segment.global_length * inner_);
      const std::int64_t part_numel = segment.length * inner_;
      while (at < to) {
        const auto block = static_cast<int>((at - from) / part_numel);
        const std::int64_t part_begin = from + block * part_numel;
        const std::int64_t numel = std::min(to, part_begin + part_numel) - at;
        runs.push_back({.tensor_rank = block / own_blocks(),
                        .local = block % own_blocks() * block_numel() + row * local_row() +
                                 segment.local * inner_ + (at - part_begin),
                        .global = at,
                        .numel = numel});
        at += numel;
      }
    }
  }
  return runs;
}

}  // namespace tessera
