#include "tessera/dtype.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(DType, NamesParseBack) {
  for (DType type : {DType::fp32, DType::bf16, DType::fp16}) EXPECT_EQ(parse_dtype(name_of(type)), type);
}

TEST(DType, Bytes) {
  static_assert(bytes_of(DType::fp32) == 4);
  static_assert(bytes_of(DType::bf16) == 2);
  static_assert(bytes_of(DType::fp16) == 2);
}

TEST(DType, UnknownNameSaysWhatIsAllowed) {
  try {
    parse_dtype("float");
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "type 'float' is not known; use fp32, bf16 or fp16");
  }
  EXPECT_THROW(parse_dtype(""), UsageError);
  EXPECT_THROW(parse_dtype("BF16"), UsageError);
}

}  // namespace
}  // namespace tessera
