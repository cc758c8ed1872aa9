// An engine's arena, registered with the communicators of its lanes.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "tessera/device.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

using emulated_cuda::nccl_memory;

RunConfig base() {
  return {.world = 2, .stage = 3, .microbatches = 2, .steps = 2, .device = DeviceType::cuda};
}

// The emulation fails a call with memory that lies elsewhere.
TEST(RegisteredArena, HoldsAllThatRanksExchange) {
  const std::size_t misuses = nccl_memory().misuses.size();
  const RunResult expected = run_training(base());
  emulated_cuda::refuse_nccl_registration(1);
  const RunResult without = run_training(base());
  emulated_cuda::refuse_nccl_registration(-1);
  EXPECT_TRUE(same_bits(without, expected)) << "without registration";
  RunConfig mesh = base();
  mesh.pipeline = 2;
  mesh.replicate = 2;
  mesh.state_over_replicas = true;
  mesh.poison = mesh.guards = true;
  EXPECT_NO_THROW(run_training(mesh));
  EXPECT_EQ(nccl_memory().registered, 0);
  EXPECT_EQ(nccl_memory().arenas, 0);
  EXPECT_EQ(nccl_memory().misuses.size(), misuses) << nccl_memory().misuses.back();
  EXPECT_EQ(emulated_cuda::nccl_communicators(), 0);
}

// What others wait for comes before a rank's own compute.
TEST(LanesOfAGpu, AllButComputeAreUrgent) {
  const int before = emulated_cuda::urgent_streams();
  run_local(2, {}, [&](Communicator host) {
    TrainerOptions options = trainer_options(base());
    const Communicator world = placed(host, options);
    Trainer trainer(world, std::make_shared<const Model>(small_model(base())), options);
    std::set<Lane> urgent;
    for (const Instruction& instruction : trainer.engine().program(0).instructions)
      if (instruction.lane != Lane::compute) urgent.insert(instruction.lane);
    host.barrier();
    EXPECT_GE(urgent.size(), 2u) << "gathers and reductions";
    EXPECT_EQ(emulated_cuda::urgent_streams() - before, 2 * static_cast<int>(urgent.size()));
    host.barrier();
  });
}

// The host would wait for the GPU in the midst of a step.
TEST(StepsOfAGpu, ReadNoMemoryThatIsNotPinned) {
  RunConfig run = base();
  run.world = 1;
  const TrainerOptions options = trainer_options(run);
  Trainer trainer(make_local_world(1)[0], std::make_shared<const Model>(small_model(run)), options);
  for (const int number : {0, 1}) {
    const int before = emulated_cuda::pageable_copies();
    const auto samples = fetch_samples(0, 1, run.microbatches, number, 61, options.batch);
    EXPECT_TRUE(trainer.train_step(1e-3, samples).applied);
    EXPECT_EQ(emulated_cuda::pageable_copies(), before) << number;
  }
}

TEST(StepsOfAGpu, AreReadWithinTheDeadline) {
  RunConfig run = base();
  run.world = 1;
  TrainerOptions options = trainer_options(run);
  options.engine.waits.deadline = std::chrono::milliseconds(60);  // the lanes' is ten times that
  Trainer trainer(make_local_world(1)[0], std::make_shared<const Model>(small_model(run)), options);
  auto* const stream = static_cast<cudaStream_t>(trainer.engine().stream());
  const Arena there = make_cuda_device({})->make_arena(8);
  emulated_cuda::hold(stream);
  std::thread releases([&] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    emulated_cuda::release(stream);
  });
  double here = 0;
  EXPECT_THROW(trainer.engine().transfer(&here, there.base(), sizeof here), EnvironmentError);
  releases.join();
}

TEST(RegisteredArena, IsSaid) {
  run_local(2, {}, [](Communicator host) {
    TrainerOptions options = trainer_options(base());
    const Communicator world = placed(host, options);
    Trainer trainer(world, std::make_shared<const Model>(small_model(base())), options);
    const ArenaRegistration& registration = trainer.engine().arena_registration();
    EXPECT_TRUE(registration.direct) << registration.reason;
    EXPECT_EQ(registration.note, "");
    host.barrier();
    EXPECT_GE(nccl_memory().arenas, 2 * (1 + 3)) << "and staging memory";
    EXPECT_GE(nccl_memory().registered, 2 * 2 * 3) << "of gathers, reductions and the step's scalars";
    host.barrier();
  });
}

}  // namespace
}  // namespace tessera::testing
