#include "src/engine/update_runs.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "tessera/error.h"

namespace tessera {
namespace {

// Padding between two parameters is zero and stays zero under any optimizer: of one group they are one run,
// and between two groups it belongs to the first.
void add_run(std::int64_t first, const UpdateRun& run, UpdateRuns& to) {
  if (to.runs.empty())
    to.begin = first;
  else
    to.runs.back().numel += first - (to.begin + to.numel);
  if (to.runs.empty() || to.runs.back().group != run.group || run.rounding)
    to.runs.push_back(run);
  else
    to.runs.back().numel += run.numel;
  to.numel = first + run.numel - to.begin;
}

// Blocks are rounded alike on whatever rank they lie: by a key for each, instead of one for the flat.
bool rounds_by_blocks(const Layout& layout, FlatId flat, DType moments) {
  return moments == DType::bf16 &&
         std::ranges::any_of(layout.units()[layout.flat(flat).unit].parameters,
                             [](const ParameterSpec& parameter) { return parameter.cut.blocks > 1; });
}

void add_blocks(const Layout& layout, ParameterId id, int tensor_rank, std::int64_t first, std::int64_t last,
                UpdateRuns& to) {
  const ParameterSpec& parameter = layout.parameter(id);
  const TensorShares& shares = layout.shares(id);
  const std::int64_t offset = layout.place(id).offset;
  while (first < last) {
    const std::int64_t local = first - offset, inside = local % shares.block_numel();
    const std::int64_t numel = std::min(last - first, shares.block_numel() - inside);
    const auto block =
        static_cast<std::uint64_t>(shares.block_of({.tensor_rank = tensor_rank, .local = local}));
    add_run(first,
            {.numel = numel,
             .group = parameter.group,
             .rounding = UpdateRun::Rounding{.key = XXH3_64bits_withSeed(parameter.name.data(),
                                                                         parameter.name.size(), block),
                                             .first = inside}},
            to);
    first += numel;
  }
}

void add_runs(const Layout& layout, FlatId flat, const ElementRange& mine, int tensor_rank, DType moments,
              UpdateRuns& to) {
  const bool by_blocks = rounds_by_blocks(layout, flat, moments);
  for (ParameterId id : layout.flat(flat).parameters) {
    const Place& place = layout.place(id);
    const std::int64_t first = std::max(place.offset, mine.begin);
    const std::int64_t last = std::min(place.offset + place.numel, mine.end);
    if (first >= last) continue;
    if (by_blocks)
      add_blocks(layout, id, tensor_rank, first, last, to);
    else
      add_run(first, {.numel = last - first, .group = layout.parameter(id).group}, to);
  }
}

}  // namespace

std::uint64_t rounding_key(const std::string& unit, const Flat& flat, int tensor_rank) {
  const std::uint64_t share = flat.over == TensorShare::cut ? static_cast<std::uint64_t>(tensor_rank) + 2
                                                            : flat.over == TensorShare::partial;
  return XXH3_64bits_withSeed(unit.data(), unit.size(),
                              static_cast<std::uint64_t>(flat.dtype) + (share << 8));
}

IdVector<UpdateRuns> updates_of(const Program& program, const Layout& layout, const OperandPlaces& places,
                                int tensor_rank, DType moments) {
  IdVector<UpdateRuns> updates(layout.flats().count());
  for (InstructionId id = 0; id < program.instructions.count(); ++id) {
    const Instruction& instruction = program.at(id);
    if (instruction.op != Opcode::update) continue;
    const FlatId flat = program.flat_of(instruction);
    if (updates[flat].update >= 0) throw Error(fmt::format("flat {} has two updates", flat));
    updates[flat].update = id;
    add_runs(layout, flat, places.of(id, instruction.operand(Role::gradient)).range, tensor_rank, moments,
             updates[flat]);
  }
  return updates;
}

}  // namespace tessera
