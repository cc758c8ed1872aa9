// What is said of a driver that this build's CUDA cannot use.
#include <gtest/gtest.h>

#include "tessera/device.h"
#include "tessera/error.h"
#include "tessera/machine.h"
#include "tests/emulated_cuda/emulator.h"

namespace tessera::emulated_cuda {
namespace {

struct Driver {
  explicit Driver(int version) { install_driver(version); }
  ~Driver() { install_driver(CUDART_VERSION); }
};

TEST(CudaDriver, OneThatIsTooOldIsNamedWithTheOneThatIsNeeded) {
  const Driver old(12040);
  const CudaMachine machine = read_cuda_machine();
  EXPECT_EQ(machine.driver, "12.4");
  EXPECT_TRUE(machine.gpus.empty());
  EXPECT_NE(machine.unusable.find("is too old: it serves CUDA up to 12.4"), std::string::npos)
      << machine.unusable;
  EXPECT_NE(machine.unusable.find("this build's CUDA 13.0 needs driver 580 or later"), std::string::npos)
      << machine.unusable;
  try {
    make_cuda_device({});
    FAIL() << "a device was made";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find(machine.unusable), std::string::npos) << error.what();
  }
}

TEST(CudaDriver, NoneAtAllIsNotCalledTooOld) {
  const Driver none(0);
  const CudaMachine machine = read_cuda_machine();
  EXPECT_EQ(machine.driver, "");
  EXPECT_EQ(machine.unusable,
            "no NVIDIA driver is installed; this build's CUDA 13.0 needs driver 580 or later");
}

TEST(CudaDriver, ALaterOneServes) {
  const Driver later(14010);
  const CudaMachine machine = read_cuda_machine();
  EXPECT_EQ(machine.driver, "14.1");
  EXPECT_EQ(machine.unusable, "");
  EXPECT_FALSE(machine.gpus.empty());
}

}  // namespace
}  // namespace tessera::emulated_cuda
