// Trains a model whose states do not fit in the memory that this process may take: masters, moments and
// parameters lie in a file without a name on a local disk and pass through a window of a few units.
//   larger_than_memory FILE [--preset gpt2-1558m] [--steps 3] [--length 64] [--limit GIB] [--directory .]
// FILE is read as bytes, one token each. The limit, 8 GiB by default, is one of the operating system
// (RLIMIT_AS) on all that the process maps: what goes beyond it fails. The states of gpt2-1558m take
// 20.3 GiB on the disk.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

#include "../arguments.h"
#include "tessera/tessera.h"

namespace {

using namespace tessera;

constexpr char kUsage[] =
    "usage: larger_than_memory FILE [--preset NAME] [--steps N] [--length TOKENS] [--limit GIB]\n"
    "                          [--directory PATH]\n";
constexpr double kGiB = 1 << 30;

struct Arguments {
  bool help = false;
  std::string file, preset = "gpt2-1558m", directory = ".";
  int steps = 3;
  int length = 64;
  double limit_gib = 8;
};

double gib_number(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0 && value < 1e9))
    throw UsageError(option + " is '" + text + "'; a number of GiB above 0 is needed");
  return value;
}

Arguments parse(int count, char** words) {
  Arguments arguments;
  for (int at = 1; at < count; ++at) {
    const std::string word = words[at];
    if (examples::is_help(word)) {
      arguments.help = true;
      return arguments;
    }
    if (!word.starts_with("-")) {
      if (!arguments.file.empty()) throw UsageError("'" + word + "' is a second FILE");
      arguments.file = word;
      continue;
    }
    if (at + 1 == count) throw UsageError(word + " needs a value");
    const std::string value = words[++at];
    if (word == "--preset")
      arguments.preset = value;
    else if (word == "--directory")
      arguments.directory = value;
    else if (word == "--steps")
      arguments.steps = examples::whole_number(word, value, 1);
    else if (word == "--length")
      arguments.length = examples::whole_number(word, value, 1);
    else if (word == "--limit")
      arguments.limit_gib = gib_number(word, value);
    else
      throw UsageError(word + " is no option; there are --preset, --steps, --length, --limit, --directory");
  }
  if (arguments.file.empty()) throw UsageError("no FILE is named");
  return arguments;
}

TokenSource open_text(const std::string& path, int length) {
  TokenSource text = TokenSource::open(path, 256);
  if (text.numel() <= length)
    throw UsageError("'" + path + "' has " + std::to_string(text.numel()) + " bytes; more than " +
                     std::to_string(length) + " are needed");
  return text;
}

std::string gib_text(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", bytes / kGiB);
  return text;
}

// All that this process maps may be so much, of which `planned_bytes` are what training is going to take.
void limit_memory(double gib, std::int64_t planned_bytes) {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const double least = static_cast<double>(planned_bytes + pages * sysconf(_SC_PAGESIZE));
  if (gib * kGiB <= least)
    throw UsageError("--limit is " + gib_text(gib * kGiB) + ", and what the process maps and the plan take " +
                     gib_text(least) + "; name more than that");
  const auto bytes = static_cast<rlim_t>(gib * kGiB);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) throw EnvironmentError("setrlimit(RLIMIT_AS) is refused");
}

TrainerOptions trainer_options(const Arguments& arguments) {
  TrainerOptions options;
  options.batch = {.sequences = 1, .length = arguments.length};
  EngineOptions& engine = options.engine;
  engine.strategy.placements = Placements::of_stage(3);
  engine.strategy.offload = {.states = Space::disk, .parameters = Space::disk};
  engine.strategy.prefetch = 2;
  engine.disk_directory = arguments.directory;
  engine.optimizer.options = AdamWOptions{.weight_decay = 0.1};
  engine.optimizer.groups = {{.name = "decay"}, {.name = "no_decay", .weight_decay = 0.0}};
  engine.threads_per_rank = read_cores();
  return options;
}

void train(const Arguments& arguments) {
  const TokenSource text = open_text(arguments.file, arguments.length);
  const auto model =
      std::make_shared<const Model>(make_gpt2(Gpt2Config::preset(arguments.preset), DType::bf16));
  const TrainerOptions options = trainer_options(arguments);
  const TrainerPlan plan = plan_trainer(*model, options);
  const std::int64_t predicted =
      plan.memory.space(Space::device).arena_bytes + plan.memory.space(Space::host).arena_bytes;
  limit_memory(arguments.limit_gib, predicted);
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / kGiB; };
  std::printf("%s: %.2f billion parameters; this process may map %.2f GiB\n\n%s\n", arguments.preset.c_str(),
              static_cast<double>(model->parameter_numel()) / 1e9, arguments.limit_gib,
              memory_table(*model, options).c_str());
  const std::int64_t before = read_process_memory().resident_bytes;
  Trainer trainer(make_local_world(1)[0], model, options);
  std::printf("on disk by %s\n\n", trainer.engine().disk_description().c_str());
  std::printf("%6s %10s %10s %16s\n", "step", "loss", "seconds", "resident GiB");
  for (int step = 0; step < arguments.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const StepResult result = trainer.train_step(1e-5, [&](int, void* batch) {
      auto* inputs = static_cast<std::int32_t*>(batch);
      const auto length = static_cast<std::size_t>(arguments.length);
      const std::int64_t first = step % ((text.numel() - 1) / arguments.length) * arguments.length;
      text.read(first, {inputs, length});
      text.read(first + 1, {inputs + length, length});
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%6d %10.4f %10.1f %16.2f\n", step + 1, result.loss, seconds,
                gib(read_process_memory().resident_bytes));
    std::fflush(stdout);
  }
  std::printf("\nin memory: %.2f GiB planned, %.2f GiB more at the peak than before; on disk: %.2f GiB\n",
              gib(predicted), gib(read_process_memory().peak_resident_bytes - before),
              gib(plan.memory.space(Space::disk).arena_bytes));
}

}  // namespace

int main(int count, char** words) try {
  const Arguments arguments = parse(count, words);
  if (arguments.help)
    std::fputs(kUsage, stdout);
  else
    train(arguments);
  return 0;
} catch (const tessera::UsageError& error) {
  std::fprintf(stderr, "larger_than_memory: %s\n%s", error.what(), kUsage);
  return 2;
} catch (const std::bad_alloc&) {
  std::fprintf(stderr, "larger_than_memory: there is no more memory; --limit is too small\n");
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "larger_than_memory: %s\n", error.what());
  return 1;
}
