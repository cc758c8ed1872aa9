#include "tessera/shape.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Shape, Numel) {
  EXPECT_EQ(numel_of({}), 1);
  EXPECT_EQ(numel_of({7}), 7);
  EXPECT_EQ(numel_of({50257, 768}), 38597376);
  EXPECT_EQ(numel_of({65536, 65536, 2}), std::int64_t{1} << 33);  // more than 32 bits hold
}

TEST(Shape, Text) {
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{50257, 768}), "[50257, 768]");
}

}  // namespace
}  // namespace tessera
