// Every key of the configuration: its default, what it refuses, and that the documentation is of these keys.
#include "src/cli/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "src/cli/config_keys.h"
#include "src/cli/setup.h"

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
    case KeyKind::texts:
      return {"1", "true", "[1]", "[\"a\", 2]", "[\"\"]", "\"a,,b\"", "{ a = 1 }"};
    case KeyKind::factors:
      return {"1",           "true",  "[1]",     "{ a = \"b\" }", "{ a = 0 }",   "{ a = -1.0 }",
              "{ a = inf }", "\"a\"", "\"a=x\"", "\"=1\"",        "\"a=1,,b=2\""};
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
    if (std::set{KeyKind::text, KeyKind::boolean, KeyKind::texts, KeyKind::factors}.contains(key.kind))
      continue;
    std::vector<std::string> values = {
        std::to_string(key.or_zero ? -1 : static_cast<std::int64_t>(key.min) - 1)};
    if (key.max < 1e15) values.push_back(std::to_string(static_cast<std::int64_t>(std::ceil(key.max)) + 1));
    if (key.above_min) values.push_back(fmt::format("{}", key.min));
    if (key.power_of_two) values.push_back("3");
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
  std::get<AdamWOptions>(config.optimizer.chosen()).epsilon = 1e-12;
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
  expect_mentions(error_of("[modle]\nlayers = 3\n"), {"test.toml:1:", "'modle'", "model, lora, data, mesh"});
  expect_mentions(error_of("nothing = 3\n"), {"'nothing'", "sections are"});
  expect_mentions(error_of("[steps]\n"), {"'steps'", "sections are"});
  expect_mentions(error_of("run = 3\n"), {"'run' is a section"});
}

TEST(Config, AKeyAboveAllSectionsNamesThoseThatItMayBe) {
  expect_mentions(error_of("\nsteps = 3\n"),
                  {"test.toml:2: 'steps' stands in no section; did you mean 'run.steps'?"});
  expect_mentions(error_of("seed = 3\n"), {"did you mean 'data.seed' or 'run.seed'?"});
  expect_mentions(error_of("", {"steps=3"}), {"--set: unknown key 'steps'; did you mean 'run.steps'?"});
  EXPECT_EQ(error_of("run.steps = 3\n"), "");
}

// What the library refuses by its own names is refused by key before, with what the documentation says.
TEST(Config, RangesAreThoseOfTheLibrary) {
  struct Case {
    const char *set, *also, *what;  // `also` is needed by the key
  };
  for (const Case& c :
       {Case{"precision.initial_scale=3", "precision.loss_scaling=true",
             "is 3; it must be a power of two from 1 to 16777216"},
        {"optimizer.epsilon=1e-46", "run.pin=true", "is 1e-46; it must be a number from 1e-45 to 1"},
        {"model.rope_theta=1", "model.family=llama", "is 1; it must be 0, or a number above 1"},
        {"model.rope_scaling=0.5", "model.family=llama", "is 0.5; it must be 0, or a number of at least 1"},
        {"model.norm_epsilon=1e-50", "model.family=llama",
         "is 1e-50; it must be 0, or a number from 1e-45 to 0.999999"},
        {"model.norm_epsilon=1", "model.family=llama", "it must be 0, or a number from 1e-45"}}) {
    const std::string set = c.set;
    expect_mentions(error_of("", {set, c.also, "model.preset=llama-tiny"}),
                    {"--set: " + set.substr(0, set.find('=')) + " is ", c.what});
  }
  const auto made = [](const std::vector<std::string>& settings) {
    return make_setup(parse_config("", "test", settings));
  };
  for (const char* set : {"model.rope_theta=0", "model.rope_theta=1.5", "model.rope_scaling=1",
                          "model.norm_epsilon=0", "model.norm_epsilon=1e-45", "optimizer.epsilon=1e-45"})
    EXPECT_NO_THROW(made({set, "model.family=llama", "model.preset=llama-tiny"})) << set;
  EXPECT_NO_THROW(made({"precision.initial_scale=16777216", "precision.loss_scaling=true"}));
}

