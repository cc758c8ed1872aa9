// Weights leave one world as safetensors and enter another: the same bits, in the layouts of Hugging Face's
// checkpoints, from files that are whole or not there.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <mutex>

#include "tessera/hugging_face.h"
#include "tessera/model.h"
#include "tessera/trainer.h"
#include "tests/device/refuse_call.h"
#include "tests/trainer/safetensors_file.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr Gpt2Config kGpt2 = {.vocabulary = 61, .context = 16, .layers = 2, .heads = 2, .channels = 32};
constexpr LlamaConfig kLlama = {
    .vocabulary = 61, .context = 16, .layers = 2, .heads = 4, .kv_heads = 2, .channels = 32, .hidden = 88};

LlamaConfig tied_llama() {
  LlamaConfig config = kLlama;
  config.tied = true;
  return config;
}

enum class Family { gpt2, llama, tied_llama };

struct Case {
  Family family = Family::gpt2;
  int world = 1;
  int stage = 0;
  DType type = DType::fp32;
  std::uint64_t seed = 1;
  std::int64_t vocabulary = 61;
  std::int64_t channels = 32;
  int tensor = 1;  // ranks for each of `world`
};

Model model_of(const Case& run) {
  if (run.family == Family::gpt2) {
    Gpt2Config config = kGpt2;
    config.vocabulary = run.vocabulary;
    config.channels = run.channels;
    return make_gpt2(config, run.type);
  }
  return make_llama(run.family == Family::llama ? kLlama : tied_llama(), run.type);
}

// `body(world, engine, map)` on each rank of a new world with initial weights of the seed.
template <class Body>
void on_ranks(const Case& run, const Body& body, std::vector<std::string>* messages = nullptr) {
  const auto model = std::make_shared<const Model>(model_of(run));
  TrainerOptions options;
  options.engine.mesh.shard = run.world;
  options.engine.mesh.tensor = run.tensor;
  options.engine.strategy.placements = Placements::of_stage(run.stage);
  options.engine.optimizer = {.options = AdamWOptions{}, .groups = {{.name = "decay"}, {.name = "no_decay"}}};
  options.batch = {.sequences = 1, .length = 8};
  options.seed = run.seed;
  const auto rank_main = [&](Communicator world) {
    Trainer trainer(world, model, options);
    body(world, trainer.engine(), hugging_face_weights(*model));
  };
  run_local(run.world * run.tensor, {.deadline = std::chrono::seconds(20)}, rank_main, messages);
}

using Values = std::map<std::string, std::vector<float>>;

// Masters and rounded parameters, by name.
Values values_of(Engine& engine) {
  Values values;
  for (ParameterId id = 0; id < engine.layout().parameters(); ++id)
    for (const StateKind state : {StateKind::master, StateKind::parameter}) {
      std::vector<float> one(static_cast<std::size_t>(numel_of(engine.layout().parameter(id).shape)));
      engine.read(id, state, 0, one);
      values[engine.layout().parameter(id).name + (state == StateKind::master ? "" : " rounded")] =
          std::move(one);
    }
  return values;
}

Values values_of(const Case& run) {
  Values result;
  on_ranks(run, [&](Communicator world, Engine& engine, const WeightMap&) {
    Values values = values_of(engine);
    if (world.rank() == 0) result = std::move(values);
  });
  return result;
}

Values imported(const Case& run, const fs::path& path) {
  Values result;
  on_ranks(run, [&](Communicator world, Engine& engine, const WeightMap& map) {
    import_safetensors(path, world, engine, map);
    Values values = values_of(engine);
    if (world.rank() == 0) result = std::move(values);
  });
  return result;
}

void export_to(const fs::path& path, const Case& run, const SafetensorsExport& options = {}) {
  on_ranks(run, [&](Communicator world, Engine& engine, const WeightMap& map) {
    export_safetensors(path, world, engine, map, options);
  });
}

class Weights : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }
  TemporaryFolder folder_;
};

