// What the launchers of several hosts say to each other: frames of a short head and a JSON object behind it.
// Heads, `hello` and `refused` stay as they are in every version, so that builds that differ can say so; all
// else is understood by equal builds only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/launch/ending.h"

namespace tessera::launching {

enum class FrameKind : std::uint32_t {
  hello,    // to host 0, first: which host this is
  refused,  // from host 0, last: why there will be no ranks on this host
  begin,    // from host 0: all hosts are there; the ranks start
  beat,     // either way, while nothing else is said
  lost,     // to host 0: a rank is lost; from host 0: what the launch ends for
  signal,   // either way: to all ranks on all hosts
  suspend,  // either way: ranks stand still, and nobody is lost for being silent
  resume,   // either way
  done,     // to host 0: no process is left on this host
  over,     // from host 0, last: no process is left on any host
};

struct Frame {
  FrameKind kind = FrameKind::beat;
  nlohmann::json body = nlohmann::json::object();
};

// What a host says of itself first.
struct Hello {
  std::string build = own_build();
  int host = 0, hosts = 1, ranks = 1;
  std::int64_t heartbeat_ms = 0;
  std::string id{};  // this one and the heartbeat as in ProcessLaunch

  static const char* own_build();
  nlohmann::json packed() const;
  // Throws nlohmann::json::exception where there is no build; so does loss_from() where anything is missing.
  static Hello from(const nlohmann::json& body);
};

// What is said of a launcher that sent a frame whose body is not of its kind.
constexpr const char* kForeign = "sent something that no launcher of this build sends";

nlohmann::json packed(const Loss& loss);
Loss loss_from(const nlohmann::json& body);

std::string packed(const Frame& frame);
// Takes whole frames away from the front of what has come. False: this is something else than frames.
bool unpack(std::string& come, std::vector<Frame>& frames);

}  // namespace tessera::launching
