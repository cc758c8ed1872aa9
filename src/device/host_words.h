// Words of the host's memory that a GPU's stream waits for: how it learns what a thread of the host has done
// without holding up whoever enqueues.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "src/device/cuda_check.h"

namespace tessera::device {

// Pinned, 0 at first.
std::shared_ptr<std::atomic<std::uint32_t>> make_host_word(int ordinal);

// What comes behind on the stream begins when the word is `value` or past it, counting on from 2^32 − 1 to 0;
// "past" is by less than 2^31.
void enqueue_wait(cudaStream_t stream, const std::atomic<std::uint32_t>& word, std::uint32_t value);

}  // namespace tessera::device
