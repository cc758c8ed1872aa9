// What goes over a control connection: frames of a fixed header and some bytes behind it. Both ends are of
// one build: the first frame of each shows that its frames and its version are the same.
#pragma once

#include <array>
#include <asio.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/comm/call.h"

namespace tessera::comm {

// Behind a header, at most. A call of more goes in pieces, of kPieceBytes each where that can be: rank 0
// holds several, and a failure is to find its turn between two.
constexpr std::int64_t kMostFrameBytes = std::int64_t{1} << 30;
constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;
// Behind the first one of a connection, either way.
constexpr std::int64_t kMostFirstBytes = std::int64_t{4} << 10;

enum class FrameKind : std::uint32_t {
  hello,    // to the hub, first: a rank is there (Hello)
  group,    // to the hub: the ranks of a group, and its name
  call,     // to the hub: a member's part of a collective or a message
  fail,     // to the hub: this rank found a failure
  bye,      // to the hub: this rank makes no further calls
  welcome,  // from the hub, first: the rank is of this world
  refused,  // from the hub, first and last: it is not, and why
  reply,    // from the hub: what the call has brought
  failed,   // from the hub: the world's failure
  ended,    // from the hub: another rank makes no further calls
};

// A Call without addresses.
struct WireCall {
  Operation operation = Operation::barrier;
  DType type = DType::fp32;
  bool balanced = false;
  std::int32_t root = -1;
  Contributors contributors;
  std::int64_t count = 0;
  std::array<char, 48> shown{};
  std::array<char, 64> unit{};

  WireCall() = default;
  explicit WireCall(const Call& call);
  Call local() const;  // valid while this is
};

struct FrameHeader {
  static constexpr std::uint32_t kMagic = 0x7e55e7a6;  // another one whenever frames mean something else

  std::uint32_t magic = kMagic, header_bytes = sizeof(FrameHeader);
  FrameKind kind = FrameKind::hello;
  std::int32_t member = 0;  // in the group; the rank in hello and ended, the reporter in fail and failed
  std::int32_t peer = -1;   // of a message, in the group; the world in hello, the culprit in fail and failed
  std::int32_t piece = 0;   // of the call
  std::uint64_t id = 0;     // of the call, for its reply
  std::uint64_t group = 0, sequence = 0;
  std::int64_t deadline_us = 0;
  std::int64_t bytes = 0;  // behind the header
  WireCall call;

  bool valid() const {
    return magic == kMagic && header_bytes == sizeof(FrameHeader) && bytes >= 0 && bytes <= kMostFrameBytes;
  }
};

struct Frame {
  FrameHeader header;
  std::vector<char> bytes;

  std::string text() const { return {bytes.begin(), bytes.end()}; }
};

// What a rank says of itself first.
struct Hello {
  std::int32_t rank = -1, world = 0;
  std::string build = own_build();
  std::string launch = {};  // as in ControlOptions

  static const char* own_build();
  std::vector<char> packed() const;
  static Hello from(const Frame& frame);
};

// The header and the bytes in one piece.
std::vector<char> packed(FrameHeader header, std::span<const char> bytes);
// Blocks; throws what asio throws, and EnvironmentError where there is something else than a frame.
Frame read_frame(asio::ip::tcp::socket& socket);
// Which no process inherits that is started from here; throws what asio throws.
int open_socket(const asio::ip::tcp& protocol);

}  // namespace tessera::comm
