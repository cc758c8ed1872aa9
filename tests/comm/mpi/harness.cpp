#include "tests/comm/mpi/harness.h"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace tessera::testing {
namespace {

enum class Kind : int { none, communication, out_of_range, other };

// How one rank ended; of fixed length, to be gathered.
struct Ending {
  Kind kind = Kind::none;
  int culprit = -1;
  char message[4000] = {};
};

Ending run_one(const MpiOptions& options, const std::function<void(Communicator)>& rank_main) {
  Ending ending;
  const auto end = [&](Kind kind, const std::exception& error) {
    ending.kind = kind;
    std::strncpy(ending.message, error.what(), sizeof ending.message - 1);
  };
  try {
    Communicator world = make_mpi_world(options);
    try {
      rank_main(world);
    } catch (const std::exception& error) {
      world.fail(error.what());
      throw;
    }
  } catch (const CommunicationError& error) {
    ending.culprit = error.culprit();
    end(Kind::communication, error);
  } catch (const std::out_of_range& error) {
    end(Kind::out_of_range, error);
  } catch (const std::exception& error) {
    end(Kind::other, error);
  }
  return ending;
}

void rethrow_cause(const std::vector<Ending>& endings) {
  const Ending* cause = nullptr;
  for (const Ending& ending : endings)
    if (ending.kind != Kind::none && (cause == nullptr || cause->kind == Kind::communication))
      cause = &ending;
  if (cause == nullptr) return;
  if (cause->kind == Kind::communication) throw CommunicationError(cause->message, cause->culprit);
  if (cause->kind == Kind::out_of_range) throw std::out_of_range(cause->message);
  throw Error(cause->message);
}

}  // namespace

int mpi_processes() {
  int count = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  return count;
}

int mpi_process() {
  int number = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  return number;
}

int mpi_hosts() {
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  int place = 0, hosts = 0;
  MPI_Comm_rank(here, &place);
  MPI_Comm_free(&here);
  const int first = place == 0 ? 1 : 0;
  MPI_Allreduce(&first, &hosts, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return hosts;
}

void run_mpi(const MpiOptions& options, const std::function<void(Communicator)>& rank_main,
             std::vector<std::string>* messages) {
  const Ending own = run_one(options, rank_main);
  std::vector<Ending> endings(static_cast<std::size_t>(mpi_processes()));
  // MPI's own waiting takes the cores from those that are waited for.
  MPI_Request request;
  MPI_Iallgather(&own, sizeof own, MPI_BYTE, endings.data(), sizeof own, MPI_BYTE, MPI_COMM_WORLD, &request);
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0;)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (messages != nullptr) {
    messages->clear();
    for (const Ending& ending : endings) messages->push_back(ending.message);
  }
  rethrow_cause(endings);
}

}  // namespace tessera::testing

namespace tessera::testing {
namespace {

// scripts/two_hosts.sh says how many there are to be.
TEST(Launch, IsOnAsManyHostsAsAskedFor) {
  const char* const hosts = std::getenv("TESSERA_TEST_HOSTS");
  EXPECT_EQ(mpi_hosts(), hosts == nullptr ? 1 : std::atoi(hosts));
}

}  // namespace
}  // namespace tessera::testing

int main(int count, char** arguments) {
  int provided = 0;
  MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
  testing::InitGoogleTest(&count, arguments);
  const int status = RUN_ALL_TESTS();
  MPI_Finalize();
  return status;
}
