#include "src/comm/call.h"

#include <fmt/format.h>

namespace tessera::comm {

Call Call::make(Operation operation, std::int64_t count, CallLabel label) {
  Call call;
  call.operation = operation;
  call.count = count;
  call.shown = label.operation != nullptr ? label.operation : name_of(operation);
  label.unit.copy(call.unit.data(), call.unit.size() - 1);
  return call;
}

Call Call::reduce_scatter(const ReduceScatter& request, int members, CallLabel label) {
  Call call = make(
      request.reduction == Reduction::native ? Operation::native_reduce_scatter : Operation::reduce_scatter,
      request.shard_numel, label);
  call.type = request.wire;
  call.balanced = request.balanced;
  if (request.contributors.count < members) call.contributors = request.contributors;
  return call;
}

bool Call::matches(const Call& other) const {
  return operation == other.operation && type == other.type && root == other.root && count == other.count &&
         contributors == other.contributors && balanced == other.balanced && unit == other.unit;
}

std::string Call::text(std::uint64_t sequence) const {
  std::string text = fmt::format("{} #{}", shown, sequence);
  if (unit[0] != '\0') text += fmt::format(" of unit '{}'", unit.data());
  return text;
}

std::string Call::full_text(std::uint64_t sequence) const {
  std::string text = this->text(sequence);
  switch (operation) {
    case Operation::barrier:
      return text;
    case Operation::reduce_scatter:
    case Operation::native_reduce_scatter:
      text += fmt::format(" with {} elements a rank of {}{}", count, tessera::name_of(type),
                          balanced ? ", balanced," : "");
      if (contributors.all()) return text;
      if (contributors.first == 0) return text + fmt::format(" from the first {} ranks", contributors.count);
      return text +
             fmt::format(" from {} ranks, the first of them rank {}", contributors.count, contributors.first);
    case Operation::all_reduce_fp32:
      return text + fmt::format(" with {} elements of fp32", count);
    case Operation::all_reduce_fp64:
      return text + fmt::format(" with {} elements of fp64", count);
    case Operation::broadcast:
      return text + fmt::format(" with {} bytes from rank {}", count, root);
    default:
      return text + fmt::format(" with {} bytes", count);
  }
}

}  // namespace tessera::comm
