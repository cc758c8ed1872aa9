// The contract, for what lies on GPUs: ranks are threads, each with a GPU. Skips, saying why, where there are
// too few of them or no NCCL.
#include <cstring>

#include "src/comm/backend.h"
#include "tessera/device.h"
#include "tessera/machine.h"
#include "tests/comm/contract.h"
#include "tests/comm/gpus.h"
#include "tests/comm/processes.h"

namespace tessera::contract {
namespace {

// A communicator whose buffers lie in memory of the host, for the tests: each call brings them to the GPU,
// has them exchanged there, waits, and brings them back.
class ThroughGpu final : public comm::Backend {
 public:
  ThroughGpu(std::shared_ptr<Device> device, const Communicator& world, const MostReduced& most)
      : device_(std::move(device)),
        most_(most),
        host_(world.duplicate("host")),
        bound_(world),
        stream_(device_->make_stream({.name = world.name(), .on_caller = true, .cpus = {}})),
        arena_(device_->make_arena(kArenaBytes)) {
    bound_.bind(*stream_, most);
  }

  int rank() const override { return bound_.rank(); }
  int world() const override { return bound_.world(); }
  int global_rank() const override { return bound_.global_rank(); }
  const std::string& name() const override { return bound_.name(); }
  std::shared_ptr<Backend> subgroup(const std::vector<int>& ranks, const std::string& name) override {
    return std::make_shared<ThroughGpu>(device_, host_.subgroup(ranks, name), most_);
  }

  void all_gather(const void* shard, void* full, std::int64_t bytes, CallLabel label) override {
    OnGpu all(*this, full, world() * bytes);
    if (shard == static_cast<std::byte*>(full) + rank() * bytes)
      return all.run([&] { bound_.all_gather(all.at(rank() * bytes), all.at(0), bytes, label); });
    const OnGpu own(*this, const_cast<void*>(shard), bytes);
    all.run([&] { bound_.all_gather(own.at(0), all.at(0), bytes, label); });
  }
  void reduce_scatter(const ReduceScatter& call, CallLabel label) override {
    const std::int64_t numel = call.shard_numel;
    const bool contributes = call.full != nullptr;
    OnGpu full(*this, const_cast<void*>(call.full),
               contributes ? world() * numel * tessera::bytes_of(call.wire) : 0);
    const bool in_place = contributes && call.shard == static_cast<const float*>(call.full) + rank() * numel;
    OnGpu shard(*this, call.shard, in_place ? 0 : numel * 4);
    OnGpu squares(*this, call.squares.sum, call.squares.sum != nullptr ? std::int64_t{sizeof(SquareSum)} : 0);
    ReduceScatter there = call;
    if (call.squares.sum != nullptr) there.squares.sum = static_cast<SquareSum*>(squares.at(0));
    if (contributes) there.full = full.at(0);
    there.shard = static_cast<float*>(in_place ? full.at(rank() * numel * 4) : shard.at(0));
    full.run([&] { bound_.reduce_scatter(there, label); });
    shard.bring_back();
    squares.bring_back();
  }
  void all_reduce(float* data, std::int64_t numel, CallLabel label) override {
    OnGpu there(*this, data, numel * 4);
    there.run([&] { bound_.all_reduce(static_cast<float*>(there.at(0)), numel, label); });
  }
  // Not done on a GPU.
  void all_reduce(double* data, std::int64_t numel, CallLabel label) override {
    host_.all_reduce(data, numel, label);
  }
  void broadcast(void* data, std::int64_t bytes, int root, CallLabel label) override {
    OnGpu there(*this, data, bytes);
    there.run([&] { bound_.broadcast(there.at(0), bytes, root, label); });
  }
  void all_to_all(const void* input, void* output, std::int64_t block_bytes, CallLabel label) override {
    const OnGpu from(*this, const_cast<void*>(input), world() * block_bytes);
    OnGpu to(*this, output, world() * block_bytes);
    to.run([&] { bound_.all_to_all(from.at(0), to.at(0), block_bytes, label); });
  }
  void barrier(CallLabel label) override {
    bound_.barrier(label);
    stream_->synchronize();
  }
  void send(const void* data, std::int64_t bytes, int to, CallLabel label) override {
    OnGpu there(*this, const_cast<void*>(data), bytes);
    there.run([&] { bound_.send(there.at(0), bytes, to, label); });
  }
  void recv(void* data, std::int64_t bytes, int from, CallLabel label) override {
    OnGpu there(*this, data, bytes);
    there.run([&] { bound_.recv(there.at(0), bytes, from, label); });
  }

