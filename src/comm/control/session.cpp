#include "src/comm/control/session.h"

#include <algorithm>
#include <utility>

namespace tessera::comm {

void ControlSession::close() noexcept {
  asio::error_code ignored;
  socket_.close(ignored);
}

void ControlSession::read() {
  FrameHeader& header = incoming_.header;
  asio::async_read(socket_, asio::buffer(&header, sizeof header),
                   [this, self = shared_from_this()](const asio::error_code& error, std::size_t) {
                     if (error) return handlers_.lost(self, "its connection ended, and so did its process");
                     const FrameHeader& came = incoming_.header;
                     if (!came.valid() || (rank < 0 && came.bytes > kMostFirstBytes))
                       return handlers_.lost(self, "what it sent is no frame of this build of Tessera");
                     read_behind();
                   });
}

// Takes memory as bytes come, whatever the header claims.
void ControlSession::read_behind() {
  std::vector<char>& bytes = incoming_.bytes;
  const std::size_t have = bytes.size(), all = static_cast<std::size_t>(incoming_.header.bytes);
  if (have == all) {
    handlers_.taken(shared_from_this(), std::exchange(incoming_, {}));
    if (is_open()) read();
    return;
  }
  bytes.resize(std::min(all, have + static_cast<std::size_t>(kPieceBytes)));
  asio::async_read(socket_, asio::buffer(bytes) + have,
                   [this, self = shared_from_this()](const asio::error_code& error, std::size_t) {
                     if (error) return handlers_.lost(self, "its connection ended within what it sent");
                     read_behind();
                   });
}

void ControlSession::write(FrameHeader header, Bytes bytes) {
  header.bytes = bytes ? std::ssize(*bytes) : 0;
  outgoing_.push_back({header, std::move(bytes)});
  if (outgoing_.size() == 1) write_next();
}

void ControlSession::write_next() {
  const Outgoing& next = outgoing_.front();
  const std::array<asio::const_buffer, 2> frame = {
      asio::buffer(&next.header, sizeof next.header),
      next.bytes ? asio::buffer(*next.bytes) : asio::const_buffer()};
  asio::async_write(socket_, frame,
                    [this, self = shared_from_this()](const asio::error_code& error, std::size_t) {
                      if (error) return;
                      outgoing_.pop_front();
                      if (!outgoing_.empty()) write_next();
                    });
}

}  // namespace tessera::comm
