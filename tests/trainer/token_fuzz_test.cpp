// Random damage to token files: opening and reading one either works and stays inside the file, or throws one
// of Tessera's errors. Most telling under AddressSanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "src/trainer/token_header.h"
#include "tessera/error.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera {
namespace {

using Bytes = std::vector<std::byte>;

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  // A file whose header tells the truth.
  Bytes valid() {
    const TokenEncoding encoding = below(2) == 0 ? TokenEncoding::uint16 : TokenEncoding::uint32;
    const std::int64_t numel = 1 + below(300);
    Bytes file(static_cast<std::size_t>(kTokenHeaderBytes + numel * bytes_of(encoding)));
    const auto header = make_token_header(encoding, numel);
    std::ranges::copy(header, file.begin());
    return file;
  }

  void damage(Bytes& file) {
    switch (below(6)) {
      case 0:  // a bit
        if (!file.empty()) file[any(file.size())] ^= static_cast<std::byte>(1 << below(8));
        break;
      case 1:  // one of the header words that mean something
        set_word(file, static_cast<std::size_t>(below(3)), interesting());
        break;
      case 2:  // any word
        set_word(file, static_cast<std::size_t>(below(300)), static_cast<std::int32_t>(random_()));
        break;
      case 3:  // cut
        file.resize(any(file.size() + 1));
        break;
      case 4:  // a longer tail
        file.resize(file.size() + static_cast<std::size_t>(below(2000)), std::byte{0xFF});
        break;
      case 5:  // a stretch from elsewhere
        if (file.size() > 8) {
          const std::size_t from = any(file.size() - 4), to = any(file.size() - 4);
          std::memmove(file.data() + to, file.data() + from,
                       std::min<std::size_t>(4, file.size() - std::max(from, to)));
        }
        break;
    }
  }

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }

 private:
  std::size_t any(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  std::int32_t interesting() {
    constexpr std::int32_t kWords[] = {
        0, 1, 2, 7, -1, 255, 20240520, 20240801, 1 << 30, 2147483647, -2147483647 - 1};
    return kWords[any(std::size(kWords))];
  }
  static void set_word(Bytes& file, std::size_t index, std::int32_t value) {
    if (file.size() >= (index + 1) * 4) std::memcpy(file.data() + index * 4, &value, 4);
  }

  std::mt19937_64 random_;
};

// What an accepted layout must satisfy, whatever the bytes were.
void expect_inside(const TokenLayout& layout, const Bytes& file) {
  EXPECT_GE(layout.numel, 1);
  EXPECT_EQ(layout.offset_bytes + layout.numel * bytes_of(layout.encoding),
            static_cast<std::int64_t>(file.size()));
}

TEST(token_file_fuzz, parsing_accepts_only_what_lies_inside_the_file) {
  Mutator mutator(20240520);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 60'000; ++round) {
    Bytes file = mutator.valid();
    for (std::int64_t times = mutator.below(4); times > 0; --times) mutator.damage(file);
    // An allocation of exactly the file, so that a read past the end is seen.
    const auto exact = std::make_unique<std::byte[]>(file.size());
    std::ranges::copy(file, exact.get());
    for (const char* name : {"fuzz.bin", "fuzz.txt"}) try {
        expect_inside(parse_token_file(name, {exact.get(), file.size()}), file);
        ++accepted;
      } catch (const EnvironmentError& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos);
        ++refused;
      }
  }
  // Both happen often, or the test would prove nothing.
  EXPECT_GT(accepted, 10'000);
  EXPECT_GT(refused, 10'000);
}

TEST(token_file_fuzz, opening_and_reading_files_never_crashes) {
  const testing::TemporaryFolder folder;
  Mutator mutator(20240801);
  int read = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    Bytes file = mutator.valid();
    for (std::int64_t times = mutator.below(4); times > 0; --times) mutator.damage(file);
    const std::string path = folder.write(round % 3 == 0 ? "fuzz.txt" : "fuzz.bin", file);
    try {
      const TokenSource source = TokenSource::open(path, 1 + mutator.below(70'000));
      source.check_tokens();
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.numel()));
      source.read(0, tokens);
      for (std::int32_t token : tokens) ASSERT_TRUE(token >= 0 && token < source.vocabulary());
      const Sampler sampler(source, {0, source.numel()}, {.length = 1 + mutator.below(64), .seed = 1});
      std::vector<std::int32_t> inputs(static_cast<std::size_t>(sampler.length())), targets(inputs.size());
      EXPECT_EQ(sampler.read(mutator.below(1'000'000'000), inputs, targets), sampler.length());
      ++read;
    } catch (const EnvironmentError&) {
      ++refused;
    } catch (const UsageError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 300);
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace tessera
