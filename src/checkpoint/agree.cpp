#include "src/checkpoint/agree.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

namespace {

enum class Outcome : std::int32_t { good, usage, unsupported, environment };

// What a rank tells the others. The message is cut where it is longer.
struct Report {
  Outcome outcome = Outcome::good;
  char message[1020] = {};
};

Report report(Outcome outcome, const std::exception& error) {
  Report result{.outcome = outcome};
  std::strncpy(result.message, error.what(), sizeof result.message - 1);
  return result;
}

Report attempt(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const CommunicationError&) {
    throw;
  } catch (const UsageError& error) {
    return report(Outcome::usage, error);
  } catch (const UnsupportedError& error) {
    return report(Outcome::unsupported, error);
  } catch (const std::exception& error) {
    return report(Outcome::environment, error);
  }
}

void raise(const Report& failed) {
  switch (failed.outcome) {
    case Outcome::good:
      return;
    case Outcome::usage:
      throw UsageError(failed.message);
    case Outcome::unsupported:
      throw UnsupportedError(failed.message);
    case Outcome::environment:
      throw EnvironmentError(failed.message);
  }
}

}  // namespace

void together(Communicator& world, const char* operation, const std::function<void()>& work) {
  if (!world) return work();
  const Report mine = attempt(work);
  IdVector<Report> all(world.world());
  world.all_gather(&mine, all.data(), sizeof mine, {.operation = operation});
  for (const Report& one : all) raise(one);
}

void check_arguments(const char* call, const Communicator& world, Engine& engine) {
  if (!world)
    throw UsageError(fmt::format("{}: world is an empty communicator; give one of the engine's ranks", call));
  if (world.world() != engine.world())
    throw UsageError(
        fmt::format("{}: world '{}' has {} ranks and the engine has {}; give a communicator of "
                    "all of the engine's ranks",
                    call, world.name(), world.world(), engine.world()));
  told_as(call, "finish_updates", [&] { engine.finish_updates(); });
}

void told_as(const char* call, const char* verb, const std::function<void()>& work) {
  try {
    work();
  } catch (const UsageError& error) {
    const std::string began = fmt::format("{}: ", verb);
    const std::string_view why = error.what();
    throw UsageError(fmt::format("{}: {}", call, why.starts_with(began) ? why.substr(began.size()) : why));
  }
}

}  // namespace tessera::checkpoint
