// Follows one program over terms: what each instruction makes of what buffers hold (follow.cpp), and whether
// that is what a step needs (follow_checks.cpp). prove() makes one for each pipeline rank and each answer.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "src/verify/checks.h"
#include "src/verify/contents.h"

namespace tessera {

// What decisions say in one run along the programs.
struct Answers {
  bool previous = false;
  bool now = false;
};

// What the programs say of the model, before any is followed.
struct StepModel {
  const Layout& layout;
  const Mesh& mesh;
  AxisSet ranks;           // the axes of several ranks along which flats are cut
  IdVector<bool> carried;  // [flat] updated by the next step
  Spread carried_spread;   // the part of its gradient that such an update reads
  bool early;              // updates wait for no decision
  bool several;            // not all pipelines run the same programs
  std::map<ParameterId, std::set<std::pair<UnitId, int>>> writers;  // [home] unit and use in a microbatch
};

// What the norm is made of, over the ranks of one pipeline.
struct Squared {
  IdVector<int> times;  // [flat] how often its squares are taken
  IdVector<Term> sums;  // [home] the gradient that they are taken of, and that the update reads
};

// What is sent waits for the rank that receives it.
using Message = std::vector<Term>;
using Messages = std::map<std::tuple<int, int, Lane>, std::deque<Message>>;  // from, to, the sender's lane

// What ranks bring to the collectives of each channel, in their order: a term for every cell and item of the
// flat. The first pipeline's rank leads; the others with its coordinate along the pipeline bring the same,
// or, where a sum is not of all ranks, nothing.
using Brought = std::map<std::pair<Axis, Lane>, std::vector<IdVector<Term>>>;
struct Collectives {
  Brought& brought;
  bool leads = true;
};

// What the followers of one pipeline have in common.
struct OfPipeline {
  Messages messages;
  Squared squared;
};

class Follower {
 public:
  Follower(const Program& program, int index, const StepModel& model, Answers answers, Terms& terms,
           OfPipeline& pipeline, const Collectives& collectives, Findings& findings)
      : program_(program),
        index_(index),
        model_(model),
        answers_(answers),
        terms_(terms),
        messages_(pipeline.messages),
        squared_(pipeline.squared),
        collectives_(collectives),
        findings_(findings),
        contents_(program, model.layout, model.ranks) {
    begin();
  }

  // Goes on until the end, or until it needs what another follower has not sent or brought yet. False where
  // it could not go on at all.
  bool follow() {
    const InstructionId from = next_;
    while (next_ < program_.instructions.count() && step(next_)) ++next_;
    return next_ > from;
  }
  bool over() const { return next_ == program_.instructions.count(); }
  InstructionId next() const { return next_; }
  void finish();

 private:
  const Layout& layout() const { return model_.layout; }
  const Buffer& buffer(BufferId id) const { return program_.buffers[id]; }
  void report(InstructionId id, const std::string& what) {
    findings_.add(Fault::wrong_meaning, index_, {id}, fmt::format("{} {}", describe(program_, id), what));
  }

  void begin();
  bool step(InstructionId id);
  bool applies(InstructionId id);
  // The axes along which the flat's gradients are summed.
  AxisSet summed_over(FlatId flat) const {
    return layout().flat(flat).over == TensorShare::partial ? model_.ranks
                                                            : model_.ranks.without(Axis::tensor);
  }
  // The version of the flat that uses read: that at the step's begin, with what the step before left.
  int current(FlatId flat) const { return model_.carried[flat] && answers_.previous ? 1 : 0; }
  Stored stored_in(BufferId id) const;
  static Stored stored_as(Role role);

  void use(InstructionId id);
  bool check_use(InstructionId id);
  bool check_gradients(InstructionId id, std::vector<ParameterId> homes);
  void check_activation(InstructionId id, const Operand& operand, Term expected);
  void use_gradient(InstructionId id, const Operand& operand);
  // What this rank, and in their own parts its peers, bring to a collective: by cell and item of the flat.
  // nullptr where the rank that leads is not so far yet.
  const IdVector<Term>* meet(InstructionId id);
  void exchange(InstructionId id);
  Term term_of(const Instruction& instruction, ValueId value);
  bool gather(InstructionId id);
  bool reduce(InstructionId id);
  void accumulate(const Instruction& instruction);
  void copy(const Instruction& instruction);
  void zero(const Instruction& instruction);
  void send(const Instruction& instruction);
  bool receive(const Instruction& instruction);
  void take_squares(InstructionId id, const Operand& gradient);
  // Of a gradient that is complete: the order in which it was added up is one for all who read it.
  bool same_sums(const Operand& gradient);
  void update(InstructionId id);
  // Empty where the part of the gradient is complete, else what is wrong with it.
  std::string incomplete(const Operand& gradient);
  const std::string& incomplete(Term sum, ParameterId parameter);
  void check_state(InstructionId id, const Operand& operand, Stored stored, int version,
                   std::string_view verb);

  const Program& program_;
  const int index_;
  const StepModel& model_;
  const Answers answers_;
  Terms& terms_;
  Messages& messages_;
  Squared& squared_;
  const Collectives collectives_;
  std::map<std::pair<Axis, Lane>, std::size_t> met_;  // where another rank leads: so many collectives
  IdVector<Term> own_;                                // brings this rank to the running one
  Findings& findings_;
  Contents contents_;
  InstructionId next_ = 0;
  bool decided_ = false;
  // What the parts of a backward have written so far.
  struct OfBackward {
    InstructionId last = -1;
    std::vector<ParameterId> homes;
  };
  std::map<std::pair<UnitId, int>, OfBackward> backward_;        // [unit, microbatch]
  std::map<std::tuple<UnitId, ParameterId, int>, int> written_;  // [unit, home, microbatch] by so many uses
  std::map<std::pair<Term, ParameterId>, std::string> known_;    // of incomplete()
};

}  // namespace tessera
