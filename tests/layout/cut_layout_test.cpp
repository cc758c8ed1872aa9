// Layouts of several tensor ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/layout/random_units.h"

namespace tessera {
namespace {

using testing::draw;

TEST(CutLayout, AFlatHasParametersOfOneKind) {
  const Layout layout(
      {{"block",
        {{.name = "norm", .shape = {6}, .gradient = GradientOver::partial},
         {.name = "up", .shape = {8, 6}, .cut = {.dim = 0}},
         {.name = "bias", .shape = {6}},
         {.name = "down", .shape = {6, 8}, .cut = {.dim = 1}, .gradient = GradientOver::partial},
         {.name = "frozen", .shape = {6}, .trainable = false, .gradient = GradientOver::partial}}}},
      1, 1, 2);
  ASSERT_EQ(layout.flats().count(), 4);
  EXPECT_EQ(layout.flat(0).over, TensorShare::partial);
  EXPECT_EQ(layout.flat(1).over, TensorShare::cut);
  EXPECT_EQ(layout.flat(1).parameters, (std::vector<ParameterId>{1, 3}));
  EXPECT_EQ(layout.flat(2).over, TensorShare::copied);
  EXPECT_EQ(layout.flat(3).over, TensorShare::copied) << "it has no gradient";
  EXPECT_EQ(layout.place(1).numel, 24);
  EXPECT_EQ(layout.place(3).offset, 64);
  EXPECT_EQ(layout.flat(1).parameter_numel, 48);
  EXPECT_EQ(layout.total_numel(), 6 + 48 + 6 + 48 + 6) << "of whole parameters";
  EXPECT_EQ(layout.tensor(), 2);
}

TEST(CutLayout, OffsetsAreLocalAndElementsGlobal) {
  const Layout layout({{"table", {{.name = "w", .shape = {5, 4}, .cut = {.dim = 0, .padded = true}}}},
                       {"norm", {{.name = "g", .shape = {4}}}}},
                      1, 1, 2);
  EXPECT_EQ(layout.place(0).numel, 12) << "three rows of five";
  EXPECT_EQ(layout.locate(0, 4, 0), (Element{0, 4}));
  EXPECT_EQ(layout.locate(0, 4, 1), (Element{0, 16}));
  EXPECT_EQ(layout.locate(0, 8, 1), (Element{-1, 0})) << "padding of the cut";
  EXPECT_EQ(layout.locate(1, 3, 1), (Element{1, 3}));
  EXPECT_EQ(layout.offset_of({0, 16}), 4);
  EXPECT_EQ(layout.tensor_rank_of({0, 16}), 1);
  EXPECT_EQ(layout.tensor_rank_of({1, 3}), 0);
  EXPECT_EQ(layout.pieces(0, 0, 64).front().numel, 12);
  const std::vector<Piece> pieces = layout.global_pieces(0, 2, 64, 1);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces.front().begin, 14);
  EXPECT_EQ(pieces.front().offset, 2);
  EXPECT_EQ(pieces.front().numel, 6);
}

class RandomCutLayouts : public ::testing::TestWithParam<int> {
 protected:
  // Runs `check` on 200 layouts; the parameter is the seed.
  template <class Check>
  void on_each(Check check) {
    std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
    for (int i = 0; i < 200 && !HasFailure(); ++i) {
      std::vector<UnitSpec> units = testing::random_units(random);
      const int tensor = static_cast<int>(draw(random, 1, 6));
      testing::cut_randomly(random, units, tensor);
      const Layout layout(units, static_cast<int>(draw(random, 1, 8)), 1, tensor);
      SCOPED_TRACE("layout " + std::to_string(i) + " over " + std::to_string(tensor) + " tensor ranks, " +
                   std::to_string(layout.shards()) + " shards");
      check(layout, random);
    }
  }
};

TEST_P(RandomCutLayouts, EachElementIsHeldOnce) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    IdVector<std::vector<int>> held(layout.parameters());
    for (ParameterId id = 0; id < layout.parameters(); ++id)
      held[id].resize(static_cast<std::size_t>(numel_of(layout.parameter(id).shape)));
    for (FlatId flat = 0; flat < layout.flats().count(); ++flat) {
      const bool cut = layout.flat(flat).over == TensorShare::cut;
      for (int rank = 0; rank < (cut ? layout.tensor() : 1); ++rank) {
        for (int shard = 0; shard < layout.shards(); ++shard) {
          const std::int64_t begin = shard * layout.flat(flat).shard_numel;
          for (const Piece& piece :
               layout.global_pieces(flat, begin, begin + layout.flat(flat).shard_numel, rank))
            for (std::int64_t k = 0; k < piece.numel; ++k)
              ++held[piece.parameter][static_cast<std::size_t>(piece.begin + k)];
        }
      }
    }
    for (ParameterId id = 0; id < layout.parameters(); ++id) {
      const int times = layout.place(id).home == id ? 1 : 0;
      EXPECT_EQ(std::ranges::count(held[id], times), std::ssize(held[id])) << layout.parameter(id).name;
    }
  });
}

