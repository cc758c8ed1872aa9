#include "tessera/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "src/verify/follow.h"
#include "src/verify/global_sum.h"

namespace tessera {
namespace {

class World {
 public:
  // `gradients`: see prove().
  World(const WorldPrograms& world, const Layout& layout, Findings& findings,
        std::vector<std::string>* gradients)
      : world_(world),
        findings_(findings),
        gradients_(gradients),
        terms_(world.mesh),
        model_{.layout = layout,
               .mesh = world.mesh,
               .ranks = {},
               .carried = {},
               .carried_spread = {},
               .early = false,
               .several = false,
               .writers = {}} {
    find_pipelines();
    for (const Axis axis : kCuts)
      if (world.mesh.extent(axis) > 1) model_.ranks = model_.ranks.with(axis);
    read_model();
  }

  void run() {
    const Program& first = program(pipelines_[0][0]);
    const bool decides = first.kind != StepKind::evaluate;
    const bool carries = std::ranges::find(model_.carried, true) != model_.carried.end();
    for (const bool previous : {true, false})
      for (const bool now : {true, false})
        if ((decides || now) && (carries || !previous || !decides) && (decides || previous) &&
            !findings_.full())
          follow({.previous = previous, .now = now});
  }

 private:
  // By pipeline coordinate, the program of the ranks there.
  using Pipeline = std::vector<int>;

  const Program& program(int index) const { return world_.programs[index]; }

  // The pipelines of the world, of which those that run the same programs are one. The first rank's leads.
  void find_pipelines() {
    for (int rank = 0; rank < world_.mesh.world(); ++rank) {
      if (world_.mesh.place(rank, Axis::pipeline) != 0) continue;
      Pipeline runs;
      for (const int peer : world_.mesh.group(Axis::pipeline, rank)) runs.push_back(world_.program_of(peer));
      if (std::find(pipelines_.begin(), pipelines_.end(), runs) != pipelines_.end()) continue;
      check_pipeline(runs);
      pipelines_.push_back(std::move(runs));
    }
    model_.several = pipelines_.size() > 1;
  }

  void check_pipeline(const Pipeline& pipeline) const {
    for (std::size_t place = 0; place < pipeline.size(); ++place) {
      const Program& runs = program(pipeline[place]);
      if (runs.pipeline_rank != static_cast<int>(place))
        throw UsageError(fmt::format("prove: pipeline rank {} runs a program for pipeline rank {}", place,
                                     runs.pipeline_rank));
      for (const Buffer& buffer : runs.buffers)
        if (buffer.flat >= model_.layout.flats().count())
          throw UsageError(fmt::format("prove: '{}' is of flat {}, but the layout has {}", buffer.name,
                                       buffer.flat, model_.layout.flats().size()));
    }
  }

  // Who writes gradients, and which updates are left to the next step.
  void read_model() {
    model_.carried.resize(model_.layout.flats().size());
    for (const Pipeline& pipeline : pipelines_)
      for (const int index : pipeline) read_model(program(index));
    // A parameter that no use writes has a gradient of zeros.
    for (ParameterId id = 0; id < model_.layout.parameters(); ++id) model_.writers[id];
  }

  void read_model(const Program& program) {
    for (const Buffer& buffer : program.buffers)  // what is left there is for an update to come
      if (buffer.persistent && buffer.role == BufferRole::host_gradient) model_.carried[buffer.flat] = true;
    std::map<std::tuple<UnitId, ParameterId>, int> uses;
    for (const Instruction& instruction : program.instructions) {
      if (instruction.op == Opcode::update) {
        model_.early |= instruction.when >= 0 && program.buffers[instruction.when].role == BufferRole::terms;
        if (program.is_carried(instruction))
          model_.carried_spread = instruction.operand(Role::gradient).region.spread;
      }
      if (instruction.op != Opcode::use || instruction.edge == UseEdge::open || instruction.microbatch != 0)
        continue;
      for (const Operand& operand : instruction.operands)
        if (operand.role == Role::gradient)
          model_.writers[operand.region.parameter].insert(
              {instruction.unit, uses[{instruction.unit, operand.region.parameter}]++});
    }
  }

  void follow(Answers answers) {
    std::vector<OfPipeline> shared(pipelines_.size());
    IdVector<Brought> brought(world_.mesh.pipeline);
    std::vector<Follower> followers;
    std::vector<int> indices;  // by follower
    followers.reserve(pipelines_.size() * brought.size());
    for (std::size_t of = 0; of < pipelines_.size(); ++of) {
      shared[of].squared = {.times = IdVector<int>(model_.layout.flats().size()),
                            .sums = IdVector<Term>(model_.layout.parameters())};
      for (std::size_t place = 0; place < brought.size(); ++place) {
        indices.push_back(pipelines_[of][place]);
        followers.emplace_back(program(indices.back()), indices.back(), model_, answers, terms_, shared[of],
                               Collectives{.brought = brought[place], .leads = of == 0}, findings_);
      }
    }
    for (bool went_on = true; went_on;) {
      went_on = false;
      for (Follower& follower : followers) went_on |= follower.follow();
    }
    for (std::size_t k = 0; k < followers.size(); ++k) {
      if (!followers[k].over()) {
        findings_.add(Fault::wrong_meaning, indices[k], {followers[k].next()},
                      fmt::format("{} waits for what nobody sends",
                                  describe(program(indices[k]), followers[k].next())));
        continue;
      }
      followers[k].finish();
    }
    if (program(pipelines_[0][0]).kind != StepKind::train) return;
    for (std::size_t of = 0; of < pipelines_.size(); ++of)
      check_squares(shared[of].squared.times, pipelines_[of][0]);
    if (gradients_ != nullptr && gradients_->empty() && answers.now && findings_.empty())
      tell_gradients(shared[0].squared.sums);
  }

