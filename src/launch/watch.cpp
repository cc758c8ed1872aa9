#include "src/launch/watch.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "src/launch/note.h"
#include "tessera/error.h"

namespace tessera::launching {
namespace {

// In this time the other ranks say what they have noticed.
constexpr std::chrono::milliseconds kNotice{500};
// In this time a better cause than a rank's exit status may be heard of.
constexpr std::chrono::milliseconds kSettle{100};
constexpr std::chrono::milliseconds kSweepEach{10};
// `timeout` and launchers signal a process and then its whole group: that is one wish.
constexpr std::chrono::milliseconds kAgain{1'000};
// How long what the kernel does not let go of is waited for.
constexpr std::chrono::milliseconds kGone{10'000};

}  // namespace

Watch::Watch(const ProcessLaunch& launch, std::string file, Peers& peers)
    : launch_(launch),
      file_(std::move(file)),
      peers_(peers),
      ranks_(launch.heartbeat,
             {.gone = [this](int rank, pid_t process, const Ending& ending) { gone(rank, process, ending); },
              .stopped =
                  [this](int rank, pid_t process, const Ending& ending) {
                    lose(loss_of(ending, rank, launch_.host, process, launch_.heartbeat));
                  }}) {
  outputs_.emplace(launch_.output);
}

int Watch::run() {
  while (!peers_.over()) {
    take(peers_.serve());
    ranks_.reap();
    if (phase_ == Phase::running && !suspended_) ranks_.look();
    settle();
    move_on();
    if (losses_.empty()) peers_.end_if_all_done();
    if (peers_.over()) break;
    wait();
    while (const std::optional<int> number = signals_.next()) take_signal(*number);
  }
  return peers_.status();
}

void Watch::wait() {
  std::vector<pollfd> waits = {{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
  peers_.add_waits(waits);
  std::chrono::milliseconds time = launch_.heartbeat / 8;
  if (phase_ == Phase::gathering) time = std::min(time, kSettle);
  const auto look_by = [&](Clock::time_point when) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Clock::now());
    time = std::clamp(left, std::chrono::milliseconds(0), time);
  };
  if (phase_ != Phase::done && until_) look_by(*until_);
  if (!losses_.empty()) look_by(settled_at_);
  ::poll(waits.data(), waits.size(), static_cast<int>(time.count()));
}

void Watch::take_signal(int number) {
  if (number == SIGCHLD) return;  // the loop reaps in any case
  if (number == SIGTSTP) return suspend();
  if (number == SIGCONT) return ranks_.signal(SIGCONT);
  if (told_signal_ != 0 && Clock::now() - told_at_ < kAgain) return;
  const bool again = told_signal_ != 0 || decided_;
  peers_.send_signal(again ? SIGKILL : number);
  end_by_signal(again ? SIGKILL : number);
}

void Watch::end_by_signal(int number) {
  if (phase_ == Phase::gathering)
    throw EnvironmentError(fmt::format("ended by {} before all hosts were there", signal_name(number)));
  if (phase_ == Phase::done) return;
  if (number == SIGKILL) {
    if (phase_ == Phase::killing) return;
    note("kills all ranks, as it was told again to end");
    if (status_ == 0) status_ = 128 + (told_signal_ == 0 ? SIGKILL : told_signal_);
    return kill();
  }
  if (told_signal_ != 0) return;
  told_signal_ = number;
  told_at_ = Clock::now();
  note(fmt::format("{} goes to all ranks; another one after a second or more kills them",
                   signal_name(number)));
  ranks_.signal(number);
}

void Watch::suspend() {
  ranks_.signal(SIGSTOP);
  peers_.send_suspended(true);
  std::raise(SIGSTOP);  // until SIGCONT
  ranks_.signal(SIGCONT);
  ranks_.forget_stops();
  peers_.send_suspended(false);
}

void Watch::take(const News& news) {
  if (news.begin) start(*news.begin);
  for (const int number : news.signals) end_by_signal(number);
  if (news.suspended) {
    ranks_.signal(*news.suspended ? SIGSTOP : SIGCONT);
    ranks_.forget_stops();
    suspended_ = *news.suspended;
  }
  for (const Loss& loss : news.losses) lose(loss);
  if (news.decided) decide(*news.decided);
}

void Watch::start(const Begin& begin) {
  const HostPlace place{.host = launch_.host, .hosts = launch_.hosts, .ranks = launch_.ranks};
  guard_ = std::make_unique<Guard>(marks(begin, place));
  ranks_.add_helper(guard_->process());
  phase_ = Phase::running;
  int rank = begin.first_rank;
  try {
    for (int local = 0; local < launch_.ranks; ++local, ++rank) {
      const Outputs::Streams streams = outputs_->of(rank);
      if (outputs_->copier() > 0) ranks_.add_helper(outputs_->copier());
      ranks_.start(rank, {.file = file_,
                          .words = launch_.command,
                          .environment = with_variables(rank_variables(begin, place, local)),
                          .in = streams.in,
                          .out = streams.out,
                          .err = streams.err,
                          .signals = signals_.before()});
    }
    outputs_->close_last();
  } catch (const EnvironmentError& error) {
    outputs_->close_last();
    if (launch_.hosts == 1 && ranks_.all_gone()) throw;
    lose({.host = launch_.host,
          .rank = rank,
          .what = fmt::format("could not be started: {}", error.what()),
          .first_cause = true});
  }
}

void Watch::gone(int rank, pid_t process, const Ending& ending) {
  if (ending.well() || decided_ || phase_ == Phase::killing) return;
  // It has ended as it was told.
  if (told_signal_ != 0 && ending.exit_status() == 128 + told_signal_) {
    if (status_ == 0) status_ = ending.exit_status();
    return;
  }
  lose(loss_of(ending, rank, launch_.host, process, launch_.heartbeat));
}

void Watch::lose(const Loss& loss) {
  if (decided_) return;
  if (!peers_.decides()) return peers_.report(loss);
  if (losses_.empty()) settled_at_ = Clock::now() + kSettle;
  if (loss.first_cause) settled_at_ = Clock::now();
  losses_.push_back(loss);
}

void Watch::settle() {
  if (losses_.empty() || decided_) return;
  const bool more_may_come = launch_.hosts > 1 || !ranks_.all_gone();
  if (more_may_come && Clock::now() < settled_at_) return;
  const auto cause = std::ranges::find_if(losses_, [](const Loss& loss) { return loss.first_cause; });
  const Loss loss = cause == losses_.end() ? losses_.front() : *cause;
  decide(loss);
}

void Watch::decide(const Loss& loss) {
  if (decided_) return;
  decided_ = true;
  losses_.clear();
  status_ = loss.status;
  if (loss.host == launch_.host) lost_rank_ = loss.rank;
  const bool others = !ranks_.all_gone();
  note(loss.line(launch_.hosts) + (others ? "; the other ranks are ended" : ""));
  peers_.decide(loss);
  if (phase_ == Phase::running) enter(Phase::noticing, kNotice);
}

void Watch::enter(Phase phase, std::chrono::milliseconds stay) {
  phase_ = phase;
  until_ = Clock::now() + stay;
}

void Watch::kill() {
  ranks_.signal(SIGKILL);
  gone_by_ = Clock::now() + kGone;
  enter(Phase::killing, kSweepEach);
}

// What a phase does at its end, or when the last rank is gone.
void Watch::move_on() {
  if (phase_ == Phase::gathering || phase_ == Phase::done) return;
  const bool late = until_ && Clock::now() >= *until_;
  if (phase_ != Phase::killing) {
    if (ranks_.all_gone() && losses_.empty()) return kill();
    if (!late || phase_ == Phase::running) return;
    if (phase_ == Phase::noticing) {
      ranks_.signal(SIGTERM);
      ranks_.kill(lost_rank_);  // one that stands still does not end otherwise
      return enter(Phase::ending, launch_.grace);
    }
    note(fmt::format("kills the ranks that are left {} after SIGTERM", seconds_text(launch_.grace)));
    return kill();
  }
  const bool clean = ranks_.sweep();
  if (!clean && Clock::now() < gone_by_) return enter(Phase::killing, kSweepEach);
  if (!clean) note("some processes do not end although they were killed; the system holds them");
  outputs_.reset();
  phase_ = Phase::done;
  peers_.done(status_);
}

}  // namespace tessera::launching
