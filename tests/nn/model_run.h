// Runs a model by hand, as the engine would: every tensor in memory of exactly the bytes the model asks for,
// filled with NaN beforehand and guarded behind its end.
#pragma once

#include <gtest/gtest.h>
#include <sanitizer/asan_interface.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "tessera/layout.h"
#include "tessera/model.h"

namespace tessera::testing {

// 256-byte aligned, every byte 0xFF (NaN in every type), with a guard behind it that nobody may touch.
class Memory {
 public:
  explicit Memory(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)),
        data_(static_cast<std::uint8_t*>(::operator new (bytes_ + kGuardBytes, std::align_val_t{256}))) {
    fill_with_nan();
    std::memset(data_ + bytes_, kGuard, kGuardBytes);
    ASAN_POISON_MEMORY_REGION(data_ + bytes_, kGuardBytes);
  }
  ~Memory() {
    ASAN_UNPOISON_MEMORY_REGION(data_ + bytes_, kGuardBytes);
    for (std::size_t i = 0; i < kGuardBytes; ++i)
      if (data_[bytes_ + i] != kGuard) {
        ADD_FAILURE() << "written " << i << " bytes behind the end of " << bytes_;
        break;
      }
    ::operator delete (data_, std::align_val_t{256});
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void fill_with_nan() { std::memset(data_, 0xFF, bytes_); }
  void* data() { return bytes_ == 0 ? nullptr : data_; }
  std::vector<std::uint8_t> contents() const { return {data_, data_ + bytes_}; }

 private:
  static constexpr std::size_t kGuardBytes = 1024;
  static constexpr std::uint8_t kGuard = 0xA5;
  std::size_t bytes_;
  std::uint8_t* data_;
};

inline std::uint16_t to_bf16(float value) {  // to nearest, ties to even; finite values only
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

class ModelRun {
 public:
  ModelRun(Model model, const BatchShape& shape, int threads = 1)
      : model_(std::move(model)),
        shape_(shape),
        threads_(threads),
        spec_(model_.activations(shape, threads)),
        batch_(spec_.batch_bytes) {
    for (const UnitGraph& unit : spec_.units) {
      unit.check("a unit");
      outputs_.emplace_back(std::make_unique<Memory>(unit.output_bytes));
      output_gradients_.emplace_back(std::make_unique<Memory>(unit.output_bytes));
      auto& values = values_.emplace_back();
      for (const ValueSpec& value : unit.values)
        values.push_back(std::make_unique<Memory>(value.over == kNoValue ? value.bytes : 0));
    }
    for (const UnitSpec& unit : model_.units())
      for (const ParameterSpec& spec : unit.parameters) {
        if (!spec.tied_to.empty()) continue;
        const std::int64_t bytes = numel_of(spec.shape) * bytes_of(spec.dtype);
        tensors_[spec.name] = {spec, std::make_unique<Memory>(bytes), std::make_unique<Memory>(bytes)};
      }
  }

  const Model& model() const { return model_; }
  const ActivationSpec& spec() const { return spec_; }
  Memory& output(std::size_t unit) { return *outputs_[unit]; }
  Memory& output_gradient(std::size_t unit) { return *output_gradients_[unit]; }
  // The contents of all of the unit's values that are kept so, one behind the other.
  std::vector<std::uint8_t> kept(std::size_t unit, Keep keep) {
    std::vector<std::uint8_t> all;
    for (ValueId id = 0; id < spec_.units[unit].values.count(); ++id) {
      if (spec_.units[unit].values[id].keep != keep) continue;
      const std::vector<std::uint8_t> one = values_[unit][id]->contents();
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  void forget(std::size_t unit, Keep keep) {
    for (ValueId id = 0; id < spec_.units[unit].values.count(); ++id)
      if (spec_.units[unit].values[id].keep == keep) values_[unit][id]->fill_with_nan();
  }
  void* batch() { return batch_.data(); }
  int units() const { return static_cast<int>(model_.modules.size()); }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  std::int64_t numel(const std::string& name) const { return numel_of(tensors_.at(name).spec.shape); }

  // Values are rounded to the parameter's type on the way in.
  void set_parameter(const std::string& name, const std::vector<float>& values) {
    write(tensors_.at(name), *tensors_.at(name).value, values);
  }
  void set_gradient(const std::string& name, const std::vector<float>& values) {
    write(tensors_.at(name), *tensors_.at(name).gradient, values);
  }
  std::vector<float> parameter(const std::string& name) {
    return read(tensors_.at(name), *tensors_.at(name).value);
  }
  std::vector<float> gradient(const std::string& name) {
    return read(tensors_.at(name), *tensors_.at(name).gradient);
  }

  void forward(StepKind kind) {
    for (int unit = 0; unit < units(); ++unit) use(unit, Pass::forward, kind);
  }
  void recompute(int unit, Recompute choice) { use(unit, Pass::recompute, StepKind::train, choice); }
  // The first write to a gradient overwrites, or adds for those in `adds`; later ones, of tied parameters,
  // add.
  void backward(const std::set<std::string>& adds = {}) {
    touched_ = adds;
    for (int unit = units(); unit-- > 0;) use(unit, Pass::backward, StepKind::train);
  }

  double loss = 0.0;
  double weight = 0.0;
  float loss_scale = 1.0f;
  std::uint64_t random_key = 0;  // of unit 0; the others count on
  std::int64_t first_sequence = 0;
  float* logits = nullptr;
  std::int64_t logits_row = 0;
  std::int64_t (*count_allocations)() = nullptr;  // where not null,
  std::int64_t allocations = 0;                   // sums how far it rose during the modules' own calls
  std::set<std::string> frozen;                   // parameters whose gradient nobody wants

 private:
  struct Tensor {
    ParameterSpec spec;
    std::unique_ptr<Memory> value, gradient;
  };

  static void write(const Tensor& tensor, Memory& memory, const std::vector<float>& values) {
    ASSERT_EQ(numel_of(tensor.spec.shape), static_cast<std::int64_t>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i)
      if (tensor.spec.dtype == DType::fp32)
        static_cast<float*>(memory.data())[i] = values[i];
      else
        static_cast<std::uint16_t*>(memory.data())[i] = to_bf16(values[i]);
  }
  static std::vector<float> read(const Tensor& tensor, Memory& memory) {
    std::vector<float> values(static_cast<std::size_t>(numel_of(tensor.spec.shape)));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = tensor.spec.dtype == DType::fp32 ? static_cast<float*>(memory.data())[i]
                                                   : from_bf16(static_cast<std::uint16_t*>(memory.data())[i]);
    return values;
  }

  void use(int unit, Pass pass, StepKind kind, Recompute recompute = Recompute::none) {
    for (const int part : spec_.units[unit].parts_in(pass, {.recompute = recompute}, kind))
      run(unit, part, pass, kind);
  }

  // A part gets what it says that it touches, and nothing else.
  void run(int unit, int place, Pass pass, StepKind kind) {
    const auto u = static_cast<std::size_t>(unit);
    Module& module = *model_.modules[u];
    const UnitGraph& graph = spec_.units[u];
    const PartSpec& part = graph.parts[place];
    std::vector<void*> parameters, gradients;
    std::vector<float> betas;
    for (const ParameterSpec& spec : module.parameters()) {
      const std::string& home = spec.tied_to.empty() ? spec.name : spec.tied_to;
      const bool written =
          part.writes_gradient(static_cast<int>(parameters.size())) && !frozen.contains(home);
      parameters.push_back(tensors_.at(home).value->data());
      gradients.push_back(written ? tensors_.at(home).gradient->data() : nullptr);
      betas.push_back(touched_.contains(home) ? 1.0f : 0.0f);
      if (part.writes_gradient(static_cast<int>(parameters.size()) - 1)) touched_.insert(home);
    }
    std::vector<void*> values(graph.values.size());
    std::set<ValueId> shared;
    for (const std::vector<ValueId>* ids : {&part.reads, &part.writes})
      for (const ValueId id : *ids) {
        if (id < 0)
          shared.insert(id);
        else
          values[static_cast<std::size_t>(id)] = values_[u][graph.root(id)]->data();
      }
    const auto of = [&](ValueId id, void* memory) { return shared.contains(id) ? memory : nullptr; };
    Memory workspace(part.workspace_bytes);
    LossTotal total;
    const ModuleContext context = {
        .pass = pass,
        .kind = kind,
        .shape = shape_,
        .threads = threads_,
        .parameters = parameters,
        .gradients = gradients,
        .betas = betas,
        .values = values,
        .input = of(SharedValue::input, unit > 0 ? outputs_[u - 1]->data() : nullptr),
        .output = pass == Pass::recompute ? nullptr : of(SharedValue::output, outputs_[u]->data()),
        .output_gradient = of(SharedValue::output_gradient, output_gradients_[u]->data()),
        .input_gradient =
            of(SharedValue::input_gradient, unit > 0 ? output_gradients_[u - 1]->data() : nullptr),
        .workspace = workspace.data(),
        .workspace_bytes = part.workspace_bytes,
        .batch = of(SharedValue::batch, batch_.data()),
        .random_key = random_key + u,
        .first_sequence = first_sequence,
        .loss_scale = loss_scale,
        .total = &total,
        .logits = logits,
        .logits_row = logits_row};
    const std::int64_t before = count_allocations != nullptr ? count_allocations() : 0;
    module.run(place, context);
    if (count_allocations != nullptr) allocations += count_allocations() - before;
    loss += total.sum;
    weight += static_cast<double>(total.counted);
  }

  Model model_;
  BatchShape shape_;
  int threads_;
  ActivationSpec spec_;
  Memory batch_;
  std::vector<std::unique_ptr<Memory>> outputs_, output_gradients_;
  std::vector<IdVector<std::unique_ptr<Memory>>> values_;  // [unit][value]
  std::map<std::string, Tensor> tensors_;
  std::set<std::string> touched_;
};

// Made again, what each unit keeps has the bits that forward left.
inline void expect_recompute_repeats(ModelRun& run) {
  run.forward(StepKind::train);
  for (std::size_t unit = 0; unit + 1 < static_cast<std::size_t>(run.units()); ++unit) {
    const std::vector<std::uint8_t> saved = run.kept(unit, Keep::saved),
                                    recomputable = run.kept(unit, Keep::recomputable);
    run.forget(unit, Keep::saved);
    run.forget(unit, Keep::recomputable);
    run.recompute(static_cast<int>(unit), Recompute::full);
    EXPECT_EQ(run.kept(unit, Keep::saved), saved) << "unit " << unit;
    EXPECT_EQ(run.kept(unit, Keep::recomputable), recomputable) << "unit " << unit;
  }
}

// The same of what is recomputable, of the blocks, while what is saved stays as it is.
inline void expect_selective_recompute_repeats(ModelRun& run) {
  run.forward(StepKind::train);
  for (std::size_t unit = 1; unit + 1 < static_cast<std::size_t>(run.units()); ++unit) {
    const std::vector<std::uint8_t> saved = run.kept(unit, Keep::saved),
                                    recomputable = run.kept(unit, Keep::recomputable);
    ASSERT_FALSE(recomputable.empty());
    run.forget(unit, Keep::recomputable);
    run.recompute(static_cast<int>(unit), Recompute::selective);
    EXPECT_EQ(run.kept(unit, Keep::recomputable), recomputable) << "unit " << unit;
    EXPECT_EQ(run.kept(unit, Keep::saved), saved) << "unit " << unit;
  }
}

inline void expect_backward_leaves_what_it_reads(ModelRun& run) {
  run.forward(StepKind::train);
  std::vector<std::vector<std::uint8_t>> before;
  for (std::size_t unit = 0; unit < 3; ++unit) {
    before.push_back(run.kept(unit, Keep::saved));
    before.push_back(run.output(unit).contents());
  }
  run.backward();
  for (std::size_t unit = 0; unit < 3; ++unit) {
    EXPECT_EQ(run.kept(unit, Keep::saved), before[2 * unit]) << unit;
    EXPECT_EQ(run.output(unit).contents(), before[2 * unit + 1]) << unit;
  }
}

}  // namespace tessera::testing
