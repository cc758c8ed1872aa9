#include "src/checkpoint/same_run.h"

#include <fmt/format.h>

#include <span>

#include "src/checkpoint/checksum.h"

namespace tessera::checkpoint {

namespace {

std::string fingerprint(const std::vector<StoredUnit>& units, const Layout& layout) {
  std::string text = to_text(units);
  for (const Flat& flat : layout.flats()) text += fmt::format(";{},{}", flat.unit, flat.shard_numel);
  return fmt::format("{:016x}", checksum_of(std::as_bytes(std::span(text))));
}

void require_equal(const std::string& file, const std::string& what, const std::string& found,
                   const std::string& expected) {
  if (found != expected)
    throw UsageError(fmt::format("checkpoint file '{}' does not fit this run: {} is {} there and {} here",
                                 file, what, found, expected));
}

}  // namespace

Header describe(const Engine& engine) {
  const Layout& layout = engine.layout();
  Header header;
  header.rank = engine.rank();
  header.mesh = engine.options().mesh;
  header.placements = engine.options().strategy.placements;
  const Optimizer& optimizer = engine.options().optimizer;
  header.optimizer = optimizer.name();
  if (optimizer.moments() > 0 && optimizer.moment_type != DType::fp32)
    header.optimizer += fmt::format(" with moments in {}", tessera::name_of(optimizer.moment_type));
  header.moments = optimizer.moments();
  header.parameter_numel = layout.total_numel();
  for (const UnitSpec& unit : layout.units()) {
    StoredUnit stored{.name = unit.name, .parameters = {}};
    for (const ParameterSpec& p : unit.parameters) {
      stored.parameters.push_back({.name = p.name,
                                   .shape = p.shape,
                                   .dtype = std::string(tessera::name_of(p.dtype)),
                                   .trainable = p.trainable,
                                   .tied_to = p.tied_to});
      if (layout.tensor() == 1 && p.cut.blocks == 1) continue;  // it has the parameter as it is
      stored.parameters.back().cut = p.cut;
      stored.parameters.back().gradient = p.gradient;
    }
    header.units.push_back(std::move(stored));
  }
  header.layout = fingerprint(header.units, layout);
  return header;
}

namespace {

// `text` is what of two parameters must be equal.
template <class Text>
void check_units(const Header& stored, const Header& engine, const std::string& file, const Text& text) {
  const auto require = [&file](const std::string& what, const std::string& found,
                               const std::string& expected) { require_equal(file, what, found, expected); };
  require("the number of units", std::to_string(stored.units.size()), std::to_string(engine.units.size()));
  for (std::size_t u = 0; u < engine.units.size(); ++u) {
    const StoredUnit &there = stored.units[u], &here = engine.units[u];
    require(fmt::format("unit {}", u), there.name, here.name);
    require("the number of parameters of unit " + here.name, std::to_string(there.parameters.size()),
            std::to_string(here.parameters.size()));
    for (std::size_t p = 0; p < here.parameters.size(); ++p)
      require("a parameter of unit " + here.name, text(there.parameters[p]), text(here.parameters[p]));
  }
}

std::string tie_of(const StoredParameter& one) {
  return one.tied_to.empty() ? "" : " tied to " + one.tied_to;
}

}  // namespace

void check_same(const Header& stored, const Header& engine, const std::string& file) {
  require_equal(file, "the optimizer", stored.optimizer, engine.optimizer);
  if (stored.moments != Header::kUnknownMoments)
    require_equal(file, "the number of its moments", std::to_string(stored.moments),
                  std::to_string(engine.moments));
  check_units(stored, engine, file, [](const StoredParameter& one) {
    return fmt::format("{} {} {}{}{}", one.name, to_string(one.shape), one.dtype,
                       one.trainable ? "" : " frozen", tie_of(one));
  });
}

void check_same_parameters(const Header& stored, const Header& engine, const std::string& file) {
  check_units(stored, engine, file, [](const StoredParameter& one) {
    return fmt::format("{} {}{}", one.name, to_string(one.shape), tie_of(one));
  });
}

void check_layout(const Header& stored, const std::vector<StoredUnit>& units, const Layout& layout,
                  const std::string& file) {
  require_equal(file, "the layout", stored.layout, fingerprint(units, layout));
}

}  // namespace tessera::checkpoint