  void meet(const comm::Call&) override { throw Error("nothing is made over this backend"); }
  void rethrow_failure(const std::string& call) override { bound_.backend()->rethrow_failure(call); }
  std::optional<comm::Failure> failure() const override { return bound_.backend()->failure(); }
  std::vector<int> ended() const override { return bound_.backend()->ended(); }
  bool reduces_natively() const override { return bound_.reduces_natively(); }
  bool wants_shared_arena() const override { return bound_.wants_shared_arena(); }
  ArenaRegistration register_arena(Arena& arena) override { return bound_.register_arena(arena); }
  void fail(int culprit, const std::string& message) override { bound_.backend()->fail(culprit, message); }
  void attach(FailureFlag flag) override { bound_.attach(flag); }
  void set_deadline(std::chrono::milliseconds deadline) override { bound_.set_deadline(deadline); }
  std::chrono::milliseconds deadline() const override { return bound_.deadline(); }
  void set_delay(std::chrono::microseconds delay) override { bound_.set_delay(delay); }
  std::int64_t bytes_received() const override { return bound_.bytes_received(); }

 private:
  static constexpr std::int64_t kArenaBytes = 640 << 10;

  // A part of the arena, taken and given back like a stack: taking memory of a GPU anew would wait for what
  // other lanes have in flight there.
  class OnGpu {
   public:
    OnGpu(ThroughGpu& owner, void* data, std::int64_t bytes)
        : owner_(owner), data_(data), bytes_(bytes), offset_(owner.used_) {
      owner_.used_ += (bytes + 256) / 256 * 256;
      if (owner_.used_ > kArenaBytes) throw std::length_error("the test's arena is too small");
      owner_.device_->copy(*owner_.stream_, at(0), data_, bytes_);
    }
    ~OnGpu() { owner_.used_ = offset_; }
    OnGpu(const OnGpu&) = delete;
    OnGpu& operator=(const OnGpu&) = delete;
    void* at(std::int64_t offset) const { return owner_.arena_.base() + offset_ + offset; }
    template <class Call>
    void run(const Call& call) {
      call();
      bring_back();
    }
    // Waited for before the copy: to memory that is not pinned the driver would wait for it, without a
    // deadline.
    void bring_back() {
      owner_.stream_->synchronize();
      owner_.device_->copy(*owner_.stream_, data_, at(0), bytes_);
      owner_.stream_->synchronize();
    }

   private:
    ThroughGpu& owner_;
    void* data_;
    std::int64_t bytes_;
    std::int64_t offset_;
  };

