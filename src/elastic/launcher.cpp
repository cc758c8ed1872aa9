#include <algorithm>
#include <utility>

#include "src/elastic/membership.h"

namespace tessera::elastic {

Launcher::Launcher(std::set<HostId> hosts, const Timing& timing)
    : timing_(timing), hosts_(std::move(hosts)), committed_(founding_world(hosts_)), may_run_{committed_} {}

Launcher Launcher::adopting(std::set<HostId> hosts, std::int64_t number, const Timing& timing,
                            std::int64_t above) {
  Launcher launcher(std::move(hosts), timing);
  launcher.term_ = {.number = above + 1, .launcher = number};
  launcher.told_ = above;
  launcher.seated_ = false;
  return launcher;
}

std::vector<Letter> Launcher::want(const std::vector<Member>& members, Time now) {
  std::vector<Letter> letters;
  if (retired_ || !seated_ || members.empty()) return letters;
  std::vector<Member> sorted = members;
  std::ranges::sort(sorted);
  const bool settled = !overtaken_ && may_run_.size() == 1 && may_run_.front() == committed_;
  if (next_ ? sorted == next_->members : settled && sorted == committed_.members) return letters;
  propose(std::move(sorted));
  send_prepare(letters);
  sent_at_ = now;
  return letters;
}

// What some have prepared before may never be committed, but its epoch is not used again.
void Launcher::propose(std::vector<Member> members) {
  next_ = World{++highest_, std::move(members)};
  prepared_.clear();
  leases_end_.reset();
}

// Hosts of worlds that may run get it, too: they stop at once if they can be reached.
void Launcher::send_prepare(std::vector<Letter>& letters) const {
  std::set<HostId> hosts = next_->hosts();
  for (const World& world : may_run_) hosts.merge(world.hosts());
  for (const HostId host : hosts)
    if (!prepared_.contains(host)) letters.push_back({host, Prepare{term_, *next_, committed_, may_run_}});
}

// Whether the agents that have prepared next_ are a majority of the world's voters, with the seat, which this
// launcher has.
bool Launcher::majority_prepared(const World& world) const {
  return world.is_majority([&](HostId host) { return prepared_.contains(host); }, true);
}

void Launcher::commit_if_ready(Time now, std::vector<Letter>& letters) {
  if (!next_) return;
  const auto all_in = [&](const std::set<HostId>& hosts) {
    return std::ranges::all_of(hosts, [&](HostId host) { return prepared_.contains(host); });
  };
  if (!std::ranges::all_of(may_run_, [&](const World& world) { return majority_prepared(world); })) return;
  if (!leases_end_) leases_end_ = now + timing_.lease + timing_.margin;
  if (!all_in(next_->hosts())) return;
  // Who has prepared has stopped; of the others the leases are over.
  const bool all_stopped =
      std::ranges::all_of(may_run_, [&](const World& world) { return all_in(world.hosts()); });
  if (!all_stopped && now < *leases_end_) return;
  committed_ = *std::exchange(next_, std::nullopt);
  may_run_ = {committed_};
  overtaken_ = false;
  send_commit(letters);
}

void Launcher::send_commit(std::vector<Letter>& letters) const {
  for (const HostId host : committed_.hosts()) letters.push_back({host, Commit{term_, committed_}});
}

void Launcher::receive(const Prepared& prepared) {
  if (next_ && prepared.term == term_ && prepared.epoch == next_->epoch) prepared_.insert(prepared.host);
}

void Launcher::receive(const Promise& promise) {
  alive_[promise.host] = promise.alive;
  if (promise.term != term_) return;
  if (!seated_) {
    promises_[promise.host] = promise;
    return take_seat_if_promised();
  }
  hear_of(promise.accepted.epoch);
}

// What an agent has accepted beyond was never committed: a majority would have told of it. But its ranks have
// stopped.
void Launcher::hear_of(Epoch epoch) {
  overtaken_ |= epoch > committed_.epoch;
  if (epoch <= highest_) return;
  highest_ = epoch;
  if (next_) propose(std::move(next_->members));
}

// What may run is the newest world that an agent knows to be committed, and what agents have accepted beyond
// it. The seat is taken when a majority of the agents of each has promised it. That leads to the newest:
// whatever was decided behind a world, a majority of its agents knows.
void Launcher::take_seat_if_promised() {
  const World* committed = nullptr;
  for (const auto& [host, promise] : promises_)
    if (!promise.committed.members.empty() &&
        (committed == nullptr || promise.committed.epoch > committed->epoch))
      committed = &promise.committed;
  if (committed == nullptr) return;  // only hosts that came later, and have seen none
  std::vector<World> worlds = {*committed};
  const auto add = [&](const World& world) {
    if (world.epoch > committed->epoch && std::ranges::find(worlds, world) == worlds.end())
      worlds.push_back(world);
  };
  for (const auto& [host, promise] : promises_) {
    add(promise.accepted);
    std::ranges::for_each(promise.bases, add);
  }
  // More than half of the agents must have promised: the seat's own vote is what they decide on.
  const auto is_promised = [&](const World& world) {
    const std::set<HostId> hosts = world.hosts();
    const auto votes = std::ranges::count_if(hosts, [&](HostId host) { return promises_.contains(host); });
    return 2 * static_cast<std::size_t>(votes) > hosts.size();
  };
  if (!std::ranges::all_of(worlds, is_promised)) return;
  seated_ = true;
  committed_ = *committed;
  may_run_ = std::move(worlds);
  for (const World& world : may_run_) highest_ = std::max(highest_, world.epoch);
}

std::vector<Letter> Launcher::receive(const Message& message, Time now) {
  std::vector<Letter> letters;
  if (const auto* retire = std::get_if<Retire>(&message)) {
    told_ = std::max(told_, retire->term.number);
    if (seated_ && retire->term > term_) retired_ = true;
    if (!seated_ && retire->term >= term_) {  // asks again, higher
      term_.number = retire->term.number + 1;
      promises_.clear();
    }
  }
  if (retired_) return letters;
  if (const auto* promise = std::get_if<Promise>(&message)) receive(*promise);
  if (!seated_) return letters;
  if (const auto* prepared = std::get_if<Prepared>(&message)) receive(*prepared);
  if (const auto* alive = std::get_if<Alive>(&message)) {
    alive_[alive->host] = alive->alive;
    hear_of(alive->accepted);
  }
  if (const auto* renew = std::get_if<Renew>(&message)) {
    const bool in_next = !next_ || next_->has(renew->host);
    const bool may_run =
        std::ranges::any_of(may_run_, [&](const World& world) { return world.epoch == renew->epoch; });
    if (may_run && in_next)
      letters.push_back({renew->host, Renewed{kSeat, term_, renew->epoch, renew->number}});
  }
  commit_if_ready(now, letters);
  return letters;
}

std::vector<Letter> Launcher::tick(Time now) {
  std::vector<Letter> letters;
  if (retired_) return letters;
  commit_if_ready(now, letters);
  if (now - sent_at_ < timing_.resend) return letters;
  sent_at_ = now;
  if (!seated_) {
    std::set<HostId> hosts = hosts_;  // and those that they tell of
    for (const auto& [host, promise] : promises_) hosts.merge(promise.accepted.hosts());
    for (const HostId host : hosts) letters.push_back({host, Claim{term_}});
  }
  if (seated_ && next_)
    send_prepare(letters);
  else if (seated_ && committed_.epoch > 0)  // to those whom the first did not reach
    send_commit(letters);
  return letters;
}

}  // namespace tessera::elastic