TEST(Config, HeadsDivideWhatTheyAreOf) {
  expect_mentions(error_of("", {"model.channels=16", "model.heads=3"}),
                  {"model.channels is 16; it must be a multiple of model.heads, which is 3"});
  expect_mentions(
      error_of("", {"model.heads=5"}),
      {"model.channels is 384; it must be a multiple of model.heads, which is 5 (from preset gpt2-tiny: "
       "model.channels)"});
  const auto llama = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"model.family=llama", "model.preset=llama-tiny"});
    return error_of("", settings);
  };
  expect_mentions(
      llama({"model.channels=18"}),
      {"model.channels is 18; it must be an even multiple of model.heads, which is 6 (from preset "
       "llama-tiny: model.heads)"});
  expect_mentions(
      llama({"model.kv_heads=4"}),
      {"model.heads is 6; it must be a multiple of model.kv_heads, which is 4 (from preset llama-tiny: "
       "model.heads)"});
  EXPECT_EQ(llama({"model.channels=24", "model.heads=4", "model.kv_heads=1"}), "");
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
      {{"data.validation=v", "data.validation_fraction=0.2"},
       {"data.validation_fraction is 0.2", "data.validation is set", "leave it at 0.05"}},
      {{"optimizer.kind=sgd", "optimizer.beta1=0.5"}, {"optimizer.beta1 is 0.5", "\"sgd\"", "at 0.9"}},
      {{"optimizer.kind=sgd", "precision.moments=bf16"}, {"precision.moments", "optimizer.momentum is 0"}},
      {{"optimizer.kind=sgd", "optimizer.beta2=0.5"}, {"optimizer.beta2 is 0.5", "\"sgd\"", "at 0.95"}},
      {{"optimizer.kind=sgd", "optimizer.epsilon=0.5"}, {"optimizer.epsilon is 0.5", "\"sgd\"", "1e-08"}},
      {{"schedule.kind=constant", "schedule.total_steps=5"}, {"schedule.total_steps is 5", "\"constant\""}},
      {{"schedule.kind=constant", "schedule.final_factor=0"}, {"schedule.final_factor is 0", "at 0.1"}},
      {{"schedule.base_batch=8"}, {"schedule.base_batch is 8", "schedule.batch_scaling is \"none\"", "at 0"}},
      {{"precision.initial_scale=2"}, {"precision.initial_scale", "precision.loss_scaling is false"}},
      {{"precision.growth_interval=5"}, {"precision.growth_interval", "precision.loss_scaling is false"}},
      {{"strategy.state_over_replicas=true"}, {"strategy.state_over_replicas", "mesh.replicate", "3 and 1"}},
      {{"mesh.replicate=2", "strategy.state_over_replicas=true", "strategy.parameters_over_replicas=true",
        "offload.parameters=host"},
       {"offload.parameters is \"host\"", "strategy.parameters_over_replicas is true", "mesh.shard is 1"}},
      {{"model.layers=100000", "run.microbatches=100000"},
       {"model.layers is 100000 and", "run.microbatches is 100000", "1000000 are the most",
        "make run.microbatches at most 10,"}},
      {{"model.preset=gpt2-124m", "run.microbatches=100000"},
       {"model.layers is 12 and", "(from preset gpt2-124m: model.layers", "run.microbatches is 100000",
        "1200000 blocks", "at most 83333"}},
      {{"model.layers=100000", "run.microbatches_per_step=100000", "mesh.shard=2"},
       {"model.layers is 100000 and", "run.microbatches_per_step is 100000, 50000 of a rank", "at most 10,"}},
      {{"mesh.shard=2", "run.microbatches_per_step=5", "run.microbatches=2"},
       {"run.microbatches_per_step is 5 and run.microbatches is 2", "1 × 2 ranks", "3 of a rank", "at 1"}},
      {{"mesh.shard=2", "run.microbatches_per_step=5", "strategy.reduce=last"},
       {"run.microbatches_per_step is 5, no multiple of the 2 ranks", "strategy.reduce is \"last\""}},
      {{"mesh.shard=3", "mesh.replicate=2", "run.microbatches_per_step=7"},
       {"run.microbatches_per_step is 7, no multiple of the 6 ranks", "mesh.replicate = 1",
        "mesh.replicate is 2"}},
      {{"numerics.blocks=3"}, {"numerics.blocks is 3; it must be a power of two"}},
      {{"numerics.blocks=2", "mesh.replicate=4"}, {"numerics.blocks is 2 and mesh.replicate 4"}},
      {{"numerics.blocks=4", "run.microbatches_per_step=6"},
       {"numerics.blocks is 4 and a step has 6 microbatches", "run.microbatches_per_step a multiple of 4"}},
      {{"numerics.blocks=4", "run.microbatches=1", "mesh.shard=3"},
       {"a step has 3 microbatches", "run.microbatches × mesh.replicate × mesh.shard a multiple of 4"}},
      {{"numerics.blocks=2", "run.microbatches=2", "strategy.reduce=last"},
       {"numerics.blocks is 2 and strategy.reduce is \"last\""}},
      {{"numerics.blocks=2", "run.microbatches=2", "strategy.reduction=native", "run.device=cuda"},
       {"numerics.blocks is 2 and strategy.reduction is \"native\""}},
      {{"mesh.shard=2", "run.microbatches_per_step=1", "strategy.reduction=native", "run.device=cuda"},
       {"run.microbatches_per_step is 1, no multiple of the 2 ranks", "strategy.reduction = \"exact\""}},
      {{"numerics.tensor_blocks=3"}, {"numerics.tensor_blocks is 3; it must be a power of two"}},
      {{"numerics.tensor_blocks=2", "mesh.tensor=4"}, {"numerics.tensor_blocks is 2 and mesh.tensor 4"}},
      {{"numerics.tensor_blocks=2", "strategy.reduction=native", "run.device=cuda"},
       {"numerics.tensor_blocks is 2 and strategy.reduction is \"native\""}},
      {{"mesh.tensor=0"}, {"mesh.tensor is 0"}},
      {{"strategy.exchange_chunks=4"},
       {"strategy.exchange_chunks is 4", "mesh.tensor of 2 or more", "it is 1"}},
      {{"strategy.exchange_chunks=2", "mesh.tensor=2", "numerics.tensor_blocks=2"},
       {"strategy.exchange_chunks is 2 and numerics.tensor_blocks 2"}},
      {{"strategy.exchange_chunks=0"}, {"strategy.exchange_chunks is 0"}},
      {{"strategy.sequence_parallel=false"},
       {"strategy.sequence_parallel is false", "mesh.tensor of 2 or more"}},
      {{"strategy.exchange_chunks=2", "mesh.tensor=2", "strategy.sequence_parallel=false"},
       {"strategy.exchange_chunks is 2 and strategy.sequence_parallel false"}},
      {{"strategy.stage=2", "strategy.resident_units=1"}, {"resident_units", "stage is 2"}},
      {{"strategy.resident_units=auto"}, {"resident_units", "run.device_memory"}},
      {{"strategy.recompute=auto"}, {"strategy.recompute", "run.device_memory"}},
      {{"offload.activations=auto"}, {"offload.activations", "strategy.recompute", "none"}},
      {{"optimizer.momentum=0.9"}, {"optimizer.momentum", "adamw"}},
      {{"optimizer.kind=lion", "optimizer.momentum=0.9"},
       {"optimizer.momentum is 0.9", "\"lion\"", "not \"sgd\""}},
      {{"optimizer.kind=lion", "optimizer.epsilon=0.5"},
       {"optimizer.epsilon is 0.5", "\"lion\"", "not \"adamw\" or \"adam\"", "1e-08"}},
      {{"optimizer.kind=sgd", "optimizer.nesterov=true"}, {"optimizer.nesterov", "momentum above 0"}},
      {{"run.steps=0", "data.validation_fraction=0"}, {"run.steps = 0", "data.validation"}},
      {{"run.steps=0", "run.seconds=1"},
       {"schedule.kind is \"cosine\"", "(by default: schedule.kind, schedule.total_steps)"}},
      {{"run.steps=5", "schedule.warmup_steps=6"}, {"schedule.warmup_steps is 6", "5 steps"}},
      {{"run.checkpoint_every=5"}, {"run.checkpoint_every", "run.checkpoint"}},
      {{"run.resume=true"}, {"run.resume", "run.checkpoint"}},
      {{"run.evaluate_every=5", "data.validation_fraction=0"}, {"run.evaluate_every", "data.validation"}},
      {{"precision.parameters=fp16"}, {"fp16", "fp32", "bf16"}},
      {{"precision.parameters=fp32", "precision.products=fp8"},
       {"precision.products is \"fp8\"", "precision.parameters is \"fp32\"", "set it to \"bf16\""}},
      {{"model.family=llama", "model.preset=gpt2-tiny"},
       {"model.preset is \"gpt2-tiny\"", "llama-tiny, llama-160m"}},
      {{"model.preset=llama-tiny", "model.rope_low_freq_factor=2"},
       {"model.rope_low_freq_factor is 2.0", "model.rope_scaling is 1"}},
      {{"model.preset=llama-1b", "model.rope_low_freq_factor=4"},
       {"model.rope_high_freq_factor is 4; it must be above model.rope_low_freq_factor, which is 4",
        "(from preset llama-1b: model.rope_high_freq_factor)"}},
      {{"model.family=gpt2", "model.preset=llama-7b"},
       {"model.preset is \"llama-7b\" and model.family is \"gpt2\"", "gpt2-124m", "leave model.family out"}},
      {{"model.kv_heads=2"}, {"model.kv_heads", "\"llama\""}},
      {{"model.hidden=64"}, {"model.hidden", "\"llama\""}},
      {{"model.rope_theta=500000"}, {"model.rope_theta", "\"llama\""}},
      {{"model.rope_scaling=8"}, {"model.rope_scaling", "\"llama\""}},
      {{"model.norm_epsilon=1e-6"}, {"model.norm_epsilon", "\"llama\""}},
      {{"model.tied=true"}, {"model.tied", "\"llama\""}},
  };
  for (const auto& [settings, parts] : cases) expect_mentions(error_of("", settings), parts);
}

