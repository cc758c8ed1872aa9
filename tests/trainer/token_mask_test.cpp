// Masks beside token files: which tokens count as targets, and that no mask is taken for another's.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>

#include "src/trainer/token_mask.h"
#include "tessera/data.h"
#include "tessera/error.h"
#include "tests/refusal.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera {
namespace {

using testing::TemporaryFolder;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

using testing::refusal;

// Runs of tokens that count and that do not, and what the file then holds.
struct Masked {
  std::vector<std::int32_t> tokens;
  std::vector<bool> counts;

  Masked(const std::string& path, std::int64_t numel, unsigned seed) {
    std::mt19937 random(seed);
    TokenWriter writer(path, TokenEncoding::uint16, true);
    while (static_cast<std::int64_t>(tokens.size()) < numel) {
      const bool count = random() % 2 == 0;
      std::vector<std::int32_t> run(
          std::min<std::size_t>(random() % 30, static_cast<std::size_t>(numel) - tokens.size()));
      for (std::int32_t& token : run) token = static_cast<std::int32_t>(random() % 1000);
      writer.append(run, count);
      tokens.insert(tokens.end(), run.begin(), run.end());
      counts.insert(counts.end(), run.size(), count);
    }
    writer.finish();
  }
  std::int64_t counted() const { return std::ranges::count(counts, true); }
  std::int32_t target(std::int64_t at) const {
    const auto place = static_cast<std::size_t>(at);
    return counts[place] ? tokens[place] : kNotCounted;
  }
};

TEST(token_mask, has_the_layout_that_is_documented) {
  const TemporaryFolder folder;
  TokenWriter writer(folder.file("a.bin"), TokenEncoding::uint16, true);
  writer.append(std::vector<std::int32_t>{1, 2, 3}, false);
  writer.append(std::vector<std::int32_t>{4, 5, 6, 7, 8, 9, 10});
  writer.finish();
  std::string expected = "TSRMASK1";
  for (const std::int64_t number : {10, 7, 0}) expected.append(reinterpret_cast<const char*>(&number), 8);
  expected += "\xf8\x03";
  EXPECT_EQ(read_file(folder.file("a.mask")), expected);
  EXPECT_EQ(mask_name("x/a.bin"), "x/a.mask");
  EXPECT_EQ(mask_name("tokens"), "tokens.mask");
}

TEST(token_mask, decides_which_targets_count) {
  const TemporaryFolder folder;
  const Masked first(folder.file("0.bin"), 70'003, 1), second(folder.file("1.bin"), 501, 2);
  const TokenSource source = TokenSource::open(folder.file("?.bin"), 1000);
  EXPECT_TRUE(source.masked());
  EXPECT_EQ(source.counted(), first.counted() + second.counted());
  std::vector<std::int32_t> targets(static_cast<std::size_t>(source.numel()));
  source.read_targets(0, targets);
  for (std::int64_t at = 0; at < source.numel(); ++at)
    ASSERT_EQ(targets[static_cast<std::size_t>(at)],
              at < 70'003 ? first.target(at) : second.target(at - 70'003));
  // Parts that begin and end anywhere.
  std::mt19937 random(3);
  for (int k = 0; k < 200; ++k) {
    const std::int64_t begin = random() % 70'400, numel = 1 + random() % 100;
    std::vector<std::int32_t> part(static_cast<std::size_t>(numel));
    source.read_targets(begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), targets.begin() + begin)) << begin;
    source.read(begin, part);
    EXPECT_EQ(std::ranges::count(part, kNotCounted), 0) << "tokens are all there";
  }
}

TEST(token_mask, reaches_the_samples_of_a_run) {
  const TemporaryFolder folder;
  const Masked of(folder.file("a.bin"), 1001, 4);
  const Sampler sampler(TokenSource::open(folder.file("a.bin"), 1000), {0, 1001},
                        {.length = 20, .order = SampleOrder::in_order});
  std::vector<std::int32_t> inputs(20 * 50), targets(inputs.size());
  std::int64_t counted = 0;
  EXPECT_EQ(sampler.read(0, inputs, targets), of.counted() - (of.counts[0] ? 1 : 0));
  for (std::int64_t at = 0; at < 1000; ++at) {
    ASSERT_EQ(inputs[static_cast<std::size_t>(at)], of.tokens[static_cast<std::size_t>(at)]);
    ASSERT_EQ(targets[static_cast<std::size_t>(at)], of.target(at + 1));
    counted += targets[static_cast<std::size_t>(at)] == kNotCounted ? 0 : 1;
  }
  EXPECT_GT(counted, 100);
}

