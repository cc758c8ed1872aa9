// Messages by UCX's tags. Each rank listens at an address of its host; of a pair, the higher rank connects.
// An endpoint that is made so, unlike one by a worker's address, can be closed at any time without the other
// end.
//
// UCX reports that a peer's process is gone, and by its own signs of life that a host is cut off. It does not
// report one that is stopped, nor a cut while bytes are under way: the deadlines of calls do.
#include "src/comm/process/ucx.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "src/comm/backend.h"
#include "src/comm/process/agree.h"
#include "src/comm/process/own_address.h"
#include "src/comm/process/ucx_context.h"
#include "src/comm/process/ucx_library.h"
#include "src/comm/staged/tags.h"
#include "src/device/time_text.h"
#include "tessera/error.h"
#include "tessera/mesh.h"

namespace tessera::comm {
namespace {

// A tag of UCX's holds who sent it, because receives name no sender.
constexpr int kTagBits = 44;
static_assert(Mesh::kMostRanks <= 1 << (64 - kTagBits));
std::uint64_t wire_tag(int sender, std::uint64_t tag) {
  return static_cast<std::uint64_t>(sender) << kTagBits | tag;
}
constexpr std::uint64_t kHelloTag = 0, kFirstGroupTag = 8, kLastTag = (std::uint64_t{1} << kTagBits) - 1;

constexpr std::chrono::microseconds kBetweenLooks{200};
// How long a connection that is closed by force may take; found: about a millisecond.
constexpr std::chrono::milliseconds kToEnd{1000};

class UcxTransport final : public Transport {
 public:
  UcxTransport(int rank, int peers, const HostAddress& own);
  ~UcxTransport() override;
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  // The address at which this rank listens until connect() has returned.
  HostAddress place() const;
  // Connects with these, by rank, which do the same. EnvironmentError where one is not there by the deadline.
  void connect(const std::map<int, HostAddress>& others, std::chrono::nanoseconds deadline);

  std::unique_ptr<Transfers> transfers(int slots) override;
  std::uint64_t take_tags(const GroupKey& key, const std::string& name,
                          const std::vector<int>& ranks) override {
    return tags_.take(key, name, ranks);
  }
  void give_back_tags(const GroupKey& key) override { tags_.give_back(key); }

 private:
  friend class UcxTransfers;
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    ucs_status_t status = UCS_OK;  // what ended the connection
  };

  void open(int peer, ucp_ep_params_t params);
  void accept_all();
  void send_the_rest();
  void close_connections();
  static void note_end(void* peer, ucp_ep_h, ucs_status_t status) {
    static_cast<Peer*>(peer)->status = status;
  }
  static void note_request(ucp_conn_request_h request, void* transport) {
    static_cast<UcxTransport*>(transport)->requests_.push_back(request);
  }

  const int rank_;
  GroupTags tags_{kFirstGroupTag, kLastTag};
  // Guards all of UCX, and peers_. Threads that wait take turns in moving on what all of them have on its
  // way.
  std::mutex mutex_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  std::vector<ucp_conn_request_h> requests_;
  std::map<int, Peer> peers_;
};

class UcxTransfers final : public Transfers {
 public:
  UcxTransfers(UcxTransport& transport, int slots) : transport_(transport), slots_(slots) {}

  void receive(int slot, int rank, std::uint64_t tag, void* data, std::int64_t bytes) override {
    const std::lock_guard lock(transport_.mutex_);
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    keep(slot, rank, true,
         ucx().ucp_tag_recv_nbx(transport_.worker_, data, static_cast<std::size_t>(bytes),
                                wire_tag(rank, tag), ~std::uint64_t{0}, &params));
  }
  void send(int slot, int rank, std::uint64_t tag, const void* data, std::int64_t bytes) override {
    post(slot, rank, tag, data, bytes, ucx().ucp_tag_send_nbx);
  }
  void send_taken(int slot, int rank, std::uint64_t tag, const void* data, std::int64_t bytes) override {
    post(slot, rank, tag, data, bytes, ucx().ucp_tag_send_sync_nbx);
  }

  bool poll() override {
    const std::lock_guard lock(transport_.mutex_);
    ucx().ucp_worker_progress(transport_.worker_);
    bool all_free = true;
    for (int slot = 0; slot < slots_.count(); ++slot) {
      Slot& one = slots_[slot];
      if (one.request == nullptr) continue;
      const ucs_status_t status = ucx().ucp_request_check_status(one.request);
      if (status == UCS_INPROGRESS) {
        // A receive that nothing has come for does not end with the connection.
        check(slot, transport_.peers_.at(one.rank).status);
        all_free = false;
        continue;
      }
      ucx().ucp_request_free(one.request);
      one.request = nullptr;
      check(slot, status);
    }
    return all_free;
  }
  bool busy(int slot) const override { return slots_[slot].request != nullptr; }

