#include "src/device/thread.h"

#include <future>
#include <utility>

#include "tessera/machine.h"

namespace tessera::device {

Thread::Thread(const std::string& name, const std::vector<int>& cpus, std::function<void()> body) {
  if (Simulator* const simulated = simulator()) {
    fiber_ = simulated->start(name, std::move(body));
    return;
  }
  std::promise<void> started;
  std::future<void> start = started.get_future();
  thread_ = std::thread([&name, &cpus, report = std::move(started), run = std::move(body)]() mutable {
    try {
      bind_thread(cpus, name);
      report.set_value();  // from here on the caller's name and cores may be gone
    } catch (...) {
      report.set_exception(std::current_exception());
      return;
    }
    run();
  });
  try {
    start.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

void Thread::join() {
  if (fiber_ != nullptr)
    simulator()->join(*std::exchange(fiber_, nullptr));
  else
    thread_.join();
}

void Thread::detach() {
  if (fiber_ != nullptr)
    fiber_ = nullptr;
  else
    thread_.detach();
}

}  // namespace tessera::device
