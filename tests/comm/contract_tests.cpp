// The tests of the contract (see contract.h). What only threads can show is in local_*_test.cpp.
#include <thread>

#include "src/comm/call.h"
#include "tessera/device.h"
#include "tessera/id_vector.h"
#include "tests/comm/contract.h"

namespace tessera::contract {

// ---- data ----

TEST_P(CommunicatorContract, AllGatherPutsEveryShardInItsPlace) {
  run([&](Communicator ranks) {
    const int n = ranks.world(), me = ranks.rank();
    for (std::int64_t bytes : {0, 1, 3, 256, 4099, 100'000}) {
      const auto shard = bytes_of(me, 1, bytes);
      std::vector<std::uint8_t> full(static_cast<std::size_t>(n * bytes + 8), 0xAB);
      for (const bool in_place : {false, true}) {
        std::fill(full.begin(), full.end(), 0xAB);
        if (in_place) std::copy(shard.begin(), shard.end(), full.begin() + me * bytes);
        ranks.all_gather(in_place ? full.data() + me * bytes : shard.data(), full.data(), bytes,
                         {.unit = "u"});
        for (int peer = 0; peer < n; ++peer) {
          const auto expected = bytes_of(peer, 1, bytes);
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), full.begin() + peer * bytes))
              << "rank " << me << ", shard " << peer << " of " << bytes << " bytes";
        }
        ASSERT_EQ(std::vector<std::uint8_t>(full.end() - 8, full.end()), std::vector<std::uint8_t>(8, 0xAB));
      }
    }
  });
}

// Also where only some ranks contribute to the last microbatch.
TEST_P(CommunicatorContract, ReduceScatterIsOneChainInRankOrder) {
  run([&](Communicator ranks) {
    const int n = ranks.world();
    for (const Contributors& contributors : {Contributors{},
                                             {.count = 1},
                                             {.count = (n + 1) / 2},
                                             {.count = n},
                                             {.first = n - 1, .count = 1},
                                             {.first = n / 2, .count = (n + 1) / 2}}) {
      std::vector<float> expected;
      reduce_microbatches(
          ranks, Reduction::exact, contributors,
          [&](DType wire, int microbatch, const std::vector<float>& shard) {
            expected.resize(shard.size());
            const auto [first, count] = (microbatch == 2 ? contributors : Contributors{}).among(n);
            for (std::size_t i = 0; i < shard.size(); ++i)
              for (int peer = first; peer < first + count; ++peer) {
                const float value = contribution(ranks, wire, peer, microbatch, shard.size(), i);
                expected[i] = peer == 0 && microbatch == 0 ? value : expected[i] + value;
              }
            ASSERT_EQ(raw(shard), raw(expected))
                << "rank " << ranks.rank() << ", " << shard.size() << " of " << name_of(wire)
                << ", microbatch " << microbatch << ", the last from " << contributors.count << " from rank "
                << contributors.first << " on";
          });
    }
  });
}

// So it does in place, and for any of the contributors.
TEST_P(CommunicatorContract, ABalancedReduceScatterIsATreeOverRanks) {
  run([](Communicator ranks) {
    const int n = ranks.world(), me = ranks.rank();
    for (const Contributors& contributors : {Contributors{}, {.first = n / 3, .count = (2 * n + 2) / 3}})
      for (const std::int64_t numel : {0, 1, 17, 4097})
        for (const DType wire : {DType::fp32, DType::bf16}) {
          const auto [first, count] = contributors.among(n);
          const bool gives = contributors.contains(me);
          auto full = stored_buffer(wire, me, 0, n * numel);
          std::vector<float> apart(static_cast<std::size_t>(numel), 99.0f);
          const bool in_place = wire == DType::fp32 && gives && contributors.all();
          float* const shard = in_place ? reinterpret_cast<float*>(full.data()) + me * numel : apart.data();
          ranks.reduce_scatter({.full = gives ? full.data() : nullptr,
                                .wire = wire,
                                .shard = shard,
                                .shard_numel = numel,
                                .contributors = contributors,
                                .balanced = true});
          std::vector<float> expected;
          for (std::int64_t i = 0; i < numel; ++i) {
            std::vector<float> terms;
            for (int peer = first; peer < first + count; ++peer)
              terms.push_back(contribution(ranks, wire, peer, 0, static_cast<std::size_t>(numel),
                                           static_cast<std::size_t>(i)));
            expected.push_back(tree_of(terms));
          }
          ASSERT_EQ(raw(std::vector<float>(shard, shard + numel)), raw(expected))
              << "rank " << me << ", " << numel << " of " << name_of(wire) << " from " << count;
        }
  });
}