  // With all connections closed, UCX ends whatever had begun.
  bool abandon() override {
    const std::lock_guard lock(transport_.mutex_);
    transport_.close_connections();
    for (device::Patience patience(kToEnd); !patience.over();) {
      if (free_ended()) return true;
      ucx().ucp_worker_progress(transport_.worker_);
    }
    return false;
  }

 private:
  struct Slot {
    void* request = nullptr;  // none: it is free
    int rank = -1;
    bool receives = false;
  };

  bool free_ended() {
    bool all_free = true;
    for (Slot& slot : slots_) {
      if (slot.request == nullptr) continue;
      if (slot.receives) ucx().ucp_request_cancel(transport_.worker_, slot.request);  // if nothing has come
      if (ucx().ucp_request_check_status(slot.request) == UCS_INPROGRESS) {
        all_free = false;
        continue;
      }
      ucx().ucp_request_free(std::exchange(slot.request, nullptr));
    }
    return all_free;
  }

  template <class Send>
  void post(int slot, int rank, std::uint64_t tag, const void* data, std::int64_t bytes,
            const Send& function) {
    const std::lock_guard lock(transport_.mutex_);
    const UcxTransport::Peer& peer = transport_.peers_.at(rank);
    check(slot, peer.status);
    const ucp_request_param_t params{};
    keep(slot, rank, false,
         function(peer.endpoint, data, static_cast<std::size_t>(bytes), wire_tag(transport_.rank_, tag),
                  &params));
  }
  void keep(int slot, int rank, bool receives, void* request) {
    if (UCS_PTR_IS_ERR(request)) check(slot, UCS_PTR_STATUS(request));
    slots_[slot] = {request, rank, receives};
  }
  static void check(int slot, ucs_status_t status) {
    if (status != UCS_OK) throw TransferError(slot, fmt::format("UCX: {}", ucx().ucs_status_string(status)));
  }

