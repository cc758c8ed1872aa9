// Two products on two tensor ranks: h = x·up and y = h·down, and the way back. Each rank has some rows of x
// and y, some columns of `up`, the same rows of `down`, and so some columns of h. No rank ever has all of a
// matrix.
//
//   forward    x rows ─all_gather→ x ─·up columns→ h columns ─·down rows→ a part of the sum y
//                                                                 └─reduce_scatter→ y rows
//   backward   dy rows ─all_gather→ dy ─·downᵀ→ dh columns ─·upᵀ→ a part of the sum dx ─reduce_scatter→ dx
//   rows
//              d down = hᵀ·dy     d up = xᵀ·dh, for which x's rows are gathered again
//
// The parts below compute and never communicate. The unit says how ranks hold its values (`held`), and which
// value is made of which (`exchanged`). The builder puts the gathers and sums.
//   tensor_parallel
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "../arguments.h"
#include "tessera/engine.h"
#include "tessera/program.h"

namespace {

using namespace tessera;

constexpr char kUsage[] = "usage: tensor_parallel [--help]\n";
constexpr int kRanks = 2, kRows = 4, kChannels = 5, kHidden = 8;
constexpr int kOwnRows = kRows / kRanks, kOwnHidden = kHidden / kRanks;  // of one rank

constexpr const char* kNames[] = {"x",  "x.whole",  "h",  "y.part",  "y",
                                  "dy", "dy.whole", "dh", "dx.part", "dx"};
enum Value : ValueId { kX, kXWhole, kH, kYPart, kY, kDy, kDyWhole, kDh, kDxPart, kDx };
enum Parameter : ParameterId { kUp, kDown };
enum Part {
  kGive,
  kUpProduct,
  kDownProduct,
  kTake,
  kGiveBack,
  kDownWeight,
  kDownBack,
  kUpWeight,
  kUpBack,
  kTakeBack
};

UnitGraph graph() {
  const auto bytes = [](int rows, int columns) { return std::int64_t{4} * rows * columns; };
  const std::int64_t rows = bytes(kOwnRows, kChannels), whole = bytes(kRows, kChannels),
                     h = bytes(kRows, kOwnHidden);
  using enum Held;
  UnitGraph graph;
  graph.values = {{.name = kNames[kX], .bytes = rows, .keep = Keep::saved, .held = split},
                  {.name = kNames[kXWhole], .bytes = whole, .exchanged = kX},
                  {.name = kNames[kH], .bytes = h, .keep = Keep::saved},
                  {.name = kNames[kYPart], .bytes = whole, .held = partial},
                  {.name = kNames[kY], .bytes = rows, .held = split, .exchanged = kYPart},
                  {.name = kNames[kDy], .bytes = rows, .held = split},
                  {.name = kNames[kDyWhole], .bytes = whole, .exchanged = kDy},
                  {.name = kNames[kDh], .bytes = h},
                  {.name = kNames[kDxPart], .bytes = whole, .held = partial},
                  {.name = kNames[kDx], .bytes = rows, .held = split, .exchanged = kDxPart}};
  const std::vector<int> none, up = {kUp}, down = {kDown};
  const Pass backward = Pass::backward;
  graph.parts = {{.name = "give", .writes = {kX}},
                 {.name = "up", .reads = {kXWhole}, .writes = {kH}},
                 {.name = "down", .reads = {kH}, .writes = {kYPart}},
                 {.name = "take", .reads = {kY}},
                 {.name = "give", .pass = backward, .writes = {kDy}, .gradients = none},
                 {.name = "down weight", .pass = backward, .reads = {kH, kDyWhole}, .gradients = down},
                 {.name = "down", .pass = backward, .reads = {kDyWhole}, .writes = {kDh}, .gradients = none},
                 {.name = "up weight", .pass = backward, .reads = {kXWhole, kDh}, .gradients = up},
                 {.name = "up", .pass = backward, .reads = {kDh}, .writes = {kDxPart}, .gradients = none},
                 {.name = "take", .pass = backward, .reads = {kDx}, .gradients = none}};
  return graph;
}

// Small whole numbers, so that every sum is exact in whatever order.
float number(int which, int index) { return static_cast<float>((index * (2 * which + 3) + which) % 7 - 3); }
enum Which { kOfX, kOfUp, kOfDown, kOfDy };

std::vector<float> numbers(Which which, int first, int count) {
  std::vector<float> all;
  for (int index = first; index < first + count; ++index) all.push_back(number(which, index));
  return all;
}

struct Matrix {
  const float* data;
  int rows, columns;
  bool transposed = false;  // `data` holds the columns one behind the other
  Matrix t() const { return {data, columns, rows, !transposed}; }
  float at(int row, int column) const {
    return data[transposed ? column * rows + row : row * columns + column];
  }
};

void multiply(Matrix a, Matrix b, float* out) {
  for (int row = 0; row < a.rows; ++row)
    for (int column = 0; column < b.columns; ++column) {
      float sum = 0;
      for (int k = 0; k < a.columns; ++k) sum += a.at(row, k) * b.at(k, column);
      out[row * b.columns + column] = sum;
    }
}

// What the layers before and behind would get, and the gradients of both parameters.
struct Results {
  std::vector<float> y = std::vector<float>(kRows * kChannels), dx = y;
  std::array<std::vector<float>, 2> gradients = {std::vector<float>(kChannels * kHidden),
                                                 std::vector<float>(kHidden* kChannels)};
  bool operator==(const Results&) const = default;
};

void run(const UnitLease& lease, int rank, Results& results) {
  const auto at = [&](ValueId value) { return static_cast<float*>(lease.value(value)); };
  const auto weight = [&](ParameterId id) { return static_cast<const float*>(lease.parameter(id).data); };
  const auto gradient = [&](ParameterId id) { return static_cast<float*>(lease.gradient(id).data); };
  const auto matrix = [&](ValueId value, int columns) { return Matrix{at(value), kRows, columns}; };
  const int own = kOwnRows * kChannels, first = rank * own;
  switch (lease.part()) {
    case kGive:
      std::ranges::copy(numbers(kOfX, first, own), at(kX));
      break;
    case kUpProduct:
      multiply(matrix(kXWhole, kChannels), {weight(kUp), kChannels, kOwnHidden}, at(kH));
      break;
    case kDownProduct:
      multiply(matrix(kH, kOwnHidden), {weight(kDown), kOwnHidden, kChannels}, at(kYPart));
      break;
    case kTake:
      std::copy_n(at(kY), own, results.y.begin() + first);
      break;
    case kGiveBack:
      std::ranges::copy(numbers(kOfDy, first, own), at(kDy));
      break;
    case kDownWeight:
      multiply(matrix(kH, kOwnHidden).t(), matrix(kDyWhole, kChannels), gradient(kDown));
      break;
    case kDownBack:
      multiply(matrix(kDyWhole, kChannels), Matrix{weight(kDown), kOwnHidden, kChannels}.t(), at(kDh));
      break;
    case kUpWeight:
      multiply(matrix(kXWhole, kChannels).t(), matrix(kDh, kOwnHidden), gradient(kUp));
      break;
    case kUpBack:
      multiply(matrix(kDh, kOwnHidden), Matrix{weight(kUp), kChannels, kOwnHidden}.t(), at(kDxPart));
      break;
    case kTakeBack:
      std::copy_n(at(kDx), own, results.dx.begin() + first);
  }
}

// The same products with whole matrices.
Results on_one_rank() {
  Results whole;
  const std::vector<float> x = numbers(kOfX, 0, kRows * kChannels),
                           up = numbers(kOfUp, 0, kChannels * kHidden),
                           down = numbers(kOfDown, 0, kHidden * kChannels),
                           dy = numbers(kOfDy, 0, kRows * kChannels);
  std::vector<float> h(kRows * kHidden), dh = h;
  const Matrix x_all{x.data(), kRows, kChannels}, up_all{up.data(), kChannels, kHidden},
      down_all{down.data(), kHidden, kChannels}, dy_all{dy.data(), kRows, kChannels},
      h_all{h.data(), kRows, kHidden}, dh_all{dh.data(), kRows, kHidden};
  multiply(x_all, up_all, h.data());
  multiply(h_all, down_all, whole.y.data());
  multiply(dy_all, down_all.t(), dh.data());
  multiply(dh_all, up_all.t(), whole.dx.data());
  multiply(x_all.t(), dh_all, whole.gradients[kUp].data());
  multiply(h_all.t(), dy_all, whole.gradients[kDown].data());
  return whole;
}

// The exchanges of the program, and what comes to each rank: of a buffer of all ranks' rows, all but its own.
std::int64_t print_exchanges(const Program& program) {
  std::int64_t all = 0;
  for (const Instruction& each : program.instructions) {
    if (each.channel < 0 || program.channels[each.channel].axis != Axis::tensor) continue;
    const bool gather = each.op == Opcode::all_gather;
    const Buffer& whole = program.buffers[each.operand(gather ? Role::to : Role::from).buffer];
    const Buffer& made = program.buffers[each.operand(Role::to).buffer];
    const std::int64_t bytes = whole.bytes * (kRanks - 1) / kRanks;
    std::printf("  %-8s  %-14s  -> %-9s %3lld of %3lld bytes\n", std::string(name_of(each.pass)).c_str(),
                std::string(name_of(each.op)).c_str(), kNames[made.index], static_cast<long long>(bytes),
                static_cast<long long>(whole.bytes));
    all += bytes;
  }
  return all;
}

void train(const Communicator& world, Results& results, std::array<std::int64_t, kRanks>& received) {
  EngineOptions options;
  options.mesh.tensor = kRanks;
  options.programs[0].activations.units = {graph()};
  options.optimizer.options = SgdOptions{};
  options.overwrites_gradients = true;  // as `multiply` does
  Engine engine(world,
                {{"layer",
                  {{.name = "up", .shape = {kChannels, kHidden}, .cut = {.dim = 1}},
                   {.name = "down", .shape = {kHidden, kChannels}, .cut = {.dim = 0}}}}},
                options);
  engine.initialize([](ParameterId id, std::int64_t begin, std::span<float> values) {
    const auto all =
        numbers(id == kUp ? kOfUp : kOfDown, static_cast<int>(begin), static_cast<int>(values.size()));
    std::ranges::copy(all, values.begin());
  });

  engine.begin(StepKind::train);
  for (const PartSpec& part : graph().parts) {
    UnitLease lease = engine.use(0, part.pass);
    run(lease, world.rank(), results);
    lease.end();
  }
  std::array<std::vector<float>, 2> gradients = Results().gradients;
  for (const ParameterId id : {kUp, kDown})
    engine.read_gradient(id, 0, gradients[id]);  // by all ranks, whole
  if (!engine.step({.learning_rate = 0.01}).applied) throw Error("the step was skipped");
  received[world.rank()] = engine.bytes_received(Axis::tensor);
  if (world.rank() > 0) return;
  results.gradients = gradients;
  const Layout& layout = engine.layout();
  for (const ParameterId id : {kUp, kDown})
    std::printf("%-4s %s: each rank has %s\n", layout.parameter(id).name.c_str(),
                to_string(layout.parameter(id).shape).c_str(), to_string(layout.shares(id).shape()).c_str());
  std::printf("what comes to each rank in a step:\n");
  std::printf("  all of it                        %6lld bytes\n",
              static_cast<long long>(print_exchanges(engine.program(0))));
}

}  // namespace

int main(int argc, char** argv) try {
  if (const auto status = examples::shows_usage(argc, argv, 0, 0, kUsage)) return *status;
  Results split;  // each rank writes its own rows
  std::array<std::int64_t, kRanks> received = {};
  run_local(kRanks, {}, [&](const Communicator& world) { train(world, split, received); });
  for (int rank = 0; rank < kRanks; ++rank)
    std::printf("rank %d received %lld bytes along the tensor axis\n", rank,
                static_cast<long long>(received[rank]));
  if (split != on_one_rank()) {
    std::fprintf(stderr, "tensor_parallel: the results differ from one rank's\n");
    return 1;
  }
  std::puts("y, dx and both gradients are those of one rank");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "tensor_parallel: %s\n", error.what());
  return 1;
}
