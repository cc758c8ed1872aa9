// What the C API's files share: exceptions as a status and a message of the thread, and checks of what C
// gives.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <string>

#include "src/device/wait.h"
#include "tessera/c_api.h"
#include "tessera/engine.h"
#include "tessera/error.h"

namespace tessera::c_api {

struct LastError {
  tessera_status status = TESSERA_OK;
  std::string message = {};
};
LastError& last_error() noexcept;  // of this thread

// A callback in C returned a status.
struct CallbackError : Error {
  CallbackError(tessera_status code, const std::string& message) : Error(message), status(code) {}
  tessera_status status;
};

tessera_status remember(tessera_status status, const char* message) noexcept;

// Throws for what a callback returned, with the message of the call whose status it handed on, else its own.
void check_callback(tessera_status status, const std::string& who);

template <typename Body>
tessera_status guarded(const Body& body) noexcept {
  try {
    body();
    return TESSERA_OK;
  } catch (const CallbackError& error) {
    return remember(error.status, error.what());
  } catch (const UsageError& error) {
    return remember(TESSERA_USAGE, error.what());
  } catch (const EnvironmentError& error) {
    return remember(TESSERA_ENVIRONMENT, error.what());
  } catch (const UnsupportedError& error) {
    return remember(TESSERA_UNSUPPORTED, error.what());
  } catch (const CommunicationError& error) {
    return remember(TESSERA_COMMUNICATION, error.what());
  } catch (const std::bad_alloc&) {
    return remember(TESSERA_ENVIRONMENT, "out of memory");
  } catch (const std::exception& error) {
    return remember(TESSERA_OTHER, error.what());
  } catch (...) {
    return remember(TESSERA_OTHER, "an exception that is not a std::exception");
  }
}

template <typename T>
T& given(T* pointer, const char* name) {
  if (pointer == nullptr) throw UsageError(fmt::format("{} is null", name));
  return *pointer;
}

// A plain number as an enumerator 0 .. count-1.
template <typename Enum>
Enum checked(std::int32_t value, int count, const char* name) {
  if (value < 0 || value >= count)
    throw UsageError(fmt::format("{} {} is not known; use 0 to {}", name, value, count - 1));
  return static_cast<Enum>(value);
}

template <typename T>
std::span<T> span_of(T* first, std::int64_t count, const char* name) {
  if (count < 0) throw UsageError(fmt::format("{} has a count of {}; use 0 or more", name, count));
  if (count > 0) given(first, name);
  return {first, static_cast<std::size_t>(count)};
}

inline std::chrono::milliseconds checked_deadline(std::int64_t deadline_ms) {
  return device::checked_deadline(std::chrono::milliseconds(deadline_ms), "deadline_ms");
}

// The result of a step that began by a call in C. Where the caller asked for none, throws TESSERA_SKIPPED for
// a training step that was not applied.
void end_step(tessera_engine& engine, StepResult of, tessera_step_result* result);

}  // namespace tessera::c_api
