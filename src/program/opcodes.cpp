#include "src/program/opcodes.h"

#include <algorithm>
#include <array>

namespace tessera {
namespace {

using enum RoleRow::Count;
constexpr AccessSet kRead = set_of(Access::read);
constexpr AccessSet kWrite = set_of(Access::write);
constexpr AccessSet kAdd = set_of(Access::add);
constexpr AccessSet kSum = set_of(Access::write, Access::add);
constexpr AccessSet kModify = set_of(Access::modify);
constexpr AccessSet kMade = set_of(Access::read, Access::write);  // by the first pass that needs it

constexpr RoleRow kUse[] = {{Role::parameters, any, kRead},
                            {Role::gradient, any, kSum},
                            {Role::batch, optional, kMade},
                            {Role::input, optional, kRead},
                            {Role::output, optional, kWrite},
                            {Role::output_gradient, optional, kRead},
                            {Role::input_gradient, optional, kWrite},
                            {Role::value, any, set_of(Access::read, Access::write, Access::modify)},
                            {Role::workspace, optional, kWrite}};
constexpr RoleRow kMove[] = {{Role::from, one, kRead}, {Role::to, one, kWrite}};
constexpr RoleRow kReduce[] = {{Role::from, optional, kRead},  // none on a rank that does not contribute
                               {Role::to, one, kSum},
                               {Role::squares, any, kAdd}};
constexpr RoleRow kAccumulate[] = {{Role::from, one, kRead}, {Role::to, one, kSum}};
constexpr RoleRow kSquareSum[] = {{Role::from, one, kRead}, {Role::squares, any, kAdd}};
constexpr RoleRow kZero[] = {{Role::to, any, kWrite}};
constexpr RoleRow kSend[] = {{Role::from, one, kRead}};
constexpr RoleRow kReceive[] = {{Role::to, one, kWrite}};
constexpr RoleRow kScalars[] = {{Role::scalars, one, kModify},
                                {Role::decision, optional, kWrite},
                                {Role::next_decision, optional, kWrite}};
constexpr RoleRow kUpdate[] = {{Role::gradient, one, kRead},
                               {Role::master, one, kModify},
                               {Role::moment1, optional, kModify},
                               {Role::moment2, optional, kModify},
                               {Role::parameter, optional, kWrite}};

constexpr AxisSet kOverRanks = {Axis::shard, Axis::replicate, Axis::tensor};

constexpr std::array<OpRow, kOpcodes> kRows = {
    {{Opcode::use, "use", OpKind::module, set_of(Lane::compute), {}, CostRule::flops, kUse},
     {Opcode::all_gather, "all_gather", OpKind::collective, set_of(Lane::gather, Lane::exchange), kOverRanks,
      CostRule::collective, kMove},
     {Opcode::reduce_scatter, "reduce_scatter", OpKind::collective, set_of(Lane::reduce, Lane::exchange),
      kOverRanks, CostRule::collective, kReduce},
     {Opcode::accumulate,
      "accumulate",
      OpKind::local,
      set_of(Lane::compute, Lane::reduce),
      {},
      CostRule::memory,
      kAccumulate},
     {Opcode::square_sum,
      "square_sum",
      OpKind::local,
      set_of(Lane::reduce),
      {},
      CostRule::memory,
      kSquareSum},
     {Opcode::zero, "zero", OpKind::local, set_of(Lane::compute), {}, CostRule::nothing, kZero},
     {Opcode::send,
      "send",
      OpKind::message,
      set_of(Lane::send_output, Lane::send_gradient),
      {Axis::pipeline},
      CostRule::message,
      kSend},
     {Opcode::receive,
      "receive",
      OpKind::message,
      set_of(Lane::receive_output, Lane::receive_gradient),
      {Axis::pipeline},
      CostRule::message,
      kReceive},
     {Opcode::reduce_scalars,
      "reduce_scalars",
      OpKind::collective,
      set_of(Lane::compute),
      {Axis::world},
      CostRule::collective,
      kScalars},
     {Opcode::update,
      "update",
      OpKind::local,
      set_of(Lane::compute, Lane::host),
      {},
      CostRule::memory,
      kUpdate},
     {Opcode::copy,
      "copy",
      OpKind::local,
      set_of(Lane::upload, Lane::download, Lane::io),
      {},
      CostRule::transfer,
      kMove}}};

constexpr bool in_order() {
  for (std::size_t k = 0; k < kRows.size(); ++k)
    if (static_cast<std::size_t>(kRows[k].op) != k) return false;
  return true;
}
static_assert(in_order(), "row_of() finds a row by its opcode");

}  // namespace

const OpRow& row_of(Opcode op) { return kRows.at(static_cast<std::size_t>(op)); }

const RoleRow* OpRow::role(Role wanted) const {
  const auto found = std::ranges::find(roles, wanted, &RoleRow::role);
  return found == roles.end() ? nullptr : &*found;
}

std::string_view name_of(Opcode opcode) { return row_of(opcode).name; }

}  // namespace tessera
