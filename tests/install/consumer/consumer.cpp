// Uses every archive of the package through the umbrella header: a world of two, a model, a plan.
#include <tessera/tessera.h>

#include <cstdio>

int main() {
  using namespace tessera;
  TrainerOptions options;
  options.batch = {.sequences = 1, .length = 16};
  options.engine.mesh.shard = 2;
  options.engine.strategy.placements = Placements::of_stage(3);
  const Model model = make_gpt2(Gpt2Config::preset("gpt2-tiny"), DType::fp32);
  if (memory_table(model, options).empty()) return 1;
  double sum = 0;
  run_local(2, {}, [&](Communicator world) {
    double mine = 1.0 + world.rank();
    world.all_reduce(&mine, 1);
    if (world.rank() == 0) sum = mine;
  });
  if (sum != 3.0) return 2;
  if (latest_checkpoint("there is no such folder")) return 3;
  if (TokenSource::of_text("abc").numel() != 3) return 4;
  std::puts("tessera::tessera links");
  return 0;
}