  const std::shared_ptr<Device> device_;
  const MostReduced most_;
  Communicator host_, bound_;
  const std::unique_ptr<Stream> stream_;
  Arena arena_;
  std::int64_t used_ = 0;
};

// Why a world of so many ranks cannot be made. Processes can share GPUs (see launch.sh).
std::string missing_world(int world) { return missing_gpus(launched_by_variables() ? 1 : world); }

// `most.numel` decides in how many parts an exact reduction goes.
BackendUnderTest nccl(const std::string& name, int world, const MostReduced& most) {
  return {.name = name,
          .world = world,
          .run =
              [most](int ranks, const RunOptions& options, const std::function<void(Communicator)>& rank_main,
                     std::vector<std::string>* messages) {
                const auto on_gpu = [&](Communicator host) {
                  const int gpus = static_cast<int>(read_cuda_machine().gpus.size());
                  const std::shared_ptr<Device> device =
                      make_cuda_device({.rank = host.rank(), .ordinal = host.rank() % gpus});
                  Communicator world_of_gpus = make_nccl_world(host, {.deadline = options.deadline});
                  world_of_gpus.attach(device->failure());
                  rank_main(Communicator(std::make_shared<ThroughGpu>(device, world_of_gpus, most)));
                  // Giving NCCL back ends what it may still be sending to a peer.
                  if (launched_by_variables()) host.barrier();
                };
                if (launched_by_variables())
                  run_processes(ranks, options, on_gpu, messages);
                else
                  run_local(ranks, {.deadline = options.deadline}, on_gpu, messages);
              },
          .missing = [world] { return missing_world(world); },
          .checks_messages = false,
          .has_meetings = false,
          .lanes_have_threads = false};
}

// As threads, unless processes were started: then as these.
std::vector<BackendUnderTest> worlds(const std::vector<BackendUnderTest>& of_threads) {
  if (!launched_by_variables()) return of_threads;
  const int world = control_options_from_environment().world;
  return {nccl("processes", world, {.numel = 5000}), nccl("parts", world, {})};
}

std::string name_of_test(const testing::TestParamInfo<BackendUnderTest>& test) {
  return test.param.name + std::to_string(test.param.world);
}

INSTANTIATE_TEST_SUITE_P(
    Nccl, CommunicatorContract,
    testing::ValuesIn(worlds({nccl("nccl", 1, {.numel = 5000}), nccl("nccl", 2, {.numel = 5000}),
                              nccl("nccl", 3, {.numel = 5000}), nccl("parts", 2, {}), nccl("parts", 4, {})})),
    name_of_test);
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorErrors,
                         testing::ValuesIn(worlds({nccl("nccl", 2, {}), nccl("nccl", 3, {})})), name_of_test);

class NcclWorld : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = missing_world(2); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(NcclWorld, ExchangesMemoryOfTheHostUntilItIsBound) {
  run_local(2, {}, [](Communicator host) {
    Communicator world = make_nccl_world(host);
    EXPECT_TRUE(world.reaches(DeviceType::cuda) && world.reaches(DeviceType::cpu));
    EXPECT_FALSE(host.reaches(DeviceType::cuda));
    std::int32_t own = 10 + world.rank();
    std::vector<std::int32_t> all(2);
    world.all_gather(&own, all.data(), sizeof own);
    EXPECT_EQ(all, (std::vector<std::int32_t>{10, 11}));
    EXPECT_EQ(world.bytes_received(), 4);
    const std::unique_ptr<Device> cpu = make_cpu_device({.rank = world.rank()});
    const auto lane = cpu->make_stream({.name = "lane", .on_caller = true, .cpus = {}});
    world.bind(*lane);  // of the CPU: changes nothing
    world.broadcast(&own, sizeof own, 1);
    EXPECT_EQ(own, 11);
  });
}

// NCCL ends a process whose threads race to start kernels on one GPU.
TEST_F(NcclWorld, RefusesTwoThreadsAtATime) {
  nccl("nccl", 2, {})
      .run(
          2, {},
          [](Communicator ranks) {
            Communicator gather = ranks.duplicate("gather"), reduce = ranks.duplicate("reduce");
            std::int32_t own = ranks.rank(), all[2] = {};
            const auto gather_once = [&] { gather.all_gather(&own, all, sizeof own); };
            if (ranks.rank() == 1) {
              std::this_thread::sleep_for(std::chrono::milliseconds(400));
              return gather_once();
            }
            std::thread lane(gather_once);  // waits for the other rank
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            float sum = 1;
            std::string message;
            try {
              reduce.all_reduce(&sum, 1);
            } catch (const UsageError& error) {
              message = error.what();
            }
            lane.join();
            EXPECT_TRUE(contains(message, "another thread is in a call of rank 0")) << message;
            EXPECT_EQ(all[1], 1);
          },
          nullptr);
}

TEST_F(NcclWorld, IsBoundOnceAndSumsNoDoublesThere) {
  run_local(2, {}, [](Communicator host) {
    const std::unique_ptr<Device> device = make_cuda_device({.rank = host.rank(), .ordinal = host.rank()});
    const auto stream = device->make_stream({.name = "lane", .on_caller = true, .cpus = {}});
    Communicator lane = make_nccl_world(host).duplicate("reduce");
    EXPECT_THROW(lane.bind(*stream, {.numel = -1}), UsageError);
    EXPECT_THROW(lane.bind(*stream, {.native_bytes = -1}), UsageError);
    lane.bind(*stream);
    EXPECT_THROW(lane.bind(*stream), UsageError);
    Arena arena = device->make_arena(64);
    EXPECT_THROW(lane.all_reduce(reinterpret_cast<double*>(arena.base()), 2), UnsupportedError);
    EXPECT_EQ(lane.bytes_received(), 0);
  });
}

// Else a reduction would go in other parts than the peers', and NCCL wait for what nobody sends.
TEST_F(NcclWorld, BindsWhereAllAskForTheSame) {
  for (const bool by_options : {false, true}) {
    std::vector<std::string> messages;
    const auto rank_main = [&](Communicator host) {
      const std::unique_ptr<Device> device = make_cuda_device({.rank = host.rank(), .ordinal = host.rank()});
      const auto stream = device->make_stream({.name = "lane", .on_caller = true, .cpus = {}});
      NcclOptions options;
      if (by_options && host.rank() == 1) options.staging_bytes = 12'345;
      Communicator lane = make_nccl_world(host, options).duplicate("reduce");
      lane.bind(*stream, {.numel = by_options ? 7 : 1000 + host.rank()});
    };
    EXPECT_THROW(run_local(2, {}, rank_main, &messages), UsageError);
    for (const std::string& message : messages)
      EXPECT_TRUE(contains(
          message, by_options ? "12345 bytes of staging memory" : "exact reductions of 1001 elements"))
          << message;
  }
}

// The ninth rank's own part must be read before it is written, though the kernel comes to it in a second
// sweep.
TEST_F(NcclWorld, SumsInPlaceOnRanksBehindTheFirstSweep) {
  constexpr int kWorld = 9;
  constexpr std::int64_t kNumel = 1500;  // in two parts
  if (const std::string why = missing_world(kWorld); !why.empty()) GTEST_SKIP() << why;
  const auto rank_main = [](Communicator ranks) {
    const int me = ranks.rank();
    std::vector<float> full;
    for (std::int64_t i = 0; i < kWorld * kNumel; ++i) full.push_back(value_of(me, 0, i));
    std::vector<float> expected = full;
    for (std::int64_t i = me * kNumel; i < (me + 1) * kNumel; ++i) {
      float& sum = expected[static_cast<std::size_t>(i)];
      sum = value_of(0, 0, i);
      for (int peer = 1; peer < kWorld; ++peer) sum += value_of(peer, 0, i);
    }
    ranks.reduce_scatter({.full = full.data(), .shard = full.data() + me * kNumel, .shard_numel = kNumel});
    EXPECT_TRUE(raw(full) == raw(expected)) << "rank " << me;
  };
  nccl("nccl", kWorld, {}).run(kWorld, {}, rank_main, nullptr);
}

TEST_F(NcclWorld, RefusesANativeSumOfSomeRanks) {
  nccl("nccl", 2, {})
      .run(
          2, {},
          [](Communicator ranks) {
            float data[4] = {};
            std::string message;
            try {
              ranks.reduce_scatter({.full = ranks.rank() == 0 ? data : nullptr,
                                    .shard = data + 2,
                                    .shard_numel = 1,
                                    .contributors = {.count = 1},
                                    .reduction = Reduction::native});
            } catch (const UnsupportedError& error) {
              message = error.what();
            }
            EXPECT_TRUE(contains(message, "strategy.reduction is native, and 1 of 2 ranks contribute"))
                << message;
          },
          nullptr);
}

constexpr MostReduced kNative{.native_bytes = 20'000};

class NativeReduction : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (const std::string why = GetParam().missing(); !why.empty()) GTEST_SKIP() << why;
  }
  void run(const std::function<void(Communicator)>& rank_main) {
    GetParam().run(GetParam().world, {}, rank_main, nullptr);
  }
};

