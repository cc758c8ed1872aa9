// Several ranks, a GPU each, as threads: all stages give the same bits, near those of the CPU. Skips, saying
// why, where there are too few GPUs or no NCCL.
#include <gtest/gtest.h>

#include <cstdlib>
#include <tuple>

#include "src/comm/backend.h"
#include "tessera/device.h"
#include "tests/comm/gpus.h"
#include "tests/engine/matrix.h"
#include "tests/engine/split_mlp.h"
#include "tests/engine/trace.h"

namespace tessera::testing {
namespace {

using Cell = std::tuple<int, DType>;

// What NCCL is compared with: brings what lies on GPUs to the host and has threads exchange it there.
class ThroughHost final : public comm::Backend {
 public:
  ThroughHost(Communicator host, std::shared_ptr<Device> device)
      : host_(std::move(host)), device_(std::move(device)) {}

  int rank() const override { return host_.rank(); }
  int world() const override { return host_.world(); }
  int global_rank() const override { return host_.global_rank(); }
  const std::string& name() const override { return host_.name(); }
  std::shared_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name) override {
    return std::make_shared<ThroughHost>(host_.subgroup(ranks, name), device_);
  }
  bool reaches(DeviceType) const override { return true; }
  void bind(Stream& stream, const MostReduced&) override { stream_ = &stream; }

  void all_gather(const void* shard, void* full, std::int64_t bytes, CallLabel label) override {
    if (stream_ == nullptr) return host_.all_gather(shard, full, bytes, label);
    const auto own = on_host(shard, bytes);
    std::vector<std::byte> all(own.size() * static_cast<std::size_t>(world()));
    host_.all_gather(own.data(), all.data(), bytes, label);
    copy(full, all.data(), static_cast<std::int64_t>(all.size()));
  }
  void reduce_scatter(const ReduceScatter& call, CallLabel label) override {
    const bool contributes = call.full != nullptr;
    const auto full = on_host(call.full, contributes ? world() * call.shard_numel * bytes_of(call.wire) : 0);
    auto shard = on_host(call.shard, call.shard_numel * 4);
    ReduceScatter here = call;
    if (contributes) here.full = full.data();
    here.shard = reinterpret_cast<float*>(shard.data());
    SquareSum squares;
    if (call.squares.sum != nullptr) {
      copy(&squares, call.squares.sum, sizeof(squares));
      here.squares.sum = &squares;
    }
    host_.reduce_scatter(here, label);
    copy(call.shard, shard.data(), call.shard_numel * 4);
    if (call.squares.sum != nullptr) copy(call.squares.sum, &squares, sizeof(squares));
  }
  void broadcast(void* data, std::int64_t bytes, int root, CallLabel label) override {
    host_.broadcast(data, bytes, root, label);
  }
  void barrier(CallLabel label) override { host_.barrier(label); }
  void attach(FailureFlag flag) override { host_.attach(std::move(flag)); }
  void set_deadline(std::chrono::milliseconds deadline) override { host_.set_deadline(deadline); }
  std::chrono::milliseconds deadline() const override { return host_.deadline(); }
  void set_delay(std::chrono::microseconds delay) override { host_.set_delay(delay); }
  void fail(int, const std::string& message) override { host_.fail(message); }
  bool wants_shared_arena() const override { return false; }
  ArenaRegistration register_arena(Arena&) override { return {}; }
  std::int64_t bytes_received() const override { return host_.bytes_received(); }

  // No engine calls these.
  void all_reduce(float*, std::int64_t, CallLabel) override { unused(); }
  void all_reduce(double*, std::int64_t, CallLabel) override { unused(); }
  void all_to_all(const void*, void*, std::int64_t, CallLabel) override { unused(); }
  void send(const void*, std::int64_t, int, CallLabel) override { unused(); }
  void recv(void*, std::int64_t, int, CallLabel) override { unused(); }
  void meet(const comm::Call&) override { unused(); }
  void rethrow_failure(const std::string&) override { unused(); }
  std::optional<comm::Failure> failure() const override { unused(); }
  std::vector<int> ended() const override { unused(); }

 private:
  [[noreturn]] static void unused() { throw Error("a call that this test does not know"); }
  void copy(void* to, const void* from, std::int64_t bytes) {
    stream_->synchronize();  // to memory that is not pinned the driver would wait, without a deadline
    device_->copy(*stream_, to, from, bytes);
    stream_->synchronize();
  }
  std::vector<std::byte> on_host(const void* data, std::int64_t bytes) {
    std::vector<std::byte> here(static_cast<std::size_t>(bytes));
    copy(here.data(), data, bytes);
    return here;
  }

