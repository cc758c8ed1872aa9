// export_plan(): what a run writes of its weights.
#include "src/cli/setup.h"
#include "tessera/hugging_face.h"

namespace tessera::cli {

ExportPlan export_plan(const Setup& setup, const KeptFiles& files) {
  const RunConfig& run = setup.config.run;
  const DType type = parse_dtype(run.export_type);
  ExportPlan plan{.map = {}, .options = {.dtype = type, .max_file_bytes = run.export_file_bytes}};
  if (exports_adapter(setup.config)) {
    plan.map = hugging_face_adapter(*setup.model);
    plan.options.stem = "adapter_model";
    plan.options.files = {
        {kAdapterFile, hugging_face_adapter_config(*setup.model, setup.config.model.weights)}};
    return plan;
  }
  const bool merges = setup.config.lora.rank > 0;
  plan.map = merges ? hugging_face_merged_weights(*setup.model) : hugging_face_weights(*setup.model);
  const std::string config =
      std::visit([&](const auto& d) { return hugging_face_config(d, type); }, setup.dimensions);
  plan.options.config = with_token_ids(config, files);
  plan.options.files = files;
  plan.options.files.erase(kConfigFile);
  plan.options.files.erase(kAdapterFile);
  return plan;
}

}  // namespace tessera::cli