TEST(Config, KeysAreTakenWhereTheyCount) {
  const std::vector<std::vector<std::string>> cases = {
      {"data.validation=v", "data.validation_fraction=0"},  // says what is so
      {"data.validation=v", "data.validation_fraction=0.05"},
      {"data.validation_fraction=0.2"},
      {"optimizer.kind=adam", "optimizer.beta1=0.5", "optimizer.beta2=0.5", "optimizer.epsilon=0.5"},
      {"optimizer.kind=sgd", "optimizer.momentum=0.5", "optimizer.nesterov=true", "precision.moments=bf16"},
      {"optimizer.beta1=0.95", "optimizer.beta2=0.98", "optimizer.kind=lion", "precision.moments=bf16"},
      {"schedule.kind=linear", "schedule.total_steps=5", "schedule.final_factor=0"},
      {"schedule.kind=constant", "schedule.warmup_steps=5"},
      {"schedule.batch_scaling=linear", "schedule.base_batch=8"},
      {"precision.loss_scaling=true", "precision.initial_scale=2", "precision.growth_interval=5"},
      {"precision.products=fp8"},
      {"model.layers=100", "run.microbatches=10000"},
      {"model.layers=200", "run.evaluation_microbatches=5001"},  // there is no evaluation
      {"model.layers=200", "run.evaluate_every=5", "run.evaluation_microbatches=50001"},  // run in parts
  };
  for (const std::vector<std::string>& settings : cases) EXPECT_EQ(error_of("", settings), "");
}

