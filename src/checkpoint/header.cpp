#include "src/checkpoint/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "src/checkpoint/checksum.h"

namespace tessera::checkpoint {

namespace {

using nlohmann::json;

// 1 had a loss scaler of every run, and no tokens. 2 is what one tensor rank stores. 3 is of several: it has
// cuts, and checksums of blocks. 4 is of one or several, of parameters that are cut into blocks
// (Cut::blocks).
constexpr int kVersion = 4, kCutVersion = 3, kUncutVersion = 2;
constexpr std::uint64_t kMagic = 0x314152455353'4554;  // "TESSERA1", little-endian
constexpr std::int64_t kPrefixBytes = 32;
constexpr std::int64_t kMostHeaderBytes = std::int64_t{1} << 30;

std::int64_t align_up(std::int64_t bytes) { return round_up(bytes, kAlignmentBytes); }

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }
std::uint64_t parse_hex(const std::string& text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  if (const auto [at, error] = std::from_chars(text.data(), end, value, 16);
      error != std::errc() || at != end)
    throw std::invalid_argument("'" + text + "' where a hexadecimal number belongs");
  return value;
}

Placement parse_placement(const std::string& name) {
  for (const Placement placement : {Placement::replicated, Placement::sharded})
    if (name == name_of(placement)) return placement;
  throw std::invalid_argument("placement '" + name + "'");
}

// The checksums of blocks, one behind the other.
std::string hex(const std::vector<std::uint64_t>& values) {
  std::string text;
  for (const std::uint64_t value : values) text += hex(value);
  return text;
}
std::vector<std::uint64_t> parse_hexes(const std::string& text) {
  constexpr std::size_t kDigits = 16;
  if (text.size() % kDigits != 0) throw std::invalid_argument("checksums of blocks that are cut off");
  std::vector<std::uint64_t> values;
  for (std::size_t at = 0; at < text.size(); at += kDigits)
    values.push_back(parse_hex(text.substr(at, kDigits)));
  return values;
}

StateKind parse_state(const std::string& name) {
  for (const StateKind state :
       {StateKind::master, StateKind::parameter, StateKind::moment1, StateKind::moment2})
    if (name == name_of(state)) return state;
  throw std::invalid_argument("state '" + name + "'");
}

json to_json(const std::vector<StoredUnit>& units) {
  json result = json::array();
  for (const StoredUnit& unit : units) {
    json parameters = json::array();
    for (const StoredParameter& p : unit.parameters) {
      parameters.push_back({{"name", p.name},
                            {"shape", p.shape},
                            {"type", p.dtype},
                            {"trainable", p.trainable},
                            {"tied_to", p.tied_to}});
      if (p.cut.dim >= 0)
        parameters.back()["cut"] = {
            {"dim", p.cut.dim}, {"segments", p.cut.segments}, {"padded", p.cut.padded}};
      if (p.cut.blocks > 1) parameters.back()["cut"]["blocks"] = p.cut.blocks;
      if (p.gradient == GradientOver::partial) parameters.back()["gradient"] = "partial";
    }
    result.push_back({{"name", unit.name}, {"parameters", std::move(parameters)}});
  }
  return result;
}

Cut cut_of(const json& j) {
  return {.dim = j.at("dim"),
          .segments = j.at("segments").get<std::vector<std::int64_t>>(),
          .padded = j.at("padded"),
          .blocks = j.value("blocks", 1)};
}

int version_of(const Header& header) {
  for (const StoredUnit& unit : header.units)
    if (std::ranges::any_of(unit.parameters, [](const auto& p) { return p.cut.blocks > 1; })) return kVersion;
  return header.mesh.tensor > 1 ? kCutVersion : kUncutVersion;
}

GradientOver gradient_of(const std::string& name) {
  if (name == "partial") return GradientOver::partial;
  if (name != "copied") throw std::invalid_argument("gradient '" + name + "'");
  return GradientOver::copied;
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
                                 .tied_to = p.at("tied_to"),
                                 .cut = p.contains("cut") ? cut_of(p.at("cut")) : Cut(),
                                 .gradient = gradient_of(p.value("gradient", "copied"))});
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
  for (const StoredBuffer& b : header.buffers) {
    buffers.push_back({{"unit", b.unit},
                       {"flat", b.flat},
                       {"state", name_of(b.state)},
                       {"whole", b.whole},
                       {"offset", b.offset},
                       {"bytes", b.bytes},
                       {"xxh3", hex(b.checksum)}});
    if (!b.blocks.empty()) buffers.back()["blocks"] = hex(b.blocks);
  }
  return {{"version", version_of(header)},
          {"rank", header.rank},
          {"step", header.state.step},
          {"samples", header.state.samples},
          {"configuration", header.state.configuration},
          {"data", header.state.data},
          {"numerics", header.state.numerics},
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
          {"moments", header.moments},
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
                       .checksum = parse_hex(b.at("xxh3")),
                       .blocks = parse_hexes(b.value("blocks", ""))});
  return buffers;
}