class RoundTrip : public Weights, public ::testing::WithParamInterface<Family> {};

TEST_P(RoundTrip, AnyWorldGivesTheSameFileAndTakesTheSameWeights) {
  const Values expected = values_of({.family = GetParam()});
  std::string first;
  for (const int world : {1, 2})
    for (const int stage : {0, 3}) {
      const std::string path = file("out.safetensors");
      export_to(path, {.family = GetParam(), .world = world, .stage = stage});
      if (first.empty()) first = bytes_of_file(path);
      ASSERT_TRUE(bytes_of_file(path) == first) << "world " << world << " stage " << stage;
      EXPECT_EQ(folder_.entries(), 1) << "a temporary file stayed";
      for (const int other : {1, 2, 3})
        for (const int other_stage : {0, 1, 3})
          ASSERT_TRUE(imported({.family = GetParam(), .world = other, .stage = other_stage, .seed = 99},
                               path) == expected)
              << "from world " << world << " stage " << stage << " to " << other << " and " << other_stage;
      fs::remove(path);
    }
}

// Whole tensors, also of a vocabulary that the ranks do not divide.
TEST_P(RoundTrip, TensorRanksGiveTheSameFileAndTakeTheSameWeights) {
  for (const DType type : {DType::fp32, DType::bf16}) {
    const Case one{.family = GetParam(), .type = type};
    const Values expected = values_of(one);
    export_to(file("one"), one);
    for (const int shards : {1, 2})
      for (const int stage : {0, 3}) {
        Case run = one;
        run.world = shards, run.stage = stage, run.tensor = 2;
        // Four share two heads of keys and values.
        if (GetParam() != Family::gpt2 && shards == 1) run.tensor = 4;
        EXPECT_TRUE(values_of(run) == expected) << "of one seed";
        export_to(file("out"), run);
        ASSERT_TRUE(bytes_of_file(file("out/model.safetensors")) ==
                    bytes_of_file(file("one/model.safetensors")))
            << shards << " shards, stage " << stage;
        run.seed = 99;
        ASSERT_TRUE(imported(run, file("one")) == expected) << shards << " shards, stage " << stage;
      }
  }
}

TEST_P(RoundTrip, MastersOfBf16AreExchangedInFull) {
  const Case run{.family = GetParam(), .world = 2, .stage = 3, .type = DType::bf16};
  const Values expected = values_of(run);
  export_to(file("fp32"), run);
  Case other{.family = GetParam(), .world = 1, .stage = 1, .type = DType::bf16, .seed = 7};
  EXPECT_TRUE(imported(other, file("fp32")) == expected);
  export_to(file("bf16"), run, {.dtype = DType::bf16});
  Values rounded = imported(other, file("bf16"));
  for (const auto& [name, values] : expected) {
    if (name.ends_with(" rounded")) continue;
    EXPECT_TRUE(rounded[name] == expected.at(name + " rounded")) << name;
  }
  const SafetensorsFile stored(file("bf16/model.safetensors"));
  for (const auto& [name, tensor] : stored.header.items())
    EXPECT_EQ(tensor.value("dtype", ""), name == "__metadata__" ? "" : "BF16") << name;
}

