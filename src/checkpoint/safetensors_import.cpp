// import_safetensors(): headers are matched with the model on every rank, then each rank fills what it holds.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <set>
#include <utility>

#include "kernels/casts.h"
#include "src/checkpoint/agree.h"
#include "src/checkpoint/finite.h"
#include "src/checkpoint/safetensors_files.h"
#include "src/checkpoint/weight_map.h"

namespace tessera {

namespace {

using namespace checkpoint;

// A tensor of the map and where it was found.
struct Source {
  const StoredTensor* tensor = nullptr;
  const SafetensorsFiles::Tensor* found = nullptr;
  const SafetensorsFile* file = nullptr;
  std::int64_t offset = 0;  // in the file, bytes
  DType type = DType::fp32;
  std::int64_t numel = 0;
};

// By parameter, ascending by StoredTensor::begin.
using Sources = IdVector<std::vector<Source>>;

// Matches the tensors of the files with those of the map.
class Matcher {
 public:
  Matcher(const SafetensorsFiles& files, const WeightMap& map) : files_(files), map_(map) {}

  Sources match(const Layout& layout) {
    Sources sources(layout.parameters());
    for (const StoredTensor& tensor : map_.tensors)
      sources[layout.find(tensor.parameter)].push_back(source_of(tensor));
    for (std::vector<Source>& parts : sources)
      std::ranges::sort(parts, {}, [](const Source& source) { return source.tensor->begin; });
    for (const WeightMap::Copy& copy : map_.copies) check_copy(copy);
    refuse_others();
    return sources;
  }

 private:
  const SafetensorsFiles::Tensor* find(const std::string& name) {
    const SafetensorsFiles::Tensor* found = files_.find(name);
    if (!found && !map_.prefix.empty() && name.starts_with(map_.prefix))
      found = files_.find(name.substr(map_.prefix.size()));
    if (found) used_.insert(found->entry.name);
    return found;
  }

  Source source_of(const StoredTensor& tensor) {
    if (tensor.added)
      throw UsageError(fmt::format(
          "tensor '{}' is a sum of a parameter and a product, which only exports have", tensor.name));
    const SafetensorsFiles::Tensor* const found = find(tensor.name);
    if (!found)
      throw UsageError(fmt::format("'{}' has no tensor '{}', which the model's {} needs", files_.source(),
                                   tensor.name, tensor.parameter));
    const TensorEntry& entry = found->entry;
    const std::optional<DType> type = weight_type(entry.dtype);
    if (!type)
      throw UsageError(fmt::format("tensor '{}' of '{}' is of type {}; weights are F32, BF16 or F16",
                                   entry.name, files_.source(), entry.dtype));
    if (entry.shape != tensor.shape)
      throw UsageError(fmt::format("tensor '{}' of '{}' has shape {}; the model needs {}", entry.name,
                                   files_.source(), to_string(entry.shape), to_string(tensor.shape)));
    return {.tensor = &tensor,
            .found = found,
            .file = found->file,
            .offset = entry.begin,
            .type = *type,
            .numel = numel_of(entry.shape)};
  }

  // A head that is stored beside the embedding it is tied to must not be another one.
  void check_copy(const WeightMap::Copy& copy) {
    const SafetensorsFiles::Tensor* const one = find(copy.name);
    const SafetensorsFiles::Tensor* const other = find(copy.of);
    if (!one || !other) return;
    const TensorEntry &a = one->entry, &b = other->entry;
    bool same = a.dtype == b.dtype && a.shape == b.shape;
    std::vector<std::byte> left(static_cast<std::size_t>(kStageNumel)), right = left;
    for (std::int64_t done = 0; same && done < a.end - a.begin; done += kStageNumel) {
      const auto bytes = static_cast<std::size_t>(std::min(kStageNumel, a.end - a.begin - done));
      one->file->read(a.begin + done, std::span(left).first(bytes));
      other->file->read(b.begin + done, std::span(right).first(bytes));
      same = std::memcmp(left.data(), right.data(), bytes) == 0;
    }
    if (!same)
      throw UsageError(fmt::format("tensors '{}' and '{}' of '{}' differ; in the model they are tied", a.name,
                                   b.name, files_.source()));
  }

