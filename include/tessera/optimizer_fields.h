// The fields of an optimizer's options, for code that treats all optimizers alike.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "tessera/optimizer_options.h"

namespace tessera {

// One field of an optimizer's options. All code that compares, prints, reads or checks options uses these
// fields.
struct OptimizerField {
  std::string_view name;               // the member's name, and the key in a configuration
  std::variant<double*, bool*> value;  // the member
  OptionRange range;                   // which numbers are allowed; unused for a bool
  std::string_view meaning;            // for documentation: half a sentence
};

// All fields, in a fixed order. Their pointers point into `options` and are valid until it holds another
// optimizer's options.
std::vector<OptimizerField> fields_of(OptimizerOptions& options);

}  // namespace tessera
