// `tessera train`: opens files, starts the ranks, reports how it went.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <thread>

#include "src/cli/commands.h"
#include "src/cli/places.h"
#include "src/cli/plan_report.h"
#include "src/cli/processes.h"
#include "src/cli/rank_place.h"
#include "src/cli/report.h"
#include "src/cli/signals.h"
#include "src/cli/training.h"
#include "tessera/machine.h"

namespace tessera::cli {

namespace {

// What the first signal will do, for who sent it.
std::string told_of_signal(const RunConfig& run) {
  return fmt::format(
      "tessera: ends after the step in progress, or within an evaluation, and {}{}; a signal after a second "
      "or more ends it at once",
      run.export_path.empty() ? "" : "exports the weights, and ",
      run.checkpoint.empty() ? "saves nothing, as run.checkpoint is empty" : "saves");
}

// Prints what failed and ends the process at once: a rank that is stuck must not keep it alive, and may still
// use what a destructor would take away.
class Failure {
 public:
  explicit Failure(ResultFile& result) : result_(result) {}

  // What must not stay as it is, such as a file that is half-written.
  void undoes(std::function<void()> undo) { undo_.push_back(std::move(undo)); }

  [[noreturn]] void end(const std::string& message) {
    mutex_.lock();  // never unlocked: the first one ends the process
    std::fflush(stdout);
    std::fprintf(stderr, "tessera: %s\n", message.c_str());
    for (const std::function<void()>& undo : undo_) undo();
    result_.fail(message);
    std::_Exit(1);
  }

  // Ends the process after `delay` whatever run_local() does: it runs rank 0 on its caller, and waits for it.
  void end_later(const std::string& message, std::chrono::milliseconds delay) {
    const std::lock_guard lock(watch_);
    if (armed_) return;
    armed_ = true;
    try {
      std::thread([this, message, delay] {
        std::this_thread::sleep_for(delay);
        end(message);
      }).detach();
    } catch (const std::system_error&) {  // no thread, which may be what failed before, too
      end(message);
    }
  }

