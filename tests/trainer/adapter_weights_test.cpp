// Adapters and merged weights as files: the same bits from any world, and W + scale · B A to the rounding of
// fp32.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tessera/hugging_face.h"
#include "tessera/model.h"
#include "tessera/philox.h"
#include "tessera/trainer.h"
#include "tests/trainer/safetensors_file.h"
#include "tests/trainer/temporary_folder.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;
using Values = std::map<std::string, std::vector<float>>;

struct World {
  int shard = 1, tensor = 1, stage = 0;
};
const std::vector<World> kWorlds = {{}, {.shard = 2, .stage = 3}, {.shard = 2, .tensor = 2, .stage = 1}};

std::shared_ptr<const Model> model_of(bool llama, DType type = DType::fp32) {
  const Lora lora = {.rank = 3, .alpha = 5.0, .targets = {"all-linear"}};
  if (llama)
    return std::make_shared<const Model>(make_llama({.vocabulary = 61,
                                                     .context = 16,
                                                     .layers = 2,
                                                     .heads = 4,
                                                     .kv_heads = 2,
                                                     .channels = 32,
                                                     .hidden = 88,
                                                     .lora = lora},
                                                    type));
  return std::make_shared<const Model>(make_gpt2(
      {.vocabulary = 61, .context = 16, .layers = 2, .heads = 2, .channels = 32, .lora = lora}, type));
}

// `body(world, trainer)` on each rank of a new world, whose weights and adapters are all of random values.
template <class Body>
void on_ranks(const std::shared_ptr<const Model>& model, const World& of, const Body& body) {
  TrainerOptions options;
  options.engine.mesh = {.shard = of.shard, .tensor = of.tensor};
  options.engine.strategy.placements = Placements::of_stage(of.stage);
  options.engine.optimizer = {.options = AdamWOptions{}, .groups = {{.name = "decay"}, {.name = "no_decay"}}};
  options.batch = {.sequences = 1, .length = 8};
  run_local(of.shard * of.tensor, {.deadline = std::chrono::seconds(20)}, [&](const Communicator& world) {
    Trainer trainer(world, model, options);
    trainer.engine().initialize([](ParameterId id, std::int64_t begin, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(
            uniform(3, static_cast<std::uint64_t>(id), static_cast<std::uint64_t>(begin) + i) - 0.5);
    });
    body(world, trainer);
  });
}

Values tensors_of(const std::string& path) {
  const SafetensorsFile file(path);
  Values values;
  for (const auto& [name, entry] : file.header.items())
    if (name != "__metadata__") values[name] = file.floats(name);
  return values;
}

class AdapterWeights : public ::testing::TestWithParam<bool> {
 protected:
  std::string export_to(const World& of, const WeightMap& map) const {
    const std::string path = folder_.file("out.safetensors");
    on_ranks(model_, of, [&](const Communicator& world, Trainer& trainer) {
      export_safetensors(path, world, trainer.engine(), map);
    });
    return path;
  }

  std::shared_ptr<const Model> model_ = model_of(GetParam());
  TemporaryFolder folder_;
};

TEST_P(AdapterWeights, MergedWeightsAreThoseOfTheFormula) {
  const Values base = tensors_of(export_to({}, hugging_face_weights(*model_)));
  const Values adapters = tensors_of(export_to({}, hugging_face_adapter(*model_)));
  const double scale = 5.0 / 3.0;
  std::string bytes;
  for (const World& world : kWorlds) {
    const std::string path = export_to(world, hugging_face_merged_weights(*model_));
    if (bytes.empty()) bytes = bytes_of_file(path);
    EXPECT_EQ(bytes_of_file(path), bytes) << "another world, other bits";
  }
  int changed = 0;
  for (const auto& [name, merged] : tensors_of(folder_.file("out.safetensors"))) {
    const std::string layer = "base_model.model." + name.substr(0, name.rfind('.'));
    const auto found = adapters.find(layer + ".lora_A.weight");
    if (found == adapters.end() || !name.ends_with(".weight")) {
      EXPECT_EQ(merged, base.at(name)) << name;
      continue;
    }
    ++changed;
    const std::vector<float>&a = found->second, &b = adapters.at(layer + ".lora_B.weight");
    const std::size_t inputs = a.size() / 3, outputs = b.size() / 3;
    for (std::size_t o = 0; o < outputs; ++o)
      for (std::size_t i = 0; i < inputs; ++i) {
        const std::size_t at = GetParam() ? o * inputs + i : i * outputs + o;  // GPT-2's are [in, out]
        double expected = base.at(name)[at];
        for (std::size_t k = 0; k < 3; ++k) expected += scale * b[o * 3 + k] * a[k * inputs + i];
        ASSERT_NEAR(merged[at], expected, 1e-6) << name << " " << o << " " << i;
      }
  }
  EXPECT_EQ(changed, GetParam() ? 14 : 8);
}

