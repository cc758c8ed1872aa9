// load_weights(): the parameters of a checkpoint, by global coordinates, as Engine::initialize asks for them.
#include <fmt/format.h>

#include <exception>
#include <memory>

#include "kernels/casts.h"
#include "src/checkpoint/agree.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/open_buffers.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;
using namespace checkpoint;

// Gives Engine::initialize the values it asks for.
class StoredWeights {
 public:
  StoredWeights(const fs::path& folder, const Engine& engine)
      : layout_(engine.layout()), stored_(folder, engine, Takes::parameters) {}

  const Header& header() const { return stored_.header(); }

  // Elements [begin, begin + values) of a parameter. A rank asks flat by flat, ascending.
  void fill(ParameterId parameter, std::int64_t begin, std::span<float> values) {
    if (const FlatId flat = layout_.place(parameter).flat; flat != flat_) {
      finish();
      flat_ = flat;
    }
    const DType type = stored_.type_of_parameter(parameter);
    stored_.each_of_parameter(
        parameter, begin, static_cast<std::int64_t>(values.size()), [&](const StoredRun& run) {
          float* to = values.data() + run.begin;
          open_.read(run, bytes_of(type), [&](std::span<const std::byte> piece) {
            const std::int64_t numel = static_cast<std::int64_t>(piece.size()) / bytes_of(type);
            kernels::cast({}, numel, type, piece.data(), DType::fp32, to);
            to += numel;
          });
        });
  }
  void finish() { open_.finish(); }

 private:
  const Layout& layout_;
  StoredStates stored_;
  OpenBuffers open_;
  FlatId flat_ = -1;
};

}  // namespace

RunState load_weights(const fs::path& path, Communicator world, Engine& engine) {
  check_arguments("load_weights", world, engine);
  std::unique_ptr<StoredWeights> weights;
  together(world, "checkpoint open",
           [&] { weights = std::make_unique<StoredWeights>(resolve(path), engine); });
  check_same_checkpoint(world, path, weights->header());
  engine.initialize([&](ParameterId parameter, std::int64_t begin,
                        std::span<float> values) { weights->fill(parameter, begin, values); },
                    weights->header().checksum);
  try {
    together(world, "checkpoint read", [&] { weights->finish(); });
  } catch (const EnvironmentError&) {  // of what is set already
    engine.begin_loading(fmt::format("checkpoint '{}'", path.string()));
    throw;
  }
  return weights->header().state;
}

}  // namespace tessera
