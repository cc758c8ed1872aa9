// A step's device work as one CUDA graph: it is captured over all lanes once, and replayed from then on. What
// changes from step to step lies in the program's StepBlock, in the scalars, and in what the trainer uploads;
// all of it goes through Uploads, so that a replay has only to write pinned memory.
#include <fmt/format.h>

#include <algorithm>

#include "src/engine/executor.h"

namespace tessera {

// Updates that a step leaves to the next are the host's (Strategy::update), and take theirs as arguments.
kernels::StepBlock* Executor::block_of(BufferId decision) const {
  if (!blocks_ || decision < 0 || program().buffers[decision].role == BufferRole::previous_decision)
    return nullptr;
  return reinterpret_cast<kernels::StepBlock*>(persistent_address(program_, decision));
}

BufferId Executor::decision_buffer(BufferRole role) const {
  const auto found = std::ranges::find(program().buffers, role, &Buffer::role);
  return found == program().buffers.end() ? -1 : static_cast<BufferId>(found - program().buffers.begin());
}

StepPlace Executor::step_place() const {
  const kernels::StepBlock* const block = block_of(decision_buffer(BufferRole::decision));
  if (block == nullptr) return {};
  return {.updates = &block->begin.updates, .loss_scale = &block->begin.loss_scale};
}

void Executor::give_values(const StepValues& values) {
  if (kernels::StepBlock* const block = block_of(decision_buffer(BufferRole::decision))) {
    const kernels::StepBlock::Begin begin = {.updates = values.updates, .loss_scale = values.loss_scale};
    upload(&block->begin, &begin, sizeof begin);
  }
}

// `gated`: the step's own sums decide, on the device.
void Executor::upload_update(BufferId decision, const UpdateTerms& terms, bool gated) {
  kernels::StepBlock* const block = block_of(decision);
  if (block == nullptr) return;
  kernels::StepBlock values;
  write_update(options_.optimizer, terms.learning_rate, terms.step, values);
  upload(&block->update, &values.update, sizeof values.update);
  if (gated) return;
  values.gate = {.gradient_scale = terms.gradient_scale, .apply = 1};
  upload(&block->gate, &values.gate, sizeof values.gate);
}

void Executor::give_header(const ScalarHeader& header) {
  upload(own_scalar(0), header.data(), sizeof header);
  now_.terms = {.learning_rate = scalar(header, Scalar::learning_rate),
                .step = static_cast<std::int64_t>(scalar(header, Scalar::step)) + 1,
                .gradient_scale = 0.0};
  upload_update(decision_buffer(BufferRole::decision), now_.terms, true);
}

// ---- whether a step can be captured ----

std::string Executor::not_captured(int program) const {
  if (!options_.graphs) return "graphs are switched off";
  if (device_.type() != DeviceType::cuda) return "its work is done on the CPU";
  if (!graphs_[program].refused.empty()) return graphs_[program].refused;
  if (!blocks_)
    return fmt::format("the optimizer has {} parameter groups, and a graph's block has room for {}",
                       options_.optimizer.groups.size(), kernels::kMostStepGroups);
  if (options_.debug.poison) return "dead memory is poisoned";
  if (options_.debug.guards) return "guards are compared behind each instruction";
  for (const Instruction& instruction : programs_[program].instructions) {
    if (instruction.lane == Lane::host || instruction.lane == Lane::io)
      return "some of its work is done on the host";
    if (instruction.channel >= 0 && !channel_of(programs_[program], instruction).backend()->captures())
      return "ranks exchange through the host";
    if (instruction.when < 0) continue;
    const BufferRole decision = programs_[program].buffers[instruction.when].role;
    if (decision == BufferRole::decision && !device_decides(instruction))
      return fmt::format("{} waits for the host to decide", name_of(instruction.op));
  }
  return {};
}

// Of the next step, on this rank.
StepMode Executor::own_mode(int program, bool continues) const {
  if (trace_.next() || peak_observer_ || options_.debug.delay_us) return StepMode::eager;
  const StepGraph& graph = graphs_[program];
  if (!graph.work)
    return graph.eager_steps < EngineOptions::kEagerSteps ? StepMode::eager : StepMode::captured;
  // Where one evaluation continues another, not all of the scalars are zeroed.
  return graph.continues == continues ? StepMode::replayed : StepMode::eager;
}

StepMode Executor::next_mode(int program, bool continues) {
  if (!graphs_[program].work && !not_captured(program).empty()) return StepMode::eager;
  return static_cast<StepMode>(least_of_ranks(static_cast<int>(own_mode(program, continues))));
}

std::size_t Executor::captured_operations(int program) const {
  return graphs_[program].work ? graphs_[program].work->operations() : 0;
}

int Executor::least_of_ranks(int own) {
  const auto mine = static_cast<std::uint8_t>(own);
  std::vector<std::uint8_t> all(static_cast<std::size_t>(world_.world()));
  world_.all_gather(&mine, all.data(), 1, {.operation = "next_step"});
  return *std::ranges::min_element(all);
}

// ---- capture ----

std::vector<Stream*> Executor::device_lanes() {
  std::vector<Stream*> lanes = {&lane(Lane::compute)};
  for (const std::unique_ptr<Stream>& one : lanes_)
    if (one && one.get() != lanes[0] && one->native() != nullptr) lanes.push_back(one.get());
  return lanes;
}

void Executor::begin_capture(int program, bool continues) {
  StepGraph& graph = graphs_[program];
  drop_graph(program);
  graph.continues = continues;
  uploads_->begin_capture(graph.upload_bytes);
  const Program& captured = programs_[program];
  graph.scalars = device_.make_host_arena(captured.buffers[captured.scalars].bytes);
  const std::vector<Stream*> lanes = device_lanes();
  device_.begin_capture(lanes);
  captures_ = true;
  for (auto& [key, channel] : channels_) channel.backend()->begin_capture();
}

void Executor::drop_graph(int program) {
  StepGraph& graph = graphs_[program];
  graph.work.reset();
  graph.calls.clear();
  graph.uploads = {};
  graph.scalars = {};
}

void Executor::drop_capture() noexcept {
  if (!captures_) return;
  captures_ = false;
  device_.drop_capture();
}

// Where a rank's driver refuses, no rank keeps its graph: what was done would not be the same on all.
void Executor::end_capture() {
  StepGraph& graph = graphs_[program_];
  device_.copy(lane(Lane::compute), graph.scalars.base(), persistent_address(program_, program().scalars),
               graph.scalars.bytes());
  captures_ = false;
  for (auto& [key, channel] : channels_)
    if (std::unique_ptr<comm::CapturedCalls> calls = channel.backend()->end_capture())
      graph.calls.emplace_back(channel.backend().get(), std::move(calls));
  graph.uploads = uploads_->end_capture();
  try {
    graph.work = device_.end_capture();
  } catch (const EnvironmentError& error) {
    graph.refused = error.what();
  }
  if (least_of_ranks(graph.refused.empty() ? 1 : 0) == 1) return;
  if (graph.refused.empty()) graph.refused = "another rank's driver refused";
  drop_graph(program_);
  program_ = -1;
}

// Returns when all of it is done. The compute lane is behind all that the others have in it.
void Executor::launch(StepGraph& graph) {
  for (auto& [channel, calls] : graph.calls) channel->replay(*calls);
  graph.work->launch(lane(Lane::compute));
  trace_.issued(lane(Lane::compute));
  {
    const Waits waits(*this);
    lane(Lane::compute).synchronize();
  }
  const auto* const scalars = reinterpret_cast<const double*>(graph.scalars.base());
  std::copy_n(scalars, graph.scalars.bytes() / static_cast<std::int64_t>(sizeof(double)), scalars_.begin());
  decide_by_scalars();
}

void Executor::replay(int program, const Replay& step, const Engine::Upload& give) {
  StepGraph& graph = graphs_[program];
  program_ = program;
  decision_ = {};
  now_ = terms_ = {};
  decides_at_ = static_cast<InstructionId>(
      std::ranges::find(this->program().instructions, Opcode::reduce_scalars, &Instruction::op) -
      this->program().instructions.begin());
  trace_.start(this->program(), lane(Lane::compute));
  // In the order in which they were captured.
  uploads_->begin_replay(graph.uploads);
  give_values(step.values);
  if (step.terms) give_terms(*step.terms);
  const std::size_t behind = block_of(decision_buffer(BufferRole::decision)) == nullptr ? 1 : 2;  // own ones
  for (int number = 0; uploads_->left_to_replay() > behind; ++number) give(number, uploads_->next_replayed());
  give_header(step.header);
  uploads_->end_replay();
  launch(graph);
  end_step();
}

}  // namespace tessera
