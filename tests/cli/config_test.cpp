// Every key of the configuration: its default, what it refuses, and that the documentation is of these keys.
#include "src/cli/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "src/cli/config_keys.h"

namespace tessera::cli {
namespace {

// What parsing throws; empty where it does not.
std::string error_of(const std::string& toml, const std::vector<std::string>& settings = {}) {
  try {
    parse_config(toml, "test.toml", settings);
    return "";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << "more than one line: " << message;
    return message;
  }
}

void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in '" << message << "'";
}

std::string toml_of(const Key& key, const std::string& value) {
  return "[" + key.section() + "]\n" + key.leaf() + " = " + value + "\n";
}

std::vector<std::string> wrong_values(const Key& key) {
  switch (key.kind) {
    case KeyKind::text:
      if (key.words.empty()) return {"1", "1.5", "true", "[\"a\"]", "{ a = 1 }", "2020-01-01"};
      return {"1", "1.5", "[\"a\"]", "\"no such word\"", "\"\""};
    case KeyKind::integer:
      return {"\"1\"", "1.5", "1.0", "true", "[1]", "\"automatic\"", "inf"};
    case KeyKind::number:
      return {"\"1\"", "true", "[1.0]", "nan", "inf", "-inf"};
    case KeyKind::boolean:
      return {"1", "0", "\"true\"", "1.0", "[true]"};
    case KeyKind::bytes:
      return {"1.5", "true", "\"4 XiB\"", "\"\"", "\"GiB\"", "\"-1 GiB\"", "-1", "[4]"};
  }
  return {};
}

// error_of() checks the number of lines.
TEST(Config, AMessageIsOneLineWhateverItQuotes) {
  expect_mentions(error_of("[run]\n\"two\\nlines\" = 1\n"), {"test.toml:2: ", "'run.two lines'"});
  expect_mentions(error_of("[\"two\\nlines\"]\n"), {"unknown section 'two lines'"});
  expect_mentions(error_of("", {"run.two\nlines=1"}), {"'run.two lines'"});
  expect_mentions(error_of("", {"run.export=two\nlines.safetensors", "run.export_file_bytes=5"}),
                  {"'two lines.safetensors'"});
}

TEST(Config, EveryKeyRefusesAWrongType) {
  Config config;
  int refused = 0;
  for (const Key& key : keys_of(config)) {
    for (const std::string& value : wrong_values(key)) {
      const std::string message = error_of(toml_of(key, value));
      expect_mentions(message, {"test.toml:2: ", key.name, allowed(key)});
      ++refused;
    }
  }
  EXPECT_GT(refused, 250);
}

TEST(Config, EveryKeyRefusesWhatIsOutOfRange) {
  Config config;
  for (const Key& key : keys_of(config)) {
    if (key.kind != KeyKind::integer && key.kind != KeyKind::number) continue;
    std::vector<std::string> values = {std::to_string(static_cast<std::int64_t>(key.min) - 1)};
    if (key.max < 1e15) values.push_back(std::to_string(static_cast<std::int64_t>(std::ceil(key.max)) + 1));
    if (key.above_min) values.push_back("0");
    if (key.kind == KeyKind::integer) values.push_back("9223372036854775807");
    for (const std::string& value : values) {
      expect_mentions(error_of(toml_of(key, value)), {key.name, value, allowed(key)});
      if (key.kind == KeyKind::integer && value == values.back())
        expect_mentions(error_of(toml_of(key, value)), {std::to_string(static_cast<std::int64_t>(key.max))});
    }
  }
}

TEST(Config, EveryKeyTakesItsDefault) {
  Config config;
  for (const Key& key : keys_of(config)) EXPECT_EQ(error_of(toml_of(key, value_text(key))), "");
}

TEST(Config, EveryKeyIsDocumentedOnce) {
  Config config;
  std::vector<std::string> names;
  for (const Key& key : keys_of(config)) {
    EXPECT_FALSE(key.meaning.empty()) << key.name;
    EXPECT_EQ(key.meaning.back(), '.') << key.name;
    EXPECT_EQ(std::count(names.begin(), names.end(), key.name), 0) << key.name;
    names.push_back(key.name);
  }
}

TEST(Config, AnEmptyFileIsTheDefaults) {
  EXPECT_EQ(to_toml(parse_config("", "empty")), to_toml(Config{}));
  EXPECT_TRUE(differences(parse_config("", "empty"), Config{}).empty());
}

TEST(Config, ReadsWhatItWrites) {
  Config config;
  config.data.train = "a \"quoted\"\\ name\nover two lines\t\x01";
  config.run.device_memory = 5'000'000'000;
  config.run.host_memory = 6'000'000'000;
  config.run.resume = "auto";
  config.run.checkpoint = "ck";
  config.strategy.resident_units = kAuto;
  config.model = {.family = "llama", .preset = "llama-8b", .norm_epsilon = 1e-6, .tied = "false"};
  config.schedule.learning_rate = 0.1 + 0.2;  // takes all 17 digits
  config.optimizer.epsilon = 1e-12;
  const Config again = parse_config(to_toml(config), "written");
  EXPECT_EQ(to_toml(again), to_toml(config));
  EXPECT_EQ(again.data.train, config.data.train);
  EXPECT_EQ(again.schedule.learning_rate, config.schedule.learning_rate);
  EXPECT_EQ(again.strategy.resident_units, kAuto);
}

TEST(Config, SetChangesTheFile) {
  const std::vector<std::string> settings = {"run.steps=7",
                                             "data.train=/tmp/a file=b.txt",
                                             "run.device_memory=4 GiB",
                                             "run.resume=true",
                                             "run.checkpoint=\"quoted\"",
                                             "schedule.learning_rate=1e-4",
                                             "strategy.strict_order=true",
                                             "strategy.resident_units=auto",
                                             "run.seconds=3",
                                             "run.steps=8"};
  const Config config = parse_config("[run]\nsteps = 5\n", "test.toml", settings);
  EXPECT_EQ(config.run.steps, 8);
  EXPECT_EQ(config.data.train, "/tmp/a file=b.txt");
  EXPECT_EQ(config.run.device_memory, std::int64_t{4} << 30);
  EXPECT_EQ(config.run.resume, "true");
  EXPECT_EQ(config.run.checkpoint, "quoted");
  EXPECT_EQ(config.schedule.learning_rate, 1e-4);
  EXPECT_TRUE(config.strategy.strict_order);
  EXPECT_EQ(config.strategy.resident_units, kAuto);
  EXPECT_EQ(config.run.seconds, 3.0);
}

TEST(Config, SetRefusesAsTheFileDoes) {
  expect_mentions(error_of("", {"run.steps=ten"}), {"--set", "run.steps", "ten", "an integer"});
  expect_mentions(error_of("", {"run.steps"}), {"--set run.steps", "section.key=value"});
  expect_mentions(error_of("", {"=3"}), {"section.key=value"});
  expect_mentions(error_of("", {"run.steps=3\nseconds=4"}), {"--set", "run.steps"});
  expect_mentions(error_of("", {"run.step=3"}), {"--set", "unknown key 'run.step'", "'run.steps'"});
  expect_mentions(error_of("", {"data.train=a\xc3"}), {"--set", "'data.train'", "not UTF-8"});
}

TEST(Config, AnUnknownKeyNamesTheClosest) {
  expect_mentions(error_of("[run]\n\nstep = 3\n"),
                  {"test.toml:3:", "'run.step'", "did you mean 'run.steps'"});
  expect_mentions(error_of("[optimizer]\nlearning_rate = 3.0\n"), {"did you mean 'schedule.learning_rate'"});
  expect_mentions(error_of("[data]\nvalidation_fracton = 0.1\n"), {"'data.validation_fraction'"});
  expect_mentions(error_of("[optimizer]\nlr = 0.1\n"), {"'optimizer.lr'", "docs/configuration.md"});
  expect_mentions(error_of("[run]\nsteps.x = 1\n"), {"run.steps", "an integer"});
}

TEST(Config, AnUnknownSectionNamesAll) {
  expect_mentions(error_of("[modle]\nlayers = 3\n"), {"test.toml:1:", "'modle'", "model, data, mesh"});
  expect_mentions(error_of("steps = 3\n"), {"'steps'", "sections are"});
  expect_mentions(error_of("run = 3\n"), {"'run' is a section"});
}

TEST(Config, WhatIsNotTomlNamesTheLine) {
  expect_mentions(error_of("[run]\nsteps = \n"), {"test.toml:2:", "not TOML"});
  expect_mentions(error_of("[run]\nsteps = 3\nsteps = 4\n"), {"test.toml:3:", "not TOML"});
  expect_mentions(error_of("\xff\xfe"), {"not TOML"});
}

TEST(Config, ValuesThatDoNotGoTogether) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"pipeline.chunks=2"}, {"pipeline.chunks", "mesh.pipeline is 1"}},
      {{"pipeline.cuts=3"}, {"pipeline.cuts", "mesh.pipeline is 1"}},
      {{"mesh.pipeline=2", "strategy.stage=1", "pipeline.gather_once=auto"},
       {"pipeline.gather_once is \"auto\"", "strategy.stage = 3", "the stage is 1"}},
      {{"precision.initial_scale=2"}, {"precision.initial_scale", "precision.loss_scaling is false"}},
      {{"precision.growth_interval=5"}, {"precision.growth_interval", "precision.loss_scaling is false"}},
      {{"strategy.state_over_replicas=true"}, {"strategy.state_over_replicas", "mesh.replicate", "3 and 1"}},
      {{"mesh.tensor=2"}, {"mesh.tensor is 2"}},
      {{"strategy.stage=2", "strategy.resident_units=1"}, {"resident_units", "stage is 2"}},
      {{"strategy.resident_units=auto"}, {"resident_units", "run.device_memory"}},
      {{"strategy.recompute=auto"}, {"strategy.recompute", "run.device_memory"}},
      {{"offload.activations=auto"}, {"offload.activations", "strategy.recompute", "none"}},
      {{"optimizer.momentum=0.9"}, {"optimizer.momentum", "adamw"}},
      {{"optimizer.kind=sgd", "optimizer.nesterov=true"}, {"optimizer.nesterov", "momentum above 0"}},
      {{"run.steps=0"}, {"run.steps and run.seconds"}},
      {{"run.steps=0", "run.seconds=1"}, {"schedule.kind", "total_steps"}},
      {{"run.steps=5", "schedule.warmup_steps=6"}, {"schedule.warmup_steps is 6", "5 steps"}},
      {{"run.checkpoint_every=5"}, {"run.checkpoint_every", "run.checkpoint"}},
      {{"run.resume=true"}, {"run.resume", "run.checkpoint"}},
      {{"run.evaluate_every=5", "data.validation_fraction=0"}, {"run.evaluate_every", "data.validation"}},
      {{"precision.parameters=fp16"}, {"fp16", "fp32", "bf16"}},
      {{"model.family=llama"}, {"model.preset is \"gpt2-tiny\"", "llama-tiny, llama-160m"}},
      {{"model.preset=llama-7b"}, {"model.preset is \"llama-7b\"", "gpt2-124m"}},
      {{"model.kv_heads=2"}, {"model.kv_heads", "\"llama\""}},
      {{"model.hidden=64"}, {"model.hidden", "\"llama\""}},
      {{"model.rope_theta=500000"}, {"model.rope_theta", "\"llama\""}},
      {{"model.rope_scaling=8"}, {"model.rope_scaling", "\"llama\""}},
      {{"model.norm_epsilon=1e-6"}, {"model.norm_epsilon", "\"llama\""}},
      {{"model.tied=true"}, {"model.tied", "\"llama\""}},
  };
  for (const auto& [settings, parts] : cases) expect_mentions(error_of("", settings), parts);
}

