#include "tests/simulated/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tessera::simulated {

using std::chrono::nanoseconds;

World::World(std::uint64_t seed, const Plan& plan) : draws_(seed), plan_(plan) {
  device::set_simulator(this);
}

World::~World() { device::set_simulator(nullptr); }

World::Thread& World::add_thread(std::string name, int process, std::function<void()> body) {
  const auto thread = std::make_shared<Thread>();
  thread->name = std::move(name);
  thread->process = process;
  thread->number = begun_++;
  thread->fiber = std::make_unique<simulated::Fiber>([self = thread.get(), run = std::move(body), this] {
    run();
    self->is_over = true;
    wake(static_cast<Simulator::Fiber*>(self));
  });
  threads_.push_back(thread);
  return *threads_.back();
}

int World::add_process(std::string name, std::function<void()> main) {
  const int process = static_cast<int>(processes_.size());
  processes_.push_back({.name = name});
  add_thread(std::move(name), process, std::move(main));
  return process;
}

// ---- what threads ask ----

World::TimePoint World::now() noexcept { return now_; }

// What a thread looked at before it may change meanwhile: sleep() then returns at once.
void World::yield() {
  running_->told = false;
  point();
}

bool World::sleep(const void* word, nanoseconds limit) {
  running_->woken = false;
  if (word != nullptr && std::exchange(running_->told, false)) return true;
  wait_until(word, limit >= kNever - now_ ? kNever : now_ + limit);
  return running_->woken;
}

void World::wake(const void* word) noexcept {
  for (const auto& thread : threads_)
    if (thread->waits && thread->word == word) {
      thread->woken = true;
      thread->until = std::min(thread->until, now_);
    }
}

void World::wake_all() noexcept {
  for (const auto& thread : threads_) {
    thread->told = true;
    if (!thread->waits || thread->word == nullptr) continue;
    thread->woken = true;
    thread->until = std::min(thread->until, now_);
  }
}

void World::note_lost_wake() noexcept {
  if (lost_wakes_++ == 0 && running_ != nullptr) lost_by_ = running_->name;
}

std::shared_ptr<device::Simulator::Fiber> World::start(std::string name, std::function<void()> body) {
  const int process = running_->process;
  add_thread(processes_[static_cast<std::size_t>(process)].name + " " + std::move(name), process,
             std::move(body));
  const std::shared_ptr<Thread> thread = threads_.back();
  point();
  return thread;
}

void World::join(const Simulator::Fiber& fiber) {
  while (!fiber.ended()) wait_until(&fiber, kNever);
}

// ---- points ----

void World::point() {
  now_ += nanoseconds(20 + draws_.below(100));
  ++points_;
  Process& process = processes_[static_cast<std::size_t>(running_->process)];
  ++process.points;
  strike();
  if (process.killed || now_ < process.stalls_until) return go_elsewhere();
  if (draws_.one_in(plan_.late_one_in))
    return wait_until(nullptr, now_ + nanoseconds(draws_.below(plan_.latest.count())));
  if (draws_.one_in(plan_.switches_one_in)) go_elsewhere();
}

void World::strike() {
  if (fault_at_ >= nanoseconds::zero() || plan_.at == 0) return;
  const Process& own = processes_[static_cast<std::size_t>(running_->process)];
  if (plan_.fault == Fault::jump) {
    if (points_ < plan_.at) return;
    now_ += plan_.time;
  } else if (plan_.fault == Fault::power) {
    if (points_ < plan_.at) return;
    for (Process& process : processes_) process.killed = true;
  } else if (plan_.fault == Fault::stall || plan_.fault == Fault::kill) {
    if (running_->process != plan_.process || own.points < plan_.at) return;
    Process& struck = processes_[static_cast<std::size_t>(plan_.process)];
    if (plan_.fault == Fault::kill)
      struck.killed = true;
    else
      struck.stalls_until = now_ + plan_.time;
  } else {
    return;
  }
  fault_at_ = elapsed();
}

void World::wait_until(const void* word, TimePoint until) {
  Thread& own = *running_;
  own.word = word;
  own.until = until;
  own.waits = true;
  go_elsewhere();
  own.waits = false;
}

void World::go_elsewhere() { running_->fiber->leave(); }

// ---- the schedule ----

World::TimePoint World::ready_at(const Thread& thread) const {
  const Process& process = processes_[static_cast<std::size_t>(thread.process)];
  if (thread.is_over || process.killed) return kNever;
  return std::max(process.stalls_until, thread.waits ? thread.until : TimePoint::min());
}

bool World::is_ready(const Thread& thread) const {
  const TimePoint at = ready_at(thread);
  return at != kNever && at <= now_;
}

// A ready one, drawn; where there is none, time goes to when one will be. Null where none will.
World::Thread* World::next_ready() {
  std::size_t ready = 0;
  TimePoint soonest = kNever;
  for (const auto& thread : threads_) {
    const TimePoint at = ready_at(*thread);
    soonest = std::min(soonest, at);
    ready += at != kNever && at <= now_;
  }
  if (soonest == kNever) return nullptr;
  if (ready == 0) {
    now_ = soonest;
    return next_ready();
  }
  auto left = draws_.below(static_cast<std::int64_t>(ready));
  for (const auto& thread : threads_)
    if (is_ready(*thread) && left-- == 0) return thread.get();
  return nullptr;
}

void World::enter(Thread& thread) {
  running_ = &thread;
  thread.fiber->enter();
  running_ = nullptr;
}

std::string World::who_waits() const {
  std::string names;
  for (const auto& thread : threads_)
    if (!thread->is_over && !processes_[static_cast<std::size_t>(thread->process)].killed)
      names += (names.empty() ? "" : ", ") + thread->name;
  return names;
}

std::string World::run() {
  for (Thread* next = next_ready(); next != nullptr; next = next_ready()) {
    schedule_ =
        schedule_ * 0x100000001B3u ^ static_cast<std::uint64_t>(elapsed().count() * 64 + next->number);
    const std::shared_ptr<Thread> keeps_alive = next->shared_from_this();
    enter(*next);
    std::erase_if(threads_, [](const auto& thread) { return thread->is_over; });
  }
  if (const std::string names = who_waits(); !names.empty()) return "for ever wait: " + names;
  if (lost_wakes_ > 0) return fmt::format("{} wake-ups were lost, the first of {}", lost_wakes_, lost_by_);
  return "";
}

void World::bury(const std::function<void()>& before) {
  bool any = false;
  for (Process& process : processes_) any |= std::exchange(process.killed, false);
  if (!any) return;
  before();
  wake_all();
  run();
}

}  // namespace tessera::simulated
