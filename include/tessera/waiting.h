// How a thread waits. Plain data.
#pragma once

#include <cstdint>

namespace tessera {

// How threads wait for each other: a short spin, some sched_yield, then a futex. `automatic` compares the
// threads that are busy at the same time with the cores: it spins if each has a core, yields up to eight
// threads a core, and blocks beyond that or if their number is not known. While other work takes the cores,
// threads sleep at once, whatever was chosen.
enum class Waiting : std::uint8_t { automatic, spin, yield, block };

}  // namespace tessera
