// What a user gets wrong is refused before the work, or told; nothing that was done is lost for it.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tessera/data.h"
#include "tests/cli/tool.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(Tool, SeesThatItCanSaveBeforeItTrains) {
  const std::string text = folder_.file("text.txt");
  for (const std::string& place : {text + "/below", std::string("/proc/none")}) {
    expect_refused(train({"run.checkpoint=" + place}), {"run.checkpoint: cannot write into '" + place + "'"});
    expect_refused(train({"run.export=" + place + "/all.safetensors"}),
                   {"run.export: cannot write into '" + place + "'"});
    expect_refused(train({"run.export=" + place}), {"run.export: cannot write into '" + place + "'"});
  }
}

TEST_F(Tool, KeepsToTheModelOfACheckpoint) {
  const std::string saved = folder_.file("saved");
  ASSERT_EQ(train({"run.checkpoint=" + saved}).status, 0);
  const Result resumed =
      train({"run.checkpoint=" + saved, "run.resume=true", "run.steps=8", "model.heads=4"});
  EXPECT_EQ(resumed.status, 1);
  EXPECT_THAT(resumed.err, HasSubstr("computes something else (model.heads: 2 -> 4)"));
  const Result exported =
      run({"checkpoint", "export", config_, saved, folder_.file("weights"), "--set", "model.heads=4"});
  EXPECT_EQ(exported.status, 1);
  EXPECT_THAT(exported.err, HasSubstr("computes something else (model.heads: 2 -> 4)"));
  EXPECT_EQ(run({"checkpoint", "export", config_, saved, ""}).status, 2);
  // What does not fit is said by key, too.
  const Result wider =
      train({"run.checkpoint=" + saved, "run.resume=true", "run.steps=8", "model.channels=32"});
  EXPECT_EQ(wider.status, 1);
  EXPECT_THAT(wider.err, HasSubstr("does not fit this run: "));
  EXPECT_THAT(wider.err, HasSubstr("; changed since it was saved: model.channels: 16 -> 32\n"));
  // A longer sequence is another order of samples, but the same model.
  const Result shorter = train({"run.checkpoint=" + saved, "run.resume=true", "run.steps=8", "run.length=8"});
  EXPECT_EQ(shorter.status, 0) << shorter.err;
  EXPECT_THAT(shorter.out, HasSubstr("changed   run.length: 16 -> 8"));
  // So is what is dropped in training, which depends on the seed.
  const Result other = train({"run.checkpoint=" + saved, "run.resume=true", "run.steps=10", "run.length=8",
                              "model.dropout=0.2", "model.attention_dropout=0", "run.seed=7"});
  EXPECT_EQ(other.status, 0) << other.err;
  for (const char* change :
       {"model.dropout: 0.1 -> 0.2", "model.attention_dropout: 0.1 -> 0", "run.seed: 1 -> 7"})
    EXPECT_THAT(other.out, HasSubstr(std::string("changed   ") + change));
  EXPECT_EQ(
      run({"checkpoint", "export", config_, saved, folder_.file("weights"), "--set", "model.dropout=0.3"})
          .status,
      0);
}

TEST_F(Tool, SaysHowToGoOnFromAnOlderCheckpoint) {
  const std::string saved = folder_.file("saved");
  const std::string settings[] = {"run.checkpoint=" + saved, "schedule.total_steps=9"};
  ASSERT_EQ(train({settings[0], settings[1], "run.checkpoint_every=2", "run.steps=4"}).status, 0);
  const std::filesystem::path newest = saved + "/step-00000004/rank-00000.tessera";
  std::filesystem::resize_file(newest, std::filesystem::file_size(newest) - 1);
  // Half removed, and no step's any more.
  std::filesystem::copy(saved + "/step-00000002", saved + "/step-00000003.removed.tmp");
  const Arguments resumes = {settings[0], settings[1], "run.resume=true", "run.steps=6"};
  const Result refused = train(resumes);
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("is damaged"));
  EXPECT_THAT(refused.err,
              HasSubstr("; to continue from step-00000002, write that name into '" + saved + "/latest'"));
  std::ofstream(saved + "/latest") << "step-00000002\n";
  const Result resumed = train(resumes);
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("resumed   at step 2"));
  // Which the damaged one did not push out.
  EXPECT_TRUE(std::filesystem::exists(saved + "/step-00000002"));
  EXPECT_FALSE(std::filesystem::exists(saved + "/step-00000004"));
}

