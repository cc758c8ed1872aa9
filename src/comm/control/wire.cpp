#include "src/comm/control/wire.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tessera/error.h"

namespace tessera::comm {

WireCall::WireCall(const Call& from)
    : operation(from.operation),
      type(from.type),
      balanced(from.balanced),
      root(from.root),
      contributors(from.contributors),
      count(from.count),
      unit(from.unit) {
  std::string_view(from.shown).copy(shown.data(), shown.size() - 1);
}

Call WireCall::local() const {
  Call call;
  call.operation = operation;
  call.type = type;
  call.balanced = balanced;
  call.root = root;
  call.contributors = contributors;
  call.count = count;
  call.shown = shown.data();
  call.unit = unit;
  return call;
}

const char* Hello::own_build() { return TESSERA_VERSION; }

std::vector<char> Hello::packed() const {
  FrameHeader header;
  header.member = rank;
  header.peer = world;
  const std::string text = build + '\n' + launch;
  return comm::packed(header, std::string_view(text).substr(0, kMostFirstBytes));
}

Hello Hello::from(const Frame& frame) {
  const std::string text = frame.text();
  const std::size_t line = std::min(text.find('\n'), text.size());
  return {.rank = frame.header.member,
          .world = frame.header.peer,
          .build = text.substr(0, line),
          .launch = text.substr(std::min(line + 1, text.size()))};
}

std::vector<char> packed(FrameHeader header, std::span<const char> bytes) {
  header.bytes = static_cast<std::int64_t>(bytes.size());
  std::vector<char> frame(sizeof header + bytes.size());
  std::memcpy(frame.data(), &header, sizeof header);
  if (!bytes.empty()) std::memcpy(frame.data() + sizeof header, bytes.data(), bytes.size());
  return frame;
}

Frame read_frame(asio::ip::tcp::socket& socket) {
  Frame frame;
  asio::read(socket, asio::buffer(&frame.header, sizeof frame.header));
  if (!frame.header.valid()) throw EnvironmentError("not a frame of this build of Tessera");
  frame.bytes.resize(static_cast<std::size_t>(frame.header.bytes));
  asio::read(socket, asio::buffer(frame.bytes));
  return frame;
}

int open_socket(const asio::ip::tcp& protocol) {
  const int descriptor = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0)
    throw asio::system_error(asio::error_code(errno, asio::error::get_system_category()), "socket");
  return descriptor;
}

}  // namespace tessera::comm
