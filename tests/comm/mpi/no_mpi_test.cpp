// A build without MPI says so, and which flag would change that.
#include <gtest/gtest.h>

#include "tessera/communicator.h"

namespace tessera {
namespace {

TEST(NoMpi, NamesTheFlag) {
  EXPECT_FALSE(mpi_available());
  try {
    make_mpi_world();
    FAIL() << "made a world of processes without MPI";
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("TESSERA_WITH_MPI"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera
