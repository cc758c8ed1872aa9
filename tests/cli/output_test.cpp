// What the tool prints: numbers, escaped text, files that are there whole or not at all, progress, prompts.
#include "src/cli/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/cli/memory_watch.h"
#include "src/cli/metrics.h"
#include "src/cli/progress.h"
#include "src/cli/setup.h"
#include "src/cli/utilisation.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::cli {
namespace {

using testing::TemporaryFolder;

std::string read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Output, Counts) {
  EXPECT_EQ(count(0), "0");
  EXPECT_EQ(count(999), "999");
  EXPECT_EQ(count(1000), "1,000");
  EXPECT_EQ(count(-123456), "-123,456");
  EXPECT_EQ(count(1234567), "1,234,567");
}

TEST(Output, Durations) {
  EXPECT_EQ(duration(0.4), "0:00");
  EXPECT_EQ(duration(59.6), "1:00");
  EXPECT_EQ(duration(3723), "1:02:03");
}

TEST(Output, EscapesWhatATerminalMustNotSee) {
  EXPECT_EQ(escaped("plain\n\ttext"), "plain\n\ttext");
  EXPECT_EQ(escaped("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(escaped("h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80"),
            "h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(escaped("\xc3"), "\\xc3");                    // cut short
  EXPECT_EQ(escaped("\xc3("), "\\xc3(");                  // no continuation
  EXPECT_EQ(escaped("\xc0\x80"), "\\xc0\\x80");           // overlong
  EXPECT_EQ(escaped("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(escaped("\xc2\x9b"), "\\xc2\\x9b");           // a control character of Latin-1
  EXPECT_EQ(escaped("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
  EXPECT_EQ(escaped(std::string("\0", 1)), "\\x00");
}

TEST(Output, AFileIsThereWholeOrNotAtAll) {
  const TemporaryFolder folder;
  {
    OutputFile file("--json", folder.file("a.json"));
    file.stream() << "half";
  }
  EXPECT_EQ(folder.entries(), 0);
  OutputFile file("--json", folder.file("a.json"));
  file.stream() << "whole";
  EXPECT_FALSE(std::filesystem::exists(folder.file("a.json")));
  file.commit();
  EXPECT_EQ(read(folder.file("a.json")), "whole");
  EXPECT_EQ(folder.entries(), 1);
  OutputFile again("--json", folder.file("a.json"));
  again.stream() << "new";
  EXPECT_EQ(read(folder.file("a.json")), "whole");
  again.commit();
  EXPECT_EQ(read(folder.file("a.json")), "new");
}

TEST(Output, ALinkStaysAndItsFileIsReplacedWhole) {
  const TemporaryFolder folder;
  const std::string real = folder.file("real"), link = folder.file("link"), loose = folder.file("loose");
  std::ofstream(real) << "old";
  std::filesystem::create_symlink("real", link);
  {
    OutputFile file("--json", link);
    file.stream() << "new" << std::flush;
    EXPECT_EQ(read(real), "old");
    file.commit();
  }
  EXPECT_EQ(read(real), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  std::filesystem::create_symlink("later", loose);
  OutputFile file("--json", loose);
  file.stream() << "made";
  file.commit();
  EXPECT_EQ(read(folder.file("later")), "made");
  EXPECT_EQ(folder.entries(), 4);
}

TEST(Output, AFileThatCannotBeWritten) {
  const TemporaryFolder folder;
  EXPECT_THROW(OutputFile("--json", folder.file("no/such/folder")), EnvironmentError);
  EXPECT_THROW(OutputFile("--json", folder.file("")), EnvironmentError);  // a folder
  EXPECT_EQ(folder.entries(), 0);
  OutputFile full("--json", "/dev/full");
  full.stream() << "text";
  EXPECT_THROW(full.commit(), EnvironmentError);
  EXPECT_TRUE(std::filesystem::exists("/dev/full"));
}

TEST(Progress, FollowsTheNearerLimit) {
  const ProgressLimits steps{.first_step = 10, .steps = 20};
  EXPECT_EQ(fraction_done(steps, 15, 1.0), 0.5);
  const ProgressLimits both{.steps = 100, .seconds = 10.0};
  EXPECT_EQ(fraction_done(both, 10, 5.0), 0.5);
  EXPECT_EQ(fraction_done(both, 90, 5.0), 0.9);
  EXPECT_EQ(fraction_done(both, 90, 50.0), 1.0);
}

// Lines that a run of `steps` prints where stdout is no terminal.
std::ptrdiff_t lines_of(std::int64_t steps) {
  ::testing::internal::CaptureStdout();
  Progress progress({.steps = steps}, 0);
  for (std::int64_t step = 1; step <= steps; ++step) progress.step({.step = step});
  progress.finish();
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(text.find("step " + std::to_string(steps) + "/"), std::string::npos) << "the last step is shown";
  return std::count(text.begin(), text.end(), '\n');
}

TEST(Progress, PrintsAFewLines) {
  EXPECT_EQ(lines_of(1), 1);
  EXPECT_EQ(lines_of(5), 5);
  EXPECT_LE(lines_of(1000), 27);
  EXPECT_GE(lines_of(1000), 20);
}

TEST(Progress, RedrawsABarOnATerminal) {
  ::testing::internal::CaptureStdout();
  Progress progress({.steps = 100}, 120);
  progress.step({.elapsed = 0.0, .step = 1});
  progress.step({.elapsed = 0.01, .step = 2});  // too soon to draw
  progress.step({.elapsed = 0.5, .step = 50, .hidden = 0.87});
  progress.note("a note");
  progress.finish();
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << "the note, and the status that it wiped away";
  EXPECT_EQ(text.find("step 2/"), std::string::npos);
  EXPECT_NE(text.find("[############............] step 50/100"), std::string::npos) << text;
  EXPECT_NE(text.find("hidden 87%"), std::string::npos);
  EXPECT_NE(text.find("\r\033[Ka note\n"), std::string::npos);
}

// What a bar's line is on a terminal of so many columns.
std::string line_of(int columns, const ProgressState& state) {
  ::testing::internal::CaptureStdout();
  Progress progress({.steps = 100, .seconds = 20.0}, columns);
  progress.step(state);
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(text.rfind("\r", 0), 0u);
  const std::string line = text.substr(1, text.find("\033[K") - 1);
  EXPECT_LT(line.size(), static_cast<std::size_t>(columns));
  return line;
}

TEST(Progress, WarnsOfMemoryThatIsNearItsLimit) {
  ProgressState state{.elapsed = 1.0, .step = 50};
  EXPECT_EQ(line_of(200, state).find("memory"), std::string::npos);
  state.memory = near_limit({.of = "memory", .used_bytes = 949, .limit_bytes = 1000});
  EXPECT_FALSE(state.memory);
  state.memory = near_limit({.of = "GPU memory", .used_bytes = 972, .limit_bytes = 1000});
  EXPECT_NE(line_of(200, state).find("  GPU memory 97%"), std::string::npos) << line_of(200, state);
  EXPECT_NE(line_of(50, state).find("GPU memory 97%"), std::string::npos) << "it matters more than the rate";
  EXPECT_FALSE(near_limit({.of = "memory"})) << "a limit that is not known";
  const MemoryUse use = host_memory_use();
  EXPECT_GT(use.used_bytes, 1 << 20);
  EXPECT_GT(use.limit_bytes, use.used_bytes);
  MemoryWatch watch;
  EXPECT_FALSE(watch.look(0.0)) << "this test takes no memory";
}

// Nothing is cut off: what matters least goes first.
TEST(Progress, FitsANarrowTerminal) {
  ProgressState state{
      .elapsed = 10.0, .step = 50, .tokens_per_second = 89807.0, .model_flops = 12.3e9, .hidden = 0.97};
  state.result.applied = true;
  state.result.loss = 2.5;
  state.result.learning_rate = 1e-3;
  EXPECT_EQ(line_of(1, state), "");
  EXPECT_EQ(line_of(20, state), "[##...] step 50/100");
  EXPECT_EQ(line_of(54, state), "step 50/100  loss 2.5000  89807 tokens/s  0:10 left");
  EXPECT_EQ(line_of(80, state),
            "step 50/100  loss 2.5000  89807 tokens/s  12.3 GFLOP/s  hidden 97%  0:10 left");
  EXPECT_EQ(line_of(110, state),
            "step 50/100  0:10/0:20  loss 2.5000  rate 1.00e-03  89807 tokens/s  12.3 GFLOP/s  hidden 97%  "
            "0:10 left");
}

TEST(Progress, ShowsALossThatIsNoNumber) {
  ProgressState state{.step = 1};
  const double none = std::numeric_limits<double>::quiet_NaN();
  for (const double loss : {none, -none}) {
    state.result.loss = loss;
    EXPECT_EQ(line_of(24, state), "step 1/100  loss nan");
  }
}

// As those are that Open MPI gives each rank.
TEST(Progress, ATerminalWithoutAWidthIsNone) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  const int file = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_EQ(::isatty(file), 1);
  ::unsetenv("TERM");
  EXPECT_EQ(terminal_columns(file), 0);
  const winsize window{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(file, TIOCSWINSZ, &window), 0);
  EXPECT_EQ(terminal_columns(file), 80);
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(terminal_columns(file), 0);
  ::unsetenv("TERM");
  ::close(file);
  ::close(terminal);
}

TEST(Progress, ShowsTheShareOfThePeakOnlyWhereThatIsKnown) {
  const auto line_of = [](const ProgressState& state) {
    ::testing::internal::CaptureStdout();
    Progress progress({.steps = 100}, 0);
    progress.step(state);
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string known = line_of({.step = 1, .model_flops = 4e14, .utilisation = 0.404});
  EXPECT_NE(known.find("  MFU 40.4%"), std::string::npos) << known;
  EXPECT_EQ(known.find("FLOP/s"), std::string::npos) << known;
  const std::string unknown = line_of({.step = 1, .model_flops = 4.04e14});
  EXPECT_NE(unknown.find("  404.0 TFLOP/s"), std::string::npos) << unknown;
  EXPECT_EQ(unknown.find("MFU"), std::string::npos) << unknown;
}

TEST(Utilisation, IsOfTheDevicesOfAllRanks) {
  const std::vector<std::string> settings = {"mesh.shard=4", "run.peak_tflops=0.5",
                                             "precision.parameters=fp32"};
  const auto setup = make_setup(parse_config("", "test", settings));
  const Utilisation given = utilisation_of(setup, peak_flops(setup, "NVIDIA H100 80GB HBM3"));
  EXPECT_EQ(given.peak_flops, 4 * 0.5e12) << "what is given counts";
  EXPECT_EQ(given.flops_per_token, setup.model->flops_per_token(setup.config.run.length));
  EXPECT_DOUBLE_EQ(*given.share(1e3), given.flops_per_token * 1e3 / 2e12);

  const auto plain = make_setup(parse_config("", "test", std::vector<std::string>{"mesh.shard=2"}));
  EXPECT_EQ(peak_flops(plain, ""), std::nullopt);
  EXPECT_EQ(peak_flops(plain, "NVIDIA H200 NVL"), std::nullopt) << "another GPU than the H200";
  EXPECT_EQ(utilisation_of(plain, std::nullopt).share(1e3), std::nullopt);
  EXPECT_GT(utilisation_of(plain, std::nullopt).flops(1e3), 0);
  EXPECT_EQ(known_peak_flops("NVIDIA A100-SXM4-80GB", DType::bf16), 312e12);
  EXPECT_EQ(known_peak_flops("NVIDIA A100-SXM4-80GB", DType::fp32), 19.5e12);
  EXPECT_EQ(flops_text(9.89e14), "989.0 TFLOP/s");
  EXPECT_EQ(flops_text(1.5e6), "1.5 MFLOP/s");
  EXPECT_EQ(flops_text(2e18), "2000.0 PFLOP/s");
}

TEST(Metrics, ARunThatContinuesDropsWhatItWritesAgain) {
  const TemporaryFolder folder;
  const std::string path = folder.file("metrics");
  {
    Metrics metrics(path);
    for (int step = 1; step <= 4; ++step) metrics.write({{"step", step}, {"loss", 0.5}});
    metrics.write({{"step", 4}, {"validation_loss", 0.5}});
  }
  std::ofstream(path, std::ios::app) << "{\"step\":5,\"lo";  // cut off
  std::optional<Metrics> resumed(path);
  Metrics& metrics = *resumed;
  metrics.rewind(2, false);
  metrics.write({{"step", 3}, {"loss", 0.25}});
  EXPECT_EQ(read(path), "{\"loss\":0.5,\"step\":1}\n{\"loss\":0.5,\"step\":2}\n{\"loss\":0.25,\"step\":3}\n");
  EXPECT_EQ(folder.entries(), 1);
  metrics.write({{"step", 3}, {"validation_loss", 0.125}});
  metrics.rewind(3, true);  // which is evaluated once more
  EXPECT_EQ(std::ranges::count(read(path), '\n'), 3);
  resumed.reset();
  Metrics fresh(path);
  fresh.discard();  // which it did not make
  EXPECT_EQ(std::ranges::count(read(path), '\n'), 3);
  fresh.rewind(0, false);
  EXPECT_EQ(read(path), "");
  Metrics(folder.file("new")).discard();
  EXPECT_EQ(folder.entries(), 1);
  Metrics().write({{"step", 1}});  // nowhere
  Metrics().rewind(0, false);
}

TEST(Metrics, OfARunThatContinuesBehindALink) {
  const TemporaryFolder folder;
  const std::string path = folder.file("link");
  std::filesystem::create_symlink("real", path);
  {
    Metrics first(path);
    for (int step = 1; step <= 3; ++step) first.write({{"step", step}});
  }
  Metrics metrics(path);
  EXPECT_TRUE(metrics.begun());
  metrics.rewind(2, false);
  metrics.write({{"step", 3}});
  EXPECT_EQ(read(folder.file("real")), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
}

// By whatever name it is given, also once the first has dropped what it writes again.
TEST(Metrics, AreOfOneRunAtATime) {
  const TemporaryFolder folder;
  const std::string path = folder.file("metrics"), link = folder.file("link");
  std::filesystem::create_symlink("metrics", link);
  const auto refusal = [](const std::string& named) -> std::string {
    try {
      Metrics second(named);
      return "";
    } catch (const EnvironmentError& error) {
      return error.what();
    }
  };
  {
    Metrics first(path);
    for (const std::int64_t step : {0, 3}) {
      first.rewind(step, false);
      for (const std::string& named : {path, link})
        EXPECT_EQ(refusal(named),
                  "run.metrics: another run is writing '" + named + "'; end it, or name another file");
      for (int next = 1; next <= 5; ++next) first.write({{"step", next}});
    }
  }
  EXPECT_EQ(refusal(path), "");
  EXPECT_EQ(std::ranges::count(read(path), '\n'), 8);
}

Data data_of(TokenEncoding encoding) {
  const TokenSource source = TokenSource::of_text(std::string(100, 'a'));
  return {.encoding = encoding, .train = Sampler(source, {0, 100}, {.length = 4}), .validation = {}};
}

TEST(Prompt, BytesOfTextAndIdsOfTokens) {
  using Tokens = std::vector<std::int32_t>;
  const Data text = data_of(TokenEncoding::text), tokens = data_of(TokenEncoding::uint16);
  EXPECT_EQ(prompt_tokens("A\xff", text, 256), (Tokens{65, 255}));
  EXPECT_EQ(prompt_tokens("", text, 256).size(), 1u);
  EXPECT_EQ(prompt_tokens("464,2068", tokens, 50257), (Tokens{464, 2068}));
  EXPECT_EQ(prompt_tokens("", tokens, 50257).size(), 1u);
  for (const char* wrong : {"The ", "1,,2", "-3", "1 2", "99999999999"})
    EXPECT_THROW(prompt_tokens(wrong, tokens, 50257), UsageError) << wrong;
}

}  // namespace
}  // namespace tessera::cli