Header header_of(const json& j) {
  Header header;
  header.rank = j.at("rank");
  header.state = {.step = j.at("step"),
                  .samples = j.at("samples"),
                  .configuration = j.at("configuration"),
                  .data = j.value("data", ""),
                  .numerics = j.value("numerics", ""),
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
  header.moments = j.value("moments", Header::kUnknownMoments);
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

// Checks that the buffers lie behind the header, one after the other, and end with the file.
void check_buffers(const Header& header, std::int64_t offset, const FileReader& file) {
  for (const StoredBuffer& buffer : header.buffers) {
    if (buffer.offset != align_up(offset) || buffer.bytes < 0) damaged(file, "its buffers overlap");
    if (buffer.offset > file.bytes() || buffer.bytes > file.bytes() - buffer.offset)
      damaged(file, "its buffers do not fit into it");
    offset = buffer.offset + buffer.bytes;
    if (buffer.blocks.empty()) continue;
    const std::vector<std::uint64_t>& blocks = buffer.blocks;
    if (static_cast<std::int64_t>(blocks.size()) != blocks_in(buffer.bytes) ||
        checksum_of(std::as_bytes(std::span(blocks))) != buffer.checksum)
      damaged(file, fmt::format("its checksums of the {} of unit {} do not fit each other",
                                name_of(buffer.state), buffer.unit));
  }
  if (offset != file.bytes()) damaged(file, "its buffers do not fill it");
}

void check_rank(const Header& header, const FileReader& file) {
  int world = 0;
  try {
    world = header.mesh.world();
  } catch (const UsageError& error) {
    damaged(file, error.what());
  }
  if (header.rank < 0 || header.rank >= world)
    damaged(file, fmt::format("rank {} of a world of {}", header.rank, world));
}

}  // namespace

std::string to_text(const std::vector<StoredUnit>& units) { return to_json(units).dump(); }

std::vector<std::byte> with_prefix(std::string_view text, std::int64_t file_bytes) {
  const std::array<std::uint64_t, 4> prefix = {kMagic, text.size(),
                                               checksum_of(std::as_bytes(std::span(text))),
                                               static_cast<std::uint64_t>(file_bytes)};
  std::vector<std::byte> bytes(sizeof prefix + text.size());
  std::memcpy(bytes.data(), prefix.data(), sizeof prefix);
  std::memcpy(bytes.data() + sizeof prefix, text.data(), text.size());
  return bytes;
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
  return with_prefix(text, header.file_bytes);
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
    if (const json& version = parsed.at("version");
        version != 1 && version != kUncutVersion && version != kCutVersion && version != kVersion)
      throw UnsupportedError(fmt::format("checkpoint file '{}' has version {}; this build reads 1 to {}",
                                         file.path().string(), version.dump(), kVersion));
    Header header = header_of(parsed);
    header.file_bytes = file.bytes();
    header.checksum = prefix[2];
    check_rank(header, file);
    check_buffers(header, kPrefixBytes + static_cast<std::int64_t>(bytes), file);
    return header;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // JSON of another shape, or a number that is none
    damaged(file, error.what());
  }
}

}  // namespace tessera::checkpoint
