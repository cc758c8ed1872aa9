// Every refusal names the unit or parameter, the value, and what would have been right.
#include <gtest/gtest.h>

#include <functional>

#include "tessera/error.h"
#include "tessera/layout.h"
#include "tessera/mesh.h"
#include "tests/refusal.h"

namespace tessera {
namespace {

using testing::refusal;

std::string refusal(std::vector<UnitSpec> units, int shards = 2) {
  return refusal([&] { Layout(units, shards); });
}

TEST(LayoutErrors, Shards) { EXPECT_EQ(refusal({}, 0), "shards is 0; a layout needs 1 shard or more"); }

TEST(LayoutErrors, RepeatedNames) {
  EXPECT_EQ(refusal({{"a", {}}, {"a", {}}}), "two units are named 'a'; the name of a unit must be its own");
  EXPECT_EQ(refusal({{"a", {{.name = "w", .shape = {2}}}}, {"b", {{.name = "w", .shape = {2}}}}}),
            "two parameters are named 'w'; the name of a parameter must be its own");
}

TEST(LayoutErrors, EmptyNames) {
  EXPECT_EQ(refusal({{"a", {}}, {"", {}}}), "unit 1 has no name; messages and plans name a unit by it");
  EXPECT_EQ(refusal({{"a", {{.name = "", .shape = {2}}}}}),
            "a parameter of unit 'a' has no name; checkpoints and messages name a parameter by it");
}

TEST(LayoutErrors, NamesThatAreNotUtf8) {
  const auto of_parameter = [](const std::string& name) {
    return refusal({{"a", {{.name = name, .shape = {2}}}}});
  };
  EXPECT_EQ(of_parameter("caf\xe9"),
            "the name of a parameter of unit 'a', 'caf\xe9', is not UTF-8 from byte 3 on; checkpoints could "
            "not hold it");
  EXPECT_TRUE(refusal({{"\xff", {}}}).starts_with("the name of unit 0, '\xff', is not UTF-8 from byte 0"));
  for (const char* good : {"w\n", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xef\xbf\xbf",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "block.α"})
    EXPECT_EQ(of_parameter(good), "accepted");
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
        "\xe2\x82\x41", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xf0\x90\x80\xc0"})
    EXPECT_NE(of_parameter(bad), "accepted") << bad;
}

TEST(LayoutErrors, DTypes) {
  EXPECT_EQ(refusal({{"a", {{.name = "w", .shape = {2}, .dtype = DType{3}}}}}),
            "the dtype of parameter 'w' has the value 3; its enumerators are 0 to 2");
}

TEST(LayoutErrors, Shapes) {
  EXPECT_EQ(refusal({{"a", {{.name = "w", .shape = {2, 0}}}}}),
            "parameter 'w' has shape [2, 0]; every dim must be 1 or more");
  EXPECT_EQ(refusal({{"a", {{.name = "w", .shape = {-3}}}}}),
            "parameter 'w' has shape [-3]; every dim must be 1 or more");
  EXPECT_EQ(
      refusal({{"a", {{.name = "w", .shape = {std::int64_t{1} << 40, std::int64_t{1} << 40}}}}}),
      "parameter 'w' has shape [1099511627776, 1099511627776]; that is more elements than can be counted");
}

TEST(LayoutErrors, Group) {
  EXPECT_EQ(refusal({{"a", {{.name = "w", .shape = {2}, .group = -1}}}}),
            "parameter 'w' has group -1; it must be 0 or more");
}

TEST(LayoutErrors, Cuts) {
  const auto with = [](Cut cut, int tensor = 2, Shape shape = {8, 6}) {
    const ParameterSpec parameter{.name = "w", .shape = std::move(shape), .cut = std::move(cut)};
    try {
      Layout({{.name = "unit", .parameters = {parameter}}}, 1, 1, tensor);
    } catch (const UnsupportedError& error) {
      return "unsupported: " + std::string(error.what());
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const std::string what = "parameter 'w' of shape [8, 6]: ";
  EXPECT_EQ(with({.dim = 0}), "accepted");
  EXPECT_EQ(with({.dim = 1, .segments = {4, 2}}), "accepted");
  EXPECT_EQ(with({.dim = 2}), what + "cut.dim is 2; it must be 0 to 1, or -1 for no cut");
  EXPECT_EQ(with({.dim = -2}), what + "cut.dim is -2; it must be 0 to 1, or -1 for no cut");
  EXPECT_EQ(with({.dim = 0}, 2, {}),
            "parameter 'w' of shape []: cut.dim is 0; a scalar has no dim to cut: it must be -1");
  EXPECT_EQ(with({.segments = {8}}),
            what + "cut.segments is set while cut.dim is -1, which means that it is not cut");
  EXPECT_EQ(with({.padded = true}),
            what + "cut.padded is set while cut.dim is -1, which means that it is not cut");
  EXPECT_EQ(with({.dim = 0, .segments = {4, 2}}),
            what + "cut.segments [4, 2] must add up to the length of dim 0, 8");
  EXPECT_EQ(with({.dim = 0, .segments = {4, 4, std::int64_t{1} << 62, std::int64_t{1} << 62}}),
            what +
                "cut.segments [4, 4, 4611686018427387904, 4611686018427387904] must add up to the length "
                "of dim 0, 8");
  EXPECT_EQ(with({.dim = 0, .segments = {8, 0}}),
            what + "cut.segments [8, 0] has a segment of 0; each must be 1 or more");
  EXPECT_EQ(with({.dim = 0, .segments = {4, 4}, .padded = true}),
            what + "cut.padded is set with cut.segments [4, 4]; only a cut of one segment is padded");
  EXPECT_EQ(with({.dim = 0}, 3),
            "parameter 'w' of shape [8, 6] is cut along dim 0 over 3 tensor ranks; they do not divide its "
            "segment 0, of length 8: it must be a multiple of 3, or cut.padded must be set");
  EXPECT_EQ(with({.dim = 1, .segments = {4, 2}}, 4),
            "parameter 'w' of shape [8, 6] is cut along dim 1 over 4 tensor ranks; they do not divide its "
            "segment 1, of length 2: it must be a multiple of 4");
  EXPECT_EQ(with({.dim = 0, .padded = true}, 3), "accepted");
  EXPECT_EQ(with({.dim = 0, .axis = Axis::shard}),
            "unsupported: " + what + "cut.axis is shard; this version cuts over the tensor axis only");
  EXPECT_EQ(with({.dim = 0, .axis = Axis{9}}),
            "the axis of the cut of parameter 'w' has the value 9; its enumerators are 0 to 4");
  // On one rank nothing is cut, but a cut that means nothing is still refused.
  EXPECT_EQ(with({.dim = 0, .segments = {3, 5}}, 1), "accepted");
  EXPECT_EQ(with({.dim = 2}, 1), what + "cut.dim is 2; it must be 0 to 1, or -1 for no cut");
  EXPECT_EQ(with({.dim = 0}, 0), "tensor is 0; a layout needs 1 tensor rank or more");
}

TEST(LayoutErrors, Gradients) {
  EXPECT_EQ(refusal({{"a", {{.name = "w", .shape = {2}, .gradient = GradientOver{2}}}}}),
            "the gradient of parameter 'w' has the value 2; its enumerators are 0 to 1");
}

TEST(LayoutErrors, Ties) {
  const ParameterSpec home{.name = "home", .shape = {2, 3}};
  ParameterSpec tied{.name = "tied", .shape = {2, 3}, .tied_to = "home"};
  const auto with = [&](ParameterSpec spec) { return refusal({{"a", {home}}, {"b", {spec}}}); };
  EXPECT_EQ(with(tied), "accepted");

  ParameterSpec wrong = tied;
  wrong.tied_to = "hom";
  EXPECT_EQ(with(wrong),
            "parameter 'tied' is tied to 'hom', which does not exist; the closest name is 'home'");
  wrong = tied;
  wrong.tied_to = "tied";
  EXPECT_EQ(with(wrong), "parameter 'tied' is tied to 'tied', which is itself; leave tied_to empty");
  wrong = tied;
  wrong.shape = {3, 2};
  EXPECT_EQ(
      with(wrong),
      "parameter 'tied' is tied to 'home'; its shape is [3, 2], the other's [2, 3], and they must be equal");
  wrong = tied;
  wrong.dtype = DType::fp16;
  EXPECT_EQ(
      with(wrong),
      "parameter 'tied' is tied to 'home'; its dtype is fp16, the other's fp32, and they must be equal");
  wrong = tied;
  wrong.trainable = false;
  EXPECT_EQ(
      with(wrong),
      "parameter 'tied' is tied to 'home'; its trainable is false, the other's true, and they must be equal");

  wrong = tied;
  wrong.group = 1;
  EXPECT_EQ(with(wrong),
            "parameter 'tied' is tied to 'home'; its group is 1, the other's 0, and they must be equal");

  wrong = tied;
  wrong.cut = {.dim = 0};
  EXPECT_EQ(with(wrong),
            "parameter 'tied' is tied to 'home'; its cut is dim 0, the other's none, and they must be equal");
  wrong = tied;
  wrong.gradient = GradientOver::partial;
  EXPECT_EQ(with(wrong),
            "parameter 'tied' is tied to 'home'; its gradient is partial, the other's copied, and they must "
            "be equal");

  ParameterSpec chained = tied;
  chained.name = "chained";
  chained.tied_to = "tied";
  EXPECT_EQ(refusal({{"a", {home}}, {"b", {tied, chained}}}),
            "parameter 'chained' is tied to 'tied', which is itself tied; tie it to 'home'");
}

TEST(LayoutErrors, LookUps) {
  const Layout layout(
      {{"a", {{.name = "block.0.weight", .shape = {5}}, {.name = "block.0.bias", .shape = {5}}}}}, 2);
  EXPECT_EQ(refusal([&] { layout.find("block.0.weigth"); }),
            "parameter 'block.0.weigth' does not exist; the closest name is 'block.0.weight'");
  EXPECT_EQ(refusal([&] {
              layout.offset_of({0, 5});
            }),
            "element 5 is not in parameter 'block.0.weight', which has 5");
  EXPECT_EQ(refusal([&] { layout.offset_of({2, 0}); }), "parameter 2 does not exist; the layout has 2");
  EXPECT_EQ(refusal([&] { layout.locate(0, 128); }),
            "elements 128 to 129 are not a range of flat buffer 0, which has 128");
  EXPECT_EQ(refusal([&] { layout.locate(1, 0); }), "flat buffer 1 does not exist; the layout has 1");
  EXPECT_EQ(refusal([&] { layout.pieces(0, 4, 3); }),
            "elements 4 to 3 are not a range of flat buffer 0, which has 128");
  EXPECT_EQ(refusal([&] { layout.gaps(0, -1, 3); }),
            "elements -1 to 3 are not a range of flat buffer 0, which has 128");
  EXPECT_EQ(refusal([&] { layout.locate(0, 0, 1); }), "tensor rank 1 does not exist; the layout has 1");
  EXPECT_EQ(refusal([&] { layout.global_pieces(0, 0, 5, -1); }),
            "tensor rank -1 does not exist; the layout has 1");
  EXPECT_EQ(refusal([&] { layout.shares(0).of_parameter(2, 6); }),
            "elements 2 to 6 are not a range of the parameter, which has 5");
  EXPECT_EQ(refusal([&] { layout.shares(0).of_share(0, 3, 2); }),
            "elements 3 to 2 are not a range of a rank's share of the parameter, which has 5");
  EXPECT_EQ(refusal([&] { layout.shares(0).of_share(1, 0, 5); }),
            "tensor rank 1 does not exist; there are 1");
  for (const int none : {-1, 7}) {
    const std::string number = std::to_string(none) + " does not exist; the layout has ";
    EXPECT_EQ(refusal([&] { layout.flat(none); }), "flat buffer " + number + "1");
    EXPECT_EQ(refusal([&] { layout.place(none); }), "parameter " + number + "2");
    EXPECT_EQ(refusal([&] { layout.shares(none); }), "parameter " + number + "2");
    EXPECT_EQ(refusal([&] { layout.unit_of(none); }), "parameter " + number + "2");
    EXPECT_EQ(refusal([&] { layout.first_parameter(none); }), "unit " + number + "1");
    EXPECT_EQ(refusal([&] { layout.flats_of(none); }), "unit " + number + "1");
    EXPECT_EQ(refusal([&] { layout.flats_used_by(none); }), "unit " + number + "1");
  }
  EXPECT_EQ(refusal([&] { static_cast<void>(Mesh{.shard = 2}.place(1, Axis::world)); }),
            "axis world is none of the mesh's; a rank's place there is its number");
  EXPECT_EQ(refusal([] { Layout({}, 1).find("w"); }), "parameter 'w' does not exist; there are no others");
}

}  // namespace
}  // namespace tessera