TEST(Config, ReadsBytes) {
  EXPECT_EQ(parse_bytes("4 GiB"), std::int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("4GiB"), std::int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("1.5 MiB"), 1536 * 1024);
  EXPECT_EQ(parse_bytes("2 GB"), 2'000'000'000);
  EXPECT_EQ(parse_bytes("123"), 123);
  for (const char* text : {"", "GiB", "4 gib", "4 GiB x", "-1", "nan", "1e300", "0x"})
    EXPECT_EQ(parse_bytes(text), std::string(text) == "0x" ? -1 : -1) << text;
}

TEST(Config, DifferencesNameTheKeys) {
  Config after;
  after.run.steps = 200;
  after.optimizer.kind = "sgd";
  EXPECT_EQ(differences(Config{}, after),
            (std::vector<std::string>{"optimizer.kind: \"adamw\" -> \"sgd\"", "run.steps: 100 -> 200"}));
}

TEST(Config, AFileThatCannotBeRead) {
  EXPECT_THROW(load_config("/no/such/file.toml"), EnvironmentError);
  EXPECT_THROW(load_config("/"), EnvironmentError);
}

TEST(Config, TheDocumentationIsOfTheseKeys) {
  const std::string path = TESSERA_SOURCE_DIR "/docs/configuration.md";
  std::ifstream in(path);
  std::ostringstream committed;
  committed << in.rdbuf();
  EXPECT_EQ(committed.str(), config_markdown())
      << path << " is out of date: write the output of `tessera config` to it";
}

TEST(Config, TheExampleIsGood) {
  const Config demo = load_config(TESSERA_SOURCE_DIR "/examples/train_gpt/demo.toml");
  EXPECT_EQ(demo.mesh.shard, 2);
  EXPECT_EQ(demo.strategy.stage, 3);
}

}  // namespace
}  // namespace tessera::cli
