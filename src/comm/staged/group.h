// What a group of processes is to a backend: each member stages what its peers need in a buffer, and an
// exchange shows it to them. Between processes of one host the buffers are shared memory and an exchange is a
// barrier; across hosts, messages carry what is needed.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "src/comm/call.h"
#include "src/comm/puller.h"
#include "src/comm/staged/world.h"
#include "tessera/id_vector.h"

namespace tessera::comm {

// What peers need of a member's outgoing(): for peer p, `bytes` from p * stride_bytes on, but nothing from
// total_bytes on. Where `root` is a rank, only it has something to show, else only `contributors` have.
struct Traffic {
  std::int64_t bytes = 0;
  std::int64_t stride_bytes = 0;
  std::int64_t total_bytes = 0;
  int root = -1;
  Contributors contributors = {};

  bool shows(int member) const { return root >= 0 ? member == root : contributors.contains(member); }

  std::int64_t bytes_for(int peer) const {
    return std::max<std::int64_t>(0, std::min(bytes, total_bytes - peer * stride_bytes));
  }
};

class StagedGroup {
 public:
  struct Place {
    std::shared_ptr<StagedWorld> world;
    GroupKey parent = {};
    IdVector<int> global_ranks;
    int me = 0;
    std::string name;
  };
  // Shared memory where all members are on this host, else messages.
  static std::unique_ptr<StagedGroup> make(Place place);
  explicit StagedGroup(Place place);
  virtual ~StagedGroup() = default;
  StagedGroup(const StagedGroup&) = delete;
  StagedGroup& operator=(const StagedGroup&) = delete;

  int me() const { return me_; }
  int members() const { return global_ranks_.count(); }
  int global_rank(int member) const { return global_ranks_[member]; }
  const IdVector<int>& global_ranks() const { return global_ranks_; }
  const std::string& name() const { return name_; }
  const GroupKey& key() const { return key_; }
  const std::shared_ptr<StagedWorld>& world() const { return world_; }

  // Of each buffer; the same on all members, a multiple of 64.
  std::int64_t buffer_bytes() const { return buffer_bytes_; }
  // This rank's buffer, to be written before the next exchange.
  virtual std::byte* outgoing() = 0;
  // What `member` wrote before the last exchange, at the same offsets; valid until the next one.
  virtual const std::byte* incoming(int member) = 0;

  // A collective: begin(), then at least one exchange(); the first also checks that all call the same.
  virtual void begin(const Call& call) = 0;
  virtual void exchange(const Traffic& traffic, std::chrono::nanoseconds deadline) = 0;

  // Within a collective, instead of exchanges: shows the peers where `source` lies. Where all of them can
  // read it (and `bytes`, what each needs, are worth it), what pulls from them, until close(); else nullptr.
  // abandon() returns when no peer reads any more, behind an exception.
  virtual Puller* open(const void* source, std::int64_t bytes, std::chrono::nanoseconds deadline);
  virtual void close(std::chrono::nanoseconds) {}
  virtual void abandon(std::chrono::nanoseconds) noexcept {}

  bool on_one_host() const;
  // `arenas` by member; `arena` is this rank's. EnvironmentError where this process cannot map one.
  std::shared_ptr<MappedArenas> map(const Arena& arena, const IdVector<SharedArena>& arenas) const;

  // send() returns when `to` takes the bytes.
  virtual void send(int to, const Call& call, const void* source, std::chrono::nanoseconds deadline) = 0;
  virtual void recv(int from, const Call& call, void* target, std::chrono::nanoseconds deadline) = 0;

 protected:
  // A call and its number, without pointers.
  struct SharedCall {
    SharedCall() = default;
    SharedCall(const Call& call, std::uint64_t number);
    Call local() const;  // refers to this object
    // "is at #3, barrier of unit 'head'"
    std::string status_text() const;

    Call call;
    std::array<char, 32> shown{};
    std::uint64_t sequence = 0;
  };
  using Missing = std::function<bool(int member)>;

  // The call this rank is in, and what is known of that of a member, for messages.
  virtual std::string current() const = 0;
  virtual std::string status_text(int member) const = 0;

  void check_match(const SharedCall& own, const SharedCall& peer, int member);
  void check_message(const SharedCall& own, const SharedCall& peer, int member);
  [[noreturn]] void throw_failed() const { world_->throw_failed(current()); }
  [[noreturn]] void throw_missing(std::chrono::nanoseconds deadline, const Missing& missing);
  [[noreturn]] void report(int culprit, const std::string& message);

  std::int64_t buffer_bytes_ = 0;

 private:
  const std::shared_ptr<StagedWorld> world_;
  const std::string name_;
  const IdVector<int> global_ranks_;
  const int me_;
  const GroupKey key_;
};

}  // namespace tessera::comm
