#include "tessera/layout.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "src/layout/enumerators.h"
#include "src/layout/utf8.h"
#include "tessera/error.h"
#include "tessera/mesh.h"

namespace tessera {
namespace {

std::int64_t alignment_numel(DType dtype) { return kAlignmentBytes / bytes_of(dtype); }

// Checks the dims, and that the bytes of the parameter can be counted at all.
void check_shape(const ParameterSpec& spec) {
  std::int64_t numel = 1;
  for (std::int64_t dim : spec.shape) {
    if (dim < 1)
      throw UsageError("parameter '" + spec.name + "' has shape " + to_string(spec.shape) +
                       "; every dim must be 1 or more");
    // A factor of 1,024 leaves room for padding, for bytes and for sums over units.
    if (__builtin_mul_overflow(numel, dim, &numel) || numel > std::numeric_limits<std::int64_t>::max() / 1024)
      throw UsageError("parameter '" + spec.name + "' has shape " + to_string(spec.shape) +
                       "; that is more elements than can be counted");
  }
}

// Levenshtein's distance, for "did you mean".
int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

std::string mismatch(const std::string& what, const std::string& mine, const std::string& theirs) {
  return "; its " + what + " is " + mine + ", the other's " + theirs + ", and they must be equal";
}

std::string gradient_text(const ParameterSpec& spec) {
  return spec.gradient == GradientOver::partial ? "partial" : "copied";
}

// Files hold names as UTF-8.
void check_text(const std::string& what, const std::string& text) {
  std::size_t good = 0;  // bytes
  for (std::size_t more = 1; more > 0 && good < text.size(); good += more)
    more = utf8_bytes(std::string_view(text).substr(good));
  if (good < text.size())
    throw UsageError(what + ", '" + text + "', is not UTF-8 from byte " + std::to_string(good) +
                     " on; checkpoints could not hold it");
}

}  // namespace

std::string_view name_of(TensorShare share) {
  constexpr std::string_view kNames[] = {"copied", "partial", "cut"};
  return kNames[static_cast<int>(share)];
}

Layout::Layout(std::vector<UnitSpec> units, int shards, int replicas, int tensor)
    : units_(std::move(units)), shards_(shards), replicas_(replicas), tensor_(tensor) {
  if (shards_ < 1)
    throw UsageError("shards is " + std::to_string(shards_) + "; a layout needs 1 shard or more");
  if (replicas_ < 1)
    throw UsageError("replicas is " + std::to_string(replicas_) + "; a layout needs 1 replica or more");
  if (tensor_ < 1)
    throw UsageError("tensor is " + std::to_string(tensor_) + "; a layout needs 1 tensor rank or more");
  Mesh{.replicate = replicas_, .shard = shards_, .tensor = tensor_}.world();  // its checks
  number_parameters();
  own_.resize(units_.size());
  places_.resize(unit_of_.size());
  for (UnitId unit = 0; unit < units_.count(); ++unit) place_unit(unit);
  resolve_ties();
  collect_used();
}

void Layout::number_parameters() {
  std::unordered_set<std::string> unit_names, names;
  for (UnitId unit = 0; unit < units_.count(); ++unit) {
    const UnitSpec& spec = units_[unit];
    if (spec.name.empty())
      throw UsageError("unit " + std::to_string(unit) + " has no name; messages and plans name a unit by it");
    check_text("the name of unit " + std::to_string(unit), spec.name);
    if (!unit_names.insert(spec.name).second)
      throw UsageError("two units are named '" + spec.name + "'; the name of a unit must be its own");
    first_.push_back(static_cast<ParameterId>(unit_of_.size()));
    for (const ParameterSpec& parameter : spec.parameters) {
      if (parameter.name.empty())
        throw UsageError("a parameter of unit '" + spec.name +
                         "' has no name; checkpoints and messages name a parameter by it");
      if (!names.insert(parameter.name).second)
        throw UsageError("two parameters are named '" + parameter.name +
                         "'; the name of a parameter must be its own");
      check_text("the name of a parameter of unit '" + spec.name + "'", parameter.name);
      check_enumerator("the dtype of parameter '" + parameter.name + "'", parameter.dtype, DType::fp16);
      check_shape(parameter);
      if (parameter.group < 0)
        throw UsageError("parameter '" + parameter.name + "' has group " + std::to_string(parameter.group) +
                         "; it must be 0 or more");
      check_enumerator("the gradient of parameter '" + parameter.name + "'", parameter.gradient,
                       GradientOver::partial);
      shares_.emplace_back(parameter.name, parameter.shape, parameter.cut, tensor_);
      by_name_.push_back(static_cast<ParameterId>(unit_of_.size()));
      unit_of_.push_back(unit);
    }
  }
  std::ranges::sort(by_name_, {},
                    [this](ParameterId id) -> const std::string& { return parameter(id).name; });
}

// A frozen parameter has no gradient that could be partial.
TensorShare Layout::share_of(const ParameterSpec& parameter) const {
  if (tensor_ == 1) return TensorShare::copied;
  if (parameter.cut.dim >= 0) return TensorShare::cut;
  const bool partial = parameter.trainable && parameter.gradient == GradientOver::partial;
  return partial ? TensorShare::partial : TensorShare::copied;
}

void Layout::place_unit(UnitId unit) {
  const UnitSpec& spec = units_[unit];
  std::vector<FlatId>& own = own_[unit];
  std::vector<std::int64_t> ends;  // of the flats in `own`, the gap before the next parameter included
  for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec.parameters[i];
    if (!parameter.tied_to.empty()) continue;
    const ParameterId id = first_[unit] + static_cast<ParameterId>(i);
    const auto same = [&](FlatId flat) {
      const Flat& other = flats_[flat];
      return other.dtype == parameter.dtype && other.trainable == parameter.trainable &&
             other.over == share_of(parameter);
    };
    const std::size_t slot =
        static_cast<std::size_t>(std::find_if(own.begin(), own.end(), same) - own.begin());
    if (slot == own.size()) {
      own.push_back(flats_.count());
      ends.push_back(0);
      flats_.push_back({.unit = unit,
                        .dtype = parameter.dtype,
                        .trainable = parameter.trainable,
                        .over = share_of(parameter),
                        .parameters = {}});
    }
    Flat& flat = flats_[own[slot]];
    const std::int64_t numel = shares(id).numel();
    places_[id] = {.flat = own[slot], .offset = ends[slot], .numel = numel, .home = id};
    flat.parameters.push_back(id);
    flat.parameter_numel += numel;
    ends[slot] = round_up(ends[slot] + numel, alignment_numel(parameter.dtype));
  }
  for (std::size_t slot = 0; slot < own.size(); ++slot) {
    Flat& flat = flats_[own[slot]];
    const std::int64_t slices = std::int64_t{shards_} * replicas_;
    const std::int64_t pieces = flat.over == TensorShare::cut ? 1 : tensor_;
    flat.piece_numel =
        round_up((ends[slot] + slices * pieces - 1) / (slices * pieces), alignment_numel(flat.dtype));
    flat.slice_numel = flat.piece_numel * pieces;
    flat.shard_numel = flat.slice_numel * replicas_;
    flat.padded_numel = flat.shard_numel * shards_;
  }
}