TEST_P(AdapterWeights, GoIntoAnyWorldAndComeOutAsTheyWere) {
  const std::string base = folder_.file("base.safetensors"), adapter = folder_.file("adapter.safetensors");
  std::filesystem::copy_file(export_to({}, hugging_face_weights(*model_)), base);
  std::filesystem::copy_file(export_to({}, hugging_face_adapter(*model_)), adapter);
  for (const World& of : kWorlds)
    on_ranks(model_, of, [&](const Communicator& world, Trainer& trainer) {
      trainer.engine().initialize(
          [](ParameterId, std::int64_t, std::span<float> values) { std::ranges::fill(values, 7.0f); });
      const std::vector<WeightSource> sources = {{base, hugging_face_weights(*model_)},
                                                 {adapter, hugging_face_adapter(*model_)}};
      import_safetensors(sources, world, trainer.engine());
      const std::string again = folder_.file("again.safetensors");
      for (const WeightSource& source : sources) {
        export_safetensors(again, world, trainer.engine(), source.map);
        EXPECT_EQ(bytes_of_file(again), bytes_of_file(source.path));
      }
      // Without the adapter's file they are what the trainer began with.
      import_safetensors({sources.data(), 1}, world, trainer.engine(), {}, trainer.initial_weights());
      const ParameterId b = trainer.engine().layout().find("block.0.attention.qkv.lora_b");
      std::vector<float> values(4, 1.0f);
      trainer.engine().read(b, StateKind::master, 0, values);
      EXPECT_EQ(values, std::vector<float>(4));
    });
}

TEST_P(AdapterWeights, MapsThatMeanNothingAreRefused) {
  const std::string base = export_to({}, hugging_face_weights(*model_));
  const auto message = [&](const std::vector<WeightSource>& sources) -> std::string {
    std::string text;
    on_ranks(model_, {}, [&](const Communicator& world, Trainer& trainer) {
      try {
        import_safetensors(sources, world, trainer.engine());
      } catch (const UsageError& error) {
        text = error.what();
      }
    });
    return text;
  };
  const WeightMap map = hugging_face_weights(*model_);
  EXPECT_THAT(message({{base, map}}), HasSubstr(".lora_a' is in none of the weight maps"));
  EXPECT_THAT(message({{base, map}, {base, map}}), HasSubstr("' is in two of the weight maps"));
  EXPECT_THAT(message({{base, hugging_face_merged_weights(*model_)}}), HasSubstr("which only exports have"));
  WeightMap wrong = hugging_face_merged_weights(*model_);
  for (StoredTensor& tensor : wrong.tensors)
    if (tensor.added) tensor.added->rank = 2;
  EXPECT_THAT(message({{base, wrong}}), HasSubstr("is of another shape"));
  EXPECT_THROW(hugging_face_adapter(make_gpt2(Gpt2Config::preset("gpt2-tiny"), DType::fp32)), UsageError);
  EXPECT_THROW(hugging_face_merged_weights(make_gpt2(Gpt2Config::preset("gpt2-tiny"), DType::fp32)),
               UsageError);
}

// A folder of an adapter has one file of tensors, under its own name.
TEST_P(AdapterWeights, AFolderHasTheStem) {
  const std::string out = folder_.file("adapter");
  on_ranks(model_, {}, [&](const Communicator& world, Trainer& trainer) {
    export_safetensors(out, world, trainer.engine(), hugging_face_adapter(*model_),
                       {.files = {{"adapter_config.json", hugging_face_adapter_config(*model_, "base")}},
                        .stem = "adapter_model"});
  });
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(out))
    names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("adapter_model.safetensors", "adapter_config.json"));
}

INSTANTIATE_TEST_SUITE_P(Families, AdapterWeights, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& made) {
                           return made.param ? "llama" : "gpt2";
                         });

}  // namespace
}  // namespace tessera::testing
