// Along which axes the communication of a simulated step is exposed. Pure.
#pragma once

#include "tessera/id_vector.h"
#include "tessera/mesh.h"
#include "tessera/simulate.h"
#include "tessera/world_programs.h"

namespace tessera {

// Gives, by axis, the time in µs in which communication along it runs on a rank and the rank's compute lane
// runs nothing, mean over ranks. Where communication along several axes runs at once, each of them counts it,
// so the sum may exceed WorldTimeline::exposed_us. `timeline` is what simulate() gave for `world`.
IdArray<double, kGroups> exposed_along_us(const WorldPrograms& world, const WorldTimeline& timeline);

}  // namespace tessera
