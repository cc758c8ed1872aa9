// Text into token files: what the files hold, that neither threads nor interruptions change a byte, and what
// is refused.
#include "src/cli/prepare/prepare.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>

#include "tessera/data.h"
#include "tessera/error.h"
#include "tessera/tokenizer.h"
#include "tests/refusal.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path().lexically_relative(folder)] = read_file(entry.path());
  return files;
}

std::string gzipped(const std::string& text) {
  z_stream state = {};
  deflateInit2(&state, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string packed(text.size() + 1000, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(packed.data());
  state.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&state, Z_FINISH), Z_STREAM_END);
  packed.resize(packed.size() - state.avail_out);
  deflateEnd(&state);
  return packed;
}

std::string zstandard(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

class PrepareTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> texts;
    std::mt19937 random(7);
    const std::vector<std::string> words = {"alpha ", "beta ",         "gamma, ",    "δέλτα ",
                                            "\n",     "<|endoftext|>", "\"quoted\" "};
    for (int k = 0; k < 400; ++k) {
      std::string text = std::to_string(k) + " ";
      for (std::size_t n = random() % 60; n > 0; --n) text += words[random() % words.size()];
      texts.push_back(text);
    }
    documents_ = texts;
    file("tokenizer.json", train_bpe(texts, {.vocabulary = 300}));
    for (const std::string& text : texts) lines_ += json_line(text);
    file("some.jsonl", lines_);
  }

  static std::string json_line(const std::string& text) {
    std::string line = "{\"id\": 3, \"text\": \"";
    for (const char c : text) {
      if (c == '"' || c == '\\') line += '\\';
      line += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    return line + "\"}\n";
  }

  std::string file(const std::string& name, const std::string& bytes) const {
    return folder_.write(name, std::as_bytes(std::span(bytes)));
  }
  PrepareOptions options(const std::string& out, std::vector<std::string> inputs = {}) const {
    PrepareOptions made;
    made.inputs = inputs.empty() ? std::vector<std::string>{folder_.file("some.jsonl")} : std::move(inputs);
    made.tokenizer = folder_.file("tokenizer.json");
    made.out = folder_.file(out);
    made.validation = 0.1;
    made.shard_tokens = 2000;
    made.part_bytes = 4000;
    return made;
  }
  static Prepared run(const PrepareOptions& options) {
    return prepare(
        options, [](std::int64_t, std::int64_t) {}, [](const std::string&) {});
  }
  struct Kills {
    unsigned seed;
    int starts;     // at most
    int more_than;  // of these have to be killed
  };
  // Starts it again and again and kills it within 3 ms, until it is done; the last start is not killed.
  static void run_with_kills(const PrepareOptions& options, const Kills& wanted) {
    const auto is_done = [&] { return fs::exists(fs::path(options.out) / "data.json"); };
    std::mt19937 random(wanted.seed);
    int kills = 0;
    for (int start = 0; start < wanted.starts && !is_done(); ++start) {
      const pid_t child = fork();
      if (child == 0) {
        try {
          run(options);
          _exit(0);
        } catch (...) {
          _exit(1);
        }
      }
      usleep(static_cast<useconds_t>(random() % 3000));
      ::kill(child, SIGKILL);
      int status = 0;
      waitpid(child, &status, 0);
      ASSERT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) != 0);
      kills += WIFSIGNALED(status) ? 1 : 0;
    }
    if (!is_done()) run(options);
    EXPECT_GT(kills, wanted.more_than);
  }
  static std::string refused(const PrepareOptions& options) {
    return testing::refusal<Error>([&] { run(options); });
  }
  // The documents of one side, decoded.
  std::vector<std::string> decoded(const fs::path& out, const PreparedSplit& split) const {
    const Tokenizer tokenizer = Tokenizer::open(out / "tokenizer.json");
    std::vector<std::string> texts;
    for (const std::string& name : split.files) {
      const TokenSource source = TokenSource::open((out / name).string(), 1 << 16);
      const std::string index = read_file((out / name).replace_extension(".documents"));
      std::vector<std::int64_t> begins(index.size() / sizeof(std::int64_t));
      std::memcpy(begins.data(), index.data(), index.size());
      EXPECT_EQ(begins.back(), source.numel());
      for (std::size_t k = 0; k + 1 < begins.size(); ++k) {
        std::vector<std::int32_t> tokens(static_cast<std::size_t>(begins[k + 1] - begins[k]));
        source.read(begins[k], tokens);
        EXPECT_EQ(tokens.back(), *tokenizer.id_of("<|endoftext|>"));
        tokens.pop_back();
        texts.push_back(tokenizer.decode(tokens));
      }
    }
    return texts;
  }

  testing::TemporaryFolder folder_;
  std::vector<std::string> documents_;
  std::string lines_;
};

