// A thread of the machine or, in a simulated world, a fiber.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/device/simulator.h"

namespace tessera::device {

// Behaves as std::thread: whoever owns one joins or detaches it.
class Thread {
 public:
  Thread() = default;
  // Returns when it runs, bears the name and keeps to these cores; none: it may use all that the caller may.
  // Throws std::system_error where it cannot be started, EnvironmentError where the system refuses the cores.
  Thread(const std::string& name, const std::vector<int>& cpus, std::function<void()> body);

  bool joinable() const { return fiber_ != nullptr || thread_.joinable(); }
  void join();
  void detach();

 private:
  std::thread thread_;
  std::shared_ptr<Simulator::Fiber> fiber_;
};

}  // namespace tessera::device