// Half a unit in the wire's last place for each rank, and one of fp32 for each microbatch, of the magnitudes
// that were added.
double rounding(DType wire, int ranks, int microbatches) {
  const double half = wire == DType::fp32 ? 0x1p-24 : wire == DType::bf16 ? 0x1p-8 : 0x1p-11;
  return ranks * half + microbatches * 0x1p-24;
}

TEST_P(NativeReduction, IsTheSumWithinItsTypesRounding) {
  run([](Communicator ranks) {
    std::vector<double> sums, magnitudes;
    reduce_microbatches(
        ranks, Reduction::native, {}, [&](DType wire, int microbatch, const std::vector<float>& shard) {
          if (microbatch == 0) {
            sums.assign(shard.size(), 0.0);
            magnitudes.assign(shard.size(), 0.0);
          }
          for (std::size_t i = 0; i < shard.size(); ++i) {
            for (int peer = 0; peer < ranks.world(); ++peer) {
              const float value = contribution(ranks, wire, peer, microbatch, shard.size(), i);
              sums[i] += value;
              magnitudes[i] += std::abs(value);
            }
            ASSERT_NEAR(shard[i], sums[i], rounding(wire, ranks.world(), microbatch + 1) * magnitudes[i])
                << "rank " << ranks.rank() << ", element " << i << " of " << name_of(wire);
          }
        });
  });
}