TEST_F(PrepareTest, EachDocumentIsThereOnceShuffledAndOnOneSide) {
  const PrepareOptions options = this->options("out");
  const Prepared made = run(options);
  const std::vector<std::string> train = decoded(options.out, made.train),
                                 validation = decoded(options.out, made.validation);
  EXPECT_EQ(train.size(), static_cast<std::size_t>(made.train.documents));
  EXPECT_GT(validation.size(), 15u);
  EXPECT_LT(validation.size(), 80u);
  EXPECT_GT(made.train.files.size(), 3u) << "several files";
  std::multiset<std::string> found(train.begin(), train.end());
  found.insert(validation.begin(), validation.end());
  EXPECT_EQ(found, std::multiset<std::string>(documents_.begin(), documents_.end()));
  EXPECT_FALSE(std::ranges::is_sorted(train, {}, [](const std::string& text) { return std::stoi(text); }));
  EXPECT_FALSE(fs::exists(fs::path(options.out) / "unfinished"));
  // Another seed is another order of the same split.
  PrepareOptions other = this->options("other");
  other.seed = 2;
  const std::vector<std::string> reordered = decoded(other.out, run(other).train);
  EXPECT_NE(reordered, train);
  EXPECT_EQ(std::set(reordered.begin(), reordered.end()), std::set(train.begin(), train.end()));
}

TEST_F(PrepareTest, NeitherThreadsNorCompressionChangeAByte) {
  run(options("plain"));
  const auto expected = contents(folder_.file("plain"));
  for (const int threads : {2, 5}) {
    PrepareOptions of = options("threads" + std::to_string(threads));
    of.threads = threads;
    run(of);
    EXPECT_EQ(contents(of.out), expected) << threads << " threads";
  }
  run(options("gz", {file("some.jsonl.gz", gzipped(lines_))}));
  EXPECT_EQ(contents(folder_.file("gz")), expected);
  // Two frames one behind the other are one stream.
  const std::size_t half = lines_.size() / 2;
  run(options("zst",
              {file("some.jsonl.zst", zstandard(lines_.substr(0, half)) + zstandard(lines_.substr(half)))}));
  EXPECT_EQ(contents(folder_.file("zst")), expected);
}

TEST_F(PrepareTest, InterruptionsChangeNoByte) {
  std::vector<std::string> inputs = {
      folder_.file("some.jsonl"), file("text.txt", lines_.substr(0, 5000)),
      file("more.jsonl.gz", gzipped(lines_.substr(0, lines_.rfind('\n', 9000) + 1)))};
  const PrepareOptions whole = options("whole", inputs);
  run(whole);
  PrepareOptions killed = options("killed", inputs);
  run_with_kills(killed, {.seed = 11, .starts = 400, .more_than = 3});
  EXPECT_EQ(contents(killed.out), contents(whole.out));
}

class PreparePrompts : public PrepareTest {
 protected:
  void SetUp() override {
    PrepareTest::SetUp();
    for (std::size_t k = 0; k + 1 < documents_.size(); k += 2) {
      const std::string& answer = documents_[k + 1];
      pairs_.insert({documents_[k], answer});
      std::string line = json_line(documents_[k]);  // {"id": 3, "text": "…"}
      line.replace(line.find("\"text\""), 6, "\"question\"");
      const std::string other = json_line(answer);
      lines_of_pairs_ += line.substr(0, line.size() - 2) + ", " + other.substr(other.find("\"text\""));
    }
    file("pairs.jsonl", lines_of_pairs_);
  }
  PrepareOptions pairs(const std::string& out, const std::string& input = "pairs.jsonl") const {
    PrepareOptions made = options(out, {folder_.file(input)});
    made.fields = {.prompt = "question", .answer = "text"};
    return made;
  }

  std::multimap<std::string, std::string> pairs_;
  std::string lines_of_pairs_;
};