TEST(token_mask, is_part_of_the_identity) {
  const TemporaryFolder folder;
  const auto write = [&](bool masked, std::size_t uncounted) {
    const std::vector<std::int32_t> tokens(100, 7);
    TokenWriter writer(folder.file("a.bin"), TokenEncoding::uint16, masked);
    if (masked) writer.append(std::span(tokens).first(uncounted), false);
    writer.append(std::span(tokens).subspan(uncounted));
    if (uncounted > 0 && !masked) writer.append(std::span(tokens).first(uncounted));
    writer.finish();
    return identity_of(TokenSource::open(folder.file("a.bin"), 1000));
  };
  const std::string plain = write(false, 0), some = write(true, 40), fewer = write(true, 41);
  EXPECT_EQ(some.rfind(plain + ", of which 60 count (hash ", 0), 0u) << some;
  EXPECT_NE(some, fewer);
  // A file without mask in place of one that has one takes the mask away.
  EXPECT_EQ(write(false, 0), plain);
  EXPECT_EQ(folder.entries(), 1);
}

TEST(token_mask, of_another_file_or_damaged_is_refused) {
  const TemporaryFolder folder;
  const std::string tokens = folder.file("a.bin"), mask = folder.file("a.mask");
  const Masked of(tokens, 100, 5);
  const std::string good = read_file(mask);
  const auto says = [&](const std::string& bytes, const std::string& words) {
    write_file(mask, bytes);
    const std::string told = refusal<Error>([&] { TokenSource::open(tokens, 1000); });
    EXPECT_NE(told.find("mask '" + mask + "' " + words), std::string::npos) << told;
  };
  says("", "does not begin with TSRMASK1");
  says("TSRMASK2" + good.substr(8), "does not begin with TSRMASK1");
  says(good.substr(0, 20), "is truncated: its header takes 32 bytes, the file has 20");
  says(good.substr(0, good.size() - 1), "has 44 bytes; with 100 tokens it takes 45");
  says(good + "x", "has 46 bytes");
  std::string flipped = good;
  flipped[40] = static_cast<char>(flipped[40] ^ 4);
  says(flipped, "is damaged: it marks ");
  std::string behind = good;
  behind.back() = static_cast<char>(behind.back() | 0x80);
  says(behind, "is damaged");
  Masked(folder.file("b.bin"), 96, 6);
  says(read_file(folder.file("b.mask")), "is of 96 tokens, and the token file beside it has 100");
  write_file(mask, good);
  EXPECT_EQ(TokenSource::open(tokens, 1000).counted(), of.counted());
  // A mask that was lost would train on what should not count.
  std::filesystem::remove(folder.file("b.mask"));
  EXPECT_NE(
      refusal<Error>([&] {
        TokenSource::open(folder.file("?.bin"), 1000);
      }).find("b.bin' has no mask beside it, '" + folder.file("b.mask") + "', and other files have theirs"),
      std::string::npos);
  EXPECT_NE(
      refusal<Error>([&] { TokenSource::open(mask, 1000); }).find("is the mask of a token file, not text"),
      std::string::npos);
  TokenWriter writer(folder.file("c.bin"), TokenEncoding::uint16);
  EXPECT_NE(refusal<Error>([&] { writer.append(std::vector<std::int32_t>{1}, false); }).find("need a mask"),
            std::string::npos);
}

TEST(token_mask, without_finish_nothing_appears) {
  const TemporaryFolder folder;
  {
    TokenWriter writer(folder.file("a.bin"), TokenEncoding::uint16, true);
    writer.append(std::vector<std::int32_t>(1000, 3), false);
  }
  EXPECT_EQ(folder.entries(), 0);
}

}  // namespace
}  // namespace tessera