  void refuse_others() const {
    for (const auto& [name, tensor] : files_.tensors()) {
      const auto ends = [&name = name](const std::string& end) { return name.ends_with(end); };
      if (!used_.contains(name) && std::ranges::none_of(map_.ignored, ends))
        throw UsageError(fmt::format("'{}' has a tensor '{}' of shape {}, which the model has no place for",
                                     files_.source(), name, to_string(tensor.entry.shape)));
    }
  }

  const SafetensorsFiles& files_;
  const WeightMap& map_;
  std::set<std::string> used_;
};

// Gives Engine::initialize the values it asks for.
class Filler {
 public:
  Filler(const Engine& engine, const Sources& sources)
      : layout_(engine.layout()),
        sources_(sources),
        place_(engine.options().mesh.coordinates(engine.rank())),
        spread_(spreads_of(engine.options().strategy, engine.options().mesh).parameters) {}

  // [begin, begin + values) of the parameter.
  void fill(ParameterId parameter, std::int64_t begin, std::span<float> values) {
    std::ranges::fill(values, 0.0F);  // what is in no tensor is padding
    for (const Source& source : sources_[parameter]) {
      const std::int64_t first = std::max(begin, source.tensor->begin);
      const std::int64_t last =
          std::min(begin + static_cast<std::int64_t>(values.size()), source.tensor->begin + source.numel);
      if (first >= last) continue;
      const std::span<float> part =
          values.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first));
      if (source.tensor->transposed)
        read_transposed(source, parameter, first, part);
      else
        read_row(source, first - source.tensor->begin, part);
    }
  }

 private:
  // Elements as they lie in the file.
  void read_row(const Source& source, std::int64_t index, std::span<float> values) {
    const std::int64_t offset = source.offset + index * bytes_of(source.type);
    if (source.type == DType::fp32) return source.file->read(offset, std::as_writable_bytes(values));
    bytes_.resize(values.size() * static_cast<std::size_t>(bytes_of(source.type)));
    source.file->read(offset, bytes_);
    kernels::cast({}, static_cast<std::int64_t>(values.size()), source.type, bytes_.data(), DType::fp32,
                  values.data());
  }

  // Rows of a transposed tensor, or the same part of each, as the parameter has them.
  struct Rows {
    std::int64_t first_row = 0, rows = 0, first_column = 0, columns = 0;
    bool contains(std::int64_t row, std::int64_t column) const {
      return row >= first_row && row < first_row + rows && column >= first_column &&
             column < first_column + columns;
    }
  };
  struct Stage {
    Rows of;
    std::vector<float> values;
  };

  // Rows of the parameter are columns of the file: as many of those that this rank holds as a stage takes are
  // read at once, and kept for the next call.
  void read_transposed(const Source& source, ParameterId parameter, std::int64_t begin,
                       std::span<float> values) {
    const std::int64_t columns = source.tensor->shape[0];
    for (std::size_t done = 0; done < values.size();) {
      const std::int64_t at = begin + static_cast<std::int64_t>(done), index = at - source.tensor->begin;
      const std::int64_t row = index / columns, column = index % columns;
      const auto& [of, staged] = stage_of(source, parameter, at, row, column);
      const auto from =
          static_cast<std::size_t>((row - of.first_row) * of.columns + column - of.first_column);
      const std::size_t next_to_each_other =  // in the parameter and in the stage
          of.columns == columns ? staged.size() - from
                                : static_cast<std::size_t>(of.first_column + of.columns - column);
      const std::size_t numel = std::min(values.size() - done, next_to_each_other);
      std::copy_n(staged.data() + from, numel, values.data() + done);
      done += numel;
    }
  }

