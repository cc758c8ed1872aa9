#include <algorithm>

#include "src/elastic/membership.h"

namespace tessera::elastic {

std::set<HostId> World::hosts() const {
  std::set<HostId> all;
  for (const Member& member : members) all.insert(member.host);
  return all;
}

World founding_world(const std::set<HostId>& hosts) {
  World world;
  for (const HostId host : hosts) world.members.push_back({host, 0});
  return world;
}

// One agent alone is its own majority: nobody could go on without it.
bool World::is_majority(const std::function<bool(HostId)>& votes, bool seat) const {
  const std::set<HostId> all = hosts();
  const auto given = static_cast<std::size_t>(std::ranges::count_if(all, votes));
  if (all.size() == 1) return given == 1;
  return 2 * (given + (seat ? 1 : 0)) > all.size() + 1;
}

bool World::has(HostId host) const {
  return std::ranges::any_of(members, [&](const Member& member) { return member.host == host; });
}

bool World::has(const Member& member) const { return std::ranges::binary_search(members, member); }

void Agent::started(ProcessId process) { processes_.insert(process); }

std::vector<Member> Agent::alive() const {
  std::vector<Member> all;
  for (const ProcessId process : processes_)
    if (!dying_.contains(process)) all.push_back({host_, process});
  return all;
}

// Kills the ranks of the accepted world that `next` has not. Processes that have not begun stay.
void Agent::kill_ranks(const World& next, Orders& orders) {
  for (const ProcessId process : processes_) {
    const Member member{host_, process};
    if (accepted_.has(member) && !next.has(member) && dying_.insert(process).second)
      orders.kill.push_back(process);
  }
}

Orders Agent::gone(ProcessId process) {
  Orders orders;
  processes_.erase(process);
  dying_.erase(process);
  answer_prepared(orders);
  return orders;
}

Orders Agent::stopped() {
  Orders orders;
  stops_ = false;
  answer_prepared(orders);
  return orders;
}

// What is to be prepared is so when those left out are gone and the others have stopped.
void Agent::answer_prepared(Orders& orders) const {
  if (accepted_.epoch > committed_.epoch && !stops_ && dying_.empty())
    orders.letters.push_back({kSeat, Prepared{host_, promised_, accepted_.epoch}});
}

// Whether a launcher of this term may order anything. One that may not is told of the higher one.
bool Agent::heed(Term term, HostId from, Orders& orders) {
  if (term < promised_) {
    orders.letters.push_back({from, Retire{promised_}});
    return false;
  }
  promised_ = term;
  return true;
}

Promise Agent::promise() const { return {host_, promised_, accepted_, bases_, committed_, alive()}; }

void Agent::receive(const Claim& claim, Orders& orders) {
  if (heed(claim.term, kSeat, orders)) orders.letters.push_back({kSeat, promise()});
}

void Agent::receive(const Prepare& prepare, Orders& orders) {
  if (!heed(prepare.term, kSeat, orders)) return;
  const World& world = prepare.world;
  if (world.epoch < accepted_.epoch || (world.epoch == committed_.epoch && world != committed_))
    return orders.letters.push_back({kSeat, promise()});  // the launcher numbers its world anew
  if (world.epoch <= committed_.epoch) return;
  // Two worlds may have one epoch. The one of the higher term counts: no majority takes the other any more.
  if (world.epoch > accepted_.epoch || (world != accepted_ && prepare.term > accepted_term_)) {
    if (running_ != 0) {
      orders.stop = stops_ = true;
      running_ = 0;
    }
    kill_ranks(world, orders);
    accepted_ = world;
    accepted_term_ = prepare.term;
    // Else a world that another one was prepared behind would be forgotten, though it runs.
    bases_ = prepare.bases;
    if (prepare.committed.epoch > committed_.epoch) committed_ = prepare.committed;
  }
  if (world == accepted_) answer_prepared(orders);
}

void Agent::receive(const Commit& commit, Time now, Orders& orders) {
  if (!heed(commit.term, kSeat, orders)) return;
  if (commit.world != accepted_ || accepted_.epoch <= committed_.epoch) return;
  committed_ = accepted_;
  if (!accepted_.has(host_)) return;
  running_ = committed_.epoch;
  orders.begin = accepted_;
  lease_end_ = now + timing_.lease;
  asked_at_ = now - timing_.resend;
  answers_.clear();
}

// A voter answers for the newest world that it has prepared, and only those that are in it.
void Agent::receive(const Renew& renew, HostId from, Orders& orders) const {
  if (accepted_.epoch != renew.epoch && !(accepted_.epoch > renew.epoch && accepted_.has(renew.host))) return;
  orders.letters.push_back({from, Renewed{host_, promised_, renew.epoch, renew.number}});
}

void Agent::receive(const Renewed& renewed) {
  if (renewed.number != asked_ || renewed.epoch != running_) return;
  if (renewed.voter != kSeat) promised_ = std::max(promised_, renewed.term);
  answers_[renewed.voter] = renewed.term;
}

// The seat's vote counts for nothing where an agent has promised it to another.
bool Agent::renewed_by_majority() const {
  const auto seat = answers_.find(kSeat);
  return accepted_.is_majority([&](HostId host) { return host == host_ || answers_.contains(host); },
                               seat != answers_.end() && seat->second >= promised_);
}

Orders Agent::receive(const Message& message, HostId from, Time now) {
  Orders orders;
  if (const auto* claim = std::get_if<Claim>(&message)) receive(*claim, orders);
  if (const auto* prepare = std::get_if<Prepare>(&message)) receive(*prepare, orders);
  if (const auto* commit = std::get_if<Commit>(&message)) receive(*commit, now, orders);
  if (const auto* renew = std::get_if<Renew>(&message)) receive(*renew, from, orders);
  if (const auto* renewed = std::get_if<Renewed>(&message)) {
    receive(*renewed);
    // From when the question was asked: a voter that answers no more has answered none that is later.
    if (running_ != 0 && renewed_by_majority()) lease_end_ = std::max(lease_end_, asked_at_ + timing_.lease);
  }
  return orders;
}

Orders Agent::tick(Time now) {
  Orders orders;
  if (running_ != 0 && now >= lease_end_) {
    kill_ranks({}, orders);
    running_ = 0;
    stops_ = false;
  }
  if (running_ != 0 && now - asked_at_ >= timing_.resend) {
    asked_at_ = now;
    ++asked_;
    answers_.clear();
    const Renew renew{host_, running_, asked_};
    orders.letters.push_back({kSeat, renew});
    for (const HostId host : accepted_.hosts())
      if (host != host_) orders.letters.push_back({host, renew});
    // An agent that is the only one is its own majority, and waits for no answer.
    if (renewed_by_majority()) lease_end_ = now + timing_.lease;
  }
  if (now - sent_at_ >= timing_.resend) {
    sent_at_ = now;
    orders.letters.push_back({kSeat, Alive{host_, running_, accepted_.epoch, alive()}});
    answer_prepared(orders);
  }
  return orders;
}

}  // namespace tessera::elastic
