// What must hold for any model and any world.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/layout/random_units.h"

namespace tessera {
namespace {

using testing::draw;

class RandomLayouts : public ::testing::TestWithParam<int> {
 protected:
  // Runs `check` on 1,000 layouts; the parameter is the seed.
  template <class Check>
  void on_each(Check check) {
    std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
    for (int i = 0; i < 1000 && !HasFailure(); ++i) {
      const std::vector<UnitSpec> units = testing::random_units(random);
      const Layout layout(units, testing::random_world(random));
      SCOPED_TRACE("layout " + std::to_string(i) + " over " + std::to_string(layout.shards()) + " shards");
      check(layout, random);
    }
  }
};

std::int64_t bytes(const Flat& flat, std::int64_t numel) { return numel * bytes_of(flat.dtype); }

TEST_P(RandomLayouts, ShardsAndParametersAreAligned) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    for (const Flat& flat : layout.flats()) {
      EXPECT_EQ(bytes(flat, flat.shard_numel) % kAlignmentBytes, 0);
      EXPECT_EQ(flat.padded_numel, flat.shard_numel * layout.shards());
      for (ParameterId id : flat.parameters)
        EXPECT_EQ(bytes(flat, layout.place(id).offset) % kAlignmentBytes, 0);
    }
  });
}

TEST_P(RandomLayouts, PaddingIsTheLeastThatAligns) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    for (const Flat& flat : layout.flats()) {
      const std::int64_t unit = kAlignmentBytes / bytes_of(flat.dtype);
      std::int64_t end = 0;
      for (ParameterId id : flat.parameters) {
        EXPECT_EQ(layout.place(id).offset, (end + unit - 1) / unit * unit);
        end = layout.place(id).offset + layout.place(id).numel;
      }
      EXPECT_GE(flat.padded_numel, end);
      EXPECT_LT((flat.shard_numel - unit) * layout.shards(), end) << "a smaller shard would have done";
    }
  });
}

TEST_P(RandomLayouts, ParametersOfAFlatShareItsKindAndDoNotOverlap) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    for (FlatId id = 0; id < layout.flats().count(); ++id) {
      const Flat& flat = layout.flat(id);
      EXPECT_FALSE(flat.parameters.empty());
      std::int64_t end = 0, numel = 0;
      for (ParameterId parameter : flat.parameters) {
        EXPECT_EQ(layout.parameter(parameter).dtype, flat.dtype);
        EXPECT_EQ(layout.parameter(parameter).trainable, flat.trainable);
        EXPECT_EQ(layout.unit_of(parameter), flat.unit);
        EXPECT_EQ(layout.place(parameter).flat, id);
        EXPECT_EQ(layout.place(parameter).home, parameter);
        EXPECT_GE(layout.place(parameter).offset, end);
        end = layout.place(parameter).offset + layout.place(parameter).numel;
        numel += layout.place(parameter).numel;
      }
      EXPECT_LE(end, flat.padded_numel);
      EXPECT_EQ(flat.parameter_numel, numel);
    }
  });
}

TEST_P(RandomLayouts, AUnitHasOneFlatPerDtypeAndTrainability) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    std::set<std::tuple<UnitId, DType, bool>> seen;
    for (const Flat& flat : layout.flats())
      EXPECT_TRUE(seen.insert({flat.unit, flat.dtype, flat.trainable}).second);
  });
}

TEST_P(RandomLayouts, UsesReadOwnFlatsAndThoseOfTies) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    ParameterId id = 0;
    for (UnitId unit = 0; unit < layout.units().count(); ++unit) {
      EXPECT_EQ(layout.first_parameter(unit), id);
      std::set<FlatId> own, used;
      for (const ParameterSpec& spec : layout.units()[unit].parameters) {
        EXPECT_EQ(layout.parameter(id).name, spec.name);
        EXPECT_EQ(layout.find(spec.name), id);
        used.insert(layout.place(id).flat);
        if (spec.tied_to.empty()) own.insert(layout.place(id).flat);
        ++id;
      }
      EXPECT_TRUE(std::ranges::equal(layout.flats_of(unit), own));
      EXPECT_TRUE(std::ranges::equal(layout.flats_used_by(unit), used));
    }
    EXPECT_EQ(layout.parameters(), id);
  });
}

TEST_P(RandomLayouts, NumelIsAccountedExactly) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    std::int64_t padded = 0, distinct = 0;
    for (const Flat& flat : layout.flats()) padded += flat.padded_numel;
    for (const UnitSpec& unit : layout.units())
      for (const ParameterSpec& spec : unit.parameters)
        if (spec.tied_to.empty()) distinct += numel_of(spec.shape);
    EXPECT_EQ(layout.total_numel(), distinct);
    EXPECT_EQ(layout.total_numel() + layout.padding_numel(), padded);
  });
}

