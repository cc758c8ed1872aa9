#include "src/cli/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <system_error>

#include "src/cli/clock.h"
#include "src/cli/kept_files.h"
#include "src/cli/memory_watch.h"
#include "src/cli/processes.h"
#include "src/cli/rank_place.h"
#include "src/cli/resume.h"
#include "src/cli/run_numerics.h"
#include "src/cli/signals.h"
#include "src/cli/starting_weights.h"
#include "tessera/checkpoint.h"
#include "tessera/hugging_face.h"
#include "tessera/machine.h"
#include "tessera/simulate.h"

namespace tessera::cli {

namespace {

constexpr std::int64_t kTraceFrom = 2;    // steps that only warm up caches and primitives
constexpr std::int64_t kMeasureEach = 4;  // every so many steps overlap and memory are measured
constexpr std::int64_t kWeighed = 3;      // steps in which a process looks at its memory
constexpr int kMostRefused = 50;          // steps in a row that are skipped; a loss scale falls by 2^50
// A checkpoint may keep the disk busy on one rank for longer than a step's deadline allows.
constexpr std::chrono::minutes kCheckpointDeadline{30};

class RankTraining {
 public:
  RankTraining(const Communicator& world, const Setup& setup, const Data& data, RunFiles& files,
               RunSummary& summary)
      : RankTraining(place_of_rank(world, setup.options), setup, data, files, summary) {}

  RankTraining(const RankPlace& place, const Setup& setup, const Data& data, RunFiles& files,
               RunSummary& summary)
      : setup_(setup),
        run_(setup.config.run),
        data_(data),
        files_(files),
        summary_(summary),
        first_(place.world.rank() == 0),
        rank_(place.world.rank()),
        data_rank_(setup.options.engine.mesh.data_rank(rank_)),
        gpus_(place.gpus),
        control_(place.world.duplicate("control")),
        disk_(place.world.duplicate("checkpoint")),
        trainer_(place.world, setup.model, place.options),
        numerics_(with_run(trainer_.engine().numerics(), setup, &data)),
        gpu_memory_(place.memory),
        memory_(gpus_ > 0 ? std::optional(place.options.engine.device_ordinal) : std::nullopt) {
    gpu_memory_.after_set_up(trainer_.engine().library_bytes());
    disk_.set_deadline(
        std::max<std::chrono::milliseconds>(kCheckpointDeadline, setup.options.engine.waits.deadline));
    if (first_) summary_.utilisation = utilisation_of(setup, peak_flops(setup, place.gpu));
  }

  void run() {
    if (first_) report_exchange();
    if (first_) report_disk();
    if (ranks_are_processes() && gpus_ == 0)
      trainer_.engine().set_peak_observer([this] {
        if (run_steps_ < kWeighed)
          summary_.peak_bytes = std::max(summary_.peak_bytes, read_proportional_bytes());
      });
    begin_weights();
    if (first_) fmt::print("numerics  {}\n", fingerprint_of(numerics_));
    if (first_) summary_.numerics = numerics_;
    if (run_.steps > 0)
      trace_from_ = std::clamp(run_.steps - step_ - run_.trace_steps, std::int64_t{0}, kTraceFrom);
    prefetch_step(step_);
    if (first_) log_.emplace(setup_, files_.metrics, summary_, step_);
    if (owes_evaluation()) make_up();
    while (continues()) {
      train_step();
      // Asked once more, as an evaluation may take long.
      if (run_.evaluate_every > 0 && step_ % run_.evaluate_every == 0 && uninterrupted()) evaluate();
      if (run_.checkpoint_every > 0 && step_ % run_.checkpoint_every == 0) {
        begin_save();
        if (!run_.checkpoint_async) finish_save();
      }
    }
    if (evaluates(setup_.config) && step_ != evaluated_step_ && !interrupted_) evaluate();
    if (!run_.checkpoint.empty() && step_ != saved_step_) begin_save();
    finish_save();
    if (unwritten()) std::rethrow_exception(log_->unwritten());
    if (!run_.export_path.empty()) export_weights();
    if (log_) log_->finish();
    if (run_.sample_tokens > 0 && !interrupted_) sample();
    if (first_ && files_.trace) write_trace();
    if (gpus_ > 0) sum_growths();
    // What comes next tells nobody: a rank's communicators between GPUs go while no peer needs them.
    control_.barrier({.operation = "end of the run"});
  }

 private:
  bool unwritten() const { return log_ && log_->unwritten(); }