// The tokens of the prompt are those that it has alone, and do not count; those of the answer and the end do.
TEST_F(PreparePrompts, CountTheAnswersAndTheirEnds) {
  const PrepareOptions of = pairs("out");
  const Prepared made = run(of);
  const Tokenizer tokenizer = Tokenizer::open(fs::path(of.out) / "tokenizer.json");
  std::multimap<std::string, std::string> found;
  std::int64_t all_counted = 0;
  for (const PreparedSplit& split : {made.train, made.validation})
    for (const std::string& name : split.files) {
      const TokenSource source = TokenSource::open((fs::path(of.out) / name).string(), 1 << 16);
      ASSERT_TRUE(source.masked());
      all_counted += source.counted();
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.numel())), targets(tokens.size());
      source.read(0, tokens);
      source.read_targets(0, targets);
      for (std::size_t at = 0; at < tokens.size();) {
        std::vector<std::int32_t> prompt, answer;
        for (; targets[at] == kNotCounted; ++at) prompt.push_back(tokens[at]);
        for (; tokens[at] != *tokenizer.id_of("<|endoftext|>"); ++at) answer.push_back(targets[at]);
        EXPECT_EQ(targets[at], tokens[at]) << "the end counts";
        ++at;
        const std::string text = tokenizer.decode(prompt);
        EXPECT_EQ(prompt, tokenizer.encode(text, {.find_special_tokens = false}));
        found.insert({text, tokenizer.decode(answer)});
      }
    }
  EXPECT_EQ(found.size(), pairs_.size());
  EXPECT_EQ(std::multiset(found.begin(), found.end()), std::multiset(pairs_.begin(), pairs_.end()));
  EXPECT_EQ(made.train.counted + made.validation.counted, all_counted);
  EXPECT_LT(all_counted, made.train.tokens + made.validation.tokens);
}

TEST_F(PreparePrompts, BeginOnceAsTheTokenizerSays) {
  std::string json = read_file(folder_.file("tokenizer.json"));
  const Tokenizer plain = Tokenizer::parse(json);
  const std::string begin = *plain.token_of(5);
  const std::string none = "\"post_processor\": null";
  ASSERT_NE(json.find(none), std::string::npos);
  json.replace(
      json.find(none), none.size(),
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"B","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"B":{"id":"B","ids":[5],"tokens":[")" +
          begin + R"("]}}})");
  file("tokenizer.json", json);
  const PrepareOptions of = pairs("begun");
  const Prepared made = run(of);
  const TokenSource source =
      TokenSource::open((fs::path(of.out) / made.train.files.front()).string(), 1 << 16);
  const std::string index =
      read_file((fs::path(of.out) / made.train.files.front()).replace_extension(".documents"));
  std::vector<std::int64_t> begins(index.size() / 8);
  std::memcpy(begins.data(), index.data(), index.size());
  for (std::size_t k = 0; k + 1 < begins.size(); ++k) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(begins[k + 1] - begins[k])),
        targets(tokens.size());
    source.read(begins[k], tokens);
    source.read_targets(begins[k], targets);
    EXPECT_EQ(tokens[0], 5);
    const auto prompt =
        std::ranges::find_if(targets, [](std::int32_t target) { return target != kNotCounted; });
    const std::vector<std::int32_t> rest(tokens.begin() + 1, tokens.begin() + (prompt - targets.begin()));
    EXPECT_TRUE(pairs_.contains(plain.decode(rest))) << plain.decode(rest);
  }
}

TEST_F(PreparePrompts, AreTheSameWithAnyThreadsAndAfterAnyKill) {
  run(pairs("plain"));
  const auto expected = contents(folder_.file("plain"));
  EXPECT_TRUE(expected.contains("train_00000.mask"));
  PrepareOptions threads = pairs("threads");
  threads.threads = 5;
  run(threads);
  EXPECT_EQ(contents(threads.out), expected);
  file("pairs.jsonl.zst", zstandard(lines_of_pairs_));
  run(pairs("zst", "pairs.jsonl.zst"));
  EXPECT_EQ(contents(folder_.file("zst")), expected);
  const PrepareOptions killed = pairs("killed");
  run_with_kills(killed, {.seed = 5, .starts = 200, .more_than = 1});
  EXPECT_EQ(contents(killed.out), expected);
}

