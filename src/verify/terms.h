// What a buffer can hold, as terms: equal terms have equal numbers, so that they compare as integers. Knows
// the algebra of sums; does not read instructions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/program.h"
#include "tessera/spread.h"

namespace tessera {

using Term = int;
inline constexpr Term kUndefined = 0;
inline constexpr Term kZero = 1;

// Which of a flat's persistent data.
enum class Stored : std::uint8_t { parameter, master, moment1, moment2 };

// One use's gradient of one parameter.
struct Contribution {
  UnitId unit = 0;
  int use = 0;  // which of the unit's writers of that parameter in a microbatch
  int microbatch = 0;
  auto operator<=>(const Contribution&) const = default;
};

// A part of a sum: a contribution of every rank along `over`, in rank order; along each axis, of those that
// contribute.
struct Addend {
  Contribution of;
  AxisSet over = {};
  IdArray<Contributors, kAxes> from = {};
};

class Terms {
 public:
  enum class Kind : std::uint8_t {
    undefined,
    zero,
    state,
    carried,
    activation,
    value,     // a: value, b: unit, c: microbatch
    gradient,  // a: unit, b: use, c: microbatch
    within,    // a, and then b, by uses of one microbatch, in type c
    add,       // a, and then b, in fp32
    over,      // a, and then b of the ranks along axis c that contribute, in fp32
    peer,
    mixed
  };
  struct Node {
    Kind kind;
    int a, b, c;
    Contributors of = {};
    auto operator<=>(const Node&) const = default;
  };

  explicit Terms(const Mesh& mesh);
  const Node& node(Term term) const { return nodes_[term]; }

  // Has the same value on every rank that holds the element: a version of a state, or a gradient that an
  // earlier step summed.
  Term state(Stored stored, int version) { return make({Kind::state, static_cast<int>(stored), version, 0}); }
  Term carried_gradient() { return make({Kind::carried, 0, 0, 0}); }
  // Differs from rank to rank.
  Term activation(BufferRole role, UnitId unit, int microbatch) {
    return make({Kind::activation, static_cast<int>(role), unit, microbatch});
  }
  Term value(int value, UnitId unit, int microbatch) { return make({Kind::value, value, unit, microbatch}); }
  Term gradient(const Contribution& of) { return make({Kind::gradient, of.unit, of.use, of.microbatch}); }
  Term add(Term sum, Term more);
  // A use adds to what others of its microbatch wrote, in the type of the gradient.
  Term within(Term sum, Term more, DType type);
  // The sum, over the ranks along the axis, of one part of a flat. A rank adds `own` to its own part and
  // `peers` to that of others. The result is added to `sum`, whose chain goes on.
  Term over(Axis axis, Term own, Term peers, Term sum = kZero, const Contributors& of = {});
  // What a peer along the axis has, as this rank sees it.
  Term of_peer(Axis axis, Term term);

  // The parts of a sum in the order in which they are added. False where anything but this rank's gradients
  // and zeros is in it, or where a sum is taken twice over one axis.
  bool addends(Term sum, std::vector<Addend>& parts) const;
  // In words, for messages.
  std::string describe(Term term) const;

 private:
  Term make(const Node& node);
  // Whether all ranks along the axis have the same for an element.
  bool same_along(Axis axis, Term term) const;
  bool walk(Term term, const Addend& within, std::vector<Addend>& parts) const;

  IdArray<int, kAxes> extents_;
  IdVector<Node> nodes_;
  std::map<Node, Term> known_;
};

}  // namespace tessera
