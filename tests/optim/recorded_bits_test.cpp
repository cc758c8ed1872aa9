// The bits of updates, recorded: masters, moments and parameters after three steps, for every optimizer and
// type, with tails, groups, gates and elements that are not finite. A change of an optimizer's arithmetic
// fails here; so does one of the order in which an update is cut. Inputs are made of integers, without a
// mathematical function, so that the hashes are the same on every machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/casts.h"
#include "kernels/gate_math.h"
#include "optim/update.h"
#include "tessera/optimizer.h"
#include "tessera/philox.h"

namespace tessera {
namespace {

// FNV-1a. Of a NaN it takes that it is one: which one it is differs between instruction sets.
class Hash {
 public:
  void add(DType type, const void* data, std::int64_t numel) {
    std::vector<float> values(static_cast<std::size_t>(numel));
    kernels::cast({}, numel, type, data, DType::fp32, values.data());
    for (const float value : values)
      add(std::isnan(value) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(value));
  }
  std::uint64_t value() const { return value_; }

 private:
  void add(std::uint32_t word) {
    for (int byte = 0; byte < 4; ++byte) value_ = (value_ ^ (word >> (8 * byte) & 0xffu)) * 0x100000001b3ull;
  }
  std::uint64_t value_ = 0xcbf29ce484222325ull;
};

// Values with 20 bits behind the point, from -1 to 1, times `scale`.
std::vector<float> draw(std::uint64_t stream, std::int64_t numel, float scale) {
  std::vector<float> values(static_cast<std::size_t>(numel));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = (static_cast<float>(random_key(11, stream, i) >> 43) - 0x1p20F) * 0x1p-20F * scale;
  return values;
}

// A tensor of any type, filled with what is no value at first.
struct Buffer {
  Buffer(DType of, std::int64_t numel)
      : type(of), bytes(static_cast<std::size_t>(numel * bytes_of(of)), std::byte{0xff}) {}
  Buffer(DType of, const std::vector<float>& values) : Buffer(of, static_cast<std::int64_t>(values.size())) {
    kernels::cast({}, numel(), DType::fp32, values.data(), type, bytes.data());
  }
  std::int64_t numel() const { return static_cast<std::int64_t>(bytes.size()) / bytes_of(type); }