// A zero that a rank added without having anything to add would turn −0 into +0.
TEST_P(CommunicatorContract, ARankThatDoesNotContributeAddsNoZeros) {
  run([&](Communicator ranks) {
    constexpr std::int64_t kNumel = 1000;
    const std::vector<float> full(static_cast<std::size_t>(ranks.world()) * kNumel, -0.0f);
    std::vector<float> shard(kNumel, 99.0f);
    for (const bool accumulate : {false, true}) {
      ranks.reduce_scatter({.full = ranks.rank() == 0 ? full.data() : nullptr,
                            .shard = shard.data(),
                            .shard_numel = kNumel,
                            .accumulate = accumulate,
                            .contributors = {.count = 1}});
      ASSERT_EQ(raw(shard), raw(std::vector<float>(kNumel, -0.0f)));
    }
  });
}

TEST_P(CommunicatorContract, ReduceScatterInPlaceGivesTheSameBits) {
  run([&](Communicator ranks) { check_in_place(ranks, Reduction::exact); });
}

template <class Element>
void check_all_reduce(Communicator& ranks) {
  const int n = ranks.world(), me = ranks.rank();
  const auto element = [](int rank, std::int64_t i) {
    return static_cast<Element>(value_of(rank, 5, i)) / 3;
  };
  for (std::int64_t numel : {0, 1, 3, 17, 1000, 5001}) {
    std::vector<Element> data, expected;
    for (std::int64_t i = 0; i < numel; ++i) {
      data.push_back(element(me, i));
      Element sum = element(0, i);
      for (int peer = 1; peer < n; ++peer) sum += element(peer, i);
      expected.push_back(sum);
    }
    ranks.all_reduce(data.data(), numel, {.unit = "norm"});
    ASSERT_EQ(raw(data), raw(expected)) << "rank " << me << ", " << numel << " elements";
  }
}

TEST_P(CommunicatorContract, AllReduceSumsInRankOrder) {
  run([](Communicator ranks) { check_all_reduce<float>(ranks), check_all_reduce<double>(ranks); });
}

TEST_P(CommunicatorContract, BroadcastFromEveryRoot) {
  run([](Communicator ranks) {
    for (int root = 0; root < ranks.world(); ++root)
      for (std::int64_t bytes : {0, 1, 1001}) {
        auto data = bytes_of(ranks.rank(), root, bytes);
        ranks.broadcast(data.data(), bytes, root);
        ASSERT_EQ(data, bytes_of(root, root, bytes));
      }
  });
}

TEST_P(CommunicatorContract, AllToAllTransposesBlocks) {
  run([](Communicator ranks) {
    const int n = ranks.world(), me = ranks.rank();
    for (std::int64_t bytes : {0, 1, 1001}) {
      const auto input = bytes_of(me, 3, n * bytes);
      std::vector<std::uint8_t> output(input.size());
      ranks.all_to_all(input.data(), output.data(), bytes);
      for (int peer = 0; peer < n; ++peer) {
        const auto theirs = bytes_of(peer, 3, n * bytes);
        ASSERT_TRUE(std::equal(theirs.begin() + me * bytes, theirs.begin() + (me + 1) * bytes,
                               output.begin() + peer * bytes));
      }
    }
  });
}

TEST_P(CommunicatorContract, MessagesArriveInOrderPerPair) {
  run([](Communicator ranks) {
    const int n = ranks.world(), me = ranks.rank();
    for (int from = 0; from < n; ++from)
      for (int to = 0; to < n; ++to)
        for (int message = 0; from != to && message < 3; ++message) {
          const std::int64_t bytes = message * 500;
          auto data = bytes_of(me, message, bytes);
          if (me == from) ranks.send(data.data(), bytes, to, {.unit = "activation"});
          if (me == to) ranks.recv(data.data(), bytes, from, {.unit = "activation"});
          ASSERT_EQ(data, bytes_of(me == to ? from : me, message, bytes));
        }
  });
}

