#include "tessera/spread.h"

#include <fmt/format.h>

#include "tessera/error.h"
#include "tessera/layout.h"

namespace tessera {
namespace {

bool cut_by(const Spread& spread, Axis axis) { return spread.axes.contains(axis); }

void check(const Flat& flat, const Spread& spread) {
  const bool known = spread == Spread{kWhole} || spread == kShard || spread == kSlice ||
                     (spread == kPiece && flat.over != TensorShare::cut);
  if (!known)
    throw UsageError(fmt::format(
        "spread {}: a flat is cut between elements, over shard, over shard and replicate or, where "
        "tensor ranks have copies of it, over all three",
        to_string(spread)));
}

}  // namespace

std::string to_string(const Spread& spread) {
  std::string text;
  for (const Axis axis : {Axis::pipeline, Axis::shard, Axis::replicate, Axis::tensor})
    if (cut_by(spread, axis)) text += fmt::format("{}{}", text.empty() ? "" : "+", name_of(axis));
  if (text.empty()) text = "all";
  if (spread.granule.kind == Granule::Kind::block) text += fmt::format("/{}", spread.granule.numel);
  if (spread.granule.kind == Granule::Kind::parameter) text += "/parameter";
  return text;
}

Spread spread_of(const std::string& text) {
  for (const Spread& spread : {kWhole, kShard, kSlice, kPiece})
    if (to_string(spread) == text) return spread;
  throw UsageError(fmt::format(
      "'{}' is no spread; it must be all, shard, shard+replicate or shard+replicate+tensor", text));
}

std::int64_t numel_of(const Flat& flat, const Spread& spread) {
  check(flat, spread);
  return cut_by(spread, Axis::tensor)      ? flat.piece_numel
         : cut_by(spread, Axis::replicate) ? flat.slice_numel
         : cut_by(spread, Axis::shard)     ? flat.shard_numel
                                           : flat.padded_numel;
}

ElementRange range_of(const Flat& flat, const Spread& spread, const Coordinates& place) {
  const std::int64_t numel = numel_of(flat, spread);
  std::int64_t begin = 0;
  if (cut_by(spread, Axis::shard)) begin += flat.shard_numel * place[Axis::shard];
  if (cut_by(spread, Axis::replicate)) begin += flat.slice_numel * place[Axis::replicate];
  if (cut_by(spread, Axis::tensor)) begin += flat.piece_numel * place[Axis::tensor];
  return {begin, begin + numel};
}

Coordinates owner_of(const Flat& flat, const Spread& spread, std::int64_t offset) {
  check(flat, spread);
  Coordinates place{};
  if (cut_by(spread, Axis::shard)) place[Axis::shard] = static_cast<int>(offset / flat.shard_numel);
  if (cut_by(spread, Axis::replicate))
    place[Axis::replicate] = static_cast<int>(offset % flat.shard_numel / flat.slice_numel);
  if (cut_by(spread, Axis::tensor))
    place[Axis::tensor] = static_cast<int>(offset % flat.slice_numel / flat.piece_numel);
  return place;
}

}  // namespace tessera
