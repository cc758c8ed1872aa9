// Fibers: functions with stacks of their own, of which the calling thread runs one at a time. They switch
// without a call of the system, and each has its own exceptions in flight and its own ThreadState.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "src/device/simulator.h"

namespace tessera::simulated {

class Stack;

class Fiber {
 public:
  // `body` must not throw.
  explicit Fiber(std::function<void()> body);
  // The fiber has ended or never began: nothing of it is destroyed else.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the fiber until it calls leave() or ends. Called by what is no fiber.
  void enter();
  // Called by the fiber itself: goes back to who entered it.
  void leave();
  bool ended() const { return ended_; }

 private:
  using Place = void* [5];  // of __builtin_setjmp
  // What the C++ runtime keeps for each thread: the exceptions being handled, and how many are in flight.
  struct Exceptions {
    void* caught = nullptr;
    unsigned in_flight = 0;
  };

  static void begin(unsigned high, unsigned low);
  void exchange();
  void first_entry();

  std::function<void()> body_;
  std::unique_ptr<Stack> stack_;
  Place own_{}, callers_{};
  device::ThreadState state_;
  Exceptions exceptions_;
  bool begun_ = false, ended_ = false;
  // What AddressSanitizer wants to know, which keeps a shadow of each stack.
  void* fake_stack_ = nullptr;
  const void* callers_stack_ = nullptr;
  std::size_t callers_stack_bytes_ = 0;
};

}  // namespace tessera::simulated
