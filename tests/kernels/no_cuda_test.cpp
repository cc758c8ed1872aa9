// A build without CUDA.
#include "tests/kernels/support.h"

namespace tessera::kernels::testing {
namespace {

TEST(NoCuda, ACallNamesTheFlag) {
  float x = 1.0f;
  try {
    fill({.workspace = {}, .device = DeviceType::cuda}, DType::fp32, 1, 2.0f, &x);
    FAIL() << "not refused";
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("TESSERA_WITH_CUDA"), std::string::npos) << error.what();
  }
  EXPECT_EQ(x, 1.0f);
}

}  // namespace
}  // namespace tessera::kernels::testing
