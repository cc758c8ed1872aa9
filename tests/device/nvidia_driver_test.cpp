#include "src/device/nvidia_driver.h"

#include <gtest/gtest.h>

namespace tessera::device {
namespace {

TEST(NvidiaDriver, ReleaseIsReadFromWhatTheDriverShows) {
  EXPECT_EQ(
      driver_release_of("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 "
                        "UTC 2023\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"),
      "535.104.05");
  EXPECT_EQ(
      driver_release_of("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"),
      "580.65.06");
  EXPECT_EQ(driver_release_of("NVRM version: none\nGCC version: 12.2.0\n"), "");
  EXPECT_EQ(driver_release_of("580.1"), "580.1");
  EXPECT_EQ(driver_release_of(""), "");
}

TEST(NvidiaDriver, OneThatIsTooOldIsNamedWithTheOneThatIsNeeded) {
  EXPECT_EQ(too_old_driver(13000, 12040, "550.54.14"),
            "NVIDIA driver 550.54.14 is too old: it serves CUDA up to 12.4, and this build's CUDA 13.0 needs "
            "driver "
            "580 or later");
  EXPECT_EQ(too_old_driver(12040, 11080, ""),
            "the NVIDIA driver is too old: it serves CUDA up to 11.8, and this build's CUDA 12.4 needs "
            "driver 525 or "
            "later");
  EXPECT_EQ(too_old_driver(12090, 0, ""),
            "no NVIDIA driver is installed; this build's CUDA 12.9 needs driver 525 or later");
  EXPECT_EQ(too_old_driver(14000, 13000, "580.65.06"),
            "NVIDIA driver 580.65.06 is too old: it serves CUDA up to 13.0, and this build's CUDA 14.0 needs "
            "a later "
            "one (NVIDIA's release notes of CUDA say which)");
}

}  // namespace
}  // namespace tessera::device
