// Token files: what is accepted lies inside the file, holds only tokens of the vocabulary once checked, and
// gives the same samples as its tokens read one by one.
#include <algorithm>
#include <span>

#include "fuzz/fuzz.h"
#include "src/trainer/token_header.h"
#include "src/trainer/token_mask.h"
#include "tessera/error.h"

using namespace tessera;

namespace {

void check_header(std::span<const std::byte> file) {
  for (const char* name : {"fuzz.bin", "fuzz.txt"}) try {
      const TokenLayout layout = parse_token_file(name, file);
      fuzz::require(layout.numel >= 1 && layout.offset_bytes + layout.numel * bytes_of(layout.encoding) ==
                                             static_cast<std::int64_t>(file.size()),
                    "the tokens are not the file's");
    } catch (const EnvironmentError&) {
    }
}

// A mask's count is that of its bits.
void check_mask(std::span<const std::byte> file) {
  const auto numel = 8 * (static_cast<std::int64_t>(file.size()) - kMaskHeaderBytes);
  for (std::int64_t tokens = std::max<std::int64_t>(1, numel - 7); tokens <= numel; ++tokens) try {
      const std::int64_t counted = check_token_mask("fuzz.mask", file, tokens);
      std::int64_t found = 0;
      for (std::int64_t token = 0; token < tokens; ++token)
        found += counts_in(file.data() + kMaskHeaderBytes, token) ? 1 : 0;
      fuzz::require(found == counted, "a mask counts other tokens than it marks");
    } catch (const EnvironmentError&) {
    }
}

void check_samples(const TokenSource& source, std::int64_t length) {
  const TokenRange range{source.numel() / 7, source.numel()};
  const Sampler sampler(source, range, {.length = length, .order = SampleOrder::shuffled, .seed = 3});
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(length)), targets(inputs.size());
  std::vector<std::int32_t> token(1);
  const std::int64_t last = std::min<std::int64_t>(sampler.windows(), 8);
  for (std::int64_t number = 0; number < last; ++number) {
    sampler.prefetch(number, 1);
    fuzz::require(sampler.read(number, inputs, targets) == length, "a shuffled sample is not whole");
    const std::int64_t begin = range.begin + sampler.window_of(number) * length;
    source.read(begin, token);
    fuzz::require(token[0] == inputs[0], "a sample begins elsewhere");
    source.read(begin + length, token);
    fuzz::require(token[0] == targets.back(), "a sample ends elsewhere");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  check_header(std::as_bytes(std::span(data, bytes)));
  check_mask(std::as_bytes(std::span(data, bytes)));
  const fuzz::MemoryFile file(data, bytes);
  const std::int64_t last = bytes > 0 ? data[bytes - 1] : 0;  // varies what the file is read with
  try {
    const TokenSource source = TokenSource::open(file.path(), last < 128 ? 50257 : 256 + last);
    source.check_tokens();
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.numel()));
    source.read(0, tokens);
    for (const std::int32_t token : tokens)
      fuzz::require(token >= 0 && token < source.vocabulary(), "a token is outside the vocabulary");
    check_samples(source, 1 + last % 16);
  } catch (const EnvironmentError&) {
  } catch (const UsageError&) {
  }
  return 0;
}