  UcxTransport& transport_;
  IdVector<Slot> slots_;
};

UcxTransport::UcxTransport(int rank, int peers, const HostAddress& own) : rank_(rank) {
  context_ = make_context(own.device(), peers);
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_CLIENT_ID;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker.client_id = static_cast<std::uint64_t>(rank);
  if (const ucs_status_t status = ucx().ucp_worker_create(context_, &worker, &worker_); status != UCS_OK) {
    ucx().ucp_cleanup(context_);
    check_ucx(status, fmt::format("ucp_worker_create on device '{}'", own.device()).c_str());
  }
  ucp_listener_params_t listener{};
  listener.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  listener.sockaddr = {own.get(), own.bytes};
  listener.conn_handler = {note_request, this};
  if (const ucs_status_t status = ucx().ucp_listener_create(worker_, &listener, &listener_);
      status != UCS_OK) {
    ucx().ucp_worker_destroy(worker_);
    ucx().ucp_cleanup(context_);
    check_ucx(status, fmt::format("ucp_listener_create at {}", own.text()).c_str());
  }
}

UcxTransport::~UcxTransport() {
  const std::lock_guard lock(mutex_);
  if (listener_ != nullptr) ucx().ucp_listener_destroy(listener_);
  send_the_rest();
  close_connections();
  ucx().ucp_worker_destroy(worker_);
  ucx().ucp_cleanup(context_);
}

// Sends what calls have left with UCX: it is lost where a connection is closed by force.
void UcxTransport::send_the_rest() {
  std::vector<void*> flushes;
  for (const auto& [rank, peer] : peers_) {
    if (peer.endpoint == nullptr || peer.status != UCS_OK) continue;
    const ucp_request_param_t params{};
    void* const flush = ucx().ucp_ep_flush_nbx(peer.endpoint, &params);
    if (UCS_PTR_IS_PTR(flush)) flushes.push_back(flush);
  }
  device::Patience patience(kToEnd);
  const auto under_way = [](void* flush) { return ucx().ucp_request_check_status(flush) == UCS_INPROGRESS; };
  while (std::ranges::any_of(flushes, under_way) && !patience.over()) ucx().ucp_worker_progress(worker_);
  for (void* const flush : flushes) ucx().ucp_request_free(flush);
}

// Closes by force, which waits for nobody: whether a peer is there is not known.
void UcxTransport::close_connections() {
  for (auto& [rank, peer] : peers_) {
    if (peer.endpoint == nullptr) continue;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* const closing = ucx().ucp_ep_close_nbx(std::exchange(peer.endpoint, nullptr), &params);
    if (peer.status == UCS_OK) peer.status = UCS_ERR_CANCELED;
    if (!UCS_PTR_IS_PTR(closing)) continue;
    device::Patience patience(kToEnd);
    while (ucx().ucp_request_check_status(closing) == UCS_INPROGRESS && !patience.over())
      ucx().ucp_worker_progress(worker_);
    ucx().ucp_request_free(closing);
  }
}

HostAddress UcxTransport::place() const {
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  check_ucx(ucx().ucp_listener_query(listener_, &attributes), "ucp_listener_query");
  HostAddress place{.address = attributes.sockaddr, .bytes = 0};
  place.bytes = place.address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return place;
}

void UcxTransport::open(int peer, ucp_ep_params_t params) {
  Peer& made = peers_[peer];
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {note_end, &made};
  const ucs_status_t status = ucx().ucp_ep_create(worker_, &params, &made.endpoint);
  if (status != UCS_OK) peers_.erase(peer);
  check_ucx(status, fmt::format("ucp_ep_create for rank {}", peer).c_str());
}

void UcxTransport::accept_all() {
  for (ucp_conn_request_h request : std::exchange(requests_, {})) {
    ucp_conn_request_attr_t attributes{};
    attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID;
    check_ucx(ucx().ucp_conn_request_query(request, &attributes), "ucp_conn_request_query");
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = request;
    open(static_cast<int>(attributes.client_id), params);
  }
}

void UcxTransport::connect(const std::map<int, HostAddress>& others, std::chrono::nanoseconds deadline) {
  device::Patience patience(deadline);
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, place] : others) {
      if (rank > rank_) continue;
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS;
      params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER | UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID;
      params.sockaddr = {place.get(), place.bytes};
      open(rank, params);
    }
  }
  const auto in_time = [&](const auto& is_done, const char* what) {
    while (!is_done()) {
      if (patience.over())
        throw EnvironmentError(fmt::format("messages between hosts: {} within {}, from {}", what,
                                           device::time_text(deadline), place().text()));
      std::this_thread::sleep_for(kBetweenLooks);
    }
  };
  in_time(
      [&] {
        const std::lock_guard lock(mutex_);
        ucx().ucp_worker_progress(worker_);
        accept_all();
        return peers_.size() == others.size();
      },
      "not all ranks connected");
  // UCX completes a connection with the first message.
  const auto hello = transfers(2 * static_cast<int>(others.size()));
  std::vector<char> bytes(others.size());
  constexpr char kHello = 1;
  int slot = 0;
  try {
    for (const auto& [rank, place] : others) {
      hello->receive(slot, rank, kHelloTag, &bytes[static_cast<std::size_t>(slot) / 2], 1);
      hello->send(slot + 1, rank, kHelloTag, &kHello, 1);
      slot += 2;
    }
    in_time([&] { return hello->poll(); }, "not all ranks said a first word");
  } catch (const TransferError& error) {
    throw EnvironmentError(fmt::format("messages between hosts: {}", error.what()));
  }
  const std::lock_guard lock(mutex_);
  ucx().ucp_listener_destroy(std::exchange(listener_, nullptr));
}

std::unique_ptr<Transfers> UcxTransport::transfers(int slots) {
  return std::make_unique<UcxTransfers>(*this, slots);
}

}  // namespace

std::shared_ptr<Transport> make_transport(Communicator& host, const std::string& rank_zero) {
  const HostAddress own = own_address(host, rank_zero);
  constexpr const char* kWhat = "connecting hosts";
  std::shared_ptr<UcxTransport> transport;
  HostAddress place;
  do_together(host, kWhat, [&] {
    transport = std::make_shared<UcxTransport>(host.rank(), host.world() - 1, own);
    place = transport->place();
  });
  IdVector<HostAddress> places(host.world());
  host.all_gather(&place, places.data(), sizeof place, {"set-up", kWhat});
  std::map<int, HostAddress> others;
  for (int rank = 0; rank < host.world(); ++rank)
    if (rank != host.rank()) others[rank] = places[rank];
  // A rank that waits in vain says so before the deadline of the call in which the others hear of it.
  do_together(host, kWhat, [&] { transport->connect(others, host.deadline() / 2); });
  return transport;
}

}  // namespace tessera::comm

namespace tessera {

bool process_between_hosts() { return true; }

}  // namespace tessera