TEST_P(RandomLayouts, PiecesAndGapsPartitionAnyRange) {
  on_each([](const Layout& layout, std::mt19937_64& random) {
    for (FlatId id = 0; id < layout.flats().count(); ++id) {
      const std::int64_t padded = layout.flat(id).padded_numel;
      for (int trial = 0; trial < 6; ++trial) {
        const std::int64_t begin = trial == 0 ? 0 : draw(random, 0, padded);
        const std::int64_t end = trial == 0 ? padded : draw(random, begin, padded);
        const std::vector<Piece> pieces = layout.pieces(id, begin, end), gaps = layout.gaps(id, begin, end);
        EXPECT_TRUE(std::ranges::is_sorted(pieces, {}, &Piece::offset));
        EXPECT_TRUE(std::ranges::is_sorted(gaps, {}, &Piece::offset));
        std::vector<Piece> all = pieces;
        all.insert(all.end(), gaps.begin(), gaps.end());
        std::ranges::sort(all, {}, &Piece::offset);
        std::int64_t at = begin;
        for (const Piece& piece : all) {
          EXPECT_EQ(piece.offset, at);
          EXPECT_GT(piece.numel, 0);
          at += piece.numel;
          const Element first = layout.locate(id, piece.offset), last = layout.locate(id, at - 1);
          EXPECT_EQ(first.parameter, piece.parameter);
          EXPECT_EQ(last.parameter, piece.parameter);
          EXPECT_EQ(first.index, piece.begin);
          EXPECT_EQ(last.index, piece.parameter < 0 ? 0 : piece.begin + piece.numel - 1);
        }
        EXPECT_EQ(at, end);
      }
    }
  });
}

TEST_P(RandomLayouts, PiecesOfAllShardsCoverEveryParameterOnce) {
  on_each([](const Layout& layout, std::mt19937_64&) {
    std::map<ParameterId, std::int64_t> covered;
    for (FlatId id = 0; id < layout.flats().count(); ++id) {
      const std::int64_t shard_numel = layout.flat(id).shard_numel;
      for (int shard = 0; shard < layout.shards(); ++shard) {
        for (const Piece& piece : layout.pieces(id, shard * shard_numel, (shard + 1) * shard_numel)) {
          EXPECT_EQ(piece.begin, covered[piece.parameter]) << "in order, no element twice";
          EXPECT_EQ(layout.shard_of({piece.parameter, piece.begin}), shard);
          covered[piece.parameter] += piece.numel;
        }
      }
    }
    for (ParameterId id = 0; id < layout.parameters(); ++id)
      EXPECT_EQ(covered[id], layout.place(id).home == id ? layout.place(id).numel : 0);
  });
}

TEST_P(RandomLayouts, ElementsRoundTrip) {
  on_each([](const Layout& layout, std::mt19937_64& random) {
    for (ParameterId id = 0; id < layout.parameters(); ++id) {
      const Place& place = layout.place(id);
      for (std::int64_t index : {std::int64_t{0}, place.numel - 1, draw(random, 0, place.numel - 1)}) {
        const std::int64_t offset = layout.offset_of({id, index});
        EXPECT_EQ(layout.locate(place.flat, offset), (Element{place.home, index}));
        const std::int64_t shard_numel = layout.flat(place.flat).shard_numel;
        const int shard = layout.shard_of({id, index});
        EXPECT_GE(offset, shard * shard_numel);
        EXPECT_LT(offset, (shard + 1) * shard_numel);
      }
    }
    for (FlatId id = 0; id < layout.flats().count(); ++id) {
      const std::int64_t offset = draw(random, 0, layout.flat(id).padded_numel - 1);
      const Element element = layout.locate(id, offset);
      if (element.parameter < 0) continue;
      EXPECT_EQ(layout.offset_of(element), offset);
    }
  });
}

// Global coordinates do not depend on the world: only the tail of a flat buffer does.
TEST_P(RandomLayouts, PlacesAreTheSameInEveryWorld) {
  on_each([](const Layout& layout, std::mt19937_64& random) {
    const Layout other(layout.units(), testing::random_world(random));
    ASSERT_EQ(other.flats().size(), layout.flats().size());
    for (ParameterId id = 0; id < layout.parameters(); ++id) {
      EXPECT_EQ(other.place(id).flat, layout.place(id).flat);
      EXPECT_EQ(other.place(id).offset, layout.place(id).offset);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayouts, ::testing::Range(1, 5));

}  // namespace
}  // namespace tessera