// Each is of one: what is given beside it stays what is said.
TEST(Config, APresetImpliesItsFamily) {
  const auto family = [](const std::string& toml, const std::vector<std::string>& settings) {
    return parse_config(toml, "test", settings).model.family;
  };
  EXPECT_EQ(family("", {"model.preset=llama-7b"}), "llama");
  EXPECT_EQ(family("[model]\npreset = \"llama-tiny\"\nkv_heads = 1\n", {}), "llama");
  EXPECT_EQ(family("[model]\npreset = \"llama-tiny\"\n", {"model.preset=gpt2-124m"}), "gpt2");
  EXPECT_EQ(family("", {}), "gpt2");
}

TEST(Config, AFamilyAloneIsItsSmallestPreset) {
  const Config llama = parse_config("", "test", std::vector<std::string>{"model.family=llama"});
  EXPECT_EQ(llama.model.preset, "llama-tiny");
  EXPECT_EQ(parse_config("[model]\nfamily = \"gpt2\"\n", "test").model.preset, "gpt2-tiny");
}

TEST(Config, RopeScalingHasANumberForEachOfLlama3) {
  const std::vector<std::string> settings = {
      "model.preset=llama-tiny", "model.rope_scaling=8", "model.rope_low_freq_factor=1.5",
      "model.rope_high_freq_factor=6", "model.rope_original_context=64"};
  const auto setup = make_setup(parse_config("", "test", settings));
  const RopeScaling& scaling = std::get<LlamaConfig>(setup.dimensions).rope_scaling;
  EXPECT_EQ(scaling.factor, 8.0);
  EXPECT_EQ(scaling.low_frequency, 1.5);
  EXPECT_EQ(scaling.high_frequency, 6.0);
  EXPECT_EQ(scaling.original_context, 64);
}

