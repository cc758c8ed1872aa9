// What explain_misfit() advises, read and followed as a user would: by the keys of a configuration.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tessera/program.h"
#include "tessera/step_spec.h"

namespace tessera::testing {

struct Advice {
  std::vector<std::string> words;                // "offload.states = host"
  std::array<std::int64_t, kSpaces> bytes = {};  // of the pipeline rank that needs most, by space
};

// "… would fit with WORD, WORD: N bytes[, N on the host][, N on the disk][, F × the step's time]", line by
// line.
inline std::vector<Advice> advice_in(const std::string& text) {
  static const std::string kBegin = "would fit with ";
  const auto parts_of = [](const std::string& list) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 2) {
      end = list.find(", ", begin);
      parts.push_back(list.substr(begin, end - begin));
    }
    return parts;
  };
  std::vector<Advice> all;
  for (std::size_t at = text.find(kBegin); at != std::string::npos; at = text.find(kBegin, at + 1)) {
    const std::size_t begin = at + kBegin.size(), colon = text.find(": ", begin);
    Advice one{.words = parts_of(text.substr(begin, colon - begin))};
    for (const std::string& figure : parts_of(text.substr(colon + 2, text.find('\n', colon) - colon - 2)))
      for (const auto& [ending, space] :
           {std::pair<std::string, std::size_t>{" bytes", 0}, {" on the host", 1}, {" on the disk", 2}})
        if (figure.ends_with(ending)) one.bytes[space] = std::stoll(figure);
    all.push_back(one);
  }
  return all;
}

inline void follow(const std::string& word, StepSpec& spec) {
  const std::size_t is = word.find(" = ");
  const std::string key = word.substr(0, is), value = word.substr(is + 3);
  Strategy& strategy = spec.strategy;
  const auto among = [&](auto& target, const auto& values) {
    for (const auto candidate : values)
      if (name_of(candidate) == value) {
        target = candidate;
        return;
      }
    ADD_FAILURE() << word;
  };
  constexpr std::array kPlaces = {Space::device, Space::host, Space::disk};
  if (key == "strategy.stage") {
    strategy.placements = Placements::of_stage(std::stoi(value));
  } else if (key == "strategy.resident_units") {
    strategy.resident_units = std::stoi(value);
  } else if (key == "strategy.recompute") {  // of all units, in place of what was chosen for each
    among(strategy.recompute, std::array{Recompute::none, Recompute::selective, Recompute::full});
    strategy.unit_activations.clear();
  } else if (key == "strategy.update") {
    among(strategy.update, std::array{UpdateWhen::decided, UpdateWhen::reduced, UpdateWhen::next});
  } else if (key == "strategy.prefetch") {
    strategy.prefetch = std::stoi(value);
  } else if (key == "pipeline.gather_once") {
    strategy.pipeline.gather_once = value == "true";
  } else if (key == "offload.states") {
    among(strategy.offload.states, kPlaces);
  } else if (key == "offload.states_on_device") {
    strategy.offload.states_on_device = std::stod(value);
  } else if (key == "offload.parameters") {
    among(strategy.offload.parameters, kPlaces);
  } else if (key == "offload.activations") {
    among(strategy.offload.activations, kPlaces);
    for (ActivationChoice& choice : strategy.unit_activations) choice.kept = strategy.offload.activations;
  } else if (key == "offload.staged") {
    strategy.offload.staged = std::stoi(value);
  } else {
    ADD_FAILURE() << word << " is no key of a strategy";
  }
}

}  // namespace tessera::testing