// Who waits for a message does not take one that its sender has meanwhile for another.
TEST_P(CommunicatorContract, MessagesInTurnReachThoseTheyAreFor) {
  run([](Communicator ranks) {
    const int peers = ranks.world() - 1, me = ranks.rank();
    constexpr int kMessages = 100;
    for (int message = 0; peers > 0 && message < kMessages; ++message) {
      const int to = 1 + message % peers;
      int data = message;
      if (me == 0) ranks.send(&data, sizeof data, to, {.unit = "activation"});
      if (me != to) continue;
      data = -1;
      ranks.recv(&data, sizeof data, 0, {.unit = "activation"});
      ASSERT_EQ(data, message);
    }
  });
}

TEST_P(CommunicatorContract, ABufferMayBeReusedAsSoonAsTheCallReturns) {
  run([](Communicator ranks) {
    const int n = ranks.world();
    std::vector<int> shard(100), full(static_cast<std::size_t>(100 * n));
    for (int round = 0; round < 300; ++round) {
      std::fill(shard.begin(), shard.end(), round);  // would be seen by a peer that still reads
      ranks.all_gather(shard.data(), full.data(), 400);
      for (int value : full) ASSERT_EQ(value, round);
    }
  });
}

TEST_P(CommunicatorContract, TwoLanesRunIndependently) {
  run([](Communicator ranks) {
    Communicator gather = ranks.duplicate("gather"), reduce = ranks.duplicate("reduce");
    const int n = ranks.world(), me = ranks.rank();
    constexpr int kRounds = 200;
    const auto gather_once = [&](int round) {
      const std::int64_t value = round * 100 + me;
      std::vector<std::int64_t> full(static_cast<std::size_t>(n));
      gather.all_gather(&value, full.data(), 8);
      for (int peer = 0; peer < n; ++peer)
        ASSERT_EQ(full[static_cast<std::size_t>(peer)], round * 100 + peer);
    };
    const auto reduce_once = [&](int round) {
      float sum = static_cast<float>(me + round);
      reduce.all_reduce(&sum, 1);
      EXPECT_EQ(sum, static_cast<float>(n * round + n * (n - 1) / 2));
    };
    if (!GetParam().lanes_have_threads) {
      for (int round = 0; round < kRounds; ++round) {
        gather_once(round);
        if (round % 3 != 0) reduce_once(round);
        if (round % 3 == 2) reduce_once(round);
      }
      return;
    }
    std::exception_ptr failed;
    std::thread lane([&] {
      try {
        for (int round = 0; round < kRounds; ++round) gather_once(round);
      } catch (...) {
        failed = std::current_exception();
      }
    });
    for (int round = 0; round < kRounds; ++round) reduce_once(round);
    lane.join();
    if (failed) std::rethrow_exception(failed);
  });
}

TEST_P(CommunicatorContract, SubgroupsHaveTheirOwnRanks) {
  run([](Communicator ranks) {
    const int n = ranks.world(), me = ranks.rank();
    std::vector<int> members;  // of the same parity, the last first
    for (int rank = n - 1; rank >= 0; --rank)
      if (rank % 2 == me % 2) members.push_back(rank);
    Communicator half = ranks.subgroup(members, "half");
    const int position = static_cast<int>(members.size()) - 1 - me / 2;
    EXPECT_EQ(half.world(), static_cast<int>(members.size()));
    EXPECT_EQ(half.rank(), position);
    EXPECT_EQ(half.global_rank(), me);
    EXPECT_EQ(half.name(), "half");
    std::vector<int> gathered(members.size());
    half.all_gather(&me, gathered.data(), 4);
    EXPECT_EQ(gathered, members);

    Communicator again = ranks.subgroup(members, "half");  // another one, in spite of its name
    Communicator nested = half.duplicate("nested");
    float ones[2] = {1, 1};
    again.all_reduce(&ones[0], 1);
    nested.all_reduce(&ones[1], 1);
    EXPECT_EQ(ones[0], static_cast<float>(members.size()));
    EXPECT_EQ(ones[1], static_cast<float>(members.size()));
    EXPECT_EQ(nested.global_rank(), me);
    EXPECT_THROW(ranks.subgroup({(me + 1) % n, (me + 1) % n}, "twice"), UsageError);
    EXPECT_THROW(ranks.subgroup({n}, "outside"), UsageError);
    if (n > 1) {
      EXPECT_THROW(ranks.subgroup({(me + 1) % n}, "without me"), UsageError);
    }
  });
}

