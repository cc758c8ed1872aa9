// Files that are damaged, or do not fit, are refused on every rank by name; a disk that is full leaves
// nothing.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <optional>

#include "tests/checkpoint/edit_header.h"
#include "tests/checkpoint/toy_run.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// What every rank says when it loads; they must say the same.
std::string load_error(const ToyRun& run, const fs::path& folder) {
  IdVector<std::string> messages(run.world);
  run.run([&](Communicator ranks, Engine& engine) {
    try {
      load_checkpoint(folder, ranks, engine);
    } catch (const Error& error) {
      messages[ranks.rank()] = error.what();
    }
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
  EXPECT_EQ(messages[0].find('\n'), std::string::npos) << messages[0];
  return messages[0];
}

class Damage : public ::testing::Test {
 protected:
  void SetUp() override { save_three(run_, folder_.file("run")); }
  fs::path file(int rank) const {
    return fs::path(folder_.file("run")) / "step-00000003" /
           ("rank-0000" + std::to_string(rank) + ".tessera");
  }
  std::string error() const { return load_error(run_, folder_.file("run")); }

  ToyRun run_;
  TemporaryFolder folder_;
};

TEST_F(Damage, NoneLoads) { EXPECT_EQ(error(), ""); }

TEST_F(Damage, MissingFile) {
  fs::remove(file(1));
  expect_mentions(error(), {"rank-00001.tessera", "No such file"});
}

TEST_F(Damage, TruncatedFile) {
  const auto bytes = static_cast<std::int64_t>(fs::file_size(file(1)));
  fs::resize_file(file(1), static_cast<std::uintmax_t>(bytes - 1));
  expect_mentions(error(), {"rank-00001.tessera", std::to_string(bytes - 1), std::to_string(bytes)});
  fs::resize_file(file(1), 7);
  expect_mentions(error(), {"rank-00001.tessera", "only 7 bytes"});
}

TEST_F(Damage, FlippedBits) {
  const auto bytes = static_cast<std::int64_t>(fs::file_size(file(0)));
  flip_byte(file(0), bytes - 5);
  expect_mentions(error(), {"rank-00000.tessera", "checksum of the moment2 of unit", "expected"});
  EXPECT_THROW(inspect_checkpoint(folder_.file("run"), true), EnvironmentError);
  EXPECT_NO_THROW(inspect_checkpoint(folder_.file("run"), false));
  flip_byte(file(0), bytes - 5);
  flip_byte(file(0), 100);
  expect_mentions(error(), {"rank-00000.tessera", "checksum of the header"});
  flip_byte(file(0), 100);
  flip_byte(file(0), 0);
  expect_mentions(error(), {"rank-00000.tessera", "does not begin as a checkpoint"});
}

// Headers that somebody made, of which the checksum is right.
TEST_F(Damage, HeadersThatLie) {
  const auto tells = [&](const std::string& from, const std::string& to, const std::string& message) {
    const fs::path kept = folder_.file("kept");
    fs::copy_file(file(0), kept, fs::copy_options::overwrite_existing);
    edit_header(file(0), [&](std::string& header) { replace_in(header, from, to); });
    expect_mentions(error(), {"rank-00000.tessera", message});
    fs::copy_file(kept, file(0), fs::copy_options::overwrite_existing);
  };
  tells("\"shard\":2", "\"shard\":0", "mesh");
  tells("\"rank\":0", "\"rank\":7", "rank 7 of a world of 2");
  tells("\"parameters\":\"sharded\"", "\"parameters\":\"smashed\"", "placement");
  tells("\"moments\":2", "\"moments\":1", "the number of its moments is 1 there and 2 here");
  EXPECT_EQ(error(), "");
}

// Three bytes more than the elements take, in the last buffer of each file.
TEST_F(Damage, BuffersOfPartsOfElements) {
  std::string bytes;
  for (const int rank : {0, 1}) {
    fs::resize_file(file(rank), fs::file_size(file(rank)) + 3);
    edit_header(file(rank), [&](std::string& header) {
      const std::size_t at = header.rfind("\"bytes\":") + 8;
      bytes = std::to_string(std::stoll(header.substr(at)) + 3);
      header.replace(at, bytes.size(), bytes);
    });
  }
  for (const int world : {1, 2})
    expect_mentions(load_error({.world = world}, folder_.file("run")),
                    {"rank-00000.tessera", bytes + " bytes of the moment2 of unit"});
}

// Told before any state is read, so that the engine goes on from its own.
TEST_F(Damage, AScaleThatTheRunDoesNotHaveIsRefused) {
  ToyRun narrow = run_;
  narrow.most_scale = 512;
  narrow.run([&](Communicator ranks, Engine& engine) {
    std::vector<float> before(8), after(8);
    engine.read(0, StateKind::parameter, 0, before);
    try {
      load_checkpoint(folder_.file("run"), ranks, engine);
      ADD_FAILURE() << "loaded";
    } catch (const UsageError& error) {
      expect_mentions(error.what(), {"load_checkpoint: ", folder_.file("run"), "scale of ", "from 1 to 512"});
    }
    engine.read(0, StateKind::parameter, 0, after);
    EXPECT_EQ(before, after);
    steps(engine, 0, 1);
    EXPECT_EQ(engine.steps_applied(), 1);
  });
}

// What was read before the damage was found is in the engine by then: half of a checkpoint.
TEST_F(Damage, AnEngineGoesOnFromWholeStatesOnly) {
  save_three(run_, folder_.file("whole"));
  const auto bytes = static_cast<std::int64_t>(fs::file_size(file(1)));
  flip_byte(file(1), bytes - 5);
  for (const bool from_another : {false, true}) {
    run_.run([&](Communicator ranks, Engine& engine) {
      EXPECT_THROW(load_checkpoint(folder_.file("run"), ranks, engine), EnvironmentError);
      std::vector<float> value(1);
      const auto refused = [&](const std::string& call, const std::function<void()>& act) {
        try {
          act();
          ADD_FAILURE() << call << " was taken";
        } catch (const UsageError& error) {
          expect_mentions(error.what(),
                          {call, "the states are undefined", folder_.file("run"), "initialize()"});
        }
      };
      refused("begin", [&] { engine.begin(StepKind::train); });
      refused("read", [&] { engine.read(0, StateKind::parameter, 0, value); });
      refused("write", [&] { engine.write(0, StateKind::master, 0, value); });
      refused("save_checkpoint", [&] { save_checkpoint(folder_.file("new"), ranks, engine, state_at(1)); });
      if (from_another)
        load_checkpoint(folder_.file("whole"), ranks, engine);
      else
        engine.initialize(toy_fill());
      steps(engine, 3, 4);
      EXPECT_EQ(engine.steps_applied(), from_another ? 4 : 1);
      engine.read(0, StateKind::parameter, 0, value);
    });
  }
  EXPECT_FALSE(fs::exists(folder_.file("new")));
}

// Where ranks read parts of what others stored, all of it is looked at, too.
TEST_F(Damage, OnAnotherMesh) {
  for (const int world : {1, 3}) {
    const auto load = [&] { return load_error({.world = world, .stage = 1}, folder_.file("run")); };
    EXPECT_EQ(load(), "");
    const auto bytes = static_cast<std::int64_t>(fs::file_size(file(0)));
    flip_byte(file(0), bytes - 5);
    expect_mentions(load(), {"rank-00000.tessera", "checksum of the moment2 of unit", "expected"});
    flip_byte(file(0), bytes - 5);
    fs::rename(file(1), folder_.file("kept"));
    expect_mentions(load(), {"rank-00001.tessera", "No such file"});
    fs::rename(folder_.file("kept"), file(1));
  }
}

// Every byte matters: none may be changed and pass unnoticed, except padding between buffers.
TEST_F(Damage, AnyByteOfThePrefixAndHeader) {
  for (std::int64_t at = 0; at < 1024; at += 13) {
    flip_byte(file(0), at);
    EXPECT_THROW(inspect_checkpoint(folder_.file("run"), true), Error) << "byte " << at;
    flip_byte(file(0), at);
  }
  EXPECT_EQ(error(), "");
}

TEST_F(Damage, SwappedFiles) {
  fs::rename(file(0), file(2));
  fs::rename(file(1), file(0));
  fs::rename(file(2), file(1));
  expect_mentions(error(), {"was written by rank"});
}

TEST_F(Damage, FileOfAnotherStep) {
  run_.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 0, 4);
    save_checkpoint(folder_.file("other"), ranks, engine, state_at(4));
  });
  fs::copy_file(fs::path(folder_.file("other")) / "step-00000004" / "rank-00001.tessera", file(1),
                fs::copy_options::overwrite_existing);
  expect_mentions(error(), {"rank-00001.tessera", "step 4", "step 3"});
}

