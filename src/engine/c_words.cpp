#include "src/engine/c_words.h"

#include <cctype>
#include <string_view>

namespace tessera::c_api {
namespace {

struct Word {
  std::string_view cpp, c;
};

// A word that begins another comes behind it.
constexpr Word kWords[] = {
    {"strategy.pipeline.", "options."},
    {"strategy.offload.", "options."},
    {"strategy.offload", "options.states, parameters or activations"},
    {"strategy.placements.", "options.stage, of "},
    {"strategy.", "options."},
    {"offload.", "options."},
    {"pipeline.", "options."},
    {"mesh.", "options."},
    {"clip.max_norm", "options.clip"},
    {"loss_scaling.initial", "options.initial_loss_scale"},
    {"loss_scaling.growth_factor", "options.loss_scale_growth_factor"},
    {"loss_scaling.growth_interval", "options.loss_scale_growth_interval"},
    {"loss_scaling.backoff_factor", "options.loss_scale_backoff_factor"},
    {"loss_scaling.min", "options.min_loss_scale"},
    {"loss_scaling.max", "options.max_loss_scale"},
    {"loss_scaling", "options.initial_loss_scale"},
    {"threads_per_rank", "options.threads"},
    {"overwrites_gradients", "options.overwrite_gradients"},
    {"waits.deadline", "options.deadline_ms"},
    {"terms.continues is true, which", "tessera_continue_evaluation is what"},
    {"terms.", ""},
    {"activations.batch_bytes", "the batch's bytes"},
    {"begin()", "tessera_begin()"},
    {"step()", "tessera_step()"},
    {"abandon()", "tessera_abandon()"},
    {"initialize()", "tessera_initialize()"},
    {"finish_updates()", "tessera_finish_updates()"},
    {"write()", "tessera_write()"},
    {"use()", "tessera_use_unit()"},
    {"end()", "tessera_lease_end()"},
    {"leave()", "tessera_leave()"},
    {"make_nccl_world", "tessera_world_create_nccl"},
    {"make_local_world or run_local", "tessera_run_ranks"},
};

// The calls whose name may open a message.
constexpr Word kVerbs[] = {
    {"begin", "begin"},
    {"use", "use_unit"},
    {"skip", "skip_unit"},
    {"end", "lease_end"},
    {"step", "step"},
    {"abandon", "abandon"},
    {"end_evaluation", "end_evaluation"},
    {"add_loss", "add_loss"},
    {"initialize", "initialize"},
    {"read", "read"},
    {"write", "write"},
    {"read_gradient", "read_gradient"},
    {"finish_updates", "finish_updates"},
    {"transfer", "transfer"},
    {"upload", "upload"},
    {"bind", "bind"},
    {"enter", "enter"},
    {"leave", "leave"},
    {"launch", "launch"},
};

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; }

// The word of the table that begins at `at`, which is not inside of another.
const Word* word_at(const std::string& message, std::size_t at) {
  if (at > 0 && in_word(message[at - 1])) return nullptr;
  for (const Word& word : kWords) {
    if (message.compare(at, word.cpp.size(), word.cpp) != 0) continue;
    const std::size_t behind = at + word.cpp.size();
    const char last = word.cpp.back();
    if (last == '.' || behind == message.size() || !in_word(message[behind]) || message[behind] == '.')
      return &word;
  }
  return nullptr;
}

}  // namespace

std::string in_words_of_c(std::string message) {
  std::string text;
  const std::string opening = message.substr(0, message.find(": "));
  for (const Word& verb : kVerbs)
    if (verb.cpp == opening && opening.size() < message.size()) {
      text = "tessera_" + std::string(verb.c);
      message.erase(0, opening.size());
      break;
    }
  for (std::size_t at = 0; at < message.size();) {
    if (const Word* word = word_at(message, at)) {
      text += word->c;
      at += word->cpp.size();
    } else {
      text += message[at++];
    }
  }
  return text;
}

}  // namespace tessera::c_api
