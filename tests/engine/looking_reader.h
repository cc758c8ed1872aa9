// Looks at parameters and states over and over, by a thread, whether they are as they were.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "tessera/engine.h"
#include "tessera/program.h"

namespace tessera::testing {

class LookingReader : public StatesReader {
 public:
  // Of all that this rank holds but what lies on the disk.
  explicit LookingReader(Engine& engine) : engine_(engine) {
    for (FlatId flat = 0; flat < static_cast<FlatId>(engine.layout().flats().size()); ++flat)
      for (const StateKind state :
           {StateKind::parameter, StateKind::master, StateKind::moment1, StateKind::moment2}) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(engine.persistent_bytes(flat, state)));
        if (bytes.empty() || engine.persistent_space(flat, state) == Space::disk) continue;
        engine.read_persistent(flat, state, 0, bytes);
        first_.push_back({flat, state, std::move(bytes)});
      }
  }
  ~LookingReader() override { end(); }
  LookingReader(const LookingReader&) = delete;
  LookingReader& operator=(const LookingReader&) = delete;

  // As a reader of the engine, until it is told.
  void begin() {
    thread_ = std::thread([this] {
      do {
        look();
        ++times;
      } while (!ends_);
    });
  }
  void before_change() override {
    ++told;
    end();
    look();
  }
  void before_engine_goes() noexcept override {
    ++gone;
    end();
  }

  // In two parts, the later one first.
  bool unchanged() const {
    for (const auto& [flat, state, bytes] : first_) {
      std::vector<std::byte> now(bytes.size());
      const std::size_t half = now.size() / 2;
      engine_.read_beside(flat, state, static_cast<std::int64_t>(half), std::span(now).subspan(half));
      engine_.read_beside(flat, state, 0, std::span(now).first(half));
      if (now != bytes) return false;
    }
    return true;
  }

  int told = 0, gone = 0;
  std::atomic<bool> same = true;  // as long as it looked
  std::atomic<int> times = 0;     // that the thread looked

 private:
  struct Buffer {
    FlatId flat = 0;
    StateKind state = StateKind::parameter;
    std::vector<std::byte> bytes;
  };

  void look() {
    if (!unchanged()) same = false;
  }
  void end() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }

  const Engine& engine_;
  std::vector<Buffer> first_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

inline std::shared_ptr<LookingReader> add_reader(Engine& engine) {
  auto reader = std::make_shared<LookingReader>(engine);
  engine.add_reader(reader);
  reader->begin();
  return reader;
}

}  // namespace tessera::testing
