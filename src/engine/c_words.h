// What a message calls things, in the words of who reads it: Engine's options and verbs as the C API has
// them.
#pragma once

#include <string>

namespace tessera::c_api {

// "strategy.update" becomes "options.update", "begin()" tessera_begin(), and a verb that opens the message,
// such as "step: …", tessera_step. Leaves all other words as they are; doing it twice changes nothing more.
std::string in_words_of_c(std::string message);

}  // namespace tessera::c_api
