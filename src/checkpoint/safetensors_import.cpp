// import_safetensors(): headers are matched with the model on every rank, then each rank fills what it holds.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>

#include "kernels/casts.h"
#include "src/checkpoint/agree.h"
#include "src/checkpoint/safetensors_files.h"
#include "src/checkpoint/weight_map.h"

namespace tessera {

namespace {

using namespace checkpoint;

// A tensor of the map and where it was found.
struct Source {
  const StoredTensor* tensor = nullptr;
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

  // Whole rows of the parameter are columns of the file: as many of those that this rank holds as a stage
  // takes are read at once, and kept for the next call.
  void read_transposed(const Source& source, ParameterId parameter, std::int64_t begin,
                       std::span<float> values) {
    const std::int64_t columns = source.tensor->shape[0];
    for (std::size_t done = 0; done < values.size();) {
      const std::int64_t index = begin + static_cast<std::int64_t>(done) - source.tensor->begin;
      if (staged_source_ != &source || index < staged_begin_ ||
          index >= staged_begin_ + static_cast<std::int64_t>(staged_.size()))
        stage(source, index / columns, held_end(parameter, begin + static_cast<std::int64_t>(done)));
      const auto from = static_cast<std::size_t>(index - staged_begin_);
      const std::size_t numel = std::min(values.size() - done, staged_.size() - from);
      std::copy_n(staged_.data() + from, numel, values.data() + done);
      done += numel;
    }
  }

  void stage(const Source& source, std::int64_t first_row, std::int64_t held) {
    const std::int64_t columns = source.tensor->shape[0], all_rows = source.tensor->shape[1];
    const std::int64_t end = std::min(
        all_rows, (held - source.tensor->begin + columns - 1) / columns);  // behind the last row held
    const std::int64_t rows = rows_of_stage(end - first_row, columns);
    file_rows_.resize(static_cast<std::size_t>(rows * columns));
    if (rows == all_rows)
      read_row(source, 0, file_rows_);
    else
      for (std::int64_t column = 0; column < columns; ++column)
        read_row(source, column * all_rows + first_row,
                 std::span(file_rows_)
                     .subspan(static_cast<std::size_t>(column * rows), static_cast<std::size_t>(rows)));
    staged_.resize(file_rows_.size());
    transpose(columns, rows, file_rows_.data(), staged_.data());
    staged_source_ = &source;
    staged_begin_ = first_row * columns;
  }

  // Behind the last element of the parameter in the run that this rank holds from `begin` on.
  std::int64_t held_end(ParameterId parameter, std::int64_t begin) const {
    const Place& place = layout_.place(parameter);
    const std::int64_t end = range_of(layout_.flat(place.flat), spread_, place_).end;
    return std::clamp(end - place.offset, begin + 1, place.numel);
  }

  const Layout& layout_;
  const Sources& sources_;
  const Coordinates place_;       // this rank's, in the mesh
  const Spread spread_;           // of parameters
  std::vector<std::byte> bytes_;  // of a row, before the cast
  std::vector<float> file_rows_, staged_;
  const Source* staged_source_ = nullptr;
  std::int64_t staged_begin_ = 0;  // element of the tensor, as the parameter has them
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

}  // namespace

void import_safetensors(const std::filesystem::path& path, Communicator world, Engine& engine,
                        const WeightMap& map) {
  std::optional<SafetensorsFiles> files;
  Sources sources;
  std::uint64_t identity = 0;
  together(world, "weights", [&] {
    check_covers(map, engine.layout());
    files.emplace(path);
    sources = Matcher(*files, map).match(engine.layout());
    identity = identity_of(sources);
  });
  Filler filler(engine, sources);
  engine.initialize([&](ParameterId parameter, std::int64_t begin,
                        std::span<float> values) { filler.fill(parameter, begin, values); },
                    identity);
}

}  // namespace tessera