  // The stage that has the element `at` of the parameter. A rank may have several parts of each row, and so a
  // stage for each.
  const Stage& stage_of(const Source& source, ParameterId parameter, std::int64_t at, std::int64_t row,
                        std::int64_t column) {
    if (staged_source_ != &source) stages_.clear();
    staged_source_ = &source;
    for (const Stage& stage : stages_)
      if (stage.of.contains(row, column)) return stage;
    Rows rows = held_rows(source, parameter, at);
    rows.rows = rows_of_stage(rows.rows, rows.columns);
    const auto old = std::ranges::find(stages_, rows.first_column,
                                       [](const Stage& stage) { return stage.of.first_column; });
    Stage& stage = old != stages_.end() ? *old : stages_.emplace_back();
    stage.of = rows;
    read_rows(source, stage);
    return stage;
  }

  void read_rows(const Source& source, Stage& stage) {
    const std::int64_t all_rows = source.tensor->shape[1];
    const auto& [first_row, rows, first_column, columns] = stage.of;
    file_rows_.resize(static_cast<std::size_t>(rows * columns));
    if (rows == all_rows)
      read_row(source, first_column * all_rows, file_rows_);
    else
      for (std::int64_t column = 0; column < columns; ++column)
        read_row(source, (first_column + column) * all_rows + first_row,
                 std::span(file_rows_)
                     .subspan(static_cast<std::size_t>(column * rows), static_cast<std::size_t>(rows)));
    stage.values.resize(file_rows_.size());
    transpose(columns, rows, file_rows_.data(), stage.values.data());
  }

  // What this rank holds of a transposed tensor from the parameter's element `at` on, as rows that have the
  // element, and those behind of which it holds the same.
  Rows held_rows(const Source& source, ParameterId parameter, std::int64_t at) const {
    const std::int64_t begin = source.tensor->begin, columns = source.tensor->shape[0];
    const std::int64_t row = (at - begin) / columns, column = (at - begin) % columns;
    const std::int64_t rows = source.tensor->shape[1] - row;
    const auto whole_rows_until = [&](std::int64_t end) -> Rows {
      return {row, std::min(rows, (end - begin + columns - 1) / columns - row), 0, columns};
    };
    const TensorShares& shares = layout_.shares(parameter);
    const Place& place = layout_.place(parameter);
    const std::int64_t held_end = range_of(layout_.flat(place.flat), spread_, place_).end - place.offset;
    if (shares.is_whole()) return whole_rows_until(std::clamp(held_end, at + 1, place.numel));
    const std::int64_t local = shares.of_parameter(at, at + 1).front().local;
    const std::int64_t row_numel = cut_row_numel(parameter);
    const std::int64_t local_row_numel = numel_of(shares.shape()) / (shares.global_numel() / row_numel);
    const ShareRun run = run_of(shares, local, local_row_numel);
    const std::int64_t first = run.global - begin, last = first + run.numel - 1;
    if (first % columns == 0 && (last + 1) % columns == 0)
      return whole_rows_until(at + std::min(run.local + run.numel, std::max(held_end, local + 1)) - local);
    if (first < 0 || first / columns != row || last / columns != row)  // no tensor is cut so; still right
      return {row, 1, column, std::min(columns - column, last + 1 - (at - begin))};
    const std::int64_t more = std::max<std::int64_t>(0, held_end - run.local - 1) / local_row_numel;
    return {row, row_numel == columns ? std::min(rows, 1 + more) : 1, first % columns, run.numel};
  }

  // Elements of a cut parameter from one row that is cut to the next.
  std::int64_t cut_row_numel(ParameterId parameter) const {
    const ParameterSpec& spec = layout_.parameter(parameter);
    return numel_of(Shape(spec.shape.begin() + spec.cut.dim, spec.shape.end()));
  }

