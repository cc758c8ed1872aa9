// tessera/c_arrays.h over tessera::ArrayEngine.
#include "tessera/c_arrays.h"

#include <span>
#include <vector>

#include "src/engine/c_api_handles.h"
#include "src/engine/c_api_options.h"
#include "src/engine/c_api_support.h"

namespace tessera::c_api {
namespace {

std::vector<ArraySpec> to_arrays(const tessera_array* arrays, std::int32_t count) {
  std::vector<ArraySpec> specs;
  for (const tessera_array& array : span_of(arrays, count, "arrays"))
    specs.push_back({.name = array.name == nullptr ? "" : array.name,
                     .numel = array.numel,
                     .units = array.units,
                     .first_unit = array.first_unit,
                     .also_in = array.also_in,
                     .dtype = checked<DType>(array.dtype, 3, "tessera_array.dtype"),
                     .frozen = array.frozen != 0,
                     .group = array.group});
  return specs;
}

ArrayEngine& arrays_of(tessera_engine* engine) {
  if (given(engine, "engine").arrays == nullptr)
    throw UsageError("the engine has units, not arrays: make it by tessera_engine_create_arrays");
  return *engine->arrays;
}

template <typename Pointer>
void bind(tessera_engine* engine, Pointer* parameters, Pointer* gradients) {
  ArrayEngine& arrays = arrays_of(engine);
  const std::size_t count = arrays.arrays().size();
  given(parameters, "parameters");
  arrays.bind(std::span(parameters, count), std::span(gradients, gradients == nullptr ? 0 : count));
}

}  // namespace
}  // namespace tessera::c_api

using namespace tessera;
using namespace tessera::c_api;

tessera_status tessera_engine_create_arrays(tessera_world* world, const tessera_array* arrays, int32_t count,
                                            const tessera_options* options, tessera_engine** engine) {
  return guarded([&] {
    tessera_engine*& out = given(engine, "engine");
    const Communicator& communicator = given(world, "world").communicator;
    if (given(options, "options").overwrite_gradients != 0)
      throw UsageError(
          "overwrite_gradients is 1, but a table of gradients cannot say where to overwrite: with arrays "
          "gradients begin at 0, leave it at 0");
    EngineOptions made = to_options(*options, {}, communicator.world());
    out = new tessera_engine(
        std::make_unique<ArrayEngine>(communicator, to_arrays(arrays, count), std::move(made)));
  });
}

tessera_status tessera_bind(tessera_engine* engine, float** parameters, float** gradients) {
  return guarded([&] { bind(engine, parameters, gradients); });
}

tessera_status tessera_bind_any(tessera_engine* engine, void** parameters, void** gradients) {
  return guarded([&] { bind(engine, parameters, gradients); });
}

tessera_status tessera_enter(tessera_engine* engine, int32_t unit, int32_t pass) {
  return guarded([&] { arrays_of(engine).enter(unit, checked<Pass>(pass, kPasses, "pass")); });
}

tessera_status tessera_leave(tessera_engine* engine) {
  return guarded([&] { arrays_of(engine).leave(); });
}

tessera_status tessera_write_arrays(tessera_engine* engine, const float* all) {
  return guarded([&] {
    ArrayEngine& arrays = arrays_of(engine);
    arrays.write(span_of(&given(all, "all"), arrays.numel(), "all"));
  });
}

tessera_status tessera_read_arrays(tessera_engine* engine, float* all) {
  return guarded([&] {
    ArrayEngine& arrays = arrays_of(engine);
    arrays.read(span_of(&given(all, "all"), arrays.numel(), "all"));
  });
}

tessera_status tessera_step_mean(tessera_engine* engine, double learning_rate, double loss,
                                 tessera_step_result* result) {
  return guarded([&] { end_step(*engine, arrays_of(engine).step_mean(learning_rate, loss), result); });
}
