#include "src/checkpoint/header.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "src/checkpoint/checksum.h"

namespace tessera::checkpoint {

namespace {

using nlohmann::json;

constexpr int kVersion = 2;                            // 1 had a loss scaler of every run, and no tokens
constexpr std::uint64_t kMagic = 0x314152455353'4554;  // "TESSERA1", little-endian
constexpr std::int64_t kPrefixBytes = 32;
constexpr std::int64_t kMostHeaderBytes = std::int64_t{1} << 30;

std::int64_t align_up(std::int64_t bytes) { return round_up(bytes, kAlignmentBytes); }

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }
std::uint64_t parse_hex(const std::string& text) { return std::stoull(text, nullptr, 16); }

Placement parse_placement(const std::string& name) {
  return name == "sharded" ? Placement::sharded : Placement::replicated;
}

State parse_state(const std::string& name) {
  for (const State state : {State::master, State::parameter, State::moment1, State::moment2})
    if (name == name_of(state)) return state;
  throw std::invalid_argument("state '" + name + "'");
}

json to_json(const std::vector<StoredUnit>& units) {
  json result = json::array();
  for (const StoredUnit& unit : units) {
    json parameters = json::array();
    for (const StoredParameter& p : unit.parameters)
      parameters.push_back({{"name", p.name},
                            {"shape", p.shape},
                            {"type", p.dtype},
                            {"trainable", p.trainable},
                            {"tied_to", p.tied_to}});
    result.push_back({{"name", unit.name}, {"parameters", std::move(parameters)}});
  }
  return result;
}

std::vector<StoredUnit> units_of(const json& all) {
  std::vector<StoredUnit> units;
  for (const json& one : all) {
    StoredUnit unit{.name = one.at("name"), .parameters = {}};
    for (const json& p : one.at("parameters"))
      unit.parameters.push_back({.name = p.at("name"),
                                 .shape = p.at("shape").get<Shape>(),
                                 .dtype = p.at("type"),
                                 .trainable = p.at("trainable"),
                                 .tied_to = p.at("tied_to")});
    units.push_back(std::move(unit));
  }
  return units;
}

json to_json(const std::optional<LossScaleState>& scaler) {
  if (!scaler) return nullptr;
  return {{"scale", scaler->scale},
          {"applied_in_a_row", scaler->applied_in_a_row},
          {"skipped_in_a_row", scaler->skipped_in_a_row},
          {"skipped", scaler->skipped}};
}

std::optional<LossScaleState> loss_scaler_of(const json& j) {
  if (j.is_null()) return std::nullopt;
  return LossScaleState{.scale = j.at("scale"),
                        .applied_in_a_row = j.at("applied_in_a_row"),
                        .skipped_in_a_row = j.at("skipped_in_a_row"),
                        .skipped = j.at("skipped")};
}

json to_json(const Header& header) {
  json buffers = json::array();
  for (const StoredBuffer& b : header.buffers)
    buffers.push_back({{"unit", b.unit},
                       {"flat", b.flat},
                       {"state", name_of(b.state)},
                       {"whole", b.whole},
                       {"offset", b.offset},
                       {"bytes", b.bytes},
                       {"xxh3", hex(b.checksum)}});
  return {{"version", kVersion},
          {"rank", header.rank},
          {"step", header.state.step},
          {"samples", header.state.samples},
          {"configuration", header.state.configuration},
          {"data", header.state.data},
          {"tokens", header.state.tokens},
          {"steps_applied", header.counters.steps_applied},
          {"loss_scaler", to_json(header.counters.loss_scaler)},
          {"mesh",
           {{"pipeline", header.mesh.pipeline},
            {"replicate", header.mesh.replicate},
            {"shard", header.mesh.shard},
            {"tensor", header.mesh.tensor}}},
          {"placements",
           {{"parameters", name_of(header.placements.parameters)},
            {"gradients", name_of(header.placements.gradients)},
            {"optimizer_state", name_of(header.placements.optimizer_state)}}},
          {"optimizer", header.optimizer},
          {"layout", header.layout},
          {"parameter_numel", header.parameter_numel},
          {"ranks", header.ranks},
          {"contents", hex(header.contents)},
          {"units", to_json(header.units)},
          {"buffers", std::move(buffers)}};
}

std::vector<StoredBuffer> buffers_of(const json& all) {
  std::vector<StoredBuffer> buffers;
  for (const json& b : all)
    buffers.push_back({.unit = b.at("unit"),
                       .flat = b.at("flat"),
                       .state = parse_state(b.at("state")),
                       .whole = b.at("whole"),
                       .offset = b.at("offset"),
                       .bytes = b.at("bytes"),
                       .checksum = parse_hex(b.at("xxh3"))});
  return buffers;
}

Header header_of(const json& j) {
  Header header;
  header.rank = j.at("rank");
  header.state = {.step = j.at("step"),
                  .samples = j.at("samples"),
                  .configuration = j.at("configuration"),
                  .data = j.value("data", ""),
                  .tokens = j.value("tokens", std::int64_t{0})};
  header.counters = {.steps_applied = j.at("steps_applied"),
                     .loss_scaler = loss_scaler_of(j.at("loss_scaler"))};
  const json& mesh = j.at("mesh");
  header.mesh = {.pipeline = mesh.at("pipeline"),
                 .replicate = mesh.at("replicate"),
                 .shard = mesh.at("shard"),
                 .tensor = mesh.at("tensor")};
  const json& placements = j.at("placements");
  header.placements = {.parameters = parse_placement(placements.at("parameters")),
                       .gradients = parse_placement(placements.at("gradients")),
                       .optimizer_state = parse_placement(placements.at("optimizer_state"))};
  header.optimizer = j.at("optimizer");
  header.layout = j.at("layout");
  header.parameter_numel = j.at("parameter_numel");
  header.ranks = j.value("ranks", std::vector<int>());
  header.contents = parse_hex(j.value("contents", "0"));
  header.units = units_of(j.at("units"));
  header.buffers = buffers_of(j.at("buffers"));
  return header;
}

[[noreturn]] void damaged(const FileReader& file, const std::string& what) {
  throw EnvironmentError(fmt::format("checkpoint file '{}' is damaged: {}", file.path().string(), what));
}

// Where the buffers end; checks that they lie behind the header, one after the other.
std::int64_t end_of(const Header& header, std::int64_t offset, const FileReader& file) {
  for (const StoredBuffer& buffer : header.buffers) {
    if (buffer.offset != align_up(offset) || buffer.bytes < 0) damaged(file, "its buffers overlap");
    offset = buffer.offset + buffer.bytes;
  }
  return offset;
}

std::string fingerprint(const std::vector<StoredUnit>& units, const Layout& layout) {
  std::string text = to_json(units).dump();
  for (const Flat& flat : layout.flats()) text += fmt::format(";{},{}", flat.unit, flat.shard_numel);
  return hex(checksum_of(std::as_bytes(std::span(text))));
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
  header.parameter_numel = layout.total_numel();
  for (const UnitSpec& unit : layout.units()) {
    StoredUnit stored{.name = unit.name, .parameters = {}};
    for (const ParameterSpec& p : unit.parameters)
      stored.parameters.push_back({.name = p.name,
                                   .shape = p.shape,
                                   .dtype = std::string(tessera::name_of(p.dtype)),
                                   .trainable = p.trainable,
                                   .tied_to = p.tied_to});
    header.units.push_back(std::move(stored));
  }
  header.layout = fingerprint(header.units, layout);
  return header;
}

void check_same(const Header& stored, const Header& engine, const std::string& file) {
  const auto require = [&file](const std::string& what, const std::string& found,
                               const std::string& expected) { require_equal(file, what, found, expected); };
  require("the optimizer", stored.optimizer, engine.optimizer);
  require("the number of units", std::to_string(stored.units.size()), std::to_string(engine.units.size()));
  for (std::size_t u = 0; u < engine.units.size(); ++u) {
    const StoredUnit &there = stored.units[u], &here = engine.units[u];
    require(fmt::format("unit {}", u), there.name, here.name);
    require("the number of parameters of unit " + here.name, std::to_string(there.parameters.size()),
            std::to_string(here.parameters.size()));
    for (std::size_t p = 0; p < here.parameters.size(); ++p) {
      const auto text = [](const StoredParameter& one) {
        return fmt::format("{} {} {}{}{}", one.name, to_string(one.shape), one.dtype,
                           one.trainable ? "" : " frozen",
                           one.tied_to.empty() ? "" : " tied to " + one.tied_to);
      };
      require("a parameter of unit " + here.name, text(there.parameters[p]), text(here.parameters[p]));
    }
  }
}

void check_layout(const Header& stored, const std::vector<StoredUnit>& units, const Layout& layout,
                  const std::string& file) {
  require_equal(file, "the layout", stored.layout, fingerprint(units, layout));
}

std::vector<std::byte> encode(Header& header) {
  // Offsets are part of the text whose length they depend on: lengthen until they fit.
  std::string text;
  for (std::int64_t room = 0;;) {
    std::int64_t offset = kPrefixBytes + room;
    for (StoredBuffer& buffer : header.buffers) {
      buffer.offset = align_up(offset);
      offset = buffer.offset + buffer.bytes;
    }
    header.file_bytes = offset;
    text = to_json(header).dump(-1, ' ', false, json::error_handler_t::replace);
    const auto needed = static_cast<std::int64_t>(text.size());
    if (needed <= room) {
      text.append(static_cast<std::size_t>(room - needed), ' ');
      break;
    }
    room = align_up(kPrefixBytes + needed + 64) - kPrefixBytes;
  }
  const std::array<std::uint64_t, 4> prefix = {kMagic, text.size(),
                                               checksum_of(std::as_bytes(std::span(text))),
                                               static_cast<std::uint64_t>(header.file_bytes)};
  std::vector<std::byte> bytes(sizeof prefix + text.size());
  std::memcpy(bytes.data(), prefix.data(), sizeof prefix);
  std::memcpy(bytes.data() + sizeof prefix, text.data(), text.size());
  return bytes;
}

Header decode(const FileReader& file) {
  std::array<std::uint64_t, 4> prefix{};
  if (file.bytes() < kPrefixBytes) damaged(file, fmt::format("it has only {} bytes", file.bytes()));
  file.read(0, std::as_writable_bytes(std::span(prefix)));
  if (prefix[0] != kMagic) damaged(file, "it does not begin as a checkpoint");
  if (prefix[3] != static_cast<std::uint64_t>(file.bytes()))
    damaged(file, fmt::format("it has {} bytes, expected {}", file.bytes(), prefix[3]));
  const std::uint64_t bytes = prefix[1];
  if (bytes > static_cast<std::uint64_t>(std::min(kMostHeaderBytes, file.bytes() - kPrefixBytes)))
    damaged(file, fmt::format("a header of {} bytes", bytes));
  std::string text(bytes, '\0');
  file.read(kPrefixBytes, std::as_writable_bytes(std::span(text)));
  if (const std::uint64_t found = checksum_of(std::as_bytes(std::span(text))); found != prefix[2])
    damaged(file, fmt::format("checksum of the header is {}, expected {}", hex(found), hex(prefix[2])));
  try {
    const json parsed = json::parse(text);
    if (const json& version = parsed.at("version"); version != 1 && version != kVersion)
      throw UnsupportedError(fmt::format("checkpoint file '{}' has version {}; this build reads 1 to {}",
                                         file.path().string(), version.dump(), kVersion));
    Header header = header_of(parsed);
    header.file_bytes = file.bytes();
    header.checksum = prefix[2];
    if (end_of(header, kPrefixBytes + static_cast<std::int64_t>(bytes), file) != file.bytes())
      damaged(file, "its buffers do not fill it");
    return header;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // JSON of another shape, or a number that is none
    damaged(file, error.what());
  }
}

}  // namespace tessera::checkpoint