TEST_F(PreparePrompts, OfFieldsThatAreMissingAreRefused) {
  const auto says = [&](const PrepareOptions& options, const std::string& words) {
    EXPECT_NE(refused(options).find(words), std::string::npos) << refused(options);
  };
  const std::string good = R"({"question": "q", "text": "a"})";
  file("a.jsonl", good + "\n" + R"({"text": "a"})" + "\n");
  says(pairs("a", "a.jsonl"),
       "line 2 of '" + folder_.file("a.jsonl") +
           "' has no field 'question'; --prompt-field names the one that has the prompt");
  file("b.jsonl", good + "\n\n" + R"({"question": "q"})" + "\n");
  says(pairs("b", "b.jsonl"), "line 3 of '" + folder_.file("b.jsonl") +
                                  "' has no field 'text'; --answer-field names the one that has the answer");
  file("c.jsonl", R"({"question": 3, "text": "a"})");
  says(pairs("c", "c.jsonl"), "has a field 'question' that is no text");
  file("d.txt", "text");
  says(pairs("d", "d.txt"), "d.txt' is text by its name, and --prompt-field names a field");
  PrepareOptions half = pairs("e");
  half.fields.answer = "";
  says(half, "--prompt-field is 'question' and --answer-field is not given; give both");
  half.fields = {.prompt = "text", .answer = "text"};
  says(half, "are both 'text'; name two fields");
}

TEST_F(PrepareTest, RefusesWhatItCannotReadBeforeOrWithTheLine) {
  const auto says = [&](const PrepareOptions& options, const std::string& words) {
    EXPECT_NE(refused(options).find(words), std::string::npos) << refused(options);
    EXPECT_FALSE(fs::exists(fs::path(options.out) / "data.json"));
  };
  const std::string good = json_line("good");
  says(options("a", {folder_.file("absent.jsonl")}), "absent.jsonl' is not there");
  says(options("b", {file("b.jsonl", good + "{\"title\": \"x\"}\n")}), "line 2 of '");
  says(options("b2", {file("b2.jsonl", good + "{\"title\": \"x\"}\n")}),
       "has no field 'text'; --field names");
  says(options("c", {file("c.jsonl", good + good + "{\"text\": 5}\n")}),
       "has a field 'text' that is no text");
  says(options("d", {file("d.jsonl", good + "\n{\"text\": \"cut")}), "line 3 of '");
  says(options("e", {file("e.jsonl.gz", gzipped(lines_).substr(0, 500))}), "it is cut off");
  says(options("f", {file("f.txt.zst", zstandard(lines_).substr(0, 500))}), "it is cut off");
  says(options("g", {file("g.parquet", "PAR1....")}), "is Parquet; convert it first: python3");
  says(options("h", {file("h.txt", "")}), "no document is left to train on");
  says(options("i", {folder_.file("some.jsonl"), folder_.file("some.jsonl")}), "is given twice");
  PrepareOptions of = options("j");
  of.end_of_text = "<eos>";
  says(of, "--end-of-text is '<eos>', which the tokenizer has not");
  of = options("k");
  of.validation = 1.5;
  says(of, "--validation is 1.5");
  of = options("l");
  of.tokenizer = file("l.json", "{}");
  EXPECT_NE(refused(of), "accepted");
  of = options("m");
  of.tokenizer = folder_.file("absent");
  says(of, "--tokenizer: cannot read '");
}

TEST_F(PrepareTest, TellsOfWhatIsThereAlready) {
  run(options("done"));
  EXPECT_NE(refused(options("done")).find("has prepared data already"), std::string::npos);
  // What an unfinished one of other inputs has encoded is not taken for these.
  const PrepareOptions broken = options("half", {file("half.jsonl.gz", gzipped(lines_).substr(0, 500))});
  refused(broken);
  EXPECT_NE(refused(options("half"))
                .find("has an unfinished preparation with other inputs; remove '" +
                      (fs::path(broken.out) / "unfinished").string() + "'"),
            std::string::npos);
  PrepareOptions renamed = broken;
  renamed.fields.text = "body";
  EXPECT_NE(refused(renamed).find("with other --field"), std::string::npos);
}

TEST_F(PrepareTest, BeginsAnewAfterAMistake) {
  PrepareOptions of = options("mistaken");
  of.fields.text = "txt";
  EXPECT_NE(refused(of).find("has no field 'txt'"), std::string::npos);
  run(options("mistaken"));
}

}  // namespace
}  // namespace tessera::cli
