#include <mutex>
#include <utility>

#include "src/device/wait.h"
#include "tessera/device.h"
#include "tessera/error.h"

namespace tessera {
namespace {

std::string message_of(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace

struct FailureFlag::State {
  std::atomic<bool> failed{false};
  std::mutex mutex;  // guards the rest
  std::exception_ptr cause;
  std::string message;
  std::vector<std::function<void(const std::string&)>> hooks;
};

FailureFlag::FailureFlag() : state_(std::make_shared<State>()) {}

bool FailureFlag::set(std::exception_ptr cause) {
  std::vector<std::function<void(const std::string&)>> hooks;
  std::string text = message_of(cause);
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->failed.load()) return false;
    state_->cause = std::move(cause);
    state_->message = text;
    hooks.swap(state_->hooks);
    state_->failed.store(true);
  }
  device::wake_all();
  for (const auto& hook : hooks) hook(text);
  return true;
}

bool FailureFlag::set(const std::string& message) { return set(std::make_exception_ptr(Error(message))); }

bool FailureFlag::failed() const noexcept { return state_->failed.load(); }

std::string FailureFlag::message() const {
  const std::lock_guard lock(state_->mutex);
  return state_->message;
}

void FailureFlag::rethrow() const {
  if (!failed()) return;
  std::exception_ptr cause;
  {
    const std::lock_guard lock(state_->mutex);
    cause = state_->cause;
  }
  std::rethrow_exception(cause);
}

void FailureFlag::on_failure(std::function<void(const std::string&)> hook) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->failed.load()) {
      state_->hooks.push_back(std::move(hook));
      return;
    }
  }
  hook(message());
}

}  // namespace tessera
