// Maps operations to a fixed number of slots that are made up front. Operations are numbered from 1.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::device {

class TicketRing {
 public:
  explicit TicketRing(int capacity) : capacity_(static_cast<std::uint64_t>(capacity)) {}

  std::size_t slot(std::uint64_t ticket) const { return static_cast<std::size_t>((ticket - 1) % capacity_); }
  // The operation whose slot `ticket` takes over; it must be done by then. 0 if the slot is new.
  std::uint64_t replaced_by(std::uint64_t ticket) const {
    return ticket > capacity_ ? ticket - capacity_ : 0;
  }

 private:
  std::uint64_t capacity_;
};

}  // namespace tessera::device
