#include "src/comm/control_wire.h"

#include <cstring>

#include "tessera/error.h"

namespace tessera::comm {

WireCall::WireCall(const LocalCall& from)
    : operation(from.operation), type(from.type), root(from.root), count(from.count), unit(from.unit) {
  std::string_view(from.shown).copy(shown.data(), shown.size() - 1);
}

LocalCall WireCall::local() const {
  LocalCall call;
  call.operation = operation;
  call.type = type;
  call.root = root;
  call.count = count;
  call.shown = shown.data();
  call.unit = unit;
  return call;
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

}  // namespace tessera::comm
