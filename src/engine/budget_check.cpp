#include "src/engine/budget_check.h"

#include <algorithm>
#include <chrono>

#include "tessera/error.h"
#include "tessera/id_vector.h"

namespace tessera {

namespace {

constexpr std::chrono::minutes kSearch{30};  // that the others wait for it at least

}  // namespace

void check_budgets(Communicator& ranks, bool fits, const std::function<std::string()>& explain) {
  IdVector<char> all(ranks.world());
  const char own = fits ? 1 : 0;
  ranks.all_gather(&own, all.data(), sizeof own, {"set-up", "comparing budgets"});
  const auto first = std::ranges::find(all, 0);
  if (first == all.end()) return;
  const auto rank = static_cast<int>(first - all.begin());
  ranks.set_deadline(std::max<std::chrono::milliseconds>(ranks.deadline(), kSearch));
  throw UsageError(broadcast_text(ranks, rank == ranks.rank() ? explain() : "", rank,
                                  {"set-up", "what would fit the budgets"}));
}

}  // namespace tessera
