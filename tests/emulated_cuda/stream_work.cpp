#include "tests/emulated_cuda/stream_work.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <utility>

namespace tessera::emulated_cuda {
namespace {

using std::chrono::microseconds;

// Some streams are slow: whoever does not wait for them comes too early.
microseconds draw_pause() {
  static const char* const setting = std::getenv("EMULATED_CUDA_PACE");
  static const unsigned seed = setting == nullptr ? 1 : static_cast<unsigned>(std::stoul(setting));
  static std::mutex mutex;
  static std::mt19937 draw(seed);
  constexpr microseconds kPauses[] = {microseconds(0), microseconds(0), microseconds(50), microseconds(300)};
  const std::lock_guard lock(mutex);
  return seed == 0 ? microseconds(0) : kPauses[draw() % std::size(kPauses)];
}

}  // namespace

std::shared_ptr<StreamWork> StreamWork::start(int ordinal, bool ordered_with_legacy,
                                              std::shared_ptr<HardwareQueue> queue) {
  if (!queue) queue = HardwareQueue::join(ordinal);
  const std::shared_ptr<StreamWork> work(
      new StreamWork(ordinal, ordered_with_legacy, draw_pause(), std::move(queue)));
  std::thread([work] { work->run(); }).detach();
  return work;
}

void StreamWork::give(std::function<void()> operation) {
  if (captured_.capture) {
    Capture& capture = *captured_.capture;
    const auto stream = std::find(capture.streams.begin(), capture.streams.end(), this);
    capture.nodes.push_back({std::move(operation),
                             static_cast<std::size_t>(stream - capture.streams.begin()),
                             {captured_.behind.begin(), captured_.behind.end()}});
    captured_.behind = {capture.nodes.size() - 1};
    return;
  }
  enqueue([this, operation = std::move(operation)] {
    if (std::exchange(starts_, false) && pause_.count() > 0) std::this_thread::sleep_for(pause_);
    operation();
  });
}

void StreamWork::give_wait(std::function<void()> operation) { enqueue(std::move(operation), true); }

std::shared_ptr<Mark> StreamWork::mark() {
  auto mark = std::make_shared<Mark>();
  if (!enqueue([mark] { mark->reach(); })) mark->reach();
  return mark;
}

void StreamWork::wait_for(std::shared_ptr<const Mark> mark) {
  enqueue(
      [this, mark = std::move(mark)] {
        mark->wait();
        starts_ = true;
      },
      true);
}

void StreamWork::hold() {
  held_.store(true);
  enqueue([this] { held_.wait(true); });
}

void StreamWork::release() {
  held_.store(false);
  held_.notify_all();
}

bool StreamWork::idle() const {
  const std::lock_guard lock(mutex_);
  return tasks_.empty();
}

void StreamWork::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  given_.notify_one();
}

bool StreamWork::enqueue(std::function<void()> task, bool stays) {
  const std::lock_guard lock(mutex_);
  if (ended_) return false;
  tasks_.push_back({std::move(task), queue_->take_place(), stays});
  given_.notify_one();
  return true;
}

void StreamWork::run() {
  for (;;) {
    const Task* task = nullptr;
    {
      std::unique_lock lock(mutex_);
      if (tasks_.empty()) starts_ = true;
      given_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
      if (tasks_.empty()) {
        ended_ = true;
        return;
      }
      task = &tasks_.front();  // stays where it is when others are given
    }
    queue_->wait_for_turn(task->place);
    if (!task->stays) queue_->leave(task->place);
    task->run();
    if (task->stays) queue_->leave(task->place);
    const std::lock_guard lock(mutex_);
    tasks_.pop_front();
  }
}

}  // namespace tessera::emulated_cuda
