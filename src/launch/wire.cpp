#include "src/launch/wire.h"

#include <array>
#include <bit>
#include <cstring>

namespace tessera::launching {
namespace {

using nlohmann::json;

struct Head {
  std::uint32_t magic = 0x7e55a1c4, kind = 0, bytes = 0;
};
static_assert(std::endian::native == std::endian::little, "heads go over the network as they are");
constexpr std::uint32_t kMostBytes = 1 << 16;

}  // namespace

const char* Hello::own_build() { return TESSERA_VERSION; }

json Hello::packed() const {
  return {
      {"build", build}, {"host", host}, {"hosts", hosts}, {"ranks", ranks}, {"heartbeat_ms", heartbeat_ms},
      {"id", id}};
}

Hello Hello::from(const json& body) {
  // Another build may say less or more.
  return {.build = body.at("build").get<std::string>(),
          .host = body.value("host", -1),
          .hosts = body.value("hosts", 0),
          .ranks = body.value("ranks", 0),
          .heartbeat_ms = body.value("heartbeat_ms", std::int64_t{0}),
          .id = body.value("id", std::string())};
}

json packed(const Loss& loss) {
  return {{"host", loss.host}, {"rank", loss.rank},     {"process", loss.process},
          {"what", loss.what}, {"status", loss.status}, {"first_cause", loss.first_cause}};
}

Loss loss_from(const json& body) {
  return {.host = body.at("host").get<int>(),
          .rank = body.at("rank").get<int>(),
          .process = body.at("process").get<pid_t>(),
          .what = body.at("what").get<std::string>(),
          .status = body.at("status").get<int>(),
          .first_cause = body.at("first_cause").get<bool>()};
}

std::string packed(const Frame& frame) {
  const std::string body = frame.body.dump(-1, ' ', false, json::error_handler_t::replace);
  Head head;
  head.kind = static_cast<std::uint32_t>(frame.kind);
  head.bytes = static_cast<std::uint32_t>(body.size());
  std::string bytes(sizeof head, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes + body;
}

bool unpack(std::string& come, std::vector<Frame>& frames) {
  Head head;
  while (come.size() >= sizeof head) {
    const std::uint32_t magic = head.magic;
    std::memcpy(&head, come.data(), sizeof head);
    if (head.magic != magic || head.bytes > kMostBytes) return false;
    if (come.size() < sizeof head + head.bytes) return true;
    json body = json::parse(come.substr(sizeof head, head.bytes), nullptr, false);
    if (!body.is_object()) return false;
    frames.push_back({static_cast<FrameKind>(head.kind), std::move(body)});
    come.erase(0, sizeof head + head.bytes);
  }
  return true;
}

}  // namespace tessera::launching