  void tell_gradients(const IdVector<Term>& sums) {
    const Layout& layout = model_.layout;
    IdVector<std::string> told(sums.size());
    std::map<std::pair<Term, UnitId>, std::string> known;
    for (ParameterId id = 0; id < layout.parameters(); ++id) {
      if (layout.place(id).home != id || !layout.parameter(id).trainable) continue;
      const Term sum = sums[id];
      const UnitId own = layout.unit_of(id);
      const auto [text, is_new] = known.try_emplace({sum, own});
      if (is_new)
        text->second = global_sum(terms_, sum, world_.mesh, program(pipelines_[0][0]).rounds(),
                                  program(pipelines_[0][0]).units, own);
      told[id] = text->second;
    }
    *gradients_ = std::move(told);
  }

  // On the ranks of one pipeline, of which `index` is the first's program.
  void check_squares(const IdVector<int>& squares, int index) {
    for (FlatId flat = 0; flat < squares.count(); ++flat) {
      const int taken = squares[flat];
      if (taken == (model_.layout.flat(flat).trainable ? 1 : 0)) continue;
      findings_.add(Fault::wrong_meaning, index, {},
                    fmt::format("the squares of flat {} are taken {} times for the norm", flat, taken));
    }
  }

  const WorldPrograms& world_;
  Findings& findings_;
  std::vector<std::string>* const gradients_;
  Terms terms_;
  StepModel model_;
  std::vector<Pipeline> pipelines_;
};

}  // namespace

VerifyReport prove(const WorldPrograms& world, const Layout& layout, std::vector<std::string>* gradients) {
  if (world.programs.empty()) throw UsageError("prove: a world without programs");
  if (gradients != nullptr) gradients->clear();
  VerifyReport report;
  Findings findings(report.findings);
  World(world, layout, findings, gradients).run();
  return report;
}

namespace {

// " in training program 2", where there are several.
std::string of_step(std::span<const Program> programs, std::size_t index) {
  const auto trains = [](const Program& program) { return program.kind == StepKind::train; };
  if (std::ranges::count_if(programs, trains) < 2) return "";
  return fmt::format(" in training program {}", std::ranges::count_if(programs.first(index), trains) + 1);
}

// A fact for each unit or, where its own parameters differ, for each of these.
void add_gradients(const Layout& layout, const std::vector<std::string>& gradients, const std::string& where,
                   Numerics& numerics) {
  for (UnitId unit = 0; unit < layout.units().count(); ++unit) {
    const UnitSpec& spec = layout.units()[unit];
    const auto first = static_cast<std::size_t>(layout.first_parameter(unit));
    std::vector<NumericFact> facts;
    for (std::size_t k = 0; k < spec.parameters.size(); ++k)
      if (const std::string& sum = gradients[first + k]; !sum.empty())
        facts.push_back(
            {fmt::format("the order in which gradients of '{}' are added{}", spec.parameters[k].name, where),
             sum});
    if (facts.empty()) continue;
    if (std::ranges::all_of(facts, [&](const NumericFact& of) { return of.value == facts[0].value; }))
      facts = {{fmt::format("the order in which gradients of unit '{}' are added{}", spec.name, where),
                facts[0].value}};
    numerics.program.insert(numerics.program.end(), facts.begin(), facts.end());
  }
}

}  // namespace

VerifyReport prove_all(const Mesh& mesh, const Layout& layout, std::span<const RankPrograms> of_ranks,
                       const RunsOn& runs_on, Numerics* numerics) {
  std::vector<int> first_data_ranks;
  for (std::size_t k = 0; k < of_ranks.size(); k += static_cast<std::size_t>(mesh.pipeline))
    first_data_ranks.push_back(of_ranks[k].first_data_rank);
  const std::vector<int> program_of_rank = programs_of_ranks(mesh, first_data_ranks);
  for (std::size_t index = 0; index < of_ranks.front().programs.size(); ++index) {
    std::vector<Program> programs;
    std::vector<PlannedProgram> plans;
    for (const RankPrograms& rank : of_ranks) {
      programs.push_back(rank.programs[index]);
      plans.push_back({rank.plan, static_cast<int>(index)});
    }
    const WorldPrograms world{.mesh = mesh,
                              .programs = programs,
                              .program_of_rank = program_of_rank,
                              .starts_in_order = runs_on.starts_in_order,
                              .issuer_runs = runs_on.issuer_runs};
    if (VerifyReport report = verify(world, plans); !report.ok()) return report;
    std::vector<std::string> gradients;
    if (VerifyReport report = prove(world, layout, numerics != nullptr ? &gradients : nullptr); !report.ok())
      return report;
    if (!gradients.empty())
      add_gradients(layout, gradients, of_step(of_ranks.front().programs, index), *numerics);
  }
  for (const RankPrograms& rank : of_ranks)
    if (VerifyReport report = verify_turns(rank.programs, *rank.plan); !report.ok()) return report;
  return {};
}

void require_proved(const VerifyReport& report) {
  if (!report.ok())
    throw Error("the program does not verify; this is a defect of Tessera\n" + report.to_string());
}

}  // namespace tessera