  Communicator host_;
  const std::shared_ptr<Device> device_;
  Stream* stream_ = nullptr;
};

Communicator through_host(const Communicator& host, TrainerOptions& options) {
  options.engine.device_ordinal = host.rank();
  return Communicator(
      std::make_shared<ThroughHost>(host, make_cuda_device({.rank = host.rank(), .ordinal = host.rank()})));
}

class NcclMatrix : public ::testing::TestWithParam<Cell> {
 protected:
  void SetUp() override {
    if (const std::string why = contract::missing_gpus(std::get<int>(GetParam())); !why.empty())
      GTEST_SKIP() << why;
  }
  static RunConfig base() {
    const auto [world, dtype] = GetParam();
    return {.world = world,
            .stage = 0,
            .dtype = dtype,
            .prefetch = 0,
            .strict_order = true,
            .microbatches = 2,
            .steps = steps(),
            .device = DeviceType::cuda};
  }
  // With 4, which TESSERA_STEPS asks for, the last two are replayed as one graph where nothing forbids that.
  static int steps() {
    const char* set = std::getenv("TESSERA_STEPS");
    return set == nullptr ? 2 : std::atoi(set);
  }
  static void expect_near(const RunResult& found, const RunResult& expected) {
    ASSERT_EQ(found.losses.size(), expected.losses.size());
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], tolerance() * expected.losses[step]) << step;
      EXPECT_NEAR(found.norms[step], expected.norms[step], 10 * tolerance() * expected.norms[step]) << step;
    }
  }
  static double tolerance() { return std::get<DType>(GetParam()) == DType::fp32 ? 1e-4 : 2e-2; }
};

TEST_P(NcclMatrix, EveryStageHasTheBitsOfAnExchangeByTheHost) {
  const RunResult expected = run_training(base(), through_host);
  EXPECT_LT(expected.losses.back(), expected.losses.front()) << "the reference run does not learn";
  for (int stage = 0; stage <= 3; ++stage) {
    RunConfig run = base();
    run.stage = stage;
    run.strict_order = stage == 2;
    run.prefetch = 1;
    run.poison = run.guards = stage == 3;
    EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
  }
}

// Another order of sums within a step: ranks after microbatches.
TEST_P(NcclMatrix, SoItIsWhereTheLastMicrobatchReduces) {
  RunConfig run = base();
  run.reduce = ReduceWhen::last;
  const RunResult expected = run_training(run, through_host);
  for (const int stage : {1, 3}) {
    run.stage = stage;
    EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
  }
}

// The first rank alone has a microbatch in the last round.
TEST_P(NcclMatrix, SoItIsWhereRanksRest) {
  RunConfig run = base();
  run.last_round_ranks = 1;
  const RunResult expected = run_training(run, through_host);
  for (const int stage : {1, 3}) {
    run.stage = stage;
    run.strict_order = false;
    run.prefetch = 1;
    EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
  }
}

// All of them are tensor ranks, which exchange values.
TEST_P(NcclMatrix, SoItIsWhereLayersAreSplit) {
  RunConfig split = base();
  split.tensor = split.world;
  split.world = 1;
  split.heads = 4;
  RunConfig shared_heads = split, mlp = split;
  shared_heads.family = Family::llama;
  shared_heads.kv_heads = 1;
  mlp.family = Family::mlp;
  mlp.layers = 3;
  std::vector<RunConfig> runs = {split, shared_heads, mlp};
  if (split.tensor == 2) {  // each with 64 tokens of a chunk, or more
    RunConfig chunks = split;
    chunks.heads = 0;
    chunks.exchange_chunks = 2;
    chunks.sequences = 16;
    chunks.microbatches = 1;
    runs.push_back(chunks);
  }
  for (RunConfig run : runs) {
    const RunResult expected = run_training(run, through_host);
    for (const int stage : {1, 3}) {
      run.stage = stage;
      run.strict_order = false;
      run.prefetch = 1;
      run.poison = run.guards = stage == 3;
      run.recompute = stage == 3 ? Recompute::selective : Recompute::none;
      EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
    }
    RunConfig on_cpu = run;
    on_cpu.device = DeviceType::cpu;
    expect_near(expected, run_training(on_cpu));
  }
}

TEST_P(NcclMatrix, LossesAndNormsAreNearThoseOfTheCpu) {
  RunConfig on_cpu = base();
  on_cpu.device = DeviceType::cpu;
  expect_near(run_training(base()), run_training(on_cpu));
}

// All ranks have the same bits then, too, as run_training() demands.
TEST_P(NcclMatrix, NativeSumsAreNearExactOnes) {
  const RunResult expected = run_training(base());
  for (const int stage : {0, 2, 3}) {
    for (const ReduceWhen reduce : {ReduceWhen::each, ReduceWhen::last}) {
      RunConfig run = base();
      run.reduction = Reduction::native;
      run.stage = stage;
      run.reduce = reduce;
      run.strict_order = false;
      run.prefetch = 1;
      run.poison = run.guards = stage == 3;
      SCOPED_TRACE(to_string(run));
      expect_near(run_training(run), expected);
    }
  }
}

TEST_P(NcclMatrix, SoTheyAreOverReplicas) {
  RunConfig run = base();
  run.world /= 2;
  run.replicate = 2;
  run.stage = 2;
  run.state_over_replicas = true;
  const RunResult expected = run_training(run);
  run.reduction = Reduction::native;
  expect_near(run_training(run), expected);
}