  // The longest run of this rank's share that has the local element.
  ShareRun run_of(const TensorShares& shares, std::int64_t local, std::int64_t local_row_numel) const {
    const std::int64_t row = local / local_row_numel * local_row_numel;
    const std::vector<ShareRun> runs = shares.of_share(place_[Axis::tensor], row, row + local_row_numel);
    return *std::ranges::find_if(runs, [&](const ShareRun& run) { return local < run.local + run.numel; });
  }

  const Layout& layout_;
  const Sources& sources_;
  const Coordinates place_;       // this rank's, in the mesh
  const Spread spread_;           // of parameters
  std::vector<std::byte> bytes_;  // of a row, before the cast
  std::vector<float> file_rows_;
  const Source* staged_source_ = nullptr;
  std::vector<Stage> stages_;
};

// A hash of how every tensor begins, equal where ranks read equal files.
std::uint64_t identity_of(const Sources& sources) {
  std::uint64_t hash = 0;
  std::vector<std::byte> bytes;
  for (const std::vector<Source>& of_parameter : sources)
    for (const Source& source : of_parameter) {
      bytes.resize(
          static_cast<std::size_t>(std::min<std::int64_t>(64, source.numel * bytes_of(source.type))));
      source.file->read(source.offset, bytes);
      hash = XXH3_64bits_withSeed(bytes.data(), bytes.size(), hash);
    }
  return hash;
}

// Adds those of one map.
void add(Sources more, const Layout& layout, Sources& sources) {
  for (ParameterId id = 0; id < sources.count(); ++id) {
    if (more[id].empty()) continue;
    if (!sources[id].empty())
      throw UsageError(fmt::format("parameter '{}' is in two of the weight maps", layout.parameter(id).name));
    sources[id] = std::move(more[id]);
  }
}

// All but tied parameters are in some file.
void check_all(const Sources& sources, const Layout& layout) {
  for (ParameterId id = 0; id < sources.count(); ++id)
    if (sources[id].empty() && layout.parameter(id).tied_to.empty())
      throw UsageError(
          fmt::format("parameter '{}' is in none of the weight maps", layout.parameter(id).name));
}

std::vector<const SafetensorsFiles::Tensor*> tensors_of(const Sources& sources) {
  std::vector<const SafetensorsFiles::Tensor*> tensors;
  for (const std::vector<Source>& of_parameter : sources)
    for (const Source& source : of_parameter) tensors.push_back(source.found);
  return tensors;
}

}  // namespace

void import_safetensors(const std::filesystem::path& path, Communicator world, Engine& engine,
                        const WeightMap& map, const SafetensorsImport& options) {
  const WeightSource source{path, map};
  import_safetensors({&source, 1}, std::move(world), engine, options);
}

void import_safetensors(std::span<const WeightSource> from, Communicator world, Engine& engine,
                        const SafetensorsImport& options, const Engine::Fill& others) {
  std::deque<SafetensorsFiles> files;
  Sources sources(engine.layout().parameters());
  std::uint64_t identity = 0;
  together(world, "weights", [&] {
    for (const WeightSource& source : from) {
      check_covers(source.map, engine.layout());
      files.emplace_back(source.path);
      add(Matcher(files.back(), source.map).match(engine.layout()), engine.layout(), sources);
    }
    if (!others) check_all(sources, engine.layout());
    identity = identity_of(sources);
  });
  if (!options.allow_nonfinite)
    together(world, "weights that are finite", [&] {
      check_finite(tensors_of(sources), engine.rank(), engine.world(), options.name_of_allow_nonfinite);
    });
  Filler filler(engine, sources);
  engine.initialize(
      [&](ParameterId parameter, std::int64_t begin, std::span<float> values) {
        if (sources[parameter].empty() && others) return others(parameter, begin, values);
        filler.fill(parameter, begin, values);
      },
      identity);
}

}  // namespace tessera