TEST(Config, ShowsNumbersAsTheyWereWritten) {
  expect_mentions(error_of("", {"data.validation_fraction=0.95"}), {"is 0.95; it must be"});
  expect_mentions(error_of("[run]\nseconds = -0.1\n"), {"is -0.1; it must be"});
  expect_mentions(error_of("", {"schedule.learning_rate=nan"}), {"is nan; it must be"});
}

TEST(Config, TellsTheLargestThatAKeyTakes) {
  for (const std::string& digits :
       {std::string("ten"), std::string("9223372036854775807"), std::string(400, '9')})
    expect_mentions(error_of("", {"run.steps=" + digits}), {"it must be an integer from 0 to 2147483647"});
  for (const char* bytes : {"9007199254740993", "8193 TiB", "\"1e300\""})
    expect_mentions(error_of("", {std::string("run.device_memory=") + bytes}),
                    {"it must be bytes: an integer from 0 to 9007199254740992, or text"});
  EXPECT_EQ(error_of("", {"run.device_memory=8192 TiB"}), "");
  expect_mentions(error_of("", {"run.seconds=1e300"}),
                  {"is 1e+300; it must be a number from 0 to 1000000000"});
  EXPECT_EQ(error_of("", {"run.seconds=1e9"}), "");
  // What is written of a key says all that it takes.
  Config config;
  for (const Key& key : keys_of(config))
    if (key.kind == KeyKind::integer || key.kind == KeyKind::bytes)
      expect_mentions(allowed(key), {fmt::format(" to {:.0f}", key.max)});
}

TEST(Config, ListsAndFactorsAreTablesOrPlainText) {
  const std::vector<std::string> patterns = {"embed.*", "block.0.*"};
  EXPECT_EQ(read_config("[model]\nfrozen = [\"embed.*\", \"block.0.*\"]\n", "test").model.frozen, patterns);
  const std::vector<std::string> settings = {"model.frozen=embed.*, block.0.*"};
  EXPECT_EQ(read_config("", "test", settings).model.frozen, patterns);
  const std::vector<std::string> one = {"lora.targets=all-linear"};
  EXPECT_EQ(read_config("", "test", one).lora.targets, std::vector<std::string>{"all-linear"});
  const std::vector<std::pair<std::string, double>> rates = {{"embed.*", 0.1}, {"head.*", 2.0}};
  const Config config = read_config("[optimizer]\nrates = { \"head.*\" = 2, \"embed.*\" = 0.1 }\n", "test");
  EXPECT_EQ(config.optimizer.rates, rates);
  const std::vector<std::string> text = {"optimizer.rates=head.*=2,embed.*=0.1"};
  EXPECT_EQ(read_config("", "test", text).optimizer.rates, rates);
  EXPECT_EQ(read_config(to_toml(config), "test").optimizer.rates, rates);
  expect_mentions(error_of("", {"optimizer.rates=embed.*=0.1,embed.*=0.2"}), {"optimizer.rates"});
}

TEST(Config, KeysOfAdaptersGoTogether) {
  expect_mentions(error_of("", {"lora.alpha=16"}), {"lora.alpha is 16.0, but lora.rank is 0"});
  expect_mentions(error_of("", {"lora.targets=q_proj"}), {"lora.targets", "lora.rank is 0"});
  expect_mentions(error_of("", {"lora.rank=8", "run.export=out.safetensors"}),
                  {"run.export is one file, 'out.safetensors', and lora.rank is 8", "lora.merge = true"});
  EXPECT_EQ(error_of("", {"lora.rank=8", "run.export=out.safetensors", "lora.merge=true"}), "");
  expect_mentions(error_of("", {"lora.rank=8", "run.export=out", "run.export_file_bytes=1 GiB"}),
                  {"run.export_file_bytes is 1073741824 and lora.rank is 8"});
}