// What a run refuses, verify refuses, and inspect tells.
TEST_F(Damage, VerifyRefusesWhatARunRefuses) {
  const auto refused = [this](const std::vector<std::string>& parts) {
    EXPECT_NE(error(), "");
    const CheckpointInfo info = inspect_checkpoint(folder_.file("run"));
    ASSERT_FALSE(info.problems.empty());
    expect_mentions(info.problems[0], parts);
    try {
      inspect_checkpoint(folder_.file("run"), true);
      ADD_FAILURE() << "verified";
    } catch (const EnvironmentError& error) {
      EXPECT_EQ(error.what(), info.problems[0]);
    }
  };
  EXPECT_TRUE(inspect_checkpoint(folder_.file("run"), true).problems.empty());
  fs::rename(file(1), folder_.file("kept"));
  refused({"rank-00001.tessera", "is missing", "rank 1"});
  fs::copy_file(file(0), file(1));
  refused({"rank-00001.tessera", "written by rank 0"});
  fs::remove(file(1));
  run_.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 0, 4);
    save_checkpoint(folder_.file("other"), ranks, engine, state_at(4));
  });
  fs::copy_file(fs::path(folder_.file("other")) / "step-00000004" / "rank-00001.tessera", file(1));
  refused({"rank-00001.tessera", "step 4", "step 3"});
  // Another type's, at the same step.
  ToyRun other = run_;
  other.type = DType::fp32;
  save_three(other, folder_.file("wide"));
  fs::copy_file(fs::path(folder_.file("wide")) / "step-00000003" / "rank-00001.tessera", file(1),
                fs::copy_options::overwrite_existing);
  refused({"rank-00001.tessera", "layout"});
  // Of a run alike but for its values.
  run_.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 10, 13);
    save_checkpoint(folder_.file("twin"), ranks, engine, state_at(3));
  });
  fs::copy_file(fs::path(folder_.file("twin")) / "step-00000003" / "rank-00001.tessera", file(1),
                fs::copy_options::overwrite_existing);
  refused({"rank-00001.tessera", "of another save than that of rank 0"});
  fs::rename(folder_.file("kept"), file(1));
  EXPECT_TRUE(inspect_checkpoint(folder_.file("run"), true).problems.empty());
  fs::copy_file(file(1), file(7));
  expect_mentions(inspect_checkpoint(folder_.file("run")).problems.at(0), {"rank-00007.tessera", "rank 1"});
}

