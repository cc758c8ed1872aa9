#include "tessera/error.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Error, KindsAreTold) {
  EXPECT_THROW(throw UsageError("a"), Error);
  EXPECT_THROW(throw EnvironmentError("a"), Error);
  EXPECT_THROW(throw UnsupportedError("a"), Error);
  static_assert(!std::is_base_of_v<UsageError, EnvironmentError>);
  static_assert(!std::is_base_of_v<EnvironmentError, CommunicationError>);
}

TEST(Error, CommunicationErrorNamesTheCulprit) {
  try {
    throw CommunicationError("rank 3 stopped answering", 3);
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 3 stopped answering");
    const auto* communication = dynamic_cast<const CommunicationError*>(&error);
    ASSERT_NE(communication, nullptr);
    EXPECT_EQ(communication->culprit(), 3);
  }
}

}  // namespace
}  // namespace tessera
