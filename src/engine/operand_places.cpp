#include "src/engine/operand_places.h"

namespace tessera {
namespace {

// The elements of its flat that a region of one has on this rank; empty for another.
ElementRange range_of_region(const Layout& layout, const Buffer& buffer, const Region& region,
                             const Coordinates& coordinates) {
  switch (region.kind) {
    case Region::Kind::part:
      return range_of(layout.flat(buffer.flat), region.spread, coordinates);
    case Region::Kind::parameter: {
      const Place& place = layout.place(region.parameter);
      return {place.offset, place.offset + place.numel};
    }
    default:
      return {};
  }
}

}  // namespace

OperandPlaces::OperandPlaces(const IdVector<Program>& programs, int index, const Layout& layout,
                             const Coordinates& coordinates, const StepMemory& memory)
    : program_(programs[index]) {
  for (InstructionId id = 0; id < program_.instructions.count(); ++id) {
    first_.push_back(static_cast<std::ptrdiff_t>(places_.size()));
    for (const Operand& operand : program_.at(id).operands) {
      const Buffer& buffer = program_.buffers[operand.buffer];
      const int lifetime = lifetime_at(buffer, id);
      OperandPlace& place = places_.emplace_back();
      place.range = range_of_region(layout, buffer, operand.region, coordinates);
      const bool all = operand.region.kind == Region::Kind::all || operand.region.kind == Region::Kind::value;
      place.bytes =
          all ? operand.region.bytes_of(buffer.bytes) : place.range.numel() * bytes_of(operand.type);
      if (lifetime < 0 || buffer.space == Space::disk) continue;
      place.address = memory.address(index, operand.buffer, lifetime) + operand.region.begin;
      if (place.range.numel() == 0) continue;
      const std::int64_t held = range_of(layout.flat(buffer.flat), buffer.spread, coordinates).begin;
      place.address += (place.range.begin - held) * bytes_of(operand.type);
    }
  }
}

}  // namespace tessera