TEST_P(RandomCutLayouts, ElementsRoundTrip) {
  on_each([](const Layout& layout, std::mt19937_64& random) {
    for (ParameterId id = 0; id < layout.parameters(); ++id) {
      const std::int64_t numel = numel_of(layout.parameter(id).shape);
      const Place& place = layout.place(id);
      for (std::int64_t index : {std::int64_t{0}, numel - 1, draw(random, 0, numel - 1)}) {
        const Element element{id, index};
        const std::int64_t offset = layout.offset_of(element);
        EXPECT_EQ(layout.locate(place.flat, offset, layout.tensor_rank_of(element)),
                  (Element{place.home, index}));
        EXPECT_EQ(layout.shard_of(element), offset / layout.flat(place.flat).shard_numel);
      }
    }
  });
}

// Of global coordinates within any range of a flat, what locate() says of each element.
TEST_P(RandomCutLayouts, GlobalPiecesAreWhatLocateSays) {
  on_each([](const Layout& layout, std::mt19937_64& random) {
    if (layout.flats().empty()) return;
    const auto flat = static_cast<FlatId>(draw(random, 0, layout.flats().count() - 1));
    const int rank = static_cast<int>(draw(random, 0, layout.tensor() - 1));
    const std::int64_t begin = draw(random, 0, layout.flat(flat).padded_numel);
    const std::int64_t end = std::min(layout.flat(flat).padded_numel, begin + draw(random, 0, 400));
    std::int64_t at = begin;
    const auto expect_padding = [&](std::int64_t to) {
      for (; at < to; ++at) EXPECT_EQ(layout.locate(flat, at, rank).parameter, -1);
    };
    for (const Piece& piece : layout.global_pieces(flat, begin, end, rank)) {
      expect_padding(piece.offset);
      for (; at < piece.offset + piece.numel; ++at)
        EXPECT_EQ(layout.locate(flat, at, rank), (Element{piece.parameter, piece.begin + at - piece.offset}));
    }
    expect_padding(end);
  });
}

TEST_P(RandomCutLayouts, FlatsAreApartByKind) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    std::set<std::tuple<UnitId, DType, bool, TensorShare>> seen;
    for (const Flat& flat : layout.flats()) {
      EXPECT_TRUE(seen.insert({flat.unit, flat.dtype, flat.trainable, flat.over}).second);
      for (const ParameterId id : flat.parameters)
        EXPECT_EQ(flat.over == TensorShare::cut, layout.tensor() > 1 && layout.parameter(id).cut.dim >= 0);
    }
  });
}

// So that each tensor rank can sum an equal piece of what all have copies of.
TEST_P(RandomCutLayouts, PiecesOfCopiesAreAlignedAndEqual) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    for (const Flat& flat : layout.flats()) {
      const int pieces = flat.over == TensorShare::cut ? 1 : layout.tensor();
      EXPECT_EQ(flat.piece_numel * pieces, flat.slice_numel);
      EXPECT_EQ(flat.piece_numel * bytes_of(flat.dtype) % kAlignmentBytes, 0);
      EXPECT_EQ(flat.shard_numel, flat.slice_numel * layout.replicas());
      EXPECT_EQ(flat.padded_numel, flat.shard_numel * layout.shards());
    }
  });
}

// One tensor rank has the layout that a model without cuts has.
TEST_P(RandomCutLayouts, OneTensorRankIgnoresCuts) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    IdVector<UnitSpec> cut = layout.units();
    for (UnitSpec& unit : cut)
      for (ParameterSpec& spec : unit.parameters) spec.cut.blocks = 1;  // which stay, on one rank, too
    IdVector<UnitSpec> plain = cut;
    for (UnitSpec& unit : plain) {
      for (ParameterSpec& spec : unit.parameters) {
        spec.cut = {};
        spec.gradient = GradientOver::copied;
      }
    }
    const Layout one(cut, layout.shards()), uncut(plain, layout.shards());
    ASSERT_EQ(one.flats().count(), uncut.flats().count());
    EXPECT_EQ(one.total_numel(), layout.total_numel());
    for (FlatId flat = 0; flat < one.flats().count(); ++flat) {
      EXPECT_EQ(one.flat(flat).parameters, uncut.flat(flat).parameters);
      EXPECT_EQ(one.flat(flat).padded_numel, uncut.flat(flat).padded_numel);
      EXPECT_EQ(one.flat(flat).over, TensorShare::copied);
    }
    for (ParameterId id = 0; id < one.parameters(); ++id) {
      EXPECT_EQ(one.place(id).offset, uncut.place(id).offset);
      EXPECT_EQ(one.place(id).numel, uncut.place(id).numel);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomCutLayouts, ::testing::Range(1, 5));

}  // namespace
}  // namespace tessera
