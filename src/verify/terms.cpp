#include "src/verify/terms.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {

Terms::Terms(const Mesh& mesh) {
  for (int axis = 0; axis < kAxes; ++axis) extents_[axis] = mesh.extent(static_cast<Axis>(axis));
  make({Kind::undefined, 0, 0, 0});
  make({Kind::zero, 0, 0, 0});
}

Term Terms::make(const Node& node) {
  const auto [at, is_new] = known_.try_emplace(node, nodes_.count());
  if (is_new) nodes_.push_back(node);
  return at->second;
}

Term Terms::add(Term sum, Term more) {
  if (sum == kUndefined || more == kUndefined) return kUndefined;
  if (sum == kZero) return more;
  if (more == kZero) return sum;
  return make({Kind::add, sum, more, 0});
}

Term Terms::within(Term sum, Term more, DType type) {
  if (sum == kUndefined || more == kUndefined) return kUndefined;
  if (sum == kZero) return more;
  Term first = sum;
  while (node(first).kind == Kind::within) first = node(first).a;
  if (node(first).kind != Kind::gradient || node(first).c != node(more).c)
    return make({Kind::mixed, sum, more, 0});
  return make({Kind::within, sum, more, static_cast<int>(type)});
}

Term Terms::over(Axis axis, Term own, Term peers, Term sum, const Contributors& of) {
  if (sum == kUndefined || own == kUndefined || peers == kUndefined) return kUndefined;
  if (extents_[axis] == 1) return add(sum, own);
  if (own != peers) return make({Kind::mixed, own, peers, 0});
  if (own == kZero) return sum;
  return make({Kind::over, sum, own, static_cast<int>(axis), of});
}

Term Terms::of_peer(Axis axis, Term term) {
  return same_along(axis, term) ? term : make({Kind::peer, term, 0, static_cast<int>(axis)});
}

bool Terms::same_along(Axis axis, Term term) const {
  const Node& of = node(term);
  switch (of.kind) {
    case Kind::undefined:
    case Kind::zero:
    case Kind::state:
    case Kind::carried:
      return true;
    case Kind::add:
    case Kind::within:
      return same_along(axis, of.a) && same_along(axis, of.b);
    case Kind::over:
      return same_along(axis, of.a) && (static_cast<Axis>(of.c) == axis || same_along(axis, of.b));
    default:
      return extents_[axis] == 1;
  }
}

bool Terms::addends(Term sum, std::vector<Addend>& parts) const { return walk(sum, {}, parts); }

bool Terms::walk(Term term, const Addend& within, std::vector<Addend>& parts) const {
  // A chain over microbatches is as deep as there are: from its last link to its first, then back.
  std::vector<Term> links;
  const auto is_link = [&](Kind kind) {
    return kind == Kind::add || kind == Kind::within || kind == Kind::over;
  };
  for (; is_link(node(term).kind); term = node(term).a) links.push_back(term);
  const Node& first = node(term);
  if (first.kind == Kind::gradient)
    parts.push_back({.of = {.unit = first.a, .use = first.b, .microbatch = first.c},
                     .over = within.over,
                     .from = within.from});
  else if (first.kind != Kind::zero)
    return false;
  for (auto link = links.rbegin(); link != links.rend(); ++link) {
    const Node& of = node(*link);
    Addend inside = within;
    if (of.kind == Kind::over) {
      const auto axis = static_cast<Axis>(of.c);
      if (within.over.contains(axis)) return false;
      inside.over = within.over.with(axis);
      inside.from[of.c] = of.of;
    }
    if (!walk(of.b, inside, parts)) return false;
  }
  return true;
}

std::string Terms::describe(Term term) const {
  const Node& of = node(term);
  switch (of.kind) {
    case Kind::undefined:
      return "nothing that is defined";
    case Kind::zero:
      return "zeros";
    case Kind::state: {
      constexpr std::string_view kNames[] = {"parameters", "masters", "first moments", "second moments"};
      return fmt::format("the {} of {}", kNames[of.a], of.b == 0 ? "before" : "behind the update");
    }
    case Kind::carried:
      return "the gradient that the step before left";
    case Kind::activation:
      return fmt::format("the {} of unit {}, microbatch {}", name_of(static_cast<BufferRole>(of.a)), of.b,
                         of.c);
    case Kind::value:
      return fmt::format("value {} of unit {}, microbatch {}", of.a, of.b, of.c);
    case Kind::gradient:
      return fmt::format("this rank's gradient by unit {} of microbatch {}", of.a, of.c);
    case Kind::add:
    case Kind::within:
    case Kind::over: {
      std::vector<Addend> parts;
      if (!addends(term, parts)) return "a sum with something in it that does not belong there";
      return fmt::format("a sum of {} gradients, the last of microbatch {}", parts.size(),
                         parts.back().of.microbatch);
    }
    case Kind::peer:
      return fmt::format("what another rank along {} has: {}", name_of(static_cast<Axis>(of.c)),
                         describe(of.a));
    case Kind::mixed:
      return fmt::format("a sum of {} and what does not belong there, {}", describe(of.a), describe(of.b));
  }
  return "?";
}

}  // namespace tessera