TEST_P(NativeReduction, InPlaceChangesThisRanksSliceAlone) {
  run([](Communicator ranks) { check_in_place(ranks, Reduction::native); });
}

INSTANTIATE_TEST_SUITE_P(Nccl, NativeReduction,
                         testing::ValuesIn(worlds({nccl("nccl", 1, kNative), nccl("nccl", 2, kNative),
                                                   nccl("nccl", 4, kNative)})),
                         name_of_test);

TEST_F(NcclWorld, ANativeReductionMeetsItsLikeOnly) {
  std::vector<std::string> messages;
  const auto rank_main = [](Communicator ranks) {
    std::vector<float> full(16), shard(8);
    ranks.reduce_scatter({.full = full.data(),
                          .shard = shard.data(),
                          .shard_numel = 8,
                          .reduction = ranks.rank() == 0 ? Reduction::exact : Reduction::native},
                         {.unit = "block.0"});
  };
  EXPECT_THROW(nccl("nccl", 2, kNative).run(2, {}, rank_main, &messages), Error);
  EXPECT_TRUE(contains(messages[0], "rank 1 called native reduce_scatter #1 of unit 'block.0'"))
      << messages[0];
}

TEST_F(NcclWorld, SaysWhatANativeReductionNeeds) {
  run_local(2, {}, [](Communicator host) {
    const std::unique_ptr<Device> device = make_cuda_device({.rank = host.rank(), .ordinal = host.rank()});
    const auto stream = device->make_stream({.name = "lane", .on_caller = true, .cpus = {}});
    Communicator lane = make_nccl_world(host).duplicate("reduce");
    Arena arena = device->make_arena(3 << 20);
    ReduceScatter call{.full = arena.base(),
                       .wire = DType::bf16,
                       .shard = reinterpret_cast<float*>(arena.base() + (2 << 20)),
                       .shard_numel = 100'000,
                       .reduction = Reduction::native};
    EXPECT_FALSE(lane.reduces_natively());
    EXPECT_THROW(lane.reduce_scatter(call), UnsupportedError) << "it lies on the host still";
    lane.bind(*stream, {.native_bytes = 200'000});
    EXPECT_TRUE(lane.reduces_natively());
    lane.reduce_scatter(call);
    stream->synchronize();
    call.shard_numel += 1;
    EXPECT_THROW(lane.reduce_scatter(call), UsageError) << "larger than what it was bound for";
  });
}

TEST_F(NcclWorld, RefusesTwoRanksOnOneGpuAndNamesTheReason) {
  std::vector<std::string> messages;
  EXPECT_THROW(run_local(
                   2, {},
                   [](Communicator host) {
                     const auto device = make_cuda_device({.rank = host.rank(), .ordinal = 0});
                     const auto stream = device->make_stream({.name = "lane", .on_caller = true, .cpus = {}});
                     make_nccl_world(host).bind(*stream);
                   },
                   &messages),
               Error);
  EXPECT_TRUE(contains(messages[0] + messages[1], "Duplicate GPU")) << messages[0] << "\n" << messages[1];
}

TEST(NcclOptions, AreChecked) {
  EXPECT_THROW(make_nccl_world(Communicator()), Error);
  if (!read_nccl_library().unusable.empty()) GTEST_SKIP() << read_nccl_library().unusable;
  EXPECT_THROW(make_nccl_world(make_local_world(1)[0], {.staging_bytes = 0}), UsageError);
}

TEST(PlaceOnHost, CountsTheRanksOfThisHost) {
  run_local(3, {}, [](Communicator world) {
    const HostPlace place = place_on_host(world);
    EXPECT_EQ(place.rank, world.rank());
    EXPECT_EQ(place.ranks, 3);
  });
}

}  // namespace
}  // namespace tessera::contract