  // Rank 0 decides, from limits and clock; a signal to any rank, or metrics that cannot be written, end all.
  // Before each step. Ends a save that all ranks have written.
  bool continues() {
    enum Decision : std::int32_t { go, done, interrupted };  // a later one wins
    struct Word {
      std::int32_t decision = go, writes = 0;
    };
    std::int32_t decision = stop_signal.load() != 0 || unwritten() ? interrupted : go;
    if (first_ && decision == go) {
      const double expected_end = log_->elapsed() + last_step_seconds_ / 2;
      if (run_.steps > 0 && step_ >= run_.steps) decision = done;
      if (run_.seconds > 0.0 && expected_end >= run_.seconds) decision = done;
      if (only_evaluates(setup_.config)) decision = done;
    }
    const Word mine{decision, saving_ && !saving_.written() ? 1 : 0};
    IdVector<Word> all(setup_.world());
    control_.all_gather(&mine, all.data(), sizeof mine, {.operation = "stop decision"});
    decision = std::ranges::max(all, {}, &Word::decision).decision;
    if (saving_ && std::ranges::max(all, {}, &Word::writes).writes == 0) finish_save();
    interrupted_ = decision == interrupted;
    if (first_) summary_.interrupted = interrupted_;
    return decision == go;
  }

  // The same for what no limit ends, only a signal or metrics.
  bool uninterrupted() {
    continues();
    return !interrupted_;
  }

  void report_disk() {
    summary_.disk = trainer_.engine().disk_description();
    if (!summary_.disk.empty()) fmt::print("disk      {}\n", summary_.disk);
  }

  void report_nccl() const {
    const ArenaRegistration& exchange = summary_.exchange;
    const Reduction reduction = setup_.options.engine.strategy.reduction;
    fmt::print(
        "exchange  NCCL {} between GPUs, {}, {}\n", read_nccl_library().version,
        reduction == Reduction::native ? "sums of its own" : "exact sums",
        exchange.direct ? "with their arenas registered" : "without registered arenas: " + exchange.reason);
    if (!exchange.note.empty()) fmt::print("          {}\n", exchange.note);
  }

  void report_exchange() {
    summary_.exchange = trainer_.engine().arena_registration();
    if (gpus_ > 0) {
      const EngineOptions& engine = trainer_.engine().options();
      fmt::print("device    rank 0 on GPU {} of {}; the ranks of a host take those that they see in turn\n",
                 engine.device_ordinal, gpus_);
      summary_.notices = trainer_.engine().notices();
      for (const std::string& notice : summary_.notices) fmt::print("          {}\n", notice);
      if (setup_.world() > 1) report_nccl();
      const std::string eager = trainer_.engine().not_captured(0);
      fmt::print("graphs    {}\n",
                 eager.empty() ? "each step is one launch, from the third on" : "none: " + eager);
      return;
    }
    if (!ranks_are_processes()) return;
    if (summary_.exchange.direct)
      fmt::print("exchange  direct: ranks read each other's memory\n");
    else
      fmt::print("exchange  a copy more: {}\n", summary_.exchange.reason);
  }

  // Those of the checkpoint to continue, else of the file to start from, else the initial ones.
  void begin_weights() {
    if (files_.folder.continued) {
      const RunState state =
          resume_run(*files_.folder.continued, disk_, trainer_.engine(), setup_, data_, numerics_);
      step_ = saved_step_ = state.step;
      tokens_ = state.tokens;
      return;
    }
    const std::string &weights = setup_.config.model.weights, &adapter = setup_.config.model.adapter;
    if (!weights.empty()) import_weights(setup_, disk_, trainer_);
    if (!first_) return;
    if (!weights.empty())
      fmt::print("weights   from {}{}\n", weights, adapter.empty() ? "" : " and the adapter " + adapter);
    else if (only_evaluates(setup_.config))
      fmt::print("weights   as drawn by run.seed: there is neither model.weights nor a checkpoint\n");
    // Also where there are none, in place of those of an earlier start.
    if (!run_.checkpoint.empty() && !only_evaluates(setup_.config))
      keep_files(run_.checkpoint, files_.handed_on);
  }

  void export_weights() {
    const ExportPlan plan = export_plan(setup_, files_.handed_on);
    export_safetensors(run_.export_path, disk_, trainer_.engine(), plan.map, plan.options);
    if (!first_) return;
    summary_.exported = run_.export_path;
    log_->note(fmt::format("step {}  exported {}", step_, summary_.exported));
  }

