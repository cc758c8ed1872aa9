#include "tessera/data.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "src/trainer/token_header.h"
#include "tessera/error.h"
#include "tests/refusal.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera {
namespace {

using testing::refusal;
using testing::TemporaryFolder;

std::vector<std::int32_t> counting(std::int64_t numel, std::int32_t modulus) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(numel));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i) * 7 % modulus;
  return tokens;
}

void write_tokens(const std::string& path, TokenEncoding encoding, std::span<const std::int32_t> tokens) {
  TokenWriter writer(path, encoding);
  writer.append(tokens);
  writer.finish();
}

// A source in memory whose token i is i % 256.
TokenSource ramp(std::int64_t numel) {
  std::string text(static_cast<std::size_t>(numel), '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i);
  return TokenSource::of_text(std::move(text));
}

// The bytes of a file with the given header words and tail.
std::vector<std::byte> with_header(const std::vector<std::int32_t>& words, std::size_t tail_bytes) {
  std::vector<std::byte> bytes(kTokenHeaderBytes + tail_bytes);
  std::memcpy(bytes.data(), words.data(), words.size() * sizeof(std::int32_t));
  return bytes;
}

TEST(token_file, is_read_as_it_was_written) {
  const TemporaryFolder folder;
  for (const auto& [encoding, largest] : std::map<TokenEncoding, std::int32_t>{
           {TokenEncoding::uint16, 65535}, {TokenEncoding::uint32, 128255}}) {
    const std::string path = folder.file("tokens.bin");
    std::vector<std::int32_t> tokens = counting(200'000, largest);
    tokens.back() = largest;
    {
      TokenWriter writer(path, encoding);
      writer.append(std::span(tokens).first(1));
      writer.append(std::span(tokens).subspan(1));
      writer.finish();
    }
    const TokenSource source = TokenSource::open(path, largest + 1);
    EXPECT_EQ(source.numel(), 200'000);
    EXPECT_EQ(source.encoding(), encoding);
    EXPECT_EQ(static_cast<std::int64_t>(std::filesystem::file_size(path)),
              kTokenHeaderBytes + 200'000 * bytes_of(encoding));
    std::vector<std::int32_t> read(tokens.size());
    source.read(0, read);
    EXPECT_EQ(read, tokens);
    source.check_tokens();
  }
  EXPECT_EQ(folder.entries(), 1);
}

TEST(token_file, header_has_the_published_layout) {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  const std::vector<std::int32_t> tokens = {1, 258};
  write_tokens(path, TokenEncoding::uint16, tokens);
  std::ifstream file(path, std::ios::binary);
  std::vector<std::int32_t> header(256);
  file.read(reinterpret_cast<char*>(header.data()), 1024);
  std::vector<std::int32_t> expected(256);
  expected[0] = 20240520;
  expected[1] = 1;
  expected[2] = 2;
  EXPECT_EQ(header, expected);
  char tail[5] = {};
  file.read(tail, 5);
  EXPECT_EQ(file.gcount(), 4);
  EXPECT_EQ(std::string(tail, 4), std::string("\x01\x00\x02\x01", 4));
}

TEST(token_file, a_token_outside_the_vocabulary_is_named) {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  std::vector<std::int32_t> tokens = counting(100'000, 1000);
  tokens[70'000] = 1000;
  write_tokens(path, TokenEncoding::uint16, tokens);
  const TokenSource source = TokenSource::open(path, 1000);
  const std::string expected =
      "token file '" + path + "' has token 1000 at place 70000; the vocabulary is 1000";
  EXPECT_EQ(refusal<EnvironmentError>([&] { source.check_tokens(); }), expected);
  std::vector<std::int32_t> some(10);
  EXPECT_EQ(refusal<EnvironmentError>([&] { source.read(69'991, some); }), expected);
  source.read(69'990, some);
  // Above 2^31 as well: never a negative token.
  std::vector<std::byte> bytes = with_header({20240801, 7, 1}, 4);
  std::fill(bytes.end() - 4, bytes.end(), std::byte{0xFF});
  const TokenSource large = TokenSource::open(folder.write("large.bin", bytes), std::int64_t{1} << 31);
  EXPECT_NE(refusal<EnvironmentError>([&] { large.check_tokens(); }).find("has token 4294967295 at place 0"),
            std::string::npos);
}

TEST(token_file, damage_is_refused_with_what_was_expected) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& name, const std::vector<std::byte>& bytes) {
    const std::string path = folder.write(name, bytes);
    std::string message = refusal<EnvironmentError>([&] { (void)TokenSource::open(path, 50257); });
    const std::size_t at = message.find(path);
    return at == std::string::npos ? message : message.replace(at, path.size(), name);
  };
  EXPECT_EQ(error("a.bin", with_header({20240520, 1, 100}, 199)),
            "token file 'a.bin' is truncated: 100 tokens of uint16 take 1224 bytes with the header, the file "
            "has 1223");
  EXPECT_EQ(error("a.bin", with_header({20240801, 7, 100}, 404)),
            "token file 'a.bin' is longer than it declares: 100 tokens of uint32 take 1424 bytes with the "
            "header, the "
            "file has 1428");
  EXPECT_EQ(error("a.bin", with_header({20240520, 1, 2147483647}, 2)),
            "token file 'a.bin' is truncated: 2147483647 tokens of uint16 take 4294968318 bytes with the "
            "header, the "
            "file has 1026");
  EXPECT_EQ(error("a.bin", with_header({20240520, 1, -1}, 2)),
            "token file 'a.bin' declares -1 tokens; there must be at least 1");
  EXPECT_EQ(error("a.bin", with_header({20240520, 1, 0}, 0)),
            "token file 'a.bin' declares 0 tokens; there must be at least 1");
  EXPECT_EQ(error("a.bin", with_header({20240520, 2, 1}, 2)),
            "token file 'a.bin' has version 2; for magic 20240520 only 1 is known");
  EXPECT_EQ(error("a.bin", with_header({20240801, 1, 1}, 4)),
            "token file 'a.bin' has version 1; for magic 20240801 only 7 is known");
  EXPECT_EQ(error("a.bin", with_header({12345}, 4)),
            "token file 'a.bin' starts with 12345, not with magic 20240520 (uint16) or 20240801 (uint32)");
  EXPECT_EQ(error("a.bin", std::vector<std::byte>(1023)),
            "token file 'a.bin' is truncated: its header takes 1024 bytes, the file has 1023");
  EXPECT_EQ(error("a.bin", {}),
            "token file 'a.bin' is truncated: its header takes 1024 bytes, the file has 0");
  EXPECT_EQ(error("a.txt", {}), "text file 'a.txt' is empty");
  // Under another name a token file is still one, and is held to its header.
  EXPECT_EQ(error("a.txt", with_header({20240520, 1, 3}, 2)),
            "token file 'a.txt' is truncated: 3 tokens of uint16 take 1030 bytes with the header, the file "
            "has 1026");
}

TEST(token_file, what_cannot_be_read_is_named) {
  const TemporaryFolder folder;
  const auto error = [](const std::string& path) {
    return refusal<EnvironmentError>([&] { (void)TokenSource::open(path, 256); });
  };
  const std::string missing = folder.file("missing.bin");
  EXPECT_EQ(error(missing), "cannot read '" + missing + "': No such file or directory");
  EXPECT_EQ(error(folder.file("")), "cannot read '" + folder.file("") + "': Is a directory");
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(error(pipe), "cannot read '" + pipe + "': it is not a regular file");
}

// Their bytes would train without a word.
TEST(token_source, a_file_of_another_format_is_refused) {
  using namespace std::string_literals;
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& name, const std::string& bytes) {
    const std::string path = folder.file(name);
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      TokenSource::open(path, 256);
    } catch (const EnvironmentError& error) {
      return std::string(error.what());
    }
    return "accepted"s;
  };
  const std::string tail(100, 'x');
  for (const auto& [name, bytes, words] : std::vector<std::array<std::string, 3>>{
           {"a.parquet", "PAR1" + tail, "a Parquet file"},
           {"a.arrow", "ARROW1\0\0"s + tail, "an Arrow file"},
           {"a.npy", "\x93NUMPY\x01"s + tail, "a NumPy array"},
           {"a.txt.gz", "\x1F\x8B\x08"s + tail, "compressed by gzip"},
           {"a.zst", "\x28\xB5\x2F\xFD"s + tail, "compressed by zstd"},
           {"a.xz", "\xFD\x37zXZ\0"s + tail, "compressed by xz"},
           {"a.zip", "PK\x03\x04"s + tail, "a zip archive"},
           {"a.safetensors", "\x10\0\0\0\0\0\0\0{}              "s + tail, "a safetensors file"},
           {"a.json", R"({"text": "a"})" + tail, "JSON lines"},
           {"a.jsonl", R"({"id": 1, "text": "a"})" + tail, "JSON lines"},
           {"a.pdf", "%PDF-1.7" + tail, "a PDF file"}}) {
    const std::string found = refusal(name, bytes);
    EXPECT_NE(found.find(name + "' is " + words), std::string::npos) << found;
    EXPECT_NE(found.find("write the text that it holds to a file"), std::string::npos) << found;
  }
  for (const std::string text : {"PAR", "{ a brace", "PK is a code", "x"})
    EXPECT_EQ(refusal("plain.txt", text), "accepted") << text;
}

TEST(token_source, text_is_bytes) {
  const TemporaryFolder folder;
  const std::string text = "a\xC3\xA4\n\xFF";
  const std::string path = folder.write("text.md", std::as_bytes(std::span(text)));
  for (const TokenSource& source : {TokenSource::open(path, 256), TokenSource::of_text(text)}) {
    EXPECT_EQ(source.encoding(), TokenEncoding::text);
    std::vector<std::int32_t> tokens(5);
    source.read(0, tokens);
    EXPECT_EQ(tokens, (std::vector<std::int32_t>{'a', 0xC3, 0xA4, '\n', 0xFF}));
  }
  EXPECT_NE(refusal([&] { (void)TokenSource::open(path, 255); }).find("at least 256, not 255"),
            std::string::npos);
  EXPECT_THROW((void)TokenSource::open(path, 0), UsageError);
}

TEST(token_source, a_copy_outlives_the_file_and_the_original) {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  const std::vector<std::int32_t> tokens = counting(5000, 300);
  write_tokens(path, TokenEncoding::uint16, tokens);
  auto original = std::make_unique<TokenSource>(TokenSource::open(path, 300));
  const TokenSource copy = *original;
  original.reset();
  std::filesystem::remove(path);
  std::vector<std::int32_t> read(tokens.size());
  copy.read(0, read);
  EXPECT_EQ(read, tokens);
}

// Three files of 5, 12 and 9 tokens whose token i, of all, is i; written in another order than their names'.
std::string write_three(const TemporaryFolder& folder) {
  const auto tokens = counting(26, 1000);
  write_tokens(folder.file("t_000010.bin"), TokenEncoding::uint16, std::span(tokens).subspan(17));
  write_tokens(folder.file("t_000002.bin"), TokenEncoding::uint16, std::span(tokens).subspan(5, 12));
  write_tokens(folder.file("t_000001.bin"), TokenEncoding::uint16, std::span(tokens).first(5));
  write_tokens(folder.file("v_000000.bin"), TokenEncoding::uint16, tokens);
  return folder.file("t_*.bin");
}

TEST(token_source, a_file_that_becomes_shorter_is_an_error) {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  write_tokens(path, TokenEncoding::uint16, counting(20000, 300));
  const TokenSource source = TokenSource::open(path, 300);
  std::vector<std::int32_t> read(100);
  source.read(19000, read);
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ
  if (::madvise(nullptr, 0, kPopulateRead) != 0) GTEST_SKIP() << "the system cannot tell (Linux before 5.14)";
  std::filesystem::resize_file(path, 4096);
  source.read(1000, read);  // still there
  const std::string message = refusal<EnvironmentError>([&] { source.read(19000, read); });
  EXPECT_NE(message.find("cannot read tokens [19000, 19100) of '" + path + "', which had 20000"),
            std::string::npos)
      << message;
}

// The rest of its last page is there, and is zeros.
TEST(token_source, a_file_that_becomes_shorter_within_a_page_is_an_error) {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  write_tokens(path, TokenEncoding::uint16, counting(3000, 300));  // a page and a half, after the header
  const TokenSource source = TokenSource::open(path, 300);
  const auto error_at = [&](std::int64_t begin) {
    std::vector<std::int32_t> read(100);
    return refusal<EnvironmentError>([&] { source.read(begin, read); });
  };
  EXPECT_EQ(error_at(2900), "accepted");
  std::filesystem::resize_file(path, 1024 + 2 * 2950);
  EXPECT_EQ(error_at(2850), "accepted");  // up to the end
  const auto shorter = [&](const std::string& tokens) {
    return "cannot read tokens " + tokens + " of '" + path +
           "', which had 3000 when it was opened: it has become shorter since, or its disk fails";
  };
  EXPECT_EQ(error_at(2851), shorter("[2851, 2951)"));
  EXPECT_EQ(error_at(2900), shorter("[2900, 3000)"));
  EXPECT_EQ(refusal<EnvironmentError>([&] { (void)identity_of(source); }), shorter("[1976, 3000)"));
}

// Another file may take the name of one that is mapped, which stays as it was: so a download replaces it.
TEST(token_source, a_file_that_is_replaced_stays_the_one_that_was_opened) {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  const std::vector<std::int32_t> tokens = counting(3000, 300);
  write_tokens(path, TokenEncoding::uint16, tokens);
  const TokenSource source = TokenSource::open(path, 300);
  write_tokens(path, TokenEncoding::uint16, std::span(tokens).first(10));
  std::vector<std::int32_t> read(3000);
  source.read(0, read);
  EXPECT_EQ(read, tokens);
  std::filesystem::remove(path);
  source.read(0, read);
  EXPECT_EQ(read, tokens);
}

TEST(token_source, its_identity_is_of_files_counts_and_tokens) {
  const TemporaryFolder folder;
  const std::string three = identity_of(TokenSource::open(write_three(folder), 1000));
  EXPECT_EQ(three.rfind("26 tokens in 3 files (hash ", 0), 0u) << three;
  const std::string one = identity_of(TokenSource::open(folder.file("v_000000.bin"), 1000));
  EXPECT_EQ(one.rfind("26 tokens in 1 file (hash ", 0), 0u) << one;
  const auto tokens = counting(5000, 1000);
  const auto of = [&](TokenEncoding encoding, std::int64_t changed = -1) {
    std::vector<std::int32_t> all = tokens;
    if (changed >= 0) ++all[static_cast<std::size_t>(changed)];
    const std::string path = folder.file("one.bin");
    write_tokens(path, encoding, all);
    return identity_of(TokenSource::open(path, 1001));
  };
  const std::string whole = of(TokenEncoding::uint16);
  EXPECT_EQ(whole, of(TokenEncoding::uint32));
  EXPECT_NE(whole, of(TokenEncoding::uint16, 0));
  EXPECT_NE(whole, of(TokenEncoding::uint16, 4999));
  // The same tokens in other files are other samples.
  write_tokens(folder.file("two_1.bin"), TokenEncoding::uint16, std::span(tokens).first(2500));
  write_tokens(folder.file("two_2.bin"), TokenEncoding::uint16, std::span(tokens).subspan(2500));
  const std::string halves = identity_of(TokenSource::open(folder.file("two_*.bin"), 1000));
  write_tokens(folder.file("two_1.bin"), TokenEncoding::uint16, std::span(tokens).first(2400));
  write_tokens(folder.file("two_2.bin"), TokenEncoding::uint16, std::span(tokens).subspan(2400));
  EXPECT_NE(halves, identity_of(TokenSource::open(folder.file("two_*.bin"), 1000)));
}

TEST(token_source, a_pattern_is_its_files_one_after_the_other_by_name) {
  const TemporaryFolder folder;
  const TokenSource source = TokenSource::open(write_three(folder), 1000);
  EXPECT_EQ(source.files(), (std::vector<TokenRange>{{0, 5}, {5, 17}, {17, 26}}));
  EXPECT_EQ(source.file_name(0), folder.file("t_000001.bin"));
  EXPECT_EQ(source.file_name(2), folder.file("t_000010.bin"));
  EXPECT_EQ(refusal([&] { (void)source.file_name(3); }),
            "data '" + folder.file("t_*.bin") + "': file 3 is not within 0 to 2");
  const std::vector<std::int32_t> expected = counting(26, 1000);
  for (std::int64_t begin = 0; begin <= 26; ++begin)
    for (std::int64_t end = begin; end <= 26; ++end) {
      std::vector<std::int32_t> read(static_cast<std::size_t>(end - begin));
      source.read(begin, read);
      EXPECT_TRUE(std::ranges::equal(
          read, std::span(expected).subspan(static_cast<std::size_t>(begin), read.size())));
    }
  std::vector<std::int32_t> one(1);
  EXPECT_THROW(source.read(26, one), UsageError);
  // The place of a token is that in its file: token 25 of all is 175, the ninth of the last.
  const TokenSource small = TokenSource::open(folder.file("t_*.bin"), 175);
  EXPECT_EQ(
      refusal<EnvironmentError>([&] { small.check_tokens(); }),
      "token file '" + folder.file("t_000010.bin") + "' has token 175 at place 8; the vocabulary is 175");
}

TEST(token_source, a_pattern_that_cannot_be_read_as_one_is_refused) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& pattern) {
    return refusal<EnvironmentError>([&] { (void)TokenSource::open(folder.file(pattern), 1000); });
  };
  write_three(folder);
  EXPECT_EQ(error("u_*.bin"), "no file matches '" + folder.file("u_*.bin") + "'");
  write_tokens(folder.file("t_000003.bin"), TokenEncoding::uint32, counting(5, 5));
  EXPECT_EQ(error("t_*.bin"), "data '" + folder.file("t_*.bin") + "': '" + folder.file("t_000001.bin") +
                                  "' holds uint16 and '" + folder.file("t_000003.bin") +
                                  "' holds uint32; all files must hold the same");
  folder.write("t_000000.bin", with_header({20240520, 1, 3}, 4));
  EXPECT_NE(error("t_*.bin").find("t_000000.bin' is truncated"), std::string::npos);
}

TEST(token_source, a_file_whose_name_looks_like_a_pattern_is_that_file) {
  const TemporaryFolder folder;
  const std::string text = "one", other = "other";
  folder.write("[ab]*", std::as_bytes(std::span(text)));
  folder.write("a", std::as_bytes(std::span(other)));
  EXPECT_EQ(TokenSource::open(folder.file("[ab]*"), 256).numel(), 3);
  EXPECT_EQ(TokenSource::open(folder.file("[a]*"), 256).numel(), 5);
}

TEST(token_source, refuses_a_range_outside_itself) {
  const TokenSource source = TokenSource::of_text("0123456789");
  std::vector<std::int32_t> tokens(4);
  source.read(6, tokens);
  source.read(10, {});
  EXPECT_EQ(refusal([&] { source.read(7, tokens); }), "data 'text': tokens [7, 11) are outside [0, 10)");
  EXPECT_THROW(source.read(-1, tokens), UsageError);
  EXPECT_THROW(source.read(11, {}), UsageError);
}

TEST(token_writer, nothing_appears_without_finish) {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  const std::vector<std::int32_t> old_tokens = {5, 6, 7};
  write_tokens(path, TokenEncoding::uint16, old_tokens);
  {
    TokenWriter writer(path, TokenEncoding::uint16);
    writer.append(counting(1000, 100));
    EXPECT_THROW(writer.append(std::vector<std::int32_t>{65536}), UsageError);
    EXPECT_THROW(writer.append(std::vector<std::int32_t>{-1}), UsageError);
  }
  EXPECT_EQ(folder.entries(), 1);
  std::vector<std::int32_t> read(3);
  TokenSource::open(path, 100).read(0, read);
  EXPECT_EQ(read, old_tokens);
}

TEST(token_writer, an_append_that_is_refused_appends_nothing) {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  for (const auto& [encoding, wrong] :
       std::map<TokenEncoding, std::int32_t>{{TokenEncoding::uint16, 65536}, {TokenEncoding::uint32, -1}}) {
    TokenWriter writer(path, encoding);
    std::vector<std::int32_t> many(200'000, 1);  // more than is written at once
    many.back() = wrong;
    const std::string message = refusal([&] { writer.append(many); });
    EXPECT_NE(message.find("token " + std::to_string(wrong) + " at place 199999 is not within 0 to"),
              std::string::npos)
        << message;
    writer.append(std::vector<std::int32_t>{5, 6});
    writer.finish();
    const TokenSource source = TokenSource::open(path, 100);
    ASSERT_EQ(source.numel(), 2);
    std::vector<std::int32_t> read(2);
    source.read(0, read);
    EXPECT_EQ(read, (std::vector<std::int32_t>{5, 6}));
  }
}

TEST(token_writer, a_full_disk_leaves_nothing_behind) {
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  // A limit on the size of files stands in for the full disk.
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit = {.rlim_cur = 100'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string error =
      refusal<EnvironmentError>([&] { write_tokens(path, TokenEncoding::uint16, counting(200'000, 100)); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(error, "cannot write '" + path + "': File too large");
  EXPECT_EQ(folder.entries(), 0);
}

TEST(token_writer, refuses_what_it_cannot_write) {
  const TemporaryFolder folder;
  const std::string nowhere = folder.file("no/such/folder/tokens.bin");
  EXPECT_EQ(refusal<EnvironmentError>([&] { TokenWriter(nowhere, TokenEncoding::uint16); }),
            "cannot write '" + nowhere + "': No such file or directory");
  EXPECT_THROW(TokenWriter(folder.file("a"), TokenEncoding::text), UsageError);
  TokenWriter empty(folder.file("empty.bin"), TokenEncoding::uint16);
  EXPECT_THROW(empty.finish(), UsageError);
  empty.append(std::vector<std::int32_t>{1});
  empty.finish();
  EXPECT_THROW(empty.finish(), UsageError);
  EXPECT_THROW(empty.append(std::vector<std::int32_t>{1}), UsageError);
}

TEST(split, holds_back_the_end) {
  EXPECT_EQ(split_by_fraction(1000, 0.1).train, (TokenRange{0, 900}));
  EXPECT_EQ(split_by_fraction(1000, 0.1).validation, (TokenRange{900, 1000}));
  EXPECT_EQ(split_by_fraction(9, 0.1).validation.numel(), 0);
  EXPECT_EQ(split_by_count(10, 9).train, (TokenRange{0, 1}));
  EXPECT_EQ(split_by_count(10, 0).train, (TokenRange{0, 10}));
  EXPECT_THROW((void)split_by_fraction(10, 1.0), UsageError);
  EXPECT_THROW((void)split_by_fraction(10, -0.1), UsageError);
  EXPECT_THROW((void)split_by_fraction(10, std::numeric_limits<double>::quiet_NaN()), UsageError);
  EXPECT_THROW((void)split_by_count(10, 10), UsageError);
  EXPECT_THROW((void)split_by_count(10, -1), UsageError);
}

TEST(sampler, every_window_once_in_an_epoch_and_every_token_a_target_once) {
  constexpr std::int64_t kLength = 3, kWindows = 80;
  // 241 tokens: 80 windows and one token that is only an input. Token i is i, below 256.
  const Sampler sampler(ramp(250), {.begin = 5, .end = 246}, {.length = kLength, .seed = 4});
  ASSERT_EQ(sampler.windows(), kWindows);
  std::vector<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::int32_t> targets_seen;
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < kWindows; ++i) {
      std::vector<std::int32_t> inputs(kLength), targets(kLength);
      EXPECT_EQ(sampler.read(epoch * kWindows + i, inputs, targets), kLength);
      for (std::size_t t = 0; t < kLength; ++t) {
        EXPECT_EQ(targets[t], inputs[t] + 1);
        EXPECT_TRUE(targets_seen.insert(targets[t]).second);
      }
      order.push_back(sampler.window_of(epoch * kWindows + i));
      EXPECT_EQ(inputs[0], 5 + order.back() * kLength);
    }
    EXPECT_EQ(targets_seen.size(), static_cast<std::size_t>(kWindows * kLength));
    EXPECT_EQ(*targets_seen.begin(), 6);
    EXPECT_EQ(*targets_seen.rbegin(), 245);
    orders.push_back(order);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

// Inputs of the sample that is window `window` when read in order.
std::vector<std::int32_t> window_inputs(const Sampler& in_order, std::int64_t window) {
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(in_order.length())), targets(inputs.size());
  EXPECT_EQ(in_order.read(window, inputs, targets), in_order.length());
  for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(targets[i], inputs[i] + 7);  // of counting()
  return inputs;
}

TEST(sampler, no_window_crosses_from_one_file_into_the_next) {
  const TemporaryFolder folder;
  const TokenSource source = TokenSource::open(write_three(folder), 1000);
  // Of tokens [2, 25) with T = 4: [2, 5) of the first file is too short, [5, 17) gives two windows and three
  // tokens more, [17, 25) one.
  const Sampler sampler(source, {2, 25}, {.length = 4, .order = SampleOrder::in_order});
  ASSERT_EQ(sampler.windows(), 3);
  std::vector<std::int32_t> begins;
  for (std::int64_t window = 0; window < 3; ++window) begins.push_back(window_inputs(sampler, window)[0] / 7);
  EXPECT_EQ(begins, (std::vector<std::int32_t>{5, 9, 17}));
  // Shuffled, an epoch holds the same windows, each once.
  const Sampler shuffled(source, {2, 25}, {.length = 4, .seed = 3});
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    std::set<std::int32_t> seen;
    for (std::int64_t i = 0; i < 3; ++i) seen.insert(window_inputs(shuffled, epoch * 3 + i)[0] / 7);
    EXPECT_EQ(seen, (std::set<std::int32_t>{5, 9, 17}));
  }
  EXPECT_EQ(refusal([&] {
              Sampler(source, {0, 26}, {.length = 12});
            }),
            "data '" + folder.file("t_*.bin") +
                "': tokens [0, 26) are too few for one sample: 12 tokens and a target more, all in one file; "
                "the longest file has 12 of them");
}

TEST(sampler, tells_which_files_are_too_short_for_a_sample) {
  const TemporaryFolder folder;
  int number = 0;
  for (const int numel : {400, 120, 129, 128, 90}) {
    const std::string text(static_cast<std::size_t>(numel), 'a');
    folder.write("doc" + std::to_string(++number) + ".txt", std::as_bytes(std::span(text)));
  }
  const TokenSource source = TokenSource::open(folder.file("doc*.txt"), 256);
  const auto unread = [&](TokenRange range, std::int64_t length) {
    return Sampler(source, range, {.length = length}).unread();
  };
  const auto names = [&](std::initializer_list<const char*> of) {
    std::vector<std::string> all;
    for (const char* name : of) all.push_back(folder.file(name));
    return all;
  };
  const UnreadFiles few = unread({0, 867}, 128);  // 128 tokens are too few, a target more is not
  EXPECT_EQ(few.names, names({"doc2.txt", "doc4.txt", "doc5.txt"}));
  EXPECT_EQ(few.numel, 120 + 128 + 90);
  EXPECT_EQ(few.of, 5);
  EXPECT_TRUE(unread({0, 867}, 89).names.empty());
  EXPECT_EQ(unread({0, 867}, 89).numel, 0);
  // Of a range only what lies in it counts: half of doc3, all of doc4; doc1, doc2 and doc5 are no part of it.
  const UnreadFiles cut = unread({585, 777}, 100);
  EXPECT_EQ(cut.names, names({"doc3.txt"}));
  EXPECT_EQ(cut.numel, 64);
  EXPECT_EQ(cut.of, 2);
  // One file only, and that is read.
  EXPECT_EQ(unread({0, 400}, 128).of, 1);
  EXPECT_TRUE(unread({0, 400}, 128).names.empty());
}

// Which pages of a file lie in memory.
class CachedPages {
 public:
  explicit CachedPages(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    bytes_ = static_cast<std::size_t>(std::filesystem::file_size(path));
    address_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file_, 0);
  }
  ~CachedPages() {
    ::munmap(address_, bytes_);
    ::close(file_);
  }
  CachedPages(const CachedPages&) = delete;
  CachedPages& operator=(const CachedPages&) = delete;

  std::set<std::int64_t> now() const {
    std::vector<unsigned char> flags((bytes_ + kPageBytes - 1) / kPageBytes);
    EXPECT_EQ(::mincore(address_, bytes_, flags.data()), 0);
    std::set<std::int64_t> pages;
    for (std::size_t page = 0; page < flags.size(); ++page)
      if (flags[page] & 1) pages.insert(static_cast<std::int64_t>(page));
    return pages;
  }
  // Whether they all could be dropped: file systems in memory keep them, and then there is nothing to test.
  bool drop() const {
    ::fsync(file_);
    ::posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
    return now().empty();
  }
  // Reading ahead takes its time; the pages after it has read `wanted`, or after a deadline.
  std::set<std::int64_t> once_they_hold(const std::set<std::int64_t>& wanted) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::set<std::int64_t> pages = now();
    while (!std::ranges::includes(pages, wanted) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      pages = now();
    }
    return pages;
  }

  static constexpr std::int64_t kPageBytes = 4096;

 private:
  int file_;
  std::size_t bytes_ = 0;
  void* address_ = nullptr;
};

// Pages of uint16 tokens [begin, end).
void add_pages(TokenRange tokens, std::set<std::int64_t>& pages) {
  const std::int64_t last = kTokenHeaderBytes + tokens.end * 2 - 1;
  for (std::int64_t page = (kTokenHeaderBytes + tokens.begin * 2) / CachedPages::kPageBytes;
       page <= last / CachedPages::kPageBytes; ++page)
    pages.insert(page);
}

TEST(sampler, prefetch_reads_the_samples_and_nothing_else_from_disk) {
  if (::sysconf(_SC_PAGESIZE) != CachedPages::kPageBytes) GTEST_SKIP() << "pages of another size";
  const TemporaryFolder folder;
  const std::string path = folder.file("tokens.bin");
  constexpr std::int64_t kLength = 1000, kNumel = 4'000'000;
  write_tokens(path, TokenEncoding::uint16, counting(kNumel, 1000));
  const CachedPages cached(path);
  if (!cached.drop()) GTEST_SKIP() << "this file system keeps its files in memory";
  const Sampler sampler(TokenSource::open(path, 1000), {0, kNumel}, {.length = kLength, .seed = 5});

  std::set<std::int64_t> wanted = {0};  // the header
  for (std::int64_t number = 7; number < 17; ++number) {
    const std::int64_t begin = sampler.window_of(number) * kLength;
    add_pages({begin, begin + kLength + 1}, wanted);
  }
  ASSERT_LE(wanted.size(), 21U);
  sampler.prefetch(7, 10);
  EXPECT_EQ(cached.once_they_hold(wanted), wanted);

  // A sample that is read without it brings no neighbours along either.
  std::vector<std::int32_t> inputs(kLength), targets(kLength);
  sampler.read(17, inputs, targets);
  const std::int64_t begin = sampler.window_of(17) * kLength;
  add_pages({begin, begin + kLength + 1}, wanted);
  EXPECT_EQ(cached.now(), wanted);
}

TEST(sampler, prefetch_takes_any_samples_and_refuses_numbers_below_0) {
  const Sampler text(ramp(100), {0, 100}, {.length = 10, .order = SampleOrder::in_order});
  text.prefetch(5, 100);  // most lie behind the end
  EXPECT_THROW(text.prefetch(-1, 1), UsageError);
  const TokenSource source = ramp(10);
  source.prefetch({0, 10});
  EXPECT_EQ(refusal([&] { source.prefetch({5, 11}); }), "data 'text': tokens [5, 11) are outside [0, 10)");
}

TEST(sampler, the_seed_decides_the_order) {
  const auto order = [](std::uint64_t seed) {
    const Sampler sampler(ramp(400), {0, 400}, {.length = 4, .seed = seed});
    std::vector<std::int64_t> windows;
    for (std::int64_t i = 0; i < sampler.windows(); ++i) windows.push_back(sampler.window_of(i));
    return windows;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(sampler, steps_hold_the_same_samples_in_any_world) {
  const Sampler sampler(ramp(2000), {0, 2000}, {.length = 10, .seed = 1});
  // The inputs of a step, all ranks and microbatches together, as rows in the order of their sample numbers.
  const auto step_samples = [&](const SampleGrid& grid, std::int64_t step) {
    std::map<std::int64_t, std::vector<std::int32_t>> rows;
    for (int rank = 0; rank < grid.mesh.data_ranks(); ++rank)
      for (int microbatch = 0; microbatch < grid.microbatches_of(rank); ++microbatch) {
        const std::int64_t first = grid.first_sample(step, rank, microbatch);
        std::vector<std::int32_t> inputs(static_cast<std::size_t>(grid.sequences) * 10),
            targets(inputs.size());
        sampler.read(first, inputs, targets);
        for (std::int64_t row = 0; row < grid.sequences; ++row)
          rows[first + row].assign(inputs.begin() + row * 10, inputs.begin() + (row + 1) * 10);
      }
    return rows;
  };
  for (std::int64_t step :
       {0, 1, 17, 40}) {  // 16 samples a step: step 40 lies in the fourth epoch of 199 windows
    const auto alone = step_samples({.mesh = {.shard = 1}, .rounds = {.count = 4}, .sequences = 4}, step);
    ASSERT_EQ(alone.size(), 16U);
    EXPECT_EQ(alone.begin()->first, step * 16);
    EXPECT_EQ(step_samples({.mesh = {.shard = 2}, .rounds = {.count = 2}, .sequences = 4}, step), alone);
    EXPECT_EQ(step_samples({.mesh = {.shard = 4}, .rounds = {.count = 2}, .sequences = 2}, step), alone);
    EXPECT_EQ(step_samples({.mesh = {.shard = 16}, .rounds = {.count = 1}, .sequences = 1}, step), alone);
    // Where the microbatches are no multiple of the ranks, or fewer than these.
    for (const int world : {3, 5, 7})
      EXPECT_EQ(
          step_samples({.mesh = {.shard = world}, .rounds = Rounds::of(4, {.shard = world}), .sequences = 4},
                       step),
          alone);
    // Replicas with blocks of their own read other samples of the same step.
    for (const Mesh& mesh : {Mesh{.replicate = 2}, {.replicate = 4}, {.replicate = 2, .shard = 3}})
      EXPECT_EQ(step_samples({.mesh = mesh, .rounds = Rounds::of(4, mesh, 4), .sequences = 4}, step), alone);
  }
}

TEST(sampler, in_order_counts_every_window_once_and_then_nothing) {
  const Sampler sampler(ramp(23), {0, 23}, {.length = 4, .order = SampleOrder::in_order});
  ASSERT_EQ(sampler.windows(), 5);
  std::vector<std::int32_t> inputs(8 * 4), targets(8 * 4);
  EXPECT_EQ(sampler.read(0, inputs, targets), 20);
  for (std::int32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(inputs[static_cast<std::size_t>(i)], i);
    EXPECT_EQ(targets[static_cast<std::size_t>(i)], i + 1);
  }
  for (std::size_t i = 20; i < 32; ++i) {
    EXPECT_EQ(inputs[i], 0);
    EXPECT_EQ(targets[i], kNotCounted);
  }
  EXPECT_EQ(sampler.read(5, inputs, targets), 0);
}

TEST(sampler, refuses_what_gives_no_sample) {
  EXPECT_EQ(refusal([] {
              Sampler(ramp(10), {0, 8}, {.length = 8});
            }),
            "data 'text': tokens [0, 8) are too few for one sample: 8 tokens and a target more");
  EXPECT_EQ(Sampler(ramp(10), {0, 9}, {.length = 8}).windows(), 1);
  EXPECT_THROW(Sampler(ramp(10), {5, 5}, {.length = 1}), UsageError);
  EXPECT_THROW(Sampler(ramp(10), {0, 10}, {.length = 0}), UsageError);
  EXPECT_THROW(Sampler(ramp(10), {0, 11}, {.length = 2}), UsageError);
  EXPECT_THROW(Sampler(ramp(10), {-1, 10}, {.length = 2}), UsageError);
  EXPECT_THROW(Sampler(ramp(10), {8, 4}, {.length = 2}), UsageError);
  const Sampler sampler(ramp(10), {0, 10}, {.length = 2});
  std::vector<std::int32_t> two(2), three(3), four(4);
  EXPECT_THROW(sampler.read(0, three, three), UsageError);
  EXPECT_THROW(sampler.read(0, two, four), UsageError);
  EXPECT_THROW(sampler.read(-1, two, two), UsageError);
}

}  // namespace
}  // namespace tessera