TEST_P(CommunicatorContract, CountsTheBytesOfTheClosedForm) {
  run([](Communicator ranks) {
    const int n = ranks.world();
    std::vector<float> full(static_cast<std::size_t>(100 * n)), shard(100), out(full.size());
    ranks.all_gather(shard.data(), full.data(), 400);
    EXPECT_EQ(ranks.bytes_received(), (n - 1) * 400);
    ranks.reduce_scatter(
        {.full = full.data(), .wire = DType::bf16, .shard = shard.data(), .shard_numel = 100});
    EXPECT_EQ(ranks.bytes_received(), (n - 1) * 600);
    ranks.all_to_all(full.data(), out.data(), 400);
    EXPECT_EQ(ranks.bytes_received(), (n - 1) * 1000);
    ranks.broadcast(shard.data(), 400, 0);
    EXPECT_EQ(ranks.bytes_received(), (n - 1) * 1000 + (ranks.rank() == 0 ? 0 : 400));
    ranks.reduce_scatter({.full = ranks.rank() == 0 ? full.data() : nullptr,
                          .wire = DType::bf16,
                          .shard = shard.data(),
                          .shard_numel = 100,
                          .contributors = {.count = 1}});
    EXPECT_EQ(ranks.bytes_received(), (n - 1) * 1000 + (ranks.rank() == 0 ? 0 : 600));
    EXPECT_EQ(ranks.duplicate("other").bytes_received(), 0);
  });
}

// ---- errors ----

TEST_P(CommunicatorErrors, DifferentOperationsAreNamedByAll) {
  const auto messages = run_to_failure({}, [&](Communicator ranks) {
    std::vector<float> data(static_cast<std::size_t>(8 * world())), shard(8);
    ranks.barrier();
    if (ranks.rank() == world() - 1)
      ranks.reduce_scatter({.full = data.data(), .shard = shard.data(), .shard_numel = 8}, {.unit = "head"});
    else
      ranks.all_gather(shard.data(), data.data(), 32, {.unit = "block.3"});
  });
  expect_mismatch(messages, "all_gather #2 of unit 'block.3'", "reduce_scatter #2 of unit 'head'");
}

TEST_P(CommunicatorErrors, DifferentNumelUnitTypeOrRootAreNamedByAll) {
  IdVector<std::string> messages = run_to_failure({}, [&](Communicator ranks) {
    std::vector<char> full(static_cast<std::size_t>(64 * world())), shard(64);
    ranks.all_gather(shard.data(), full.data(), ranks.rank() == 0 ? 32 : 64);
  });
  expect_mismatch(messages, "32 bytes", "64 bytes");
  messages = run_to_failure({}, [&](Communicator ranks) {
    ranks.barrier({.unit = ranks.rank() == 0 ? "block.1" : "block.2", .operation = "meet"});
  });
  expect_mismatch(messages, "meet #1 of unit 'block.1'", "meet #1 of unit 'block.2'");
  messages = run_to_failure({}, [&](Communicator ranks) {
    std::vector<float> full(static_cast<std::size_t>(world())), shard(1);
    ranks.reduce_scatter({.full = full.data(),
                          .wire = ranks.rank() == 0 ? DType::bf16 : DType::fp16,
                          .shard = shard.data(),
                          .shard_numel = 1});
  });
  expect_mismatch(messages, "bf16", "fp16");
  messages = run_to_failure({}, [&](Communicator ranks) {
    std::vector<float> full(static_cast<std::size_t>(world())), shard(1);
    ranks.reduce_scatter({.full = ranks.rank() < world() - 1 ? full.data() : nullptr,
                          .shard = shard.data(),
                          .shard_numel = 1,
                          .contributors = {.count = ranks.rank() == 0 ? 0 : world() - 1}});
  });
  expect_mismatch(messages, "with 1 elements a rank of fp32",
                  "of fp32 from the first " + std::to_string(world() - 1) + " ranks");
  messages = run_to_failure({}, [&](Communicator ranks) {
    std::vector<float> full(static_cast<std::size_t>(world())), shard(1);
    ranks.reduce_scatter(
        {.full = full.data(), .shard = shard.data(), .shard_numel = 1, .balanced = ranks.rank() == 0});
  });
  expect_mismatch(messages, "of fp32, balanced,", "of fp32");
  messages = run_to_failure({}, [&](Communicator ranks) {
    float value = 0;
    ranks.broadcast(&value, 4, ranks.rank() == 0 ? 0 : 1);
  });
  expect_mismatch(messages, "from rank 0", "from rank 1");
}