  // Has the disk read this rank's samples of a step while others are in use: of the microbatches from `first`
  // to before `end`, where there are so many.
  void prefetch(const Sampler& sampler, const SampleGrid& grid, std::int64_t step, std::int64_t first,
                std::int64_t end) const {
    const std::int64_t own = grid.microbatches_of(data_rank_);
    for (std::int64_t microbatch = first; microbatch < std::min(end, own); ++microbatch)
      sampler.prefetch(grid.first_sample(step, data_rank_, microbatch), grid.sequences);
  }
  void prefetch_step(std::int64_t step) const {
    prefetch(data_.train, setup_.grid, step, 0, setup_.grid.rounds.count);
  }

  Trainer::Fetch fetch(const Sampler& sampler, const SampleGrid& grid, std::int64_t step) const {
    return [this, &sampler, grid, step](int microbatch, void* batch) {
      auto* const tokens = static_cast<std::int32_t*>(batch);
      const auto numel = static_cast<std::size_t>(setup_.options.batch.tokens());
      sampler.read(grid.first_sample(step, data_rank_, microbatch), {tokens, numel}, {tokens + numel, numel});
    };
  }

  void train_step() {
    const bool traced =
        first_ && files_.trace && run_steps_ >= trace_from_ && run_steps_ < trace_from_ + run_.trace_steps;
    const bool measured = run_steps_ % kMeasureEach == kTraceFrom;  // on all ranks
    trainer_.engine().set_tracing(measured || traced);
    const Clock::time_point begin = Clock::now();
    prefetch_step(step_ + 1);
    const StepResult result =
        trainer_.train_step(setup_.schedule.learning_rate(step_), fetch(data_.train, setup_.grid, step_));
    if (result.applied && result.reason == SkipReason::not_finite)
      throw stopped(fmt::format(
          "step {}: the gradient of {} is not finite and is in the weights, as strategy.update is "
          "\"reduced\"; resume from the last saved run, with a smaller learning rate or strategy.update = "
          "\"decided\"",
          step_ + 1, result.first_nonfinite));
    refused_ = result.reason == SkipReason::not_finite ? refused_ + 1 : 0;
    if (refused_ == kMostRefused)
      throw stopped(fmt::format(
          "step {}: {} steps in a row were skipped, as gradients, that of {} last, were not finite; resume "
          "from the last saved run with a smaller learning rate, or look at the data",
          step_ + 1, refused_, result.first_nonfinite));
    last_step_seconds_ = seconds_since(begin);
    ++step_;
    ++run_steps_;
    tokens_ += setup_.tokens_per_step();
    if (run_steps_ == 1 || run_steps_ % kMeasureEach == kTraceFrom) gpu_memory_.after_step(run_steps_);
    std::optional<Balance> balance;
    if (measured && setup_.world() > 1) balance = balance_of(control_, trainer_.engine().timing());
    if (!first_) return;
    if (traced) keep_trace(begin);
    LoggedStep logged{.number = step_,
                      .tokens = tokens_,
                      .result = result,
                      .seconds = last_step_seconds_,
                      .balance = balance,
                      .memory = memory_.look(log_->elapsed())};
    if (measured || traced) logged.timing = trainer_.engine().timing();
    log_->step(logged);
  }

  // The error that ends the run, on all ranks; what was saved before is finished first, as it tells to
  // resume.
  Error stopped(std::string message) {
    try {
      finish_save();
    } catch (const EnvironmentError& error) {
      message += fmt::format("; the checkpoint of step {} failed, too: {}", saved_step_, error.what());
    }
    return Error(message);
  }

  // Whether the run that is resumed was ended by a signal before or in the evaluation that was due then, by
  // its metrics. One that is due at the end of the run is made there.
  bool owes_evaluation() {
    if (run_.evaluate_every == 0 || step_ == 0 || step_ % run_.evaluate_every != 0) return false;
    if (run_.steps > 0 && step_ >= run_.steps) return false;
    std::int32_t owes = first_ && log_->lacks_evaluation() ? 1 : 0;
    control_.broadcast(&owes, sizeof owes, 0, {.operation = "evaluation that is due"});
    return owes != 0;
  }

  // Once: a run whose evaluations take longer than it is given would else make nothing else.
  void make_up() {
    if (first_) log_->note(fmt::format("step {}  first the evaluation that the last run left out", step_));
    evaluate();
    if (interrupted_ && first_) log_->left_out(step_);
  }

  void sum_growths() {
    if (run_steps_ > 1) gpu_memory_.after_step(run_steps_);
    const GpuGrowth& own = gpu_memory_.growth();
    IdVector<GpuGrowth> all(setup_.world());
    control_.all_gather(&own, all.data(), sizeof own, {.operation = "memory report"});
    if (!first_) return;
    for (const GpuGrowth& of_rank : all) summary_.gpus += of_rank;
  }

