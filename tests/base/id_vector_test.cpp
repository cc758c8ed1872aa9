#include "tessera/id_vector.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera {
namespace {

TEST(id_vector, an_int_gives_the_count_and_braces_give_the_values) {
  const int three = 3;
  EXPECT_EQ(IdVector<int>(three), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(IdVector<int>(three, 7), (std::vector<int>{7, 7, 7}));
  EXPECT_EQ((IdVector<int>{three, 7}), (std::vector<int>{3, 7}));
  EXPECT_EQ(IdVector<std::string>(three).count(), 3);
  EXPECT_EQ(IdVector<int>().count(), 0);
}

TEST(id_vector, at_throws_for_an_id_that_does_not_exist) {
  IdVector<int> values = std::vector<int>{1, 2, 3};
  values[2] = 5;
  EXPECT_EQ(values.at(2), 5);
  EXPECT_THROW(values.at(3), std::out_of_range);
  EXPECT_THROW(values.at(-1), std::out_of_range);
}

TEST(id_span, has_the_elements_of_the_vector) {
  std::vector<int> values = {1, 2, 3};
  const IdSpan<int> span = values;
  const int last = span.count() - 1;
  span[last] = 5;
  EXPECT_EQ(values, (std::vector<int>{1, 2, 5}));
  EXPECT_EQ(IdSpan<const int>(span).data(), values.data());
  EXPECT_EQ(IdSpan<const int>().count(), 0);
}

enum class Colour { red, green, blue };

TEST(id_array, is_indexed_by_enumerators_and_by_ints) {
  IdArray<int, 3> values = {1, 2, 3};
  values[Colour::blue] = 5;
  EXPECT_EQ(values[2], 5);
  EXPECT_EQ(values.at(Colour::green), 2);
  EXPECT_THROW(values.at(3), std::out_of_range);
  EXPECT_THROW(values.at(-1), std::out_of_range);
  EXPECT_EQ(values, (std::array<int, 3>{1, 2, 5}));
}

TEST(id_array, can_be_constant_and_taken_apart) {
  constexpr IdArray<int, 2> kValues = {3, 7};
  static_assert(kValues[Colour::green] == 7);
  const auto [red, green] = kValues;
  EXPECT_EQ(red, 3);
  EXPECT_EQ(green, 7);
}

}  // namespace
}  // namespace tessera