TEST(Config, NamesTheUnitsOfBytes) {
  for (const char* unit : {"G", "Gi", "gb"})
    expect_mentions(error_of("", {std::string("run.device_memory=4 ") + unit}),
                    {"run.device_memory", "in B, KiB, MiB, GiB, TiB, kB, MB, GB or TB"});
}

TEST(Config, NamesTheKeysOfWhatCannotBeCounted) {
  const auto refusal = [](const std::vector<std::string>& settings) -> std::string {
    try {
      make_setup(parse_config("", "test", settings));
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  expect_mentions(
      refusal({"run.sequences=100000000", "run.length=100"}),
      {"run.sequences is 100000000 and run.length is 100", "make run.sequences at most 21474836"});
  EXPECT_EQ(refusal({"run.sequences=21474836", "run.length=100"}), "");
  expect_mentions(refusal({"model.channels=1000000000", "model.heads=1"}),
                  {"model.channels 1000000000", "shape [3000000000, 1000000000]"});
  // Each of them can be counted, and their sum cannot.
  const std::string type = "precision.parameters=fp32";
  expect_mentions(refusal({type, "model.channels=16777216", "model.heads=1", "model.layers=1000"}),
                  {"model.layers is 1000 and model.channels 16777216", "parameters a plan cannot count"});
  expect_mentions(
      refusal({type, "model.channels=4194304", "model.heads=1", "run.sequences=1000000", "run.length=1000",
               "model.context=1000", "run.microbatches=1000"}),
      {"model.channels 4194304", "run.microbatches is 1000", "activations of", "more than a plan can count"});
  expect_mentions(
      refusal({"mesh.shard=1000000", "run.sequences=21474836", "run.length=100", "run.microbatches=100000"}),
      {"run.microbatches is 100000", "1000000 data ranks", "more than can be counted"});
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

// In whatever order the keys come, and as it is written back.
TEST(Config, AnOptimizersKeysBeginWithItsDefaults) {
  const auto options = [](const std::vector<std::string>& settings) {
    const Config config = parse_config("", "test", settings);
    return parse_config(to_toml(config), "written").optimizer.chosen();
  };
  const auto lion = std::get<LionOptions>(options({"optimizer.kind=lion"}));
  EXPECT_EQ(lion.beta1, 0.9);
  EXPECT_EQ(lion.beta2, 0.99);
  EXPECT_EQ(lion.weight_decay, 0.1);
  EXPECT_EQ(std::get<LionOptions>(options({"optimizer.beta2=0.95", "optimizer.kind=lion"})).beta2, 0.95);
  EXPECT_EQ(std::get<AdamWOptions>(options({})).beta2, 0.95);
  EXPECT_EQ(
      std::get<AdamOptions>(options({"optimizer.kind=adam", "optimizer.weight_decay=0.2"})).weight_decay,
      0.2);
  EXPECT_EQ(std::get<SgdOptions>(options({"optimizer.kind=sgd"})).weight_decay, 0.1);
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

TEST(Config, TheLossScaleHasTheBoundsThatItsKeysTell) {
  Config config;
  const LossScaleOptions bounds;
  const std::vector<Key> keys = keys_of(config);
  const auto initial = std::ranges::find(keys, "precision.initial_scale", &Key::name);
  EXPECT_EQ(initial->min, bounds.min);
  EXPECT_EQ(initial->max, bounds.max);
  const auto scaling = std::ranges::find(keys, "precision.loss_scaling", &Key::name);
  expect_mentions(scaling->meaning, {fmt::format("no less than {:.0f};", bounds.min),
                                     fmt::format("no more than {:.0f} (2^24)", bounds.max)});
}

TEST(Config, TheExampleIsGood) {
  const Config demo = load_config(TESSERA_SOURCE_DIR "/examples/train_gpt/demo.toml");
  EXPECT_EQ(demo.mesh.shard, 2);
  EXPECT_EQ(demo.strategy.stage, 3);
}

}  // namespace
}  // namespace tessera::cli
