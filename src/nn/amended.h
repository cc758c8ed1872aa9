// A model whose parameters are declared in another way than its modules do: frozen, or of other optimizer
// groups. It wraps the modules and changes nothing in them.
#pragma once

#include <functional>

#include "tessera/module.h"

namespace tessera::nn {

// `amend` may change `trainable` and `group` of a parameter, of a tied one as of the one that it is tied to.
Model amended(Model model, const std::function<void(ParameterSpec&)>& amend);

}  // namespace tessera::nn
