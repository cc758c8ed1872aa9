#include "src/verify/global_sum.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tessera/error.h"

namespace tessera {
namespace {

// A microbatch's gradient, or a sum of such and of sums, from left to right.
struct Sum {
  int label = -1;      // which uses wrote the microbatch's gradient; −1: a sum
  int microbatch = 0;  // the first of a sum
  std::vector<Sum> parts;
};

class Expansion {
 public:
  Expansion(const Terms& terms, const Mesh& mesh, const Rounds& rounds, const IdVector<UnitOutline>& units)
      : terms_(terms), mesh_(mesh), rounds_(rounds), units_(units) {}

  Sum expand(Term term) {
    std::vector<const Terms::Node*> links;
    while (is_link(terms_.node(term))) {
      links.push_back(&terms_.node(term));
      term = links.back()->a;
    }
    Sum sum;
    if (term != kZero) append(sum, leaf(term));
    for (auto link = links.rbegin(); link != links.rend(); ++link) {
      if ((*link)->kind == Terms::Kind::add) {
        append(sum, expand((*link)->b));
        continue;
      }
      if (static_cast<Axis>((*link)->c) == Axis::tensor) {  // parts of one gradient, behind all others
        over_tensor_ = true;
        append(sum, expand((*link)->b));
        continue;
      }
      int& place = places_[(*link)->c];
      const auto [first, ranks] = (*link)->of.among(mesh_.extent(static_cast<Axis>((*link)->c)));
      for (place = first; place < first + ranks; ++place) append(sum, expand((*link)->b));
      place = 0;
    }
    if (sum.parts.size() == 1) return sum.parts[0];
    if (!sum.parts.empty()) sum.microbatch = sum.parts[0].microbatch;
    return sum;
  }

  std::string text(Sum sum, const std::string& own) const {
    if (sum.label < 0 && sum.parts.empty()) return "zeros";
    group(sum);
    const bool shown = labels_.size() > 1 || labels_[0] != own;
    const std::string ranks =
        over_tensor_ ? fmt::format(" over {} tensor ranks", mesh_.extent(Axis::tensor)) : "";
    return text_of(sum, shown) + ranks;
  }

 private:
  static bool is_link(const Terms::Node& node) {
    return node.kind == Terms::Kind::add || node.kind == Terms::Kind::over;
  }

  static void append(Sum& sum, Sum more) {
    if (more.label < 0 && more.parts.empty()) return;  // zeros
    if (sum.parts.empty() && more.label < 0)
      sum.parts = std::move(more.parts);
    else
      sum.parts.push_back(std::move(more));
  }

  // What the uses of one microbatch have added up on one rank.
  Sum leaf(Term term) {
    std::vector<const Terms::Node*> uses;
    int type = -1;
    for (; terms_.node(term).kind == Terms::Kind::within; term = terms_.node(term).a) {
      uses.push_back(&terms_.node(terms_.node(term).b));
      type = terms_.node(term).c;
    }
    uses.push_back(&terms_.node(term));
    std::string label;
    for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
      if ((*use)->kind != Terms::Kind::gradient)
        throw Error(fmt::format("global_sum: {} is no sum of gradients", terms_.describe(term)));
      label += fmt::format("{}{}{}", label.empty() ? "" : " + ", units_[(*use)->a].name,
                           (*use)->b > 0 ? fmt::format(" (use {})", (*use)->b + 1) : "");
    }
    if (type >= 0) label += fmt::format(" in {}", name_of(static_cast<DType>(type)));
    const auto at = [&](Axis axis) { return places_[axis]; };
    const int data_rank = at(Axis::replicate) * mesh_.shard + at(Axis::shard);
    return {.label = number_of(label),
            .microbatch = static_cast<int>(rounds_.number(mesh_, data_rank, uses.back()->c)),
            .parts = {}};
  }

  int number_of(const std::string& label) {
    const auto known = std::ranges::find(labels_, label);
    if (known != labels_.end()) return static_cast<int>(known - labels_.begin());
    labels_.push_back(label);
    return labels_.count() - 1;
  }

  bool same_shape(const Sum& a, const Sum& b) const {
    if (a.label != b.label || a.parts.size() != b.parts.size()) return false;
    return std::ranges::equal(a.parts, b.parts, [&](const Sum& of_a, const Sum& of_b) {
      return of_a.microbatch - a.microbatch == of_b.microbatch - b.microbatch && same_shape(of_a, of_b);
    });
  }

  static int depth(const Sum& sum) {
    int most = 0;
    for (const Sum& part : sum.parts) most = std::max(most, depth(part) + 1);
    return most;
  }