// Outputs and their gradients go from GPU to GPU.
TEST_P(NcclMatrix, APipelineHasTheBitsOfARunWithout) {
  RunConfig run = base();
  run.family = Family::llama;  // no tied parameters
  run.reduce = ReduceWhen::last;
  run.strict_order = false;
  run.world /= 2;
  run.prefetch = 1;
  run.stage = 3;
  run.microbatches = 4;  // of these `looped` has several under way between chunks
  const RunResult expected = run_training(run);
  run.pipeline = 2;
  for (const PipelineSchedule schedule : {PipelineSchedule::one_forward_one_backward,
                                          PipelineSchedule::interleaved, PipelineSchedule::looped}) {
    const bool chunks = schedule != PipelineSchedule::one_forward_one_backward;
    run.schedule = {.schedule = schedule, .chunks = chunks ? 2 : 1, .cuts = {}};
    EXPECT_TRUE(same_bits(run_training(run), expected)) << to_string(run);
  }
}

std::string cell_name(const ::testing::TestParamInfo<Cell>& info) {
  const auto& [world, dtype] = info.param;
  return std::to_string(world) + "_" + std::string(name_of(dtype));
}

INSTANTIATE_TEST_SUITE_P(Worlds, NcclMatrix,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values(DType::fp32, DType::bf16)),
                         cell_name);

// A trainer that splits its own layers, whose sums are made on the GPUs, has the bits of the CPU.
TEST(NcclEngine, ALeaseExchangesAlongTheTensorAxis) {
  for (MlpRun run :
       {MlpRun{.mesh = {.tensor = 2}, .stage = 1}, MlpRun{.mesh = {.shard = 2, .tensor = 2}, .stage = 3}}) {
    if (const std::string why = contract::missing_gpus(run.mesh.world()); !why.empty()) GTEST_SKIP() << why;
    SCOPED_TRACE(to_string(run));
    run.steps = 2;
    const auto trained = [&](DeviceType device) {
      run.device = device;
      MlpResult result;
      run_local(run.mesh.world(), {}, [&](Communicator host) {
        MlpResult own = train_mlp(device == DeviceType::cuda ? make_nccl_world(host) : host, run);
        if (host.rank() == 0) result = std::move(own);
      });
      return result;
    };
    const MlpResult on_cpu = trained(DeviceType::cpu);
    expect_same_bits(trained(DeviceType::cuda), on_cpu);
  }
}

// Collectives are timed on the GPU's streams, and what of them the compute stream waited for.
TEST(NcclEngine, TracesSayWhatTheLanesOfEachRankDid) {
  if (const std::string why = contract::missing_gpus(2); !why.empty()) GTEST_SKIP() << why;
  const RunConfig run{.world = 2, .stage = 3, .device = DeviceType::cuda};
  const auto model = std::make_shared<const Model>(small_model(run));
  run_local(2, {}, [&](Communicator host) {
    TrainerOptions options = trainer_options(run);
    Trainer trainer(placed(host, options), model, options);
    Engine& engine = trainer.engine();
    for (int step = 0; step < 3; ++step) {
      engine.set_tracing(step > 0);
      const auto fetch =
          fetch_samples(host.rank(), 2, run.microbatches, step, model->vocabulary, options.batch);
      EXPECT_TRUE(trainer.train_step(1e-3, fetch).applied);
      if (step == 0) continue;
      expect_in_order(engine, engine.program(0));
      EXPECT_GT(engine.timing().communication_us, 0);
    }
  });
}

TEST(NcclEngine, ARankThatThrowsInAStepEndsTheOthersAndIsNamed) {
  if (const std::string why = contract::missing_gpus(3); !why.empty()) GTEST_SKIP() << why;
  const RunConfig run{.world = 3, .stage = 3, .device = DeviceType::cuda};
  const auto model = std::make_shared<const Model>(small_model(run));
  const auto start = std::chrono::steady_clock::now();
  IdVector<std::string> messages;
  const auto rank_main = [&](Communicator host) {
    TrainerOptions options = trainer_options(run);
    Trainer trainer(placed(host, options), model, options);
    for (int step = 0;; ++step) {
      const Trainer::Fetch fetch = fetch_samples(host.rank(), 3, 2, step, model->vocabulary, options.batch);
      trainer.train_step(3e-3, [&](int microbatch, void* batch) {
        if (step == 2 && microbatch == 1 && host.rank() == 1) throw std::out_of_range("the disk is on fire");
        fetch(microbatch, batch);
      });
    }
  };
  EXPECT_THROW(run_local(3, {}, rank_main, &messages), std::out_of_range);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30)) << "half of the deadline";
  for (const int rank : {0, 2}) {
    const std::string& text = messages[rank];
    for (const char* word : {"rank 1 failed: ", " #", " of unit '", " on '"})
      EXPECT_NE(text.find(word), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tessera::testing