TEST_P(CommunicatorErrors, AMessageOfAnotherLengthIsNamedByBoth) {
  if (!GetParam().checks_messages) GTEST_SKIP() << "messages are matched by order alone";
  const auto messages = run_to_failure({}, [](Communicator ranks) {
    char data[16] = {};
    if (ranks.rank() == 0) ranks.send(data, 16, 1);
    if (ranks.rank() == 1) ranks.recv(data, 8, 0);
    if (ranks.rank() > 1) ranks.barrier();
  });
  expect_mismatch(messages, "8 bytes", "16 bytes");
}

// A rank that calls something else, on a communicator with a long deadline, until the world has failed.
void stay_away(Communicator& ranks) { EXPECT_THROW(ranks.barrier(), CommunicationError); }

TEST_P(CommunicatorErrors, AMissingRankIsNamedAtTheDeadline) {
  const int late = world() - 1;
  const auto messages = run_to_failure({}, [&](Communicator ranks) {
    Communicator lane = ranks.duplicate("gather");
    lane.barrier({.unit = "block.2"});
    lane.set_deadline(milliseconds(300));
    if (ranks.rank() == late) stay_away(ranks);
    char byte = 0;
    std::vector<char> all(static_cast<std::size_t>(world()));
    lane.all_gather(&byte, all.data(), 1, {.unit = "block.3"});
  });
  const std::string name = "rank " + std::to_string(late);
  for (int rank = 0; rank < world(); ++rank) {
    const std::string& text = messages[rank];
    EXPECT_TRUE(contains(text, "rank " + std::to_string(rank) + ": all_gather #2 of unit 'block.3'")) << text;
    EXPECT_TRUE(contains(text, "no answer from rank ")) << text;
    if (world() > 2) continue;  // on a busy machine, another rank may come late, too, and be named first
    EXPECT_TRUE(contains(text, "no answer from " + name + " within 300 ms")) << text;
    EXPECT_TRUE(contains(text, "(" + name + " is at #1, barrier of unit 'block.2')")) << text;
  }
}

TEST_P(CommunicatorErrors, AMissingMessageIsNamedAtTheDeadline) {
  const auto messages = run_to_failure({}, [](Communicator ranks) {
    Communicator lane = ranks.duplicate("transfer");
    lane.set_deadline(milliseconds(200));
    char byte = 0;
    if (ranks.rank() == 0) lane.recv(&byte, 1, 1, {.unit = "block.0"});
    ranks.barrier();
  });
  EXPECT_TRUE(contains(messages[0], "rank 0: recv #1 of unit 'block.0'")) << messages[0];
  EXPECT_TRUE(contains(messages[0], "no answer from rank 1 within 200 ms")) << messages[0];
  EXPECT_TRUE(contains(messages[1], "rank 0 reported: recv #1 of unit 'block.0'")) << messages[1];
}