void Layout::resolve_ties() {
  for (ParameterId id = 0; id < parameters(); ++id) {
    const ParameterSpec& tied = parameter(id);
    if (tied.tied_to.empty()) continue;
    const std::string what = "parameter '" + tied.name + "' is tied to '" + tied.tied_to + "'";
    const ParameterId home = named(tied.tied_to);
    if (home < 0) throw UsageError(what + ", which does not exist" + closest(tied.tied_to));
    const ParameterSpec& other = parameter(home);
    if (home == id) throw UsageError(what + ", which is itself; leave tied_to empty");
    if (!other.tied_to.empty())
      throw UsageError(what + ", which is itself tied; tie it to '" + other.tied_to + "'");
    if (tied.shape != other.shape)
      throw UsageError(what + mismatch("shape", to_string(tied.shape), to_string(other.shape)));
    if (tied.dtype != other.dtype)
      throw UsageError(
          what + mismatch("dtype", std::string(name_of(tied.dtype)), std::string(name_of(other.dtype))));
    if (tied.trainable != other.trainable)
      throw UsageError(what + mismatch("trainable", tied.trainable ? "true" : "false",
                                       other.trainable ? "true" : "false"));
    if (tied.group != other.group)
      throw UsageError(what + mismatch("group", std::to_string(tied.group), std::to_string(other.group)));
    if (tied.cut != other.cut)
      throw UsageError(what + mismatch("cut", to_string(tied.cut), to_string(other.cut)));
    if (tied.gradient != other.gradient)
      throw UsageError(what + mismatch("gradient", gradient_text(tied), gradient_text(other)));
    places_[id] = places_[home];
  }
}

void Layout::collect_used() {
  used_ = own_;
  for (ParameterId id = 0; id < parameters(); ++id) {
    auto& used = used_[unit_of(id)];
    if (place(id).home != id) used.push_back(place(id).flat);
  }
  for (auto& used : used_) {
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
  }
}

const ParameterSpec& Layout::parameter(ParameterId id) const {
  const UnitId unit = unit_of(id);
  return units_[unit].parameters[static_cast<std::size_t>(id - first_parameter(unit))];
}

std::string Layout::closest(const std::string& name) const {
  const std::string* best = nullptr;
  int best_distance = std::numeric_limits<int>::max();
  for (const UnitSpec& unit : units_) {
    for (const ParameterSpec& spec : unit.parameters) {
      const int distance =
          spec.name == name ? std::numeric_limits<int>::max() : edit_distance(name, spec.name);
      if (distance < best_distance) {
        best = &spec.name;
        best_distance = distance;
      }
    }
  }
  return best == nullptr ? "; there are no others" : "; the closest name is '" + *best + "'";
}

void Layout::refuse(const char* what, int id, int count) {
  throw UsageError(std::string(what) + " " + std::to_string(id) + " does not exist; the layout has " +
                   std::to_string(count));
}

