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
               .ranks = {},
               .carried = {},
               .carried_spread = {},
               .early = false,
               .writers = {}} {
    check_arguments();
    for (const Axis axis : kCuts)
      if (world.mesh.extent(axis) > 1) model_.ranks = model_.ranks.with(axis);
    read_model();
  }

  void run() {
    const Program& first = world_.programs[static_cast<std::size_t>(by_place_[0])];
    const bool decides = first.kind != StepKind::evaluate;
    const bool carries = std::ranges::find(model_.carried, true) != model_.carried.end();
    for (const bool previous : {true, false})
      for (const bool now : {true, false})
        if ((decides || now) && (carries || !previous || !decides) && (decides || previous) &&
            !findings_.full())
          follow({.previous = previous, .now = now});
  }

 private:
  const Program& at_place(std::size_t place) const {
    return world_.programs[static_cast<std::size_t>(by_place_[place])];
  }

  void check_arguments() {
    const auto places = static_cast<std::size_t>(world_.mesh.pipeline);
    by_place_.assign(places, -1);
    for (int rank = 0; rank < world_.mesh.world(); ++rank) {
      const int index =
          world_.program_of_rank.empty() ? 0 : world_.program_of_rank.at(static_cast<std::size_t>(rank));
      int& known = by_place_[static_cast<std::size_t>(world_.mesh.place(rank, Axis::pipeline))];
      if (known >= 0 && known != index)
        throw UsageError(fmt::format(
            "prove: rank {} runs program {}, and another rank of its pipeline place {}", rank, index, known));
      known = index;
    }
    for (std::size_t place = 0; place < places; ++place) {
      if (at_place(place).pipeline_rank != static_cast<int>(place))
        throw UsageError(fmt::format("prove: pipeline rank {} runs a program for pipeline rank {}", place,
                                     at_place(place).pipeline_rank));
      for (const Buffer& buffer : at_place(place).buffers)
        if (buffer.flat >= static_cast<FlatId>(model_.layout.flats().size()))
          throw UsageError(fmt::format("prove: '{}' is of flat {}, but the layout has {}", buffer.name,
                                       buffer.flat, model_.layout.flats().size()));
    }
  }

  // Who writes gradients, and which updates are left to the next step.
  void read_model() {
    model_.carried.resize(model_.layout.flats().size());
    for (std::size_t place = 0; place < by_place_.size(); ++place) {
      const Program& program = at_place(place);
      for (const Buffer& buffer : program.buffers)  // what is left there is for an update to come
        if (buffer.persistent && buffer.role == BufferRole::host_gradient)
          model_.carried[static_cast<std::size_t>(buffer.flat)] = true;
      std::map<std::tuple<UnitId, ParameterId>, int> uses;
      for (const Instruction& instruction : program.instructions) {
        if (instruction.op == Opcode::update) {
          model_.early |=
              instruction.when >= 0 && program.buffers[instruction.when].role == BufferRole::terms;
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
    // A parameter that no use writes has a gradient of zeros.
    for (ParameterId id = 0; id < model_.layout.parameters(); ++id) model_.writers[id];
  }

  void follow(Answers answers) {
    Messages messages;
    Squared squared{.times = std::vector<int>(model_.layout.flats().size()),
                    .sums = std::vector<Term>(static_cast<std::size_t>(model_.layout.parameters()))};
    std::vector<Follower> followers;
    followers.reserve(by_place_.size());
    for (const int index : by_place_)
      followers.emplace_back(world_.programs[static_cast<std::size_t>(index)], index, model_, answers, terms_,
                             messages, squared, findings_);
    for (bool went_on = true; went_on;) {
      went_on = false;
      for (Follower& follower : followers) went_on |= follower.follow();
    }
    for (std::size_t place = 0; place < followers.size(); ++place) {
      if (!followers[place].over()) {
        findings_.add(Fault::wrong_meaning, by_place_[place], {followers[place].next()},
                      fmt::format("{} waits for what nobody sends",
                                  describe(at_place(place), followers[place].next())));
        continue;
      }
      followers[place].finish();
    }
    if (at_place(0).kind != StepKind::train) return;
    check_squares(squared.times);
    if (gradients_ != nullptr && answers.now && findings_.empty()) tell_gradients(squared.sums);
  }

  void tell_gradients(const std::vector<Term>& sums) {
    const Layout& layout = model_.layout;
    gradients_->assign(sums.size(), "");
    std::map<std::pair<Term, UnitId>, std::string> known;
    for (ParameterId id = 0; id < layout.parameters(); ++id) {
      if (layout.place(id).home != id || !layout.parameter(id).trainable) continue;
      const Term sum = sums[static_cast<std::size_t>(id)];
      const UnitId own = layout.unit_of(id);
      const auto [text, is_new] = known.try_emplace({sum, own});
      if (is_new) text->second = global_sum(terms_, sum, world_.mesh, at_place(0).units, own);
      (*gradients_)[static_cast<std::size_t>(id)] = text->second;
    }
  }

  void check_squares(const std::vector<int>& squares) {
    for (FlatId flat = 0; flat < static_cast<FlatId>(squares.size()); ++flat) {
      const int taken = squares[static_cast<std::size_t>(flat)];
      if (taken == (model_.layout.flat(flat).trainable ? 1 : 0)) continue;
      findings_.add(Fault::wrong_meaning, by_place_[0], {},
                    fmt::format("the squares of flat {} are taken {} times for the norm", flat, taken));
    }
  }

  const WorldPrograms& world_;
  Findings& findings_;
  std::vector<std::string>* const gradients_;
  Terms terms_;
  Model model_;
  std::vector<int> by_place_;  // [pipeline coordinate] the program
};

}  // namespace

VerifyReport prove(const WorldPrograms& world, const Layout& layout, std::vector<std::string>* gradients) {
  if (world.programs.empty()) throw UsageError("prove: a world without programs");
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
  for (UnitId unit = 0; unit < static_cast<UnitId>(layout.units().size()); ++unit) {
    const UnitSpec& spec = layout.units()[static_cast<std::size_t>(unit)];
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

VerifyReport prove_all(const Mesh& mesh, const Layout& layout, std::span<const RankPrograms> by_pipeline_rank,
                       const RunsOn& runs_on, Numerics* numerics) {
  const std::vector<int> program_of_rank = mesh.places(Axis::pipeline);
  for (std::size_t index = 0; index < by_pipeline_rank.front().programs.size(); ++index) {
    std::vector<Program> programs;
    std::vector<PlannedProgram> plans;
    for (const RankPrograms& rank : by_pipeline_rank) {
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
    if (VerifyReport report = prove(world, layout, &gradients); !report.ok()) return report;
    if (numerics != nullptr && !gradients.empty())
      add_gradients(layout, gradients, of_step(by_pipeline_rank.front().programs, index), *numerics);
  }
  for (const RankPrograms& rank : by_pipeline_rank)
    if (VerifyReport report = verify_turns(rank.programs, *rank.plan); !report.ok()) return report;
  return {};
}

void require_proved(const VerifyReport& report) {
  if (!report.ok())
    throw Error("the program does not verify; this is a defect of Tessera\n" + report.to_string());
}

}  // namespace tessera
