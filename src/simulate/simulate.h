// Functions that the simulations of one rank and of a world share.
#pragma once

#include <vector>

#include "src/simulate/dataflow.h"
#include "src/simulate/instruction_costs.h"

namespace tessera {

// The timeline of a rank: its instructions with their times, and the sums over them.
Timeline timeline_of(const Program& program, const InstructionCosts& costs,
                     const IdVector<Dataflow::Times>& times, Dataflow::Issuer issuer);

// The time that lies in any of `list` and in none of `busy`, which ascends and is disjoint.
double outside(std::vector<Dataflow::Times> list, const std::vector<Dataflow::Times>& busy);

// What the issuing thread of an engine's ranks runs on this mesh.
Dataflow::Issuer issuer_of(const CostModel& cost, const Mesh& mesh);

// Durations in µs, by instruction.
IdVector<double> durations_of(const Program& program, const InstructionCosts& costs);

}  // namespace tessera