TEST_P(CommunicatorErrors, AFailedRankIsNamedByAllLongBeforeTheDeadline) {
  const auto start = std::chrono::steady_clock::now();
  const auto messages = run_to_failure({}, [](Communicator ranks) {
    Communicator lane = ranks.duplicate("gather");
    ranks.barrier();
    if (ranks.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(30));  // the others wait by now
      ranks.fail("the disk is full");
      throw CommunicationError("rank 1 gives up", 1);
    }
    lane.barrier({.unit = "block.7"});  // not the communicator that was told
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(15'000));
  for (int rank = 0; rank < world(); ++rank)
    if (rank != 1) {
      const std::string& text = messages[rank];
      EXPECT_TRUE(contains(text, "barrier #1 of unit 'block.7' on 'gather': rank 1 failed: the disk is full"))
          << text;
    }
}

TEST_P(CommunicatorErrors, TheCauseIsRethrownWithItsType) {
  IdVector<std::string> messages;
  const auto rank_main = [&](Communicator ranks) {
    ranks.barrier();
    if (ranks.rank() == world() - 1) throw std::out_of_range("token 70000");
    for (;;) ranks.barrier();
  };
  EXPECT_THROW(GetParam().run(world(), {}, rank_main, &messages), std::out_of_range);
  for (const std::string& text : messages) EXPECT_TRUE(contains(text, "token 70000")) << text;
}

// As the watch of a GPU hears of it.
TEST_P(CommunicatorErrors, AFailureIsHeardWithoutACall) {
  const auto messages = run_to_failure({}, [](Communicator ranks) {
    ranks.barrier();
    if (ranks.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(30));  // the others have left the barrier by now
      ranks.backend()->fail(0, "the GPU of rank 0 is hot");
      throw CommunicationError("rank 1 gives up", 0);
    }
    const auto end = std::chrono::steady_clock::now() + milliseconds(15'000);
    while (std::chrono::steady_clock::now() < end) {
      ranks.backend()->rethrow_failure("waiting for a GPU");
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  EXPECT_TRUE(contains(messages[0], "rank 1 reported: the GPU of rank 0 is hot")) << messages[0];
}

TEST_P(CommunicatorErrors, AMeetingComparesWhatItIsFor) {
  if (!GetParam().has_meetings) GTEST_SKIP() << "it has none of its own";
  const auto messages = run_to_failure({}, [](Communicator ranks) {
    const auto meet = [&](std::int64_t bytes) {
      ranks.backend()->meet(comm::Call::make(comm::Operation::all_gather, bytes, {.unit = "block.0"}));
    };
    meet(8);
    meet(ranks.rank() == 0 ? 16 : 32);
  });
  expect_mismatch(messages, "all_gather #2 of unit 'block.0' with 16 bytes",
                  "all_gather #2 of unit 'block.0' with 32 bytes");
}

TEST_P(CommunicatorErrors, WhatFailedStaysFailed) {
  run_to_failure({}, [](Communicator ranks) {
    Communicator lane = ranks.duplicate("gather");
    ranks.barrier();
    if (ranks.rank() == 0) ranks.fail("boom");
    for (int attempt = 0; attempt < 3; ++attempt) {
      EXPECT_THROW(for (;;) lane.barrier(), CommunicationError);
      EXPECT_THROW(for (;;) ranks.barrier(), CommunicationError);
      EXPECT_THROW(for (;;) ranks.duplicate("new").barrier(), CommunicationError);
    }
    ranks.barrier();
  });
}

TEST_P(CommunicatorErrors, TheFlagOfARankFailsItForItsPeers) {
  const auto messages = run_to_failure({}, [](Communicator ranks) {
    FailureFlag flag;
    ranks.attach(flag);
    ranks.barrier();
    if (ranks.rank() == 1) flag.set("a task threw");
    for (;;) ranks.barrier();
  });
  EXPECT_TRUE(contains(messages[0], "rank 1 failed: a task threw")) << messages[0];
}

TEST_P(CommunicatorErrors, ARankThatHasEndedIsNotWaitedFor) {
  const auto start = std::chrono::steady_clock::now();
  const auto messages = run_to_failure({}, [&](Communicator ranks) {
    ranks.barrier();
    if (ranks.rank() != world() - 1) ranks.barrier();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(15'000));
  EXPECT_TRUE(contains(messages[0], "rank " + std::to_string(world() - 1) + " has ended")) << messages[0];
}

}  // namespace tessera::contract
