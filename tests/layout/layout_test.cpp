// Layouts small enough to write down.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/layout.h"

namespace tessera {
namespace {

TEST(Layout, TheDrawingOfTheHeader) {
  const Layout layout({{"block", {{.name = "w", .shape = {10, 10}}, {.name = "b", .shape = {10}}}}}, 3);
  ASSERT_EQ(layout.flats().size(), 1u);
  const Flat& flat = layout.flat(0);
  EXPECT_EQ(layout.place(0).offset, 0);
  EXPECT_EQ(layout.place(1).offset, 128);  // 100 elements end in the second 64
  EXPECT_EQ(flat.parameter_numel, 110);
  EXPECT_EQ(flat.shard_numel, 64);  // 192 elements in three
  EXPECT_EQ(flat.padded_numel, 192);
  EXPECT_EQ(layout.padding_numel(), 82);
  EXPECT_EQ(layout.shard_of({0, 63}), 0);
  EXPECT_EQ(layout.shard_of({0, 64}), 1);
  EXPECT_EQ(layout.shard_of({1, 0}), 2);
  EXPECT_EQ(layout.locate(0, 100).parameter, -1);
  EXPECT_EQ(layout.locate(0, 128), (Element{1, 0}));
}

TEST(Layout, OneElementInAWorldOf1024) {
  const Layout layout({{"scale", {{.name = "s", .shape = {}, .dtype = DType::bf16}}}}, 1024);
  EXPECT_EQ(layout.flat(0).shard_numel, 128);  // the least that keeps shards on 256 bytes
  EXPECT_EQ(layout.flat(0).padded_numel, 128 * 1024);
  EXPECT_EQ(layout.total_numel(), 1);
  EXPECT_EQ(layout.padding_numel(), 128 * 1024 - 1);
  EXPECT_EQ(layout.shard_of({0, 0}), 0);
  EXPECT_TRUE(layout.pieces(0, 128, 128 * 1024).empty());
}

TEST(Layout, MixedDtypesAndFrozenParametersGetFlatsOfTheirOwn) {
  const Layout layout({{"mixed",
                        {{.name = "a", .shape = {8}, .dtype = DType::bf16},
                         {.name = "b", .shape = {8}, .dtype = DType::fp32},
                         {.name = "c", .shape = {8}, .dtype = DType::bf16, .trainable = false},
                         {.name = "d", .shape = {8}, .dtype = DType::bf16, .group = 1}}}},
                      2);
  ASSERT_EQ(layout.flats().size(), 3u);
  EXPECT_EQ(layout.flat(0).parameters, (std::vector<ParameterId>{0, 3}));  // groups share a flat
  EXPECT_EQ(layout.flat(1).parameters, (std::vector<ParameterId>{1}));
  EXPECT_EQ(layout.flat(2).parameters, (std::vector<ParameterId>{2}));
  EXPECT_FALSE(layout.flat(2).trainable);
  EXPECT_EQ(layout.flats_of(0).size(), 3u);
}

TEST(Layout, TiedParametersShareTheirPlace) {
  const Layout layout({{"embedding", {{.name = "wte", .shape = {100, 4}}}},
                       {"block", {{.name = "w", .shape = {4, 4}}}},
                       {"head", {{.name = "lm_head", .shape = {100, 4}, .tied_to = "wte"}}}},
                      2);
  EXPECT_EQ(layout.flats().size(), 2u);
  EXPECT_EQ(layout.total_numel(), 416);
  EXPECT_TRUE(layout.flats_of(2).empty());
  EXPECT_TRUE(std::ranges::equal(layout.flats_used_by(2), std::vector<FlatId>{0}));
  EXPECT_EQ(layout.place(2).home, 0);
  EXPECT_EQ(layout.place(2).numel, 400);
  EXPECT_EQ(layout.offset_of({2, 399}), layout.offset_of({0, 399}));
  EXPECT_EQ(layout.unit_of(2), 2);
}

TEST(Layout, ATieMayPointForward) {
  const Layout layout({{"first", {{.name = "a", .shape = {4}, .tied_to = "b"}, {.name = "c", .shape = {4}}}},
                       {"second", {{.name = "b", .shape = {4}}}}},
                      1);
  EXPECT_EQ(layout.place(0).home, 2);
  EXPECT_TRUE(std::ranges::equal(layout.flats_used_by(0), std::vector<FlatId>{0, 1}));
  EXPECT_TRUE(std::ranges::equal(layout.flats_of(0), std::vector<FlatId>{0}));
}

TEST(Layout, UnitsWithoutParametersAndModelsWithoutUnits) {
  const Layout activation({{"gelu", {}}, {"linear", {{.name = "w", .shape = {2}}}}}, 4);
  EXPECT_TRUE(activation.flats_of(0).empty());
  EXPECT_TRUE(activation.flats_used_by(0).empty());
  EXPECT_EQ(activation.first_parameter(1), 0);
  const Layout empty({}, 4);
  EXPECT_EQ(empty.total_numel(), 0);
  EXPECT_EQ(empty.parameters(), 0);
}

TEST(Layout, LargeModelsAreCountedIn64Bits) {
  const Layout layout({{"huge", {{.name = "w", .shape = {65536, 131072}, .dtype = DType::bf16}}}}, 1000);
  EXPECT_EQ(layout.total_numel(), std::int64_t{65536} * 131072);
  EXPECT_EQ(layout.shard_of({0, layout.total_numel() - 1}), 999);
}

}  // namespace
}  // namespace tessera