  // Gives a sum that others of its kind follow its parentheses back, which are not needed at the beginning.
  static void group(Sum& sum) {
    std::vector<Sum>& parts = sum.parts;
    for (Sum& part : parts) group(part);
    while (!parts.empty()) {
      const auto deeper = std::ranges::find_if(
          parts, [least = depth(parts.front())](const Sum& part) { return depth(part) > least; });
      if (deeper == parts.end() || deeper - parts.begin() < 2) return;
      Sum first{.microbatch = parts.front().microbatch, .parts = {}};
      first.parts.assign(std::make_move_iterator(parts.begin()), std::make_move_iterator(deeper));
      parts.erase(parts.begin(), deeper);
      parts.insert(parts.begin(), std::move(first));
    }
  }

  // That of all microbatches in the sum; −1 where they differ.
  static int label_of(const Sum& sum) {
    if (sum.parts.empty()) return sum.label;
    const int first = label_of(sum.parts.front());
    const bool same =
        std::ranges::all_of(sum.parts, [&](const Sum& part) { return label_of(part) == first; });
    return same ? first : -1;
  }

  // `shown`: with labels.
  std::string text_of(const Sum& sum, bool shown) const {
    const int label = label_of(sum);
    if (shown && label >= 0) return fmt::format("{}: {}", labels_[label], text_of(sum, false));
    if (sum.parts.empty()) return std::to_string(sum.microbatch);
    if (depth(sum) == 1 && !shown) return numbers_text(sum);
    const std::vector<Sum>& parts = sum.parts;
    std::string text;
    for (std::size_t first = 0, end = 0; first < parts.size(); first = end) {
      end = end_of_run(parts.size(), first, [&](std::size_t k) {
        return same_shape(parts[k - 1], parts[k]) ? parts[k].microbatch - parts[k - 1].microbatch : 0;
      });
      text += text.empty() ? "" : " + ";
      text += run_text(first, end, " + ", [&](std::size_t k) {
        const std::string part = text_of(parts[k], shown);
        return parts[k].parts.empty() && !shown ? part : fmt::format("({})", part);
      });
    }
    return text;
  }

  // Runs of numbers that ascend by one step, and runs of such runs.
  static std::string numbers_text(const Sum& sum) {
    struct Run {
      int first = 0, last = 0, step = 0;
    };
    std::vector<Run> runs;
    const auto number = [&](std::size_t k) { return sum.parts[k].microbatch; };
    for (std::size_t first = 0, end = 0; first < sum.parts.size(); first = end) {
      end = end_of_run(sum.parts.size(), first, [&](std::size_t k) { return number(k) - number(k - 1); });
      runs.push_back(
          {number(first), number(end - 1), end - first > 1 ? number(first + 1) - number(first) : 0});
    }
    std::string text;
    for (std::size_t first = 0, end = 0; first < runs.size(); first = end) {
      end = end_of_run(runs.size(), first, [&](std::size_t k) {
        const Run &a = runs[k - 1], &b = runs[k];
        return a.step == b.step && a.last - a.first == b.last - b.first ? b.first - a.first : 0;
      });
      text += text.empty() ? "" : ", ";
      text += run_text(first, end, ", ", [&](std::size_t k) {
        const Run& run = runs[k];
        if (run.step == 0) return std::to_string(run.first);
        if (run.step == 1)
          return fmt::format("{}{}{}", run.first, run.last - run.first > 1 ? "…" : ", ", run.last);
        const int next = run.first + run.step;
        if (next == run.last) return fmt::format("{}, {}", run.first, run.last);
        return fmt::format("{}, {}{}{}", run.first, next, next + run.step == run.last ? ", " : "…", run.last);
      });
    }
    return text;
  }

  // Behind the last of those that follow `first` at one distance; 0: the next does not follow.
  template <class Distance>
  static std::size_t end_of_run(std::size_t count, std::size_t first, const Distance& distance) {
    std::size_t end = first + 1;
    if (end < count && distance(end) == 0) return end;
    while (end < count && distance(end) == distance(first + 1)) ++end;
    return end;
  }

  // All of a run or, of many, those which say its step: so no two sums have one text.
  template <class Part>
  static std::string run_text(std::size_t first, std::size_t end, std::string_view between,
                              const Part& part) {
    const bool shortens = end - first > 3;
    std::string text = part(first);
    for (std::size_t k = first + 1; k < (shortens ? first + 2 : end); ++k)
      text += fmt::format("{}{}", between, part(k));
    if (shortens) text += fmt::format("{}…{}{}", between, between, part(end - 1));
    return text;
  }

  const Terms& terms_;
  const Mesh& mesh_;
  const Rounds rounds_;
  const IdVector<UnitOutline>& units_;
  IdArray<int, kAxes> places_{};
  bool over_tensor_ = false;
  IdVector<std::string> labels_;
};

}  // namespace

std::string global_sum(const Terms& terms, Term sum, const Mesh& mesh, const Rounds& rounds,
                       const IdVector<UnitOutline>& units, UnitId own) {
  Expansion expansion(terms, mesh, rounds, units);
  const Sum expanded = expansion.expand(sum);
  return expansion.text(expanded, units[own].name);
}

}  // namespace tessera