 private:
  ResultFile& result_;
  std::mutex mutex_, watch_;
  std::vector<std::function<void()>> undo_;
  bool armed_ = false;
};

// The launcher ends the other processes once this one has ended with a failure.
void run_process(Communicator world, const Setup& setup, const Data& data, RunFiles& files,
                 RunSummary& summary, Failure& failure) {
  try {
    train_rank(world, setup, data, files, summary);
  } catch (const std::exception& error) {
    world.fail(error.what());
    failure.end(error.what());
  }
}

void run_threads(const Setup& setup, const Data& data, RunFiles& files, RunSummary& summary,
                 Failure& failure) {
  const std::chrono::milliseconds deadline = setup.options.engine.waits.deadline;
  try {
    run_local(setup.world(), {.deadline = deadline, .pin = setup.config.run.pin},
              [&](const Communicator& world) {
                try {
                  train_rank(world, setup, data, files, summary);
                } catch (const std::exception& error) {
                  failure.end_later(error.what(), deadline * 3 / 2 + std::chrono::seconds(1));
                  throw;
                }
              });
  } catch (const std::exception& error) {
    failure.end(error.what());
  }
}

// Of all ranks.
struct Measured {
  // Of the processes: peak less what was held before the ranks began. Of a process that is one rank, at the
  // plan's peak, its part of what processes share. Where ranks train on GPUs, of their memory instead.
  std::int64_t growth_bytes = 0;
  std::int64_t predicted_bytes = 0;  // of what is measured
};

bool on_gpus(const Setup& setup) { return setup.options.engine.device == DeviceType::cuda; }

// The whole path of a file, for who reads it from another folder; empty if there is none.
std::string place_of(const std::string& path) {
  if (path.empty() || is_standard_output(path)) return "";
  return std::filesystem::absolute(path).lexically_normal().string();
}

nlohmann::json to_json(const Setup& setup, const RunPlans& plans, const RunSummary& summary,
                       const Measured& measured) {
  nlohmann::json result = {{"steps", summary.step},
                           {"first_step", summary.first_step},
                           {"seconds", summary.seconds},
                           {"training_seconds", summary.step_seconds},
                           {"tokens", summary.tokens},
                           {"tokens_per_second", summary.tokens_per_second()},
                           {"model_flops_per_token", summary.utilisation.flops_per_token},
                           {"model_flops_per_second", summary.utilisation.flops(summary.tokens_per_second())},
                           {"first_loss", summary.first_loss},
                           {"loss", summary.loss},
                           {"skipped", summary.skipped},
                           {"interrupted", summary.interrupted},
                           {"ranks", setup.world()},
                           {"parameter_numel", setup.model->parameter_numel()},
                           {"trained_numel", setup.model->trained_numel()},
                           {"checkpoint", summary.checkpoint},
                           {"export", summary.exported},
                           {"direct_exchange", summary.exchange.direct},
                           {"disk", summary.disk},
                           {"notices", summary.notices},
                           {"numerics", numerics_json(summary.numerics)},
                           {"sample", summary.sample},
                           {"configuration", to_toml(setup.config)},
                           {"metrics", place_of(setup.config.run.metrics)}};
  if (summary.step == summary.first_step) result["first_loss"] = result["loss"] = nullptr;  // of no step
  if (summary.validation_loss) {
    result["validation_loss"] = *summary.validation_loss;
    result["validation_step"] = summary.validation_step;
  }
  if (summary.hidden) result["hidden"] = *summary.hidden;
  if (const auto share = summary.utilisation.share(summary.tokens_per_second())) {
    result["peak_flops_per_second"] = *summary.utilisation.peak_flops;
    result["model_flops_utilisation"] = *share;
  }
  result["memory"] = memory_json(plans);
  result["mesh"] = mesh_json(setup, plans.of_ranks);
  result["memory"]["measured_bytes"] = measured.growth_bytes;
  result["memory"]["predicted_bytes"] = measured.predicted_bytes;
  if (on_gpus(setup))
    result["memory"]["measured_parts"] = {{"set_up_bytes", summary.gpus.set_up},
                                          {"libraries_bytes", summary.gpus.libraries},
                                          {"first_step_bytes", summary.gpus.first_step},
                                          {"later_bytes", summary.gpus.later}};
  return result;
}

// The sum over all processes, where there are several.
std::int64_t sum_of(Communicator& world, std::int64_t bytes) {
  auto sum = static_cast<double>(bytes);
  if (world) world.all_reduce(&sum, 1, {.operation = "memory report"});
  return static_cast<std::int64_t>(sum);
}

void print_what_was_measured(const Setup& setup, const GpuGrowth& gpus) {
  const int ranks = setup.world();
  const std::string over = ranks > 1 ? fmt::format(", over {} ranks", ranks) : "";
  if (!on_gpus(setup))
    return fmt::print("(measured: how much {} grew at {} peak{}; with code, stacks and libraries)\n\n",
                      ranks_are_processes() ? "the processes" : "the process",
                      ranks_are_processes() ? "their" : "its", over);
  const auto a_rank = [&](std::int64_t bytes) { return static_cast<double>(bytes) / ranks / (1 << 20); };
  fmt::print(
      "(measured: how much the GPUs' memory in use grew by their driver's count{}: {:.2f} at set-up, "
      "{:.2f} in the first step, {:.2f} later; with the code of kernels as it is loaded; libraries: what "
      "communicators and handles took before the arenas)\n\n",
      over, a_rank(gpus.set_up), a_rank(gpus.first_step), a_rank(gpus.later));
}

std::string why_none(const Config& config, const RunSummary& summary) {
  const RunConfig& run = config.run;
  if (summary.interrupted) return "a signal came first";
  if (only_evaluates(config)) return "run.steps is 0, and the run only evaluates";
  if (run.steps > 0 && summary.first_step >= run.steps)
    return fmt::format("run.steps is {}, and {} were done before", run.steps, summary.first_step);
  return fmt::format("run.seconds is {}, which had passed", run.seconds);
}

// The losses of a run that trained.
std::string losses(const RunSummary& summary) {
  std::string all = fmt::format("loss {} -> {}", loss_text(summary.first_loss), loss_text(summary.loss));
  if (summary.validation_loss) {
    all += ", validation " + loss_text(*summary.validation_loss);
    if (summary.validation_step != summary.step) all += fmt::format(" at step {}", summary.validation_step);
  }
  return all;
}

std::string duration_text(double seconds) {
  if (seconds >= 60) return duration(seconds);
  return fmt::format("{:.{}f} s", seconds, seconds < 1 ? 3 : seconds < 10 ? 2 : 1);
}

void print_report(const Setup& setup, const RunPlans& plans, const RunSummary& summary,
                  const Measured& measured) {
  const int ranks = setup.world();
  fmt::print("\n{}", plans.table());
  const auto a_rank = [&](std::int64_t bytes) { return static_cast<double>(bytes) / ranks / (1 << 20); };
  // What was measured is of all ranks, of whatever part of the pipeline.
  const bool pipelined = setup.options.engine.mesh.pipeline > 1;
  const bool of_host = plans.most_bytes(Space::host) > 0;
  if (pipelined || (of_host && !on_gpus(setup)))
    fmt::print("{:<22}{:>16}{:>16.2f}\n", pipelined ? "total, mean of ranks" : "device and host", "",
               a_rank(measured.predicted_bytes));
  if (on_gpus(setup)) fmt::print("{:<22}{:>16}{:>16.2f}\n", "libraries", "", a_rank(summary.gpus.libraries));
  fmt::print("{:<22}{:>16}{:>16.2f}\n", "measured", "", a_rank(measured.growth_bytes));
  print_what_was_measured(setup, summary.gpus);
  if (summary.step == summary.first_step) {
    fmt::print("no step was trained: {}\n", why_none(setup.config, summary));
    if (summary.validation_loss) fmt::print("validation loss {}\n", loss_text(*summary.validation_loss));
    if (!summary.sample.empty()) fmt::print("\nsample:\n{}\n", escaped(summary.sample));
    return;
  }
  const double rate = summary.tokens_per_second();
  const std::int64_t steps = summary.step - summary.first_step;
  fmt::print("{} tokens in {} step{}{} and {} of training ({} in all): {:.0f} tokens/s, {} of the model",
             count(summary.tokens), steps, steps == 1 ? "" : "s",
             summary.skipped > 0 ? fmt::format(" ({} skipped)", summary.skipped) : "",
             duration_text(summary.step_seconds), duration_text(summary.seconds), rate,
             flops_text(summary.utilisation.flops(rate)));
  if (const auto share = summary.utilisation.share(rate))
    fmt::print(", {:.1f}% of the {} that {} could reach", *share * 100.0,
               flops_text(*summary.utilisation.peak_flops),
               ranks > 1 ? fmt::format("{} ranks", ranks) : "the device");
  fmt::print("\n");
  fmt::print("{}", losses(summary));
  if (summary.hidden)
    fmt::print("; {:.0f}% of communication{} hidden behind compute", *summary.hidden * 100.0,
               setup.copies() ? " and copies" : "");
  fmt::print("\n");
  if (!summary.sample.empty()) fmt::print("\nsample:\n{}\n", escaped(summary.sample));
  if (summary.interrupted) fmt::print("ended by a signal\n");
}

// Files of `key` that have no sample are told: they are read by no step.
void print_unread(const char* key, const Sampler& sampler) {
  constexpr std::size_t kNamed = 3;
  const UnreadFiles& unread = sampler.unread();
  if (unread.names.empty()) return;
  const std::size_t shown = std::min(kNamed, unread.names.size()), more = unread.names.size() - shown;
  fmt::print(
      "unread    {} of {} files of {} ({} tokens) are too short for a sample of run.length = {}, which takes "
      "{}: {}{}\n",
      unread.names.size(), unread.of, key, count(unread.numel), sampler.length(), sampler.length() + 1,
      escaped(fmt::format("{}", fmt::join(std::span(unread.names).first(shown), ", "))),
      more > 0 ? fmt::format(" and {} more", more) : "");
}

// How much of data with masks is trained on.
void print_counted(const Data& data) {
  if (data.train_counted == data.train_tokens) return;
  fmt::print("data      {} of {} tokens of data.train count as targets ({:.1f} %)\n",
             count(data.train_counted), count(data.train_tokens),
             100.0 * static_cast<double>(data.train_counted) / static_cast<double>(data.train_tokens));
}

// What of the data is not evaluated, or not as the configuration may seem to say.
void print_evaluation(const Setup& setup) {
  const Config& config = setup.config;
  const std::int64_t asked = config.run.evaluation_microbatches;
  if (only_evaluates(config))
    fmt::print("evaluate  once, on {} microbatches of a rank, and train nothing: run.steps is 0\n",
               setup.evaluation_grid.rounds.count);
  if (evaluates(config)) {
    if (const std::int64_t all = setup.evaluation_grid.rounds.count; asked != all)
      fmt::print("evaluate  all of the validation data: {} microbatch{} of a rank\n", all,
                 all == 1 ? "" : "es");
    return;
  }
  if (!config.data.validation.empty())
    fmt::print("evaluate  never, as run.evaluate_every is 0, on data.validation\n");
  else if (config.data.validation_fraction > 0.0)
    fmt::print(
        "evaluate  never, as run.evaluate_every is 0: the last {:g} % of data.train are not read, by "
        "data.validation_fraction\n",
        100 * config.data.validation_fraction);
}

// Before any rank begins, and once for all of them. Processes may have budgets of their own: their engines
// compare these.
void check_budgets(const Setup& setup) {
  const RunConfig& run = setup.config.run;
  if (run.device_memory == 0 && run.host_memory == 0) return;
  const std::string why_not =
      explain_misfit(*setup.model, setup.options, plan_pipeline(*setup.model, setup.options));
  if (!why_not.empty()) throw UsageError(why_not);
}

// Threads that take turns on a core are told: that is slow, and may have been meant otherwise.
void print_oversubscription(const Setup& setup, int ranks_here) {
  const std::int64_t threads = setup.config.run.threads_per_rank;
  const std::size_t cores = allowed_cores().size();
  // A launcher may have given each process cores of its own.
  if (ranks_are_processes() && static_cast<long>(cores) < ::sysconf(_SC_NPROCESSORS_ONLN)) ranks_here = 1;
  if (on_gpus(setup) || cores == 0 || ranks_here * threads <= static_cast<std::int64_t>(cores)) return;
  const auto counted = [](std::int64_t number, const char* of) {
    return fmt::format("{} {}{}", number, of, number == 1 ? "" : "s");
  };
  fmt::print("threads   {} with {} each on {}: they take turns\n", counted(ranks_here, "rank"),
             counted(threads, "thread"), counted(static_cast<std::int64_t>(cores), "core"));
}

}  // namespace

int train_command(const RunArguments& arguments, ResultFile& result) {
  const Config config = load_config(arguments.config, arguments.settings, arguments.ranks);
  // Before anything else is refused, which goes into the result; by every process, as none waits for another
  // yet.
  check_apart(config, arguments.config, {result.named()});
  check_export_place("run.export", config.run.export_path, config);
  Setup setup = make_setup(config);
  check_threads(setup);
  told_with_origins(config, [&] {
    if (!setup.data) setup.data = std::make_shared<const Data>(open_data(setup));
    if (setup.options.generation)  // refused now, not later
      prompt_tokens(setup.config.run.sample_prompt, *setup.data, setup.model->vocabulary);
  });
  const Data& data = *setup.data;
  Communicator world = world_of_processes(setup);
  check_same_run(world, setup.config, &data);
  const bool first = !world || world.rank() == 0;  // prints and writes files
  if (first) check_places(setup.config.run);
  check_disk_directory(setup.options.engine, world);
  ask_gpu(setup.options, world ? place_on_host(world).rank : 0);
  if (!world) told_with_origins(config, [&] { check_budgets(setup); });
  RunFiles files;
  files.folder = open_run_folder(setup.config.run, world);  // before any file of a run there is written over
  if (first) {
    files.handed_on = files_to_hand_on(files.folder.continued ? config.run.checkpoint : "",
                                       config.model.weights, config.model.adapter);
    add_tokenizer_of_data(files.handed_on, config.data.train);
  }
  Failure failure(result);
  result.open();
  if (first) files.trace = OutputFile("run.trace", setup.config.run.trace);
  if (const RunConfig& run = setup.config.run; first && !run.metrics.empty())
    files.metrics = Metrics(run.metrics);
  failure.undoes([&] { files.trace.discard(); });
  failure.undoes([&] { files.metrics.discard(); });
  failure.undoes(
      [&] { files.folder.lock = CheckpointLock(); });  // and its folder, where that is new and empty

  if (first) print_notes(setup.config);
  if (first)
    fmt::print("{}, {} rank{}{}, stage {}, {}; {} tokens a step\n", parameters_text(*setup.model),
               setup.world(), setup.world() == 1 ? "" : "s", world ? " as processes" : "",
               setup.config.strategy.stage, setup.config.precision.parameters,
               count(setup.tokens_per_step()));
  if (first) print_products(setup);
  if (first) print_counted(data);
  if (first) print_unread("data.train", data.train);
  if (first && data.validation && !setup.config.data.validation.empty())
    print_unread("data.validation", *data.validation);
  if (first) print_evaluation(setup);
  const int ranks_here = world ? place_on_host(world).ranks : setup.world();
  if (first) print_oversubscription(setup, ranks_here);
  if (files.metrics.begun() && !files.folder.continued)
    fmt::print("metrics   those of an earlier run in {} are written over\n", setup.config.run.metrics);
  if (const std::string note = files.folder.lock.note(); !note.empty()) fmt::print("saving    {}\n", note);
  if (first && has_grid(setup.options.engine.mesh))
    fmt::print("{}", mesh_grid(setup, plan_pipeline(*setup.model, setup.options)));
  catch_signals(first ? told_of_signal(setup.config.run) : "");
  std::fflush(stdout);
  reset_peak_memory();
  const std::int64_t before = world ? read_proportional_bytes() : read_process_memory().resident_bytes;
  RunSummary summary;
  if (world)
    run_process(world, setup, data, files, summary, failure);
  else
    run_threads(setup, data, files, summary, failure);
  const std::int64_t peak = world ? summary.peak_bytes : read_process_memory().peak_resident_bytes;
  Measured measured{.growth_bytes = on_gpus(setup) ? summary.gpus.total() : sum_of(world, peak - before)};
  if (!first) return 0;
  const RunPlans plans(setup);
  for (const Space space : {Space::device, Space::host})
    if (space == Space::device || !on_gpus(setup)) measured.predicted_bytes += plans.bytes_of_all(space);
  print_report(setup, plans, summary, measured);
  result.write(to_json(setup, plans, summary, measured));
  return 0;
}

}  // namespace tessera::cli