ParameterId Layout::named(const std::string& name) const {
  const auto found = std::ranges::lower_bound(
      by_name_, name, {}, [this](ParameterId id) -> const std::string& { return parameter(id).name; });
  return found != by_name_.end() && parameter(*found).name == name ? *found : -1;
}

ParameterId Layout::find(const std::string& name) const {
  if (const ParameterId found = named(name); found >= 0) return found;
  throw UsageError("parameter '" + name + "' does not exist" + closest(name));
}

std::span<const FlatId> Layout::flats_of(UnitId unit) const { return at(own_, unit, "unit"); }

std::span<const FlatId> Layout::flats_used_by(UnitId unit) const { return at(used_, unit, "unit"); }

std::int64_t Layout::total_numel() const {
  std::int64_t total = 0;
  for (ParameterId id = 0; id < parameters(); ++id)
    if (place(id).home == id) total += shares(id).global_numel();
  return total;
}

std::int64_t Layout::padding_numel() const {
  std::int64_t padding = 0;
  for (const Flat& flat : flats_) padding += flat.padded_numel - flat.parameter_numel;
  return padding;
}

std::size_t Layout::slot_at(const Flat& flat, std::int64_t offset) const {
  const auto begins_after = [this](std::int64_t at, ParameterId id) { return at < place(id).offset; };
  const auto after = std::upper_bound(flat.parameters.begin(), flat.parameters.end(), offset, begins_after);
  return static_cast<std::size_t>(after - flat.parameters.begin()) - 1;  // the first one begins at 0
}

void Layout::check_range(FlatId id, std::int64_t begin, std::int64_t end) const {
  if (id < 0 || id >= flats_.count())
    throw UsageError("flat buffer " + std::to_string(id) + " does not exist; the layout has " +
                     std::to_string(flats_.size()));
  if (begin < 0 || end < begin || end > flat(id).padded_numel)
    throw UsageError("elements " + std::to_string(begin) + " to " + std::to_string(end) +
                     " are not a range of flat buffer " + std::to_string(id) + ", which has " +
                     std::to_string(flat(id).padded_numel));
}

Element Layout::locate(FlatId id, std::int64_t offset, int tensor_rank) const {
  const std::vector<Piece> found = global_pieces(id, offset, offset + 1, tensor_rank);
  return found.empty() ? Element{.parameter = -1, .index = 0}
                       : Element{.parameter = found.front().parameter, .index = found.front().begin};
}

ShareRun Layout::run_of(const Element& element) const {
  const TensorShares& held = shares(element.parameter);
  if (element.index < 0 || element.index >= held.global_numel())
    throw UsageError("element " + std::to_string(element.index) + " is not in parameter '" +
                     parameter(element.parameter).name + "', which has " +
                     std::to_string(held.global_numel()));
  return held.of_parameter(element.index, element.index + 1).front();
}

std::int64_t Layout::offset_of(const Element& element) const {
  return place(element.parameter).offset + run_of(element).local;
}

int Layout::tensor_rank_of(const Element& element) const { return run_of(element).tensor_rank; }

int Layout::shard_of(const Element& element) const {
  const std::int64_t offset = offset_of(element);
  return static_cast<int>(offset / flat(place(element.parameter).flat).shard_numel);
}

std::vector<Piece> Layout::pieces(FlatId id, std::int64_t begin, std::int64_t end) const {
  check_range(id, begin, end);
  std::vector<Piece> result;
  const std::vector<ParameterId>& members = flat(id).parameters;
  for (std::size_t slot = begin < end ? slot_at(flat(id), begin) : members.size(); slot < members.size();
       ++slot) {
    const Place& where = place(members[slot]);
    if (where.offset >= end) break;
    const std::int64_t from = std::max(begin, where.offset);
    const std::int64_t to = std::min(end, where.offset + where.numel);
    if (from < to)
      result.push_back(
          {.parameter = members[slot], .begin = from - where.offset, .offset = from, .numel = to - from});
  }
  return result;
}

std::vector<Piece> Layout::global_pieces(FlatId id, std::int64_t begin, std::int64_t end,
                                         int tensor_rank) const {
  if (tensor_rank < 0 || tensor_rank >= tensor_) refuse("tensor rank", tensor_rank, tensor_);
  std::vector<Piece> result;
  for (const Piece& piece : pieces(id, begin, end)) {
    const TensorShares& held = shares(piece.parameter);
    for (const ShareRun& run : held.of_share(tensor_rank, piece.begin, piece.begin + piece.numel))
      result.push_back({.parameter = piece.parameter,
                        .begin = run.global,
                        .offset = piece.offset + run.local - piece.begin,
                        .numel = run.numel});
  }
  return result;
}

std::vector<Piece> Layout::gaps(FlatId id, std::int64_t begin, std::int64_t end) const {
  std::vector<Piece> result;
  std::int64_t at = begin;
  const auto close = [&](std::int64_t to) {
    if (at < to) result.push_back({.parameter = -1, .begin = 0, .offset = at, .numel = to - at});
  };
  for (const Piece& piece : pieces(id, begin, end)) {
    close(piece.offset);
    at = piece.offset + piece.numel;
  }
  close(end);
  return result;
}

}  // namespace tessera