TEST_P(RoundTrip, SeveralFilesAndTheirIndex) {
  const Case run{.family = GetParam(), .world = 2, .stage = 3};
  const Values expected = values_of(run);
  export_to(file("out"), run, {.max_file_bytes = 20000});
  EXPECT_FALSE(fs::exists(file("out/model.safetensors")));
  const json index = json::parse(bytes_of_file(file("out/model.safetensors.index.json")));
  std::map<std::string, std::int64_t> bytes;
  for (const auto& [name, where] : index["weight_map"].items()) {
    const SafetensorsFile one(file("out/" + where.get<std::string>()));
    ASSERT_TRUE(one.header.contains(name)) << name;
    bytes[where] = static_cast<std::int64_t>(one.data.size());
  }
  EXPECT_GE(bytes.size(), 3u);
  std::int64_t total = 0;
  for (const auto& [where, count] : bytes) {
    EXPECT_LE(count, 20000) << where;
    total += count;
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_TRUE(imported({.family = GetParam(), .seed = 5}, file("out")) == expected);
  EXPECT_TRUE(imported({.family = GetParam(), .seed = 5}, file("out/model.safetensors.index.json")) ==
              expected);
  // One file takes the place of the several, and nothing of them stays.
  export_to(file("out"), run);
  EXPECT_EQ(std::distance(fs::directory_iterator(file("out")), fs::directory_iterator()), 1);
  EXPECT_TRUE(imported({.family = GetParam(), .seed = 5}, file("out")) == expected);
}

TEST_F(Weights, AFolderGetsTheConfigurationAndAFileDoesNot) {
  const std::string text = "{\"model_type\": \"gpt2\"}\n";
  std::vector<fs::path> written;
  on_ranks({.world = 2}, [&](Communicator world, Engine& engine, const WeightMap& map) {
    auto files = export_safetensors(file("out"), world, engine, map, {.config = text});
    export_safetensors(file("g.safetensors"), world, engine, map, {.config = text});
    if (world.rank() == 0) written = std::move(files);
  });
  EXPECT_EQ(written, (std::vector<fs::path>{file("out/model.safetensors"), file("out/config.json")}));
  EXPECT_EQ(bytes_of_file(file("out/config.json")), text);
  EXPECT_EQ(folder_.entries(), 2);
  EXPECT_TRUE(imported({.seed = 3}, file("out")) == values_of({}));  // as it would without it
}

TEST(HuggingFaceConfig, SaysWhatTesseraComputes) {
  const json gpt2 = json::parse(hugging_face_config(kGpt2, DType::bf16));
  EXPECT_EQ(gpt2["architectures"], json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(gpt2["model_type"], "gpt2");
  EXPECT_EQ(gpt2["vocab_size"], 61);
  EXPECT_EQ(gpt2["n_positions"], 16);
  EXPECT_EQ(gpt2["n_layer"], 2);
  EXPECT_EQ(gpt2["n_head"], 2);
  EXPECT_EQ(gpt2["n_embd"], 32);
  EXPECT_EQ(gpt2["activation_function"], "gelu_new");
  EXPECT_EQ(gpt2["layer_norm_epsilon"], 1e-5);
  EXPECT_EQ(gpt2["tie_word_embeddings"], true);
  EXPECT_EQ(gpt2["torch_dtype"], "bfloat16");

  LlamaConfig config = kLlama;
  config.norm_epsilon = 1e-6;
  config.rope_theta = 5e5;
  json llama = json::parse(hugging_face_config(config, DType::fp32));
  EXPECT_EQ(llama["architectures"], json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(llama["model_type"], "llama");
  EXPECT_EQ(llama["vocab_size"], 61);
  EXPECT_EQ(llama["max_position_embeddings"], 16);
  EXPECT_EQ(llama["num_hidden_layers"], 2);
  EXPECT_EQ(llama["num_attention_heads"], 4);
  EXPECT_EQ(llama["num_key_value_heads"], 2);
  EXPECT_EQ(llama["hidden_size"], 32);
  EXPECT_EQ(llama["intermediate_size"], 88);
  EXPECT_EQ(llama["hidden_act"], "silu");
  EXPECT_EQ(llama["rms_norm_eps"], 1e-6);
  EXPECT_EQ(llama["rope_theta"], 5e5);
  EXPECT_EQ(llama["rope_scaling"], nullptr);
  EXPECT_EQ(llama["tie_word_embeddings"], false);
  EXPECT_EQ(llama["torch_dtype"], "float32");
  config.tied = true;
  config.rope_scaling = {.factor = 32.0, .original_context = 4096};
  llama = json::parse(hugging_face_config(config, DType::fp16));
  EXPECT_EQ(llama["rope_scaling"], (json{{"rope_type", "llama3"},
                                         {"factor", 32.0},
                                         {"low_freq_factor", 1.0},
                                         {"high_freq_factor", 4.0},
                                         {"original_max_position_embeddings", 4096}}));
  EXPECT_EQ(llama["tie_word_embeddings"], true);
  EXPECT_EQ(llama["torch_dtype"], "float16");
}

INSTANTIATE_TEST_SUITE_P(Families, RoundTrip,
                         ::testing::Values(Family::gpt2, Family::llama, Family::tied_llama),
                         [](const auto& one) {
                           return std::string(one.param == Family::gpt2    ? "gpt2"
                                              : one.param == Family::llama ? "llama"
                                                                           : "tied_llama");
                         });

std::vector<float> transposed(const std::vector<float>& values, std::size_t rows) {
  std::vector<float> result;
  for (std::size_t c = 0; c < values.size() / rows; ++c)
    for (std::size_t r = 0; r < rows; ++r) result.push_back(values[r * (values.size() / rows) + c]);
  return result;
}

std::vector<float> part(const std::vector<float>& values, std::size_t begin, std::size_t numel) {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin),
          values.begin() + static_cast<std::ptrdiff_t>(begin + numel)};
}

// Names, shapes and layouts as the transformers library has them.
TEST_F(Weights, Gpt2LiesInTheFileAsTransformersStoresIt) {
  Values values = values_of({});
  export_to(file("g.safetensors"), {.world = 2, .stage = 3});
  const SafetensorsFile stored(file("g.safetensors"));
  EXPECT_EQ(stored.header.size(), 1u + 2 + 2 * 12 + 2);
  EXPECT_EQ(stored.header["__metadata__"]["format"], "pt");
  EXPECT_EQ(stored.header["transformer.h.1.attn.c_attn.weight"]["shape"], json({32, 96}));
  EXPECT_EQ(stored.header["transformer.h.1.mlp.c_proj.weight"]["shape"], json({128, 32}));
  EXPECT_EQ(stored.floats("transformer.wpe.weight"), values["embed.position"]);
  EXPECT_EQ(stored.floats("transformer.h.1.attn.c_attn.weight"),
            transposed(values["block.1.attention.qkv.weight"], 96));
  EXPECT_EQ(stored.floats("transformer.h.0.mlp.c_fc.weight"),
            transposed(values["block.0.mlp.up.weight"], 128));
  EXPECT_EQ(stored.floats("transformer.ln_f.weight"), values["head.norm.gain"]);
}

TEST_F(Weights, LlamaLiesInTheFileAsTransformersStoresIt) {
  Values values = values_of({.family = Family::llama});
  export_to(file("l.safetensors"), {.family = Family::llama, .world = 2, .stage = 3});
  const SafetensorsFile stored(file("l.safetensors"));
  EXPECT_EQ(stored.header.size(), 1u + 1 + 2 * 9 + 2);
  const std::vector<float>& qkv = values["block.1.attention.qkv.weight"];
  const std::vector<float>& gate_up = values["block.1.mlp.gate_up.weight"];
  EXPECT_EQ(stored.header["model.layers.1.self_attn.k_proj.weight"]["shape"], json({16, 32}));
  EXPECT_EQ(stored.floats("model.layers.1.self_attn.q_proj.weight"), part(qkv, 0, 32 * 32));
  EXPECT_EQ(stored.floats("model.layers.1.self_attn.k_proj.weight"), part(qkv, 32 * 32, 16 * 32));
  EXPECT_EQ(stored.floats("model.layers.1.self_attn.v_proj.weight"), part(qkv, 48 * 32, 16 * 32));
  EXPECT_EQ(stored.floats("model.layers.1.mlp.gate_proj.weight"), part(gate_up, 0, 88 * 32));
  EXPECT_EQ(stored.floats("model.layers.1.mlp.up_proj.weight"), part(gate_up, 88 * 32, 88 * 32));
  EXPECT_EQ(stored.floats("lm_head.weight"), values["head.weight"]);
}

// Bytes that this process has asked files for.
std::int64_t bytes_read() {
  std::ifstream in("/proc/self/io");
  std::string name;
  std::int64_t bytes = 0;
  in >> name >> bytes;
  return bytes;
}

TEST_F(Weights, ARankReadsTheBytesItHolds) {
  const Case run{.family = Family::gpt2, .world = 4, .stage = 3, .vocabulary = 4099};
  export_to(file("g.safetensors"), run);
  std::int64_t bytes = 0;
  on_ranks(run, [&](Communicator world, Engine& engine, const WeightMap& map) {
    world.barrier();
    const std::int64_t before = bytes_read();
    world.barrier();
    import_safetensors(file("g.safetensors"), world, engine, map, {.allow_nonfinite = true});
    world.barrier();
    if (world.rank() == 0) bytes = bytes_read() - before;
  });
  const auto whole = static_cast<std::int64_t>(fs::file_size(file("g.safetensors")));
  EXPECT_GE(bytes, whole * 9 / 10);
  // Four headers, and rows of transposed matrices that two ranks share.
  EXPECT_LE(bytes, whole * 5 / 4);
}

// Matrices that take several turns through the staging memory, cut anywhere by the shards.
TEST_F(Weights, MatricesLargerThanAStage) {
  const Case run{.channels = 1152};
  const Values expected = values_of(run);
  export_to(file("g.safetensors"), {.world = 3, .stage = 3, .channels = 1152});
  const SafetensorsFile stored(file("g.safetensors"));
  EXPECT_EQ(stored.floats("transformer.h.1.mlp.c_fc.weight"),
            transposed(expected.at("block.1.mlp.up.weight"), 4 * 1152));
  EXPECT_TRUE(imported({.seed = 3, .channels = 1152}, file("g.safetensors")) == expected);
  EXPECT_TRUE(imported({.world = 2, .stage = 3, .seed = 3, .channels = 1152}, file("g.safetensors")) ==
              expected);
}

TEST_F(Weights, TheFormsInWhichOthersStoreThem) {
  const Values expected = values_of({});
  export_to(file("g.safetensors"), {});
  SafetensorsFile bare(file("g.safetensors"));
  json renamed;
  for (const auto& [name, value] : bare.header.items())
    renamed[name.starts_with("transformer.") ? name.substr(12) : name] = value;
  // A causal mask, what takes the place of a masked logit, and the tied head once more.
  const std::size_t end = bare.data.size();
  renamed["h.0.attn.bias"] = {{"dtype", "BOOL"}, {"shape", {2, 2}}, {"data_offsets", {end, end + 4}}};
  renamed["h.1.attn.masked_bias"] = {{"dtype", "U8"}, {"shape", {4}}, {"data_offsets", {end + 4, end + 8}}};
  bare.data += std::string(8, '\1');
  const std::size_t begin = bare.header["transformer.wte.weight"]["data_offsets"][0];
  renamed["lm_head.weight"] = {
      {"dtype", "F32"}, {"shape", {61, 32}}, {"data_offsets", {end + 8, end + 8 + 61 * 32 * 4}}};
  bare.data += bare.data.substr(begin, 61 * 32 * 4);
  bare.header = renamed;
  bare.write(file("bare.safetensors"));
  EXPECT_TRUE(imported({.world = 2, .stage = 3, .seed = 4}, file("bare.safetensors")) == expected);
  bare.data.back() = static_cast<char>(bare.data.back() ^ 1);
  bare.write(file("bare.safetensors"));
  EXPECT_THROW(imported({.world = 2, .stage = 3, .seed = 4}, file("bare.safetensors")), UsageError);
}

// Also where it takes several turns through the staging memory.
TEST_F(Weights, ATiedHeadIsComparedToItsEnd) {
  const Case run{.vocabulary = 33000, .channels = 32};  // 4.2 million bytes
  export_to(file("g.safetensors"), run);
  SafetensorsFile both(file("g.safetensors"));
  const json embedding = both.header["transformer.wte.weight"];
  const std::size_t begin = embedding["data_offsets"][0], end = embedding["data_offsets"][1];
  json head = embedding;
  head["data_offsets"] = {both.data.size(), both.data.size() + end - begin};
  both.header["lm_head.weight"] = head;
  both.data += both.data.substr(begin, end - begin);
  both.write(file("both.safetensors"));
  EXPECT_NO_THROW(imported(run, file("both.safetensors")));
  both.data.back() = static_cast<char>(both.data.back() ^ 1);
  both.write(file("both.safetensors"));
  EXPECT_THROW(imported(run, file("both.safetensors")), UsageError);
}

// What a world says to a file, which must leave its weights as they were on every rank.
std::string refusal(const fs::path& path, const Case& run = {.world = 2, .stage = 3}) {
  std::mutex mutex;
  std::string message;
  on_ranks(run, [&](Communicator world, Engine& engine, const WeightMap& map) {
    const Values before = values_of(engine);
    std::string mine = "accepted";
    try {
      import_safetensors(path, world, engine, map);
    } catch (const UsageError& error) {
      mine = error.what();
    } catch (const EnvironmentError& error) {
      mine = error.what();
    }
    EXPECT_TRUE(values_of(engine) == before);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(message.empty() || message == mine) << message << "\n" << mine;
    message = mine;
  });
  return message;
}

TEST_F(Weights, AFileThatDoesNotFitIsRefusedByTheTensorsName) {
  export_to(file("g.safetensors"), {});
  const SafetensorsFile good(file("g.safetensors"));
  const std::string path = file("bad.safetensors"), name = "transformer.h.1.mlp.c_fc.weight";
  const auto changed = [&](const auto& change) {
    SafetensorsFile bad = good;
    change(bad);
    bad.write(path);
    return refusal(path);
  };
  EXPECT_THAT(changed([&](SafetensorsFile& f) {
                f.header[name]["shape"] = {128, 32};
              }),
              HasSubstr("'" + name + "' of '" + path + "' has shape [128, 32]; the model needs [32, 128]"));
  EXPECT_THAT(changed([&](SafetensorsFile& f) { f.header[name]["dtype"] = "I32"; }),
              HasSubstr("'" + name + "' of '" + path + "' is of type I32"));
  EXPECT_THAT(changed([&](SafetensorsFile& f) {
                f.header["other"] = f.header[name];
                f.header.erase(name);
              }),
              HasSubstr("no tensor '" + name + "'"));
  EXPECT_THAT(changed([&](SafetensorsFile& f) {
                f.header["transformer.h.2.ln_1.weight"] = {
                    {"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {f.data.size(), f.data.size() + 4}}};
                f.data += "abcd";
              }),
              HasSubstr("'transformer.h.2.ln_1.weight' of shape [1], which the model has no place for"));
  EXPECT_THAT(changed([&](SafetensorsFile& f) { f.data.pop_back(); }), HasSubstr("truncated"));
  EXPECT_THAT(changed([&](SafetensorsFile& f) {
                f.header[name]["data_offsets"] = {0, 32 * 128 * 4};
              }),
              HasSubstr("overlaps"));
  EXPECT_THAT(refusal(file("none.safetensors")), HasSubstr("none.safetensors"));
  fs::create_directory(file("empty"));
  EXPECT_THAT(refusal(file("empty")), HasSubstr("neither"));
  EXPECT_THAT(refusal(file("g.safetensors"), {.family = Family::llama}),
              HasSubstr("no tensor 'model.embed_tokens"));
}

// Where ranks hold the same parameters, too: nobody is said to have been given other values.
TEST_F(Weights, AReadThatFailsIsWhatAllRanksEndWith) {
  const std::string file = folder_.file("model.safetensors");
  on_ranks({.family = Family::llama}, [&](Communicator world, Engine& engine, const WeightMap& map) {
    export_safetensors(file, world, engine, map);
  });
  for (const int stage : {0, 2})
    for (const int failing : {0, 1}) {
      std::vector<std::string> messages;
      const auto read = [&](Communicator world, Engine& engine, const WeightMap& map) {
        // On a thread of its own, which alone is refused: reads of whole rows; headers take less.
        std::async(std::launch::async, [&] {
          if (world.rank() == failing)
            refuse_call({.call = SYS_pread64, .argument = 2, .bits = 0x2000, .error = EIO});
          import_safetensors(file, world, engine, map, {.allow_nonfinite = true});
        }).get();
      };
      EXPECT_THROW(on_ranks({.family = Family::llama, .world = 2, .stage = stage}, read, &messages), Error);
      ASSERT_EQ(messages.size(), 2u);
      for (const std::string& message : messages)
        EXPECT_THAT(message, HasSubstr("model.safetensors': Input/output error"));
      EXPECT_THAT(messages[1 - static_cast<std::size_t>(failing)],
                  HasSubstr(fmt::format("rank {} failed", failing)));
    }
}

TEST_F(Weights, FilesThatDifferBetweenRanksAreNoticed) {
  const auto name = [&](int rank) { return folder_.file(fmt::format("{}.safetensors", rank)); };
  on_ranks({.family = Family::llama}, [&](Communicator world, Engine& engine, const WeightMap& map) {
    for (const int rank : {0, 1}) export_safetensors(name(rank), world, engine, map);
  });
  std::fstream(name(1), std::ios::in | std::ios::out | std::ios::binary).seekp(-8, std::ios::end).put(1);
  std::vector<std::string> messages;
  EXPECT_THROW(on_ranks(
                   {.family = Family::llama, .world = 2},
                   [&](Communicator world, Engine& engine, const WeightMap& map) {
                     import_safetensors(name(world.rank()), world, engine, map);
                   },
                   &messages),
               Error);
  for (const std::string& message : messages)
    EXPECT_THAT(message, HasSubstr("rank 1 was given other initial values than rank 0, which holds the same "
                                   "parameters: of another seed or file"));
}

TEST_F(Weights, AnIndexThatContradictsItsFilesIsRefused) {
  export_to(file("out"), {}, {.max_file_bytes = 20000});
  const std::string path = file("out/model.safetensors.index.json");
  const json good = json::parse(bytes_of_file(path));
  const auto changed = [&](const auto& change) {
    json bad = good;
    change(bad["weight_map"]);
    std::ofstream(path) << bad.dump();
    return refusal(file("out"));
  };
  const std::string name = "transformer.ln_f.bias";
  EXPECT_THAT(changed([&](json& map) { map.erase(name); }), HasSubstr("'" + name + "'"));
  EXPECT_THAT(changed([&](json& map) { map[name] = map["transformer.wte.weight"]; }),
              HasSubstr("'" + name + "'"));
  EXPECT_THAT(changed([&](json& map) { map["more"] = map[name]; }), HasSubstr("'more'"));
  EXPECT_THAT(changed([&](json& map) { map[name] = "gone.safetensors"; }), HasSubstr("gone.safetensors"));
}

// Each of the ranks reads each of the files.
TEST_F(Weights, ManyFilesAreReadWithFewDescriptors) {
  export_to(file("out"), {}, {.max_file_bytes = 4});
  const auto files = std::distance(fs::directory_iterator(file("out")), {}) - 1;
  ASSERT_EQ(files, 28);
  const auto open = std::distance(fs::directory_iterator("/proc/self/fd"), {});
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit limit = {.rlim_cur = static_cast<rlim_t>(open + files), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  Values values;
  EXPECT_NO_THROW(values = imported({.world = 4, .stage = 3, .seed = 5}, file("out")));
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(values == values_of({}));
}

TEST_F(Weights, AnExportThatFailsLeavesNothingBehind) {
  const Case run{.world = 2, .stage = 3};
  export_to(file("g.safetensors"), run);
  const std::string before = bytes_of_file(file("g.safetensors"));
  const auto attempt = [&](const fs::path& path, const SafetensorsExport& options, float value) {
    on_ranks(run, [&](Communicator world, Engine& engine, const WeightMap& map) {
      const std::vector<float> large = {value};
      engine.write(engine.layout().find("head.norm.bias"), StateKind::master, 3, large);
      export_safetensors(path, world, engine, map, options);
    });
  };
  try {
    attempt(file("g.safetensors"), {.dtype = DType::fp16}, 1e6f);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'transformer.ln_f.bias' has a value of 1000000"));
  }
  EXPECT_TRUE(bytes_of_file(file("g.safetensors")) == before);
  EXPECT_EQ(folder_.entries(), 1);
  for (const char* path : {"made", "made/deep/out", "made/deep/out/", "made/deep/w.safetensors"})
    EXPECT_THROW(attempt(file(path), {.dtype = DType::fp16}, 1e6f), UsageError) << path;
  EXPECT_EQ(folder_.entries(), 1) << "a folder stayed";
  fs::create_directory(file("there"));
  EXPECT_THROW(attempt(file("there/deep/out"), {.dtype = DType::fp16}, 1e6f), UsageError);
  EXPECT_TRUE(fs::is_empty(file("there")));
  EXPECT_TRUE(fs::remove(file("there"))) << "it was not the export's to remove";
  EXPECT_THROW(attempt(file("g.safetensors"), {.max_file_bytes = 5}, 0.0f), UsageError);
  EXPECT_THROW(attempt(file("out"), {.max_file_bytes = -5}, 0.0f), UsageError);
  EXPECT_THROW(attempt(file("g.safetensors/inside"), {}, 0.0f), EnvironmentError);
  EXPECT_EQ(folder_.entries(), 1);
}

// What lies below half a step above the largest is rounded to that, what lies there or above to infinity.
TEST_F(Weights, Fp16HoldsWhatRoundsToAFiniteValue) {
  constexpr float kOverflows = 65520.0f;
  const float below = std::nextafter(kOverflows, 0.0f);
  const auto stored_as = [&](float value) {
    on_ranks({.world = 2, .stage = 3}, [&](Communicator world, Engine& engine, const WeightMap& map) {
      const std::vector<float> one = {value};
      engine.write(engine.layout().find("head.norm.bias"), StateKind::master, 3, one);
      export_safetensors(file("g.safetensors"), world, engine, map, {.dtype = DType::fp16});
    });
    const SafetensorsFile stored(file("g.safetensors"));
    const std::size_t begin = stored.header["transformer.ln_f.bias"]["data_offsets"][0];
    std::uint16_t bits = 0;
    std::memcpy(&bits, stored.data.data() + begin + 3 * sizeof bits, sizeof bits);
    return bits;
  };
  constexpr std::uint16_t kLargest = 0x7BFF, kNegative = 0x8000;
  EXPECT_EQ(stored_as(65504.0f), kLargest);
  EXPECT_EQ(stored_as(below), kLargest);
  EXPECT_EQ(stored_as(-below), kNegative | kLargest);
  for (const float value : {kOverflows, -kOverflows, 65535.0f, 65536.0f})
    EXPECT_THROW(stored_as(value), UsageError) << value;
}

TEST(WeightMaps, EveryElementMustBeCovered) {
  TemporaryFolder folder;
  on_ranks({}, [&](Communicator world, Engine& engine, const WeightMap& map) {
    WeightMap less = map;
    less.tensors.pop_back();
    EXPECT_THROW(export_safetensors(folder.file("x"), world, engine, less), UsageError);
    EXPECT_THROW(import_safetensors(folder.file("x"), world, engine, less), UsageError);
  });
  EXPECT_EQ(folder.entries(), 0);
  EXPECT_THROW(hugging_face_weights(make_mlp({}, DType::fp32)), UsageError);
}

}  // namespace
}  // namespace tessera::testing
