// What decides the bits of a training run, as facts that are known before its first step. Two runs whose
// facts are equal compute the same losses, norms and weights to the bit, however they are spread over ranks
// and memory.
//
// That holds for equal starting weights and states, on machines of one kind: build, device, instruction set,
// versions of libraries and threads of a rank are equal, too. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// One thing that enters the bits: "the order in which gradients of unit 'block.0' are added", say, and
// "0…7".
struct NumericFact {
  std::string what;
  std::string value;
  bool operator==(const NumericFact&) const = default;
};

struct Numerics {
  // What the programs of all ranks make of a step: for each unit, how its gradients are added up over
  // microbatches, ranks and uses. From prove(), so that it is what the programs do and not what was asked of
  // them. Microbatches are counted over all ranks, in the order in which samples are dealt out (SampleGrid).
  std::vector<NumericFact> program;
  // All else: the parameters, what computes them, optimizer, clipping, scaling, types, seeds, data.
  std::vector<NumericFact> run;

  bool operator==(const Numerics&) const = default;
};

// The hashes of both parts, "90f3a2c17be4d506-1c22…": 16 hexadecimal digits each.
std::string fingerprint_of(const Numerics& numerics);

// A line for each fact, to be kept in a file, and back. UsageError for a text that this did not write, or
// that another version of this library wrote: its facts may be others.
std::string to_text(const Numerics& numerics);
Numerics numerics_of_text(std::string_view text);

}  // namespace tessera
