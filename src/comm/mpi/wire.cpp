#include "src/comm/mpi/wire.h"

#include <fmt/format.h>

#include <thread>

#include "tessera/error.h"
#include "tessera/id_vector.h"

namespace tessera::comm {
namespace {

constexpr int kFailureTag = 0, kEndedTag = 1, kFirstGroupTag = 8;
constexpr std::chrono::milliseconds kMoment{200};

bool finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

// The next message with `tag`, if one has come; returns its source or -1.
int take(MPI_Comm comm, int tag, void* data, int bytes) {
  int found = 0;
  MPI_Message message;
  MPI_Status status;
  if (MPI_Improbe(MPI_ANY_SOURCE, tag, comm, &found, &message, &status) != MPI_SUCCESS || found == 0)
    return -1;
  MPI_Mrecv(data, bytes, MPI_BYTE, &message, &status);
  return status.MPI_SOURCE;
}

class MpiTransfers final : public Transfers {
 public:
  MpiTransfers(MPI_Comm comm, int slots)
      : comm_(comm), requests_(slots, MPI_REQUEST_NULL), indices_(slots), statuses_(slots) {}

  void receive(int slot, int rank, std::uint64_t tag, void* data, std::int64_t bytes) override {
    check(slot, "MPI_Irecv",
          MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, rank, static_cast<int>(tag), comm_,
                    &requests_[slot]));
  }
  void send(int slot, int rank, std::uint64_t tag, const void* data, std::int64_t bytes) override {
    check(slot, "MPI_Isend",
          MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, rank, static_cast<int>(tag), comm_,
                    &requests_[slot]));
  }
  void send_taken(int slot, int rank, std::uint64_t tag, const void* data, std::int64_t bytes) override {
    check(slot, "MPI_Issend",
          MPI_Issend(data, static_cast<int>(bytes), MPI_BYTE, rank, static_cast<int>(tag), comm_,
                     &requests_[slot]));
  }

  bool poll() override {
    constexpr const char* kCall = "MPI_Testsome";
    int done = 0;
    const int status =
        MPI_Testsome(requests_.count(), requests_.data(), &done, indices_.data(), statuses_.data());
    if (done == MPI_UNDEFINED) return true;  // none is left
    if (status == MPI_ERR_IN_STATUS)
      for (int i = 0; i < done; ++i) check(indices_[i], kCall, statuses_[i].MPI_ERROR);
    else
      check(-1, kCall, status);
    return false;
  }
  bool busy(int slot) const override { return requests_[slot] != MPI_REQUEST_NULL; }
  bool abandon() override { return false; }  // MPI has nothing for it

 private:
  static void check(int slot, const char* call, int status) {
    if (status != MPI_SUCCESS) throw TransferError(slot, mpi_error(status, call));
  }

  const MPI_Comm comm_;
  IdVector<MPI_Request> requests_;
  IdVector<int> indices_;  // scratch, as the next
  IdVector<MPI_Status> statuses_;
};

}  // namespace

std::string mpi_error(int status, const char* call) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  return fmt::format("{}: {}", call, text);
}

void check_mpi(int status, const char* call) {
  if (status != MPI_SUCCESS) throw EnvironmentError(mpi_error(status, call));
}

MpiWire::MpiWire(MPI_Comm messages, std::vector<int> others)
    : messages_(messages), others_(std::move(others)) {
  int* limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(messages_, MPI_TAG_UB, &limit, &found);
  const int last = found != 0 ? *limit : 32767;  // the least that MPI promises
  tags_ = std::make_unique<GroupTags>(kFirstGroupTag, static_cast<std::uint64_t>(last));
}

std::unique_ptr<Transfers> MpiWire::transfers(int slots) {
  return std::make_unique<MpiTransfers>(messages_, slots);
}

void MpiWire::tell_failure(const SharedFailure& failure) {
  if (finalized()) return;
  auto* const copy = new SharedFailure(failure);  // kept: nobody knows when the last one has it
  std::vector<MPI_Request> requests(others_.size(), MPI_REQUEST_NULL);
  for (std::size_t i = 0; i < others_.size(); ++i)
    MPI_Isend(copy, sizeof *copy, MPI_BYTE, others_[i], kFailureTag, messages_, &requests[i]);
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
  const auto limit = device::Clock::now() + kMoment;
  int done = 0;
  while (done == 0 && device::Clock::now() < limit) {
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  for (MPI_Request& request : requests)
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
}

// The failure has been told, and says more.
void MpiWire::tell_ended(bool failed) {
  if (failed || finalized()) return;
  for (const int other : others_) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(nullptr, 0, MPI_BYTE, other, kEndedTag, messages_, &request);
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
}

void MpiWire::listen(SharedWorld& world) {
  SharedFailure failure;
  while (take(messages_, kFailureTag, &failure, sizeof failure) >= 0)
    world.fail(failure.reporter, failure.culprit, failure.message.data());
  for (int rank = 0; (rank = take(messages_, kEndedTag, nullptr, 0)) >= 0;) world.end(rank);
}

}  // namespace tessera::comm