  void keep_trace(Clock::time_point begin) {
    if (spans_.empty()) trace_start_ = begin;
    const double offset = std::chrono::duration<double, std::micro>(begin - trace_start_).count();
    for (TraceSpan span : trainer_.engine().trace()) {
      span.start_us += offset;
      span.end_us += offset;
      spans_.push_back(span);
    }
  }

  void write_trace() {
    write_chrome_trace(files_.trace.stream(), trainer_.engine().program(0), spans_, rank_);
    files_.trace.commit();
  }

  void evaluate() {
    constexpr std::int64_t kAhead = 16;  // microbatches: an evaluation may be of more data than memory holds
    const Sampler& sampler = *data_.validation;
    const SampleGrid& grid = setup_.evaluation_grid;
    prefetch(sampler, grid, 0, 0, kAhead);
    const Trainer::Fetch read = fetch(sampler, grid, 0);
    const auto read_ahead = [&](int microbatch, void* batch) {
      prefetch(sampler, grid, 0, microbatch + kAhead, microbatch + kAhead + 1);
      read(microbatch, batch);
    };
    const StepResult result = trainer_.evaluate(read_ahead, [this] { return uninterrupted(); });
    if (interrupted_) return;
    evaluated_step_ = step_;
    if (first_) log_->evaluated(step_, result);
  }

  void begin_save() {
    finish_save();
    const RunState state{.step = step_,
                         .samples = step_ * setup_.grid.samples_per_step(),
                         .configuration = to_toml(setup_.config),
                         .data = data_.train_identity,
                         .numerics = to_text(numerics_),
                         .tokens = tokens_};
    saving_ = begin_checkpoint(run_.checkpoint, disk_, trainer_.engine(), state,
                               static_cast<int>(run_.checkpoint_keep));
    saved_step_ = step_;
  }

  // Of the one that was begun last, if it is not finished.
  void finish_save() {
    if (!saving_) return;
    const std::filesystem::path path = saving_.finish();
    if (!first_) return;
    summary_.checkpoint = path.string();
    log_->note(fmt::format("step {}  saved {}", saved_step_, summary_.checkpoint));
    if (!saving_.note().empty()) log_->note(fmt::format("step {}  {}", saved_step_, saving_.note()));
  }

  void sample() {
    const std::vector<std::int32_t> tokens = trainer_.generate(
        prompt_tokens(run_.sample_prompt, data_, setup_.model->vocabulary),
        static_cast<int>(run_.sample_tokens),
        {.temperature = run_.sample_temperature, .seed = static_cast<std::uint64_t>(run_.seed)});
    if (!first_) return;
    for (const std::int32_t token : tokens) {
      if (data_.encoding == TokenEncoding::text)
        summary_.sample +=
            token < 256 ? std::string(1, static_cast<char>(token)) : fmt::format("<{}>", token);
      else
        summary_.sample += fmt::format("{}{}", summary_.sample.empty() ? "" : ",", token);
    }
  }

  const Setup& setup_;
  const RunConfig& run_;
  const Data& data_;
  RunFiles& files_;
  RunSummary& summary_;
  const bool first_;
  const int rank_;
  const int data_rank_;
  const int gpus_;
  Communicator control_, disk_;
  Trainer trainer_;
  Numerics numerics_;
  GpuMemory gpu_memory_;
  MemoryWatch memory_;
  PendingCheckpoint saving_;

  std::optional<RunLog> log_;  // rank 0's
  Clock::time_point trace_start_;
  std::int64_t step_ = 0;        // steps of the whole run
  std::int64_t run_steps_ = 0;   // since this start
  std::int64_t tokens_ = 0;      // of the whole run
  std::int64_t saved_step_ = 0;  // by the save that was begun last; nothing is saved before the first step
  std::int64_t evaluated_step_ = -1;
  bool interrupted_ = false;
  int refused_ = 0;                       // steps in a row
  std::int64_t trace_from_ = kTraceFrom;  // earlier in a run that is shorter
  double last_step_seconds_ = 0.0;
  std::vector<TraceSpan> spans_;
};

}  // namespace

void train_rank(const Communicator& world, const Setup& setup, const Data& data, RunFiles& files,
                RunSummary& summary) try {
  RankTraining(world, setup, data, files, summary).run();
} catch (const std::bad_alloc&) {
  throw EnvironmentError(
      fmt::format("rank {}: out of memory: the system gives this process no more", world.rank()));
} catch (const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again) throw;
  throw EnvironmentError(
      fmt::format("rank {}: a thread cannot be started: {}; raise the limits on the process's memory and "
                  "threads (ulimit), or take fewer ranks or run.threads_per_rank",
                  world.rank(), error.what()));
}

}  // namespace tessera::cli