TEST_F(Damage, RanksThatSeeDifferentFolders) {
  run_.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 0, 4);
    save_checkpoint(folder_.file("other"), ranks, engine, state_at(4));
  });
  run_.run([&](Communicator ranks, Engine& engine) {
    try {
      load_checkpoint(folder_.file(ranks.rank() == 0 ? "run" : "other"), ranks, engine);
      ADD_FAILURE() << "loaded";
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 finds step 4"), std::string::npos) << error.what();
    }
  });
}

TEST_F(Damage, OtherType) {
  expect_mentions(load_error({.type = DType::fp32}, folder_.file("run")), {"embed.weight", "bf16", "fp32"});
}

TEST_F(Damage, OtherModelOrOptimizer) {
  const auto refused = [&](std::vector<UnitSpec> units, EngineOptions options) {
    std::string message;
    run_local(2, {}, [&](Communicator ranks) {
      Engine engine(ranks, units, options);
      try {
        load_checkpoint(folder_.file("run"), ranks, engine);
      } catch (const UsageError& error) {
        if (ranks.rank() == 0) message = error.what();
      }
    });
    return message;
  };
  std::vector<UnitSpec> wider = toy_units(DType::bf16);
  wider[1].parameters[0].shape = {33, 18};
  expect_mentions(refused(wider, run_.options()), {"unit block.0", "[33, 17]", "[33, 18]"});
  std::vector<UnitSpec> renamed = toy_units(DType::bf16);
  renamed[3].name = "block.9";
  expect_mentions(refused(renamed, run_.options()), {"unit 3", "block.1", "block.9"});
  EngineOptions sgd = run_.options();
  sgd.optimizer.options = SgdOptions{};
  expect_mentions(refused(toy_units(DType::bf16), sgd), {"optimizer", "adamw", "sgd"});
}

// A limit on file sizes stands for a full disk: the system refuses in the same calls.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(Damage, AFullDiskLeavesTheEarlierCheckpointAndNothingElse) {
  IdVector<std::string> messages(2);
  run_.run([&](Communicator ranks, Engine& engine) {
    steps(engine, 0, 4);
    std::optional<FileLimit> limit;  // of the process, so one rank sets it
    ranks.barrier();
    if (ranks.rank() == 0) limit.emplace(2000);
    ranks.barrier();
    try {
      save_checkpoint(folder_.file("run"), ranks, engine, state_at(4));
    } catch (const EnvironmentError& error) {
      messages[ranks.rank()] = error.what();
    }
    ranks.barrier();
    limit.reset();
    // The engine is as good as before.
    ranks.barrier();
    steps(engine, 4, 5);
    save_checkpoint(folder_.file("other"), ranks, engine, state_at(5));
  });
  EXPECT_EQ(messages[0], messages[1]);
  expect_mentions(messages[0], {"step-00000004.tmp/rank-00000.tessera", " bytes", "File too large"});
  EXPECT_FALSE(fs::exists(fs::path(folder_.file("run")) / "step-00000004.tmp"));
  EXPECT_EQ(inspect_checkpoint(folder_.file("run"), true).state.step, 3);
  EXPECT_EQ(inspect_checkpoint(folder_.file("other"), true).state.step, 5);
  EXPECT_EQ(error(), "");
}

TEST_F(Damage, AFolderThatCannotBeWritten) {
  std::ofstream(folder_.file("file")) << "in the way";
  run_.run([&](Communicator ranks, Engine& engine) {
    EXPECT_THROW(save_checkpoint(fs::path(folder_.file("file")) / "run", ranks, engine, state_at(1)),
                 EnvironmentError);
  });
}

}  // namespace
}  // namespace tessera::testing