// The samples of a step are the same on any mesh, as long as they are as many.
TEST_F(Tool, ContinuesOnAnotherMesh) {
  const std::string saved = "run.checkpoint=" + folder_.file("saved");
  ASSERT_EQ(train({saved, "run.steps=4"}).status, 0);
  const Result fewer = train({saved, "run.resume=true", "run.steps=8", "mesh.shard=1"});
  EXPECT_EQ(fewer.status, 1);
  EXPECT_THAT(fewer.err, HasSubstr("with this batch it would have been"));
  EXPECT_THAT(fewer.err,
              HasSubstr("the product of run.sequences, run.microbatches, mesh.replicate and mesh.shard"));
  const Result resumed = train({saved, "run.resume=true", "run.steps=8", "mesh.shard=1", "mesh.pipeline=2",
                                "run.microbatches=4", "strategy.stage=0"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("changed   mesh.shard: 2 -> 1\n"));
  std::vector<std::string> exported;
  for (const char* mesh : {"mesh.shard=1", "mesh.shard=3", "mesh.pipeline=2"}) {
    const Result weights = run({"checkpoint", "export", config_, folder_.file("saved"),
                                folder_.file("weights.safetensors"), "--set", mesh});
    EXPECT_EQ(weights.status, 0) << weights.err;
    exported.push_back(read(folder_.file("weights.safetensors")));
    EXPECT_EQ(exported.back(), exported.front());
  }
}

TEST_F(Tool, KeepsToTheDataOfACheckpoint) {
  const std::string saved = folder_.file("saved"), text = sample_text(600);
  const auto write = [&](const std::string& name, std::string_view words) {
    return folder_.write(name, std::as_bytes(std::span(words)));
  };
  const std::string first = write("part_1.txt", text), second = write("part_2.txt", text.substr(1));
  const std::string pattern = "data.train=" + folder_.file("part_*.txt");
  const Arguments resumes = {pattern, "run.checkpoint=" + saved, "run.resume=true", "run.steps=8"};
  ASSERT_EQ(train({pattern, "run.checkpoint=" + saved}).status, 0);
  std::filesystem::remove(second);
  const Result lacking = train(resumes);
  EXPECT_EQ(lacking.status, 1);
  EXPECT_THAT(lacking.err,
              HasSubstr("part_*.txt', has " + std::to_string(text.size()) + " tokens in 1 file ("));
  EXPECT_THAT(lacking.err,
              HasSubstr("it had " + std::to_string(2 * text.size() - 1) + " tokens in 2 files ("));
  write("part_2.txt", "x" + text.substr(2));  // as many, others
  EXPECT_THAT(train(resumes).err, HasSubstr("data.train"));
  // Data of another name is a change that is told.
  const Result other =
      train({"data.train=" + first, "run.checkpoint=" + saved, "run.resume=true", "run.steps=8"});
  EXPECT_EQ(other.status, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr("changed   the data: "));
  EXPECT_THAT(other.out, HasSubstr("changed   data.train: "));
}

TEST_F(Tool, TakesTheWeightsOfTheCheckpoint) {
  const std::string saved = "run.checkpoint=" + folder_.file("saved");
  ASSERT_EQ(train({saved}).status, 0);
  const Result resumed = train({saved, "run.resume=true", "run.steps=8", "model.weights=/nope"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_THAT(resumed.out, ::testing::Not(HasSubstr("model.weights")));
}

TEST_F(Tool, TellsEveryChangeThatChangesWhatComesNext) {
  const std::string saved = "run.checkpoint=" + folder_.file("saved");
  ASSERT_EQ(train({saved, "schedule.total_steps=0"}).status, 0);
  const Result resumed =
      train({saved, "schedule.total_steps=0", "run.resume=true", "run.steps=8", "run.sequences=4",
             "run.microbatches=1", "run.metrics=" + folder_.file("metrics")});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  for (const char* change : {"run.steps: 6 -> 8", "run.sequences: 2 -> 4", "run.microbatches: 2 -> 1"})
    EXPECT_THAT(resumed.out, HasSubstr("changed   " + std::string(change)));
  EXPECT_THAT(resumed.out, ::testing::Not(HasSubstr("run.metrics")));
}

TEST_F(Tool, NamesTheKeyOfDataThatHasNoSample) {
  const std::string_view few = "too few";
  const std::string file = folder_.write("few_1.txt", std::as_bytes(std::span(few)));
  folder_.write("few_2.txt", std::as_bytes(std::span(few)));
  folder_.write("few_3.txt", std::as_bytes(std::span(few)));
  entries_ = folder_.entries();
  expect_refused(train({"data.train=" + file}), {"data.train: '" + file + "' has 7 tokens"});
  expect_refused(train({"data.train=" + folder_.file("few_*.txt")}), {"data.train: ", "all in one file"});
  expect_refused(train({"model.vocabulary=100"}),
                 {"data.train: ", "at least 256, not 100; set model.vocabulary = 256"});
  // What is named is looked at, be it evaluated on or not.
  EXPECT_THAT(train({"data.validation=" + folder_.file("text.txt"), "run.steps=1"}).out,
              HasSubstr("evaluate  never, as run.evaluate_every is 0, on data.validation\n"));
  for (const char* every : {"run.evaluate_every=0", "run.evaluate_every=2"}) {
    expect_refused(train({"data.validation=" + file, every}),
                   {"data.validation: '" + file + "' has 7 tokens"});
    expect_refused(train({"data.validation=" + folder_.file("none"), every}),
                   {"data.validation: ", "none", "No such file"});
  }
}

TEST_F(Tool, TellsWhatIsKeptOfDataThatAreTooFewThen) {
  const std::string text = sample_text(10).substr(0, 20);
  const std::string file = folder_.write("brief.txt", std::as_bytes(std::span(text)));
  entries_ = folder_.entries();
  expect_refused(
      train({"data.train=" + file, "data.validation_fraction=0.5"}),
      {"data.train: '" + file + "' has 10 tokens to train on; a sample of run.length = 16 needs 17",
       "; data.validation_fraction = 0.5 keeps 10 of its 20 for evaluation"});
}

TEST_F(Tool, NamesFilesThatAreTooShortToBeRead) {
  int number = 0;
  const std::string text = sample_text(600);
  for (const std::size_t bytes : {400, 12, 10, 13, 9, 17})
    folder_.write("part_" + std::to_string(number++), std::as_bytes(std::span(text).first(bytes)));
  const Result result = train({"data.train=" + folder_.file("part_*"), "data.validation_fraction=0"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("unread    4 of 6 files of data.train (44 tokens) are too short for a sample "
                        "of run.length = 16, which takes 17: "));
  EXPECT_THAT(result.out, HasSubstr("part_1, "));
  EXPECT_THAT(result.out, HasSubstr("part_3 and 1 more\n"));
  EXPECT_THAT(train({}).out, ::testing::Not(HasSubstr("unread")));
}

TEST_F(Tool, WritesOverNothingThatItReads) {
  const std::string text = folder_.file("text.txt"), before = read(text);
  for (const char* key : {"run.metrics", "run.trace"})
    expect_refused(train({std::string(key) + "=" + text}),
                   {std::string(key) + ": '" + text + "' is read as data.train"});
  expect_refused(train({}, {"--json", config_}), {"--json", "is read as the configuration"});
  for (const char* option : {"--json", "--html", "--program"})
    expect_refused(run({"plan", config_, option, folder_.file("./run.toml")}),
                   {option, "is read as the configuration"});
  expect_refused(run({"simulate", config_, "--trace", config_}), {"--trace", "is read as the configuration"});
  for (const char* option : {"--json", "--html", "--program"})
    expect_refused(run({"plan", config_, option, text}), {option, "is read as data.train"});
  for (const char* option : {"--json", "--trace"})
    expect_refused(run({"simulate", config_, option, text, "--set", "data.train=" + folder_.file("text.*")}),
                   {option, "is read as data.train"});
  expect_refused(
      run({"plan", config_, "--json", text, "--set", "run.metrics=" + text, "--set", "data.train="}),
      {"--json: '" + text + "' is run.metrics, too"});
  expect_refused(run({"checkpoint", "export", config_, folder_.file("saved"), config_}),
                 {"the output", "is read as the configuration"});
  EXPECT_EQ(read(text), before);
  const std::string out = folder_.file("out");
  expect_refused(train({"run.metrics=" + out, "run.trace=" + out}),
                 {"run.trace: '" + out + "' is run.metrics, too"});
  const std::string weights = folder_.file("weights.safetensors"),
                    folder = std::filesystem::path(out).parent_path();
  expect_refused(train({"model.weights=" + weights, "run.export=" + folder}),
                 {"run.export", "model.weights"});
  expect_refused(train({"model.weights=" + folder, "run.export=" + weights}),
                 {"run.export", "model.weights"});
  const std::string loose = folder_.write("loose.txt", std::as_bytes(std::span(before)));
  std::filesystem::create_directory(folder_.file("model"));
  const std::string stored = folder_.file("model/model.safetensors");
  std::ofstream(stored) << "weights";
  std::filesystem::create_directory(folder_.file("folder.safetensors"));
  entries_ = folder_.entries();
  for (const std::string& named : {folder_.file("model"), folder_.file("model/an.index.json"), stored}) {
    expect_refused(train({"model.weights=" + named}, {"--json", stored}),
                   {"--json", "read as model.weights"});
    expect_refused(run({"checkpoint", "export", config_, folder_.file("saved"), folder_.file("model"),
                        "--set", "model.weights=" + named}),
                   {"the output: '" + folder_.file("model") + "' is where model.weights"});
  }
  expect_refused(train({"data.validation=" + loose, "run.trace=" + loose, "run.evaluate_every=0"}),
                 {"run.trace", "is read as data.validation"});
  expect_refused(train({"run.export=" + folder_.file("folder.safetensors")}),
                 {"run.export: '", "folder.safetensors' is a folder"});
  EXPECT_EQ(read(loose), before);
  EXPECT_EQ(read(stored), "weights");
  // Nor over what no run wrote; over an earlier run's metrics it says so.
  const std::string_view words = "not metrics\n";
  const std::string other = folder_.write("other.txt", std::as_bytes(std::span(words)));
  entries_ = folder_.entries();
  expect_refused(train({"run.metrics=" + other}), {"run.metrics: '" + other + "' holds something else"});
  EXPECT_EQ(read(other), words);
  const std::string metrics = "run.metrics=" + folder_.file("metrics");
  EXPECT_THAT(train({metrics}).out, ::testing::Not(HasSubstr("written over")));
  EXPECT_THAT(train({metrics}).out, HasSubstr("metrics   those of an earlier run in "));
}

// Also what it had opened or made by the time that it was refused; and what was there stays.
TEST_F(Tool, LeavesNothingOfARunThatIsRefused) {
  const std::string old = "{\"step\":1}\n", metrics = folder_.write("metrics", std::as_bytes(std::span(old)));
  entries_ = folder_.entries();
  const std::string nothing = folder_.file("none");
  for (const Arguments& mistake :
       {Arguments{"run.device_memory=10000"}, Arguments{"model.weights=" + nothing},
        Arguments{"offload.states=disk", "offload.directory=" + nothing}})
    for (const std::string& lines : {metrics, folder_.file("new")}) {
      Arguments all = {"run.checkpoint=" + folder_.file("new/and/saved/"),
                       "run.trace=" + folder_.file("trace"), "run.metrics=" + lines};
      all.insert(all.end(), mistake.begin(), mistake.end());
      const Result result = train(all);
      EXPECT_EQ(result.status, 1) << result.out;
      EXPECT_EQ(folder_.entries(), entries_) << mistake.front() << " left something";
      EXPECT_EQ(read(metrics), old) << mistake.front();
    }
  EXPECT_THAT(train({"model.weights=" + nothing}).err,
              HasSubstr("model.weights: there is no safetensors file"));
  ASSERT_EQ(train({"run.metrics=" + metrics}).status, 0);
  EXPECT_EQ(losses(metrics).size(), 6u);  // a fresh run's alone
  EXPECT_EQ(read_lines(metrics).size(), 6u);
}

// An export writes its output, not what a run of its configuration would.
TEST_F(Tool, ExportsToWhereARunWould) {
  const std::string saved = folder_.file("saved"), output = folder_.file("all.safetensors");
  ASSERT_EQ(train({"run.checkpoint=" + saved}).status, 0);
  const Result exported =
      run({"checkpoint", "export", config_, saved, output, "--set", "run.export=" + output});
  EXPECT_EQ(exported.status, 0) << exported.err;
}

// What a command leaves where its result would be, whenever it fails: the line that it prints.
TEST_F(Tool, TheResultOfAFailedCommandIsItsError) {
  const std::string path = folder_.file("json");
  ASSERT_EQ(train({}, {"--json", path}).status, 0);
  ASSERT_EQ(json::parse(read(path)).count("error"), 0u);
  const auto expect_told = [&](const Arguments& arguments) {
    Arguments all = arguments;
    all.insert(all.end(), {"--json", path});
    const Result result = run(all);
    EXPECT_EQ(result.status, 1);
    const json left = json::parse(read(path));
    EXPECT_EQ(left.size(), 1u);
    EXPECT_EQ("tessera: " + left.value("error", "") + "\n", result.err);
    EXPECT_EQ(folder_.entries(), entries_ + 1);
    std::filesystem::remove(path);  // nor need there be one of before
  };
  expect_told(train_arguments({"run.step=5"}));
  expect_told(train_arguments({"run.device_memory=10000"}));
  expect_told(train_arguments({"model.weights=" + folder_.file("none")}));
  expect_told({"plan", config_, "--html", folder_.file("no/page")});
  expect_told({"simulate", config_, "--gflops", "1e-300"});
  expect_told({"checkpoint", "verify", folder_.file("none")});
}

// Where it may be what is read, also before it is known what that is.
TEST_F(Tool, AnErrorGoesOverNothingElse) {
  const std::string text = folder_.file("text.txt"), before = read(text);
  std::filesystem::create_directory(folder_.file("model"));
  const std::string weights = folder_.file("model/config.json");
  std::ofstream(weights) << "{}";
  EXPECT_EQ(train({"run.step=5"}, {"--json", text}).status, 1);
  EXPECT_EQ(train({}, {"--json", text}).status, 1);
  EXPECT_EQ(read(text), before);
  const std::string index = folder_.file("model/model.safetensors.index.json");
  std::ofstream(index) << "{\"weight_map\": {}}";  // as JSON, and no result
  EXPECT_EQ(train({"run.step=5"}, {"--json", index}).status, 1);
  EXPECT_EQ(read(index), "{\"weight_map\": {}}");
  EXPECT_EQ(train({"model.weights=" + folder_.file("model")}, {"--json", weights}).status, 1);
  EXPECT_EQ(read(weights), "{}");
}

TEST_F(Tool, NamesOutputsThatAreNoPath) {
  const std::string dash = "; name /dev/stdout for the standard output, or ./- for a file of that name";
  for (const auto& [path, why] :
       {std::pair<std::string, std::string>{"", "it is empty; name what to write to"},
        {"-", "it is \"-\"" + dash}})
    for (const Arguments& arguments : {Arguments{"train", config_, "--json", path},
                                       {"plan", config_, "--html", path},
                                       {"plan", config_, "--program", path},
                                       {"simulate", config_, "--trace", path},
                                       {"info", "--json", path},
                                       {"checkpoint", "export", config_, "saved", path}}) {
      const Result result = run(arguments);
      EXPECT_EQ(result.status, 2) << arguments.front();
      EXPECT_THAT(result.err, HasSubstr(": " + why + "; see tessera "));
    }
  for (const char* key : {"run.metrics", "run.trace", "run.export", "run.checkpoint"})
    expect_refused(train({std::string(key) + "=-"}), {std::string(key) + ": it is \"-\"" + dash});
}

// Of several processes that mpirun started the first alone says what all find; what is of a host, each.
TEST_F(Tool, OneProcessSpeaksForAllWhereNoRankIsNeeded) {
  const auto as_rank = [&](const std::string& rank, const Arguments& arguments) {
    ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    ::setenv("OMPI_COMM_WORLD_RANK", rank.c_str(), 1);
    const Result result = run(arguments);
    ::unsetenv("OMPI_COMM_WORLD_SIZE");
    ::unsetenv("OMPI_COMM_WORLD_RANK");
    return result;
  };
  for (const Arguments& arguments : {Arguments{"plan", config_, "--json", folder_.file("json")},
                                     {"simulate", config_, "--trace", folder_.file("json")},
                                     {"config"}}) {
    const Result second = as_rank("1", arguments);
    EXPECT_EQ(second.status, 0) << second.err;
    EXPECT_EQ(second.out, "") << arguments.front();
    EXPECT_FALSE(std::filesystem::exists(folder_.file("json")));
    const Result first = as_rank("0", arguments);
    EXPECT_EQ(first.status, 0) << first.err;
    EXPECT_THAT(first.out, HasSubstr("\n"));
    EXPECT_EQ(std::filesystem::remove(folder_.file("json")), arguments.size() > 1);
  }
  EXPECT_EQ(as_rank("1", {"plan", folder_.file("none")}).status, 1);
  EXPECT_THAT(as_rank("1", {"info"}).out, HasSubstr("processor"));
}

TEST_F(Tool, NamesTheDirectoryOfTheDisk) {
  for (const char* kept : {"offload.states=disk", "offload.parameters=disk"}) {
    const Arguments disk = {kept, "offload.states=disk", "strategy.stage=3"};
    const auto refused = [&](const std::string& directory, const std::string& what) {
      Arguments all = disk;
      all.push_back("offload.directory=" + directory);
      expect_refused(train(all), {"offload.directory: '" + directory + "' is " + what});
    };
    refused(folder_.file("none"), "not there; name an existing directory");
    refused(folder_.file("text.txt"), "no directory; name");
  }
  // Which counts only where the disk holds something.
  EXPECT_EQ(train({"offload.states=host", "run.steps=1", "schedule.total_steps=1"}).status, 0);
}

TEST_F(Tool, LeavesNothingOfAnExportThatFindsAFullDisk) {
  for (const char* place : {"exported", "exported.safetensors"}) {
    // A limit on file sizes stands for a full disk: the system refuses in the same calls.
    const Result result = finish(start(train_arguments({"run.export=" + folder_.file(place)}), 20000));
    EXPECT_EQ(result.status, 1) << result.out;
    EXPECT_THAT(result.err, HasSubstr("safetensors file '"));
    EXPECT_EQ(folder_.entries(), entries_) << place;
  }
}

// Which nobody may ever write.
TEST_F(Tool, WaitsForNoPipeOfWeights) {
  const std::string pipe = folder_.file("pipe.safetensors");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  entries_ = folder_.entries();
  expect_refused(train({"model.weights=" + pipe}), {"model.weights: ", pipe, "it is not a regular file"});
}

TEST_F(Tool, KeepsToTheModelOfTheWeights) {
  const std::string weights = folder_.file("weights");
  ASSERT_EQ(train({"run.export=" + weights}).status, 0);
  const auto started = [&](const std::string& more = "run.steps=1") {
    return train({"model.weights=" + weights, "run.steps=1", "schedule.total_steps=1", more});
  };
  const Result own = started();
  EXPECT_EQ(own.status, 0);
  EXPECT_THAT(own.out, ::testing::Not(HasSubstr("dropout")));  // its own went into config.json
  json config = json::parse(read(weights + "/config.json"));
  config["resid_pdrop"] = 0.25;
  config.erase("attn_pdrop");  // the transformers library drops a tenth
  std::ofstream(weights + "/config.json") << config;
  const Result dropping = started("model.attention_dropout=0");
  EXPECT_EQ(dropping.status, 0) << dropping.err;
  EXPECT_THAT(dropping.out, HasSubstr("weights   config.json has attn_pdrop 0.1, resid_pdrop 0.25; this run "
                                      "drops 0.1 (model.dropout) and 0 (model.attention_dropout)"));
  for (const std::string& path : {weights, weights + "/model.safetensors"}) {
    const Result other = train({"model.weights=" + path, "model.heads=4"});
    EXPECT_EQ(other.status, 1);
    EXPECT_THAT(other.err, HasSubstr("model.heads is 4, but '" + weights + "/config.json' has n_head 2; "));
  }
  std::ofstream(weights + "/config.json") << "{";
  EXPECT_THAT(train({"model.weights=" + weights}).err, HasSubstr("config.json' is no JSON object"));
  // What is there and cannot be read is not passed over.
  std::filesystem::remove(weights + "/config.json");
  std::filesystem::create_directory(weights + "/config.json");
  EXPECT_THAT(started().err, HasSubstr("model.weights: cannot read '" + weights + "/config.json'"));
  std::filesystem::remove(weights + "/config.json");
  std::filesystem::create_symlink("nowhere", weights + "/config.json");
  EXPECT_THAT(started().err, HasSubstr("cannot read '" + weights + "/config.json': No such file"));
  std::filesystem::remove(weights + "/config.json");
  EXPECT_EQ(started().status, 0);
  const std::string loop = folder_.file("loop");
  std::filesystem::create_symlink("loop", loop);
  EXPECT_THAT(train({"model.weights=" + loop}).err, HasSubstr("cannot look for safetensors at '" + loop));
}

// Neither shows in a tensor. Version 5 of transformers writes rope_parameters; what is missing has a default.
TEST_F(Tool, KeepsToTheAttentionAndTheRotaryEmbeddingOfTheWeights) {
  const std::string weights = folder_.file("weights");
  const auto with_config = [&](Arguments sets, const json& changes) {
    json config = json::parse(read(weights + "/config.json"));
    config.merge_patch(changes);
    std::ofstream(weights + "/config.json") << config;
    sets.insert(sets.end(), {"model.weights=" + weights, "run.steps=1", "schedule.total_steps=1"});
    return train(sets);
  };
  ASSERT_EQ(train({"run.export=" + weights}).status, 0);
  EXPECT_THAT(with_config({}, {{"scale_attn_by_inverse_layer_idx", true}}).err,
              HasSubstr("has scale_attn_by_inverse_layer_idx true; supported is false"));

  const Arguments llama = {"model.family=llama", "model.preset=llama-tiny", "model.kv_heads=1",
                           "model.hidden=16",    "model.rope_theta=500",    "model.norm_epsilon=1e-6"};
  std::filesystem::remove_all(weights);
  Arguments exporting = llama;
  exporting.push_back("run.export=" + weights);
  const Result exported = train(exporting);
  ASSERT_EQ(exported.status, 0) << exported.err;
  json rope = {{"rope_type", "default"}, {"rope_theta", 500.0}};
  for (const json& type : {json(3), json("linear")})
    EXPECT_THAT(with_config(llama, {{"rope_scaling", {{"rope_type", type}, {"factor", 2.0}}}}).err,
                HasSubstr("has rope_scaling {\"factor\":2.0,\"rope_type\":" + type.dump() + "}"));
  EXPECT_THAT(with_config(llama, {{"rope_scaling", nullptr}, {"tie_word_embeddings", true}}).err,
              HasSubstr("model.preset is \"llama-tiny\", whose tied is false, but"));
  with_config(llama, {{"tie_word_embeddings", false}});
  const json missing = {{"rope_theta", nullptr}, {"rope_scaling", nullptr}, {"rms_norm_eps", nullptr}};
  EXPECT_THAT(with_config(llama, missing).err, HasSubstr("model.rope_theta is 500.0, but '" + weights +
                                                         "/config.json' has rope_theta 10000.0"));
  EXPECT_EQ(with_config(llama, {{"rope_parameters", rope}}).status, 0);
  rope["rope_theta"] = 1000.0;
  EXPECT_THAT(with_config(llama, {{"rope_parameters", rope}}).err, HasSubstr("has rope_theta 1000.0"));
  rope.update({{"rope_theta", 500.0}, {"rope_type", "linear"}, {"factor", 4.0}});
  EXPECT_THAT(with_config(llama, {{"rope_parameters", rope}}).err,
              HasSubstr(R"("rope_type":"linear"}; supported is null, or "rope_type" "llama3")"));
}

TEST_F(Tool, KnowsNoCutsWithoutAUnit) {
  for (const char* cuts : {"", ",", "1,", "a"})
    expect_refused(train({"mesh.pipeline=2", "pipeline.cuts=\"" + std::string(cuts) + "\""}),
                   {"pipeline.cuts is \"" + std::string(cuts) + "\"; it must be \"balanced\""});
}

TEST_F(Tool, TracesARunOfOneStep) {
  const std::string trace = folder_.file("trace");
  ASSERT_EQ(train({"run.trace=" + trace, "run.steps=1", "schedule.total_steps=1"}).status, 0);
  EXPECT_GT(json::parse(read(trace)).at("traceEvents").size(), 20u);
}

TEST_F(Tool, SaysWhereNothingIsLeftToTrain) {
  const std::string saved = "run.checkpoint=" + folder_.file("saved");
  ASSERT_EQ(train({saved}).status, 0);
  const Result none = train({saved, "run.resume=true", "run.steps=4", "schedule.total_steps=4"},
                            {"--json", folder_.file("json")});
  EXPECT_EQ(none.status, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("no step was trained: run.steps is 4, and 6 were done before"));
  const json summary = json::parse(read(folder_.file("json")));
  EXPECT_EQ(summary.at("steps"), 6);
  EXPECT_TRUE(summary.at("loss").is_null());
}

TEST_F(Tool, BeginsTheMetricsOfARunThatNeverSavedAgain) {
  const std::string metrics = folder_.file("metrics");
  const Arguments settings = {"run.metrics=" + metrics, "run.resume=auto",
                              "run.checkpoint=" + folder_.file("saved")};
  std::ofstream(metrics) << "{\"step\":1,\"loss\":9.0}\n{\"step\":2,\"loss\":9.0}\n";
  ASSERT_EQ(train(settings).status, 0);
  const std::vector<json> lines = read_lines(metrics);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_NE(lines.at(0).at("loss"), 9.0);
}

TEST_F(Tool, EndsWhereNoGradientIsFinite) {
  const Result result = train({"schedule.learning_rate=1000", "optimizer.clip=0", "run.steps=400",
                               "schedule.kind=constant", "schedule.total_steps=0"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("50 steps in a row were skipped"));
}

TEST_F(Tool, RefusesAPromptThatTheModelHasNoTokensFor) {
  {
    TokenWriter writer(folder_.file("tokens.bin"), TokenEncoding::uint16);
    writer.append(std::vector<std::int32_t>(4000, 7));
    writer.finish();
  }
  entries_ = folder_.entries();
  expect_refused(
      train({"data.train=" + folder_.file("tokens.bin"), "run.sample_tokens=4", "run.sample_prompt=300"}),
      {"run.sample_prompt is \"300\"", "token ids from 0 to 255"});
}

TEST_F(Tool, TellsWhyAFileCannotBeWritten) {
  for (const Arguments& arguments : {Arguments{"plan", config_, "--json", "/dev/full"},
                                     {"plan", config_, "--html", "/dev/full"},
                                     {"plan", config_, "--program", "/dev/full"},
                                     {"simulate", config_, "--trace", "/dev/full"}}) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr(arguments[2] + ": cannot write '/dev/full': No space left on device"));
  }
}

TEST_F(Tool, SavesWhatItTrainedWhereMetricsCannotBeWritten) {
  const std::string saved = folder_.file("saved");
  for (const Arguments& ranks : {Arguments{}, {"mesh.shard=2"}}) {
    Arguments settings = {"run.metrics=/dev/full", "run.checkpoint=" + saved};
    settings.insert(settings.end(), ranks.begin(), ranks.end());
    const Result result = train(settings);
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("run.metrics: cannot write '/dev/full': No space left on device"));
    EXPECT_THAT(run({"checkpoint", "inspect", saved}).out, HasSubstr("step-00000001"));
    std::filesystem::remove_all(saved);
  }
}

TEST_F(Tool, FailsWhereItsOutputGoesNowhere) {
  const auto shell = [&](const std::string& redirected) {
    return std::system((std::string(TESSERA_TOOL) + " plan " + config_ + redirected).c_str());
  };
  EXPECT_EQ(shell(" > /dev/null"), 0);
  EXPECT_NE(shell(" > /dev/full 2> /dev/null"), 0);
  // What is printed does not land in a file that took the place of a stream.
  EXPECT_EQ(shell(" --json " + folder_.file("json") + " >&-"), 0);
  EXPECT_TRUE(json::accept(read(folder_.file("json"))));
}

// The lines of a table from its heading to an empty line or the end of a quotation.
std::vector<std::string> table_in(const std::string& text, const std::string& heading) {
  std::vector<std::string> lines;
  if (text.find(heading) == std::string::npos) return lines;
  std::istringstream rest(text.substr(text.find(heading)));
  for (std::string line; std::getline(rest, line) && !line.empty() && line != "```";) lines.push_back(line);
  return lines;
}

// All but the bytes, which are more or less by what the processor's products need.
TEST_F(Tool, PrintsThePlanThatItsPageShows) {
  const std::string source = TESSERA_SOURCE_DIR;
  const Result plan = run({"plan", source + "/examples/train_gpt_pipeline/mesh.toml"});
  const std::vector<std::string> printed = table_in(plan.out, "pipeline  units"),
                                 shown = table_in(read(source + "/docs/tool.md"), "pipeline  units");
  ASSERT_GT(printed.size(), 1U) << plan.out << plan.err;
  ASSERT_EQ(printed.size(), shown.size());
  EXPECT_EQ(printed[0], shown[0]);
  for (std::size_t line = 1; line < printed.size(); ++line) {
    const std::size_t number = printed[line].rfind(' ') + 1;
    EXPECT_EQ(printed[line].substr(0, number), shown[line].substr(0, number));
    EXPECT_NEAR(std::stod(printed[line].substr(number)) / std::stod(shown[line].substr(number)), 1.0, 0.2)
        << printed[line];
  }
}

TEST_F(Tool, NamesAConfigurationThatCannotBeRead) {
  for (const char* path :
       {"/nowhere/run.toml", "/proc/self/mem", "/tmp"})  // the second opens, and reads as an error
    expect_refused(run({"plan", path}), {"cannot read the configuration '" + std::string(path) + "'"});
}

TEST_F(Tool, NamesNumbersThatAreNotPositive) {
  const Result result = run({"simulate", config_, "--gflops", "0"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("--gflops: 0 is no number above 0"));
}

TEST_F(Tool, WritesNothingIntoACheckpointThatItReads) {
  const std::string saved = folder_.file("saved"), step = saved + "/step-00000006";
  ASSERT_EQ(train({"run.checkpoint=" + saved}).status, 0);
  const std::string file = step + "/rank-00000.tessera", before = read(file),
                    latest = read(saved + "/latest");
  entries_ = folder_.entries();
  for (const char* command : {"inspect", "verify"})
    for (const std::string& checkpoint : {saved, saved + "/", step})
      for (const std::string& output : {file, saved + "/latest", step + "/../new"})
        expect_refused(run({"checkpoint", command, checkpoint, "--json", output}),
                       {"--json: '" + output + "' lies in "});
  for (const char* output : {"/step-00000006", "/all.safetensors"})
    expect_refused(run({"checkpoint", "export", config_, saved, saved + output}),
                   {"the output: ", "lies in "});
  EXPECT_TRUE(read(file) == before);
  EXPECT_EQ(read(saved + "/latest"), latest);
  EXPECT_EQ(run({"checkpoint", "inspect", saved, "--json", saved + ".json"}).status, 0);
  std::filesystem::create_symlink(saved, folder_.file("latest"));  // of many runs, not of one's steps
  EXPECT_EQ(run({"checkpoint", "inspect", saved, "--json", saved + ".json"}).status, 0);
}

// In the words of the command line, one line, without the parser's own.
TEST_F(Tool, NamesWhatIsWrongWithTheCommandLine) {
  const auto expect_told = [&](const Arguments& arguments, const std::string& words) {
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 2);
    EXPECT_EQ(result.err, "tessera: " + words + " --help\n");
    EXPECT_EQ(result.out, "");
  };
  expect_told({"--bogus"}, "there is no option '--bogus'; see tessera");
  expect_told({"trian"}, "there is no command 'trian'; did you mean 'train'?; see tessera");
  expect_told({"help"},
              "there is no command 'help'; the commands are train, evaluate, generate, plan, simulate, "
              "compare, info, "
              "checkpoint, "
              "config, tokenizer, data, report, launch; see tessera");
  expect_told({}, "a command is missing; see tessera");
  expect_told({"checkpoint", "inspct"},
              "there is no command 'inspct'; did you mean 'inspect'?; see tessera checkpoint");
  expect_told({"train"}, "tessera train needs config; see tessera train");
  expect_told({"simulate", config_, "--gflops", "1", "--gflops", "2"},
              "--gflops is given more than once; give it once; see tessera simulate");
}

TEST_F(Tool, NamesSizesInAUnitThatFits) {
  const Result result =
      finish(start(train_arguments({"offload.states=disk", "offload.directory=" + folder_.file("")}), 20000));
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, ::testing::ContainsRegex("cannot keep [0-9]+ bytes \\([0-9]+[.][0-9]+ KiB\\) in "));
}

TEST_F(Tool, SaysWhyItCannotReadOrWrite) {
  expect_refused(run({"train", folder_.file("none.toml")}), {"none.toml': No such file or directory"});
  expect_refused(run({"plan", outputs_.file("")}), {"': Is a directory"});
  const Result full = finish(start_process({"/bin/sh", "-c", TESSERA_TOOL " config > /dev/full"}, printed()));
  EXPECT_EQ(full.status, 1);
  EXPECT_EQ(full.err, "tessera: cannot write to the standard output: No space left on device\n");
}

TEST_F(Tool, NamesTheMemoryAndTheThreadsThatItLacks) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "shadow memory exceeds the limit";
#endif
  const auto limited = [&](const std::string& limits, const Arguments& arguments) {
    std::string line = limits + "; exec " TESSERA_TOOL;
    for (const std::string& one : arguments) line += " '" + one + "'";
    return finish(start_process({"/bin/sh", "-c", line}, printed()));
  };
  const Result plan = limited("ulimit -v 300000", {"plan", config_, "--set", "model.layers=50000"});
  EXPECT_EQ(plan.status, 1);
  EXPECT_EQ(plan.err, "tessera: out of memory: the system gives this process no more\n");
  rlimit stack{};
  ::getrlimit(RLIMIT_STACK, &stack);
  if (stack.rlim_max != RLIM_INFINITY) GTEST_SKIP() << "a stack may not be as large as this needs";
  // No stack of a thread fits into what the process may map.
  const std::string limits = "ulimit -s 1000000 && ulimit -v 900000";
  const Result ranks = limited(limits, train_arguments({}));
  EXPECT_EQ(ranks.status, 1);
  EXPECT_THAT(ranks.err, HasSubstr("cannot start the thread of rank 1: "));
}

TEST_F(Tool, TellsOfDataThatAreNeverReadAndOfThreadsThatTakeTurns) {
  EXPECT_THAT(
      train({"data.validation_fraction=0.25"}).out,
      HasSubstr("evaluate  never, as run.evaluate_every is 0: the last 25 % of data.train are not read, "
                "by data.validation_fraction\n"));
  EXPECT_THAT(train({"data.validation_fraction=0"}).out, ::testing::Not(HasSubstr("evaluate  ")));
  const Result one = train({"run.threads_per_rank=1", "mesh.shard=1", "run.steps=1"});
  EXPECT_THAT(one.out, ::testing::Not(HasSubstr("take turns")));
  EXPECT_THAT(one.out, ::testing::ContainsRegex(" tokens in 1 step and [0-9.:]+"));
  EXPECT_THAT(train({"run.threads_per_rank=700", "run.steps=1"}).out,
              ::testing::ContainsRegex(
                  "threads   2 ranks with 700 threads each on [0-9]+ cores?: they take turns\n"));
}

}  // namespace
}  // namespace tessera::testing