  DType type;
  std::vector<std::byte> bytes;
};

struct Types {
  DType gradient, moments, parameter;
  bool own_master = false;
};

constexpr int kNoGate = -1;

// Three steps of one shard; groups change from element to element where there are runs.
void add_steps(Hash& hash, const Optimizer& optimizer, const Types& types, std::int64_t numel, int gate,
               bool in_runs) {
  std::vector<float> master = draw(1, numel, 2.0F);
  std::array<Buffer, 2> moments = {Buffer(types.moments, std::vector<float>(master.size())),
                                   Buffer(types.moments, std::vector<float>(master.size()))};
  const auto kept = [&](int i) {
    return i < optimizer.moments() ? moments[static_cast<std::size_t>(i)].bytes.data() : nullptr;
  };
  Buffer parameter(types.parameter, numel);
  std::vector<UpdateRun> runs;
  for (std::int64_t left = numel, r = 0; in_runs && left > 0; ++r) {
    runs.push_back(
        {.numel = std::min(left, r % 2 == 0 ? 8 * (r % 5 + 1) : 5 + r), .group = static_cast<int>(r % 3)});
    left -= runs.back().numel;
  }
  for (int step = 1; step <= 3; ++step) {
    std::vector<float> values = draw(static_cast<std::uint64_t>(step) + 1, numel, 0x1p-3F);
    if (step == 2 && numel > 60) {
      const float infinity = std::numeric_limits<float>::infinity();
      const float hard[] = {0.0F, -0.0F, infinity, -infinity, std::nanf(""), 1e-41F, 65504.0F};
      for (std::size_t i = 0; i < std::size(hard); ++i) values[7 * i + 3] = hard[i];
    }
    const Buffer gradient(types.gradient, values);
    const kernels::UpdateGate decision = {.gradient_scale = 0.375 / step, .apply = gate};
    update(optimizer, {.numel = numel,
                       .gradient_type = types.gradient,
                       .gradient = gradient.bytes.data(),
                       .master = master.data(),
                       .moments = {kept(0), kept(1)},
                       .parameter_type = types.parameter,
                       .parameter = types.own_master ? nullptr : parameter.bytes.data(),
                       .runs = runs,
                       .learning_rate = 0.01 * step,
                       .step = step,
                       .gradient_scale = 0.3,
                       .rounding_key = 77,
                       .first = (std::int64_t{1} << 32) - 40,
                       .gate = gate == kNoGate ? nullptr : &decision,
                       .threads = 1 + step % 2});
  }
  hash.add(DType::fp32, master.data(), numel);
  for (int i = 0; i < optimizer.moments(); ++i)
    hash.add(types.moments, moments[static_cast<std::size_t>(i)].bytes.data(), numel);
  if (!types.own_master) hash.add(types.parameter, parameter.bytes.data(), numel);
}

std::uint64_t hash_of(const OptimizerOptions& options, DType gradient, DType moments) {
  const Optimizer optimizer{.options = options,
                            .groups = {{},
                                       {.name = "no decay", .weight_decay = 0.0},
                                       {.name = "slow", .learning_rate_factor = 0.5}},
                            .moment_type = moments};
  optimizer.check();
  Hash hash;
  for (const Types& types :
       {Types{gradient, moments, DType::fp32, true}, Types{gradient, moments, DType::fp32},
        Types{gradient, moments, DType::bf16}, Types{gradient, moments, DType::fp16}}) {
    for (const std::int64_t numel : {1, 15, 16, 17, 63, 64, 65, 200, 1003})
      for (const int gate : {kNoGate, 0, 1})
        for (const bool in_runs : {false, true}) add_steps(hash, optimizer, types, numel, gate, in_runs);
    if (types.own_master)  // as many as are fetched ahead
      add_steps(hash, optimizer, types, (1 << 19) + 37, kNoGate, false);
  }
  return hash.value();
}

struct Recorded {
  const char* name;
  OptimizerOptions options;
  // By gradients in fp32, bf16 and fp16; moments in fp32, then in bf16.
  std::array<std::uint64_t, 6> hashes;
};

const std::vector<Recorded>& recorded() {
  static const std::vector<Recorded> rows = {
      {"adamw",
       AdamWOptions{.beta2 = 0.95, .weight_decay = 0.1},
       {0x7767df32a7c9f168, 0x5ec7342178b7bea6, 0xd1d38df348921edf, 0xf7e4dfa824324795, 0x99bc55cc56d79c65,
        0xea6f27ed154e5290}},
      {"adamw without decay",
       AdamWOptions{.beta1 = 0.8, .weight_decay = 0.0},
       {0xe016935079665ba6, 0xe945519653ca410f, 0x6694f6cc2abb581f, 0xdcb262266aaacc47, 0x5f8e66ed89d1cb66,
        0x6a22b68c20c09c47}},
      {"adam",
       AdamOptions{.beta2 = 0.99, .weight_decay = 0.05},
       {0x3246c9cb059ee589, 0x8e47b9d6b9c330bd, 0x4290efef3706fea3, 0x0de9c0cfb766f2a6, 0x052a94f92a7b8ffe,
        0x7c719de3032688c5}},
      {"sgd",
       SgdOptions{},
       {0xfccb5f45fbdc5520, 0xa9e447d0adf3a45e, 0x20cb064a3e718409, 0xfccb5f45fbdc5520, 0xa9e447d0adf3a45e,
        0x20cb064a3e718409}},
      {"sgd with decay",
       SgdOptions{.weight_decay = 0.1},
       {0xb1a0587235d894b5, 0xfd33f64ee0f190e5, 0xcc49cfa4fecd4bf3, 0xb1a0587235d894b5, 0xfd33f64ee0f190e5,
        0xcc49cfa4fecd4bf3}},
      {"sgd with momentum",
       SgdOptions{.momentum = 0.9, .weight_decay = 0.01},
       {0xf7e3e81625933f96, 0x12fb9001ed514cbb, 0x093581efe0ac39ff, 0x205dba73de545ca6, 0x04e14f6beb3695aa,
        0x3e0c678d26d33d96}},
      {"sgd with nesterov",
       SgdOptions{.momentum = 0.75, .nesterov = true, .weight_decay = 0.1},
       {0xc2fc81a867747958, 0x6e80edbe44819dad, 0x48fa0d7eb9e5d8b1, 0xfa35cfdc9de71885, 0x2a4abb2cdd203939,
        0xfafd5862c62c9826}},
      {"lion",
       LionOptions{.weight_decay = 0.2},
       {0x1c61f4d9f31333b2, 0xc2c9253b6c13b972, 0x441cb89e7081ce16, 0x68ac02b04e0ba6e7, 0x48ca72b521cc07ee,
        0x9ea1bc8b82dc063a}},
  };
  return rows;
}

TEST(RecordedBits, OfEveryOptimizerAndType) {
  for (const Recorded& row : recorded()) {
    std::size_t place = 0;
    for (const DType moments : {DType::fp32, DType::bf16})
      for (const DType gradient : {DType::fp32, DType::bf16, DType::fp16}) {
        const std::uint64_t hash = hash_of(row.options, gradient, moments);
        EXPECT_EQ(hash, row.hashes[place])
            << std::hex << "0x" << hash << " is " << row.name << " of gradients in " << name_of(gradient)
            << ", moments in " << name_of(moments);
        ++place;
      }
  }
}

}  // namespace
}  // namespace tessera
