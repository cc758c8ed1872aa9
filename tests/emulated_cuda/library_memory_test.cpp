// What libraries take of a GPU's memory before an engine's arena: measured, told, and counted.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "tessera/error.h"
#include "tessera/machine.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/engine/matrix.h"

namespace tessera::testing {
namespace {

using emulated_cuda::kCommunicatorBytes;
using emulated_cuda::take_on;

constexpr std::int64_t kPage = 4096;

RunConfig config(int world) {
  return {.world = world, .stage = 3, .microbatches = 2, .steps = 2, .device = DeviceType::cuda};
}

// Makes a trainer whose rank `on` opens a library that takes so many bytes. Calls `then` with its engine.
using Then = std::function<void(const Engine&)>;
void make_trainer(const Communicator& host, std::int64_t taken, std::int64_t budget, const Then& then,
                  int on = 0) {
  const RunConfig run = config(host.world());
  TrainerOptions options = trainer_options(run);
  const Communicator world = placed(host, options);
  options.engine.budget.device_bytes = budget;
  std::shared_ptr<void> library;
  options.engine.open_libraries = [&, ordinal = options.engine.device_ordinal](void* stream) {
    EXPECT_NE(stream, nullptr);
    if (host.rank() != on) return;
    library = {take_on(ordinal, static_cast<std::size_t>(taken)), [](void* memory) { cudaFree(memory); }};
  };
  Trainer trainer(world, std::make_shared<const Model>(small_model(run)), options);
  if (then) then(trainer.engine());
}

// The first trainer of the process on a GPU also opens the emulated cuBLASLt there, which stays.
void open_all(int world) {
  run_local(world, {}, [](Communicator host) { make_trainer(host, kPage, 0, {}); });
}

TEST(LibraryMemory, IsMeasuredToTheByteBeforeTheArena) {
  open_all(1);
  run_local(1, {}, [](Communicator host) {
    make_trainer(host, 5 * kPage, 0,
                 [](const Engine& engine) { EXPECT_EQ(engine.library_bytes(), 5 * kPage); });
  });
}

TEST(LibraryMemory, OfNcclIsEachCommunicatorAndItsStagingMemory) {
  open_all(2);
  run_local(2, {}, [](Communicator host) {
    make_trainer(host, 0, 0, [](const Engine& engine) {
      const std::int64_t communicators =
          4;  // of gathers, reductions and scalars, and what they are split from
      EXPECT_GE(engine.library_bytes(),
                communicators * static_cast<std::int64_t>(kCommunicatorBytes) + 3 * kPage);
      EXPECT_LE(engine.library_bytes(),
                communicators * static_cast<std::int64_t>(kCommunicatorBytes) + 64 * kPage);
    });
  });
}

std::string refusal(int world, std::int64_t taken, std::int64_t budget, int on) {
  std::vector<std::string> messages;
  try {
    run_local(
        world, {}, [&](Communicator host) { make_trainer(host, taken, budget, {}, on); }, &messages);
    return "no error";
  } catch (const Error&) {
    return messages[0];
  }
}

TEST(LibraryMemory, CountsInABudget) {
  open_all(1);
  std::int64_t plan = 0;
  run_local(1, {}, [&](Communicator host) {
    make_trainer(host, 0, 0,
                 [&](const Engine& engine) { plan = engine.plan().space(Space::device).arena_bytes; });
  });
  const std::int64_t before = read_gpu_used_bytes(0);
  EXPECT_EQ(refusal(1, 3 * kPage, plan + 3 * kPage, 0), "no error");
  const std::string message = refusal(1, 3 * kPage, plan + 3 * kPage - 1, 0);
  for (const std::string& part :
       {"rank 0: the plan needs " + std::to_string(plan) + " bytes",
        std::string("communicators and libraries have taken 12288 (12.00 KiB)"),
        "budget.device_bytes is " + std::to_string(plan + 3 * kPage - 1) + ": 1 bytes are missing",
        "raise it to " + std::to_string(plan + 3 * kPage) + " or more, or have a plan of at most " +
            std::to_string(plan - 1) + " bytes"})
    EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  EXPECT_EQ(read_gpu_used_bytes(0), before) << "all was given back";
}

TEST(LibraryMemory, OfOneRankRefusesAll) {
  open_all(2);
  std::int64_t needed = 0;
  run_local(2, {}, [&](Communicator host) {
    make_trainer(host, 0, 0, [&](const Engine& engine) {
      if (host.rank() == 0) needed = engine.plan().space(Space::device).arena_bytes + engine.library_bytes();
    });
  });
  EXPECT_EQ(refusal(2, 0, needed, 1), "no error");
  const std::string message = refusal(2, 8 * kPage, needed, 1);
  EXPECT_NE(message.find("rank 1: the plan needs"), std::string::npos) << message;
  EXPECT_NE(message.find(": 32768 bytes are missing"), std::string::npos) << message;
}

// The emulated GPU has 1 GiB.
TEST(LibraryMemory, LeavesTooLittleForTheArena) {
  open_all(1);
  const std::int64_t used = read_gpu_used_bytes(0), left = 2 * kPage;
  const std::string message = refusal(1, (std::int64_t{1} << 30) - used - left, 0, 0);
  EXPECT_NE(message.find("communicators and libraries have taken"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(left) + " bytes (8.00 KiB) are free"), std::string::npos) << message;
}

}  // namespace
}  // namespace tessera::testing
