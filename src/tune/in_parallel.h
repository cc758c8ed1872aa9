// Calls of a function for 0, 1, …, by all of the machine's cores.
#pragma once

#include <cstddef>
#include <functional>

namespace tessera {

// Calls work(k) for ascending k below `count`, several at a time, from threads of its own and the caller's.
// Where work(k) is false or throws, none behind k need be called. Returns when no call runs any more: how
// many first calls lead up to the first that was false, it included, or `count`. All of these have been made,
// so the result is the same for any number of cores. Throws what the first of them threw.
std::size_t in_parallel(std::size_t count, const std::function<bool(std::size_t)>& work);

}  // namespace tessera
