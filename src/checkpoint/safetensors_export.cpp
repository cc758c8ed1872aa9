// export_safetensors(): the ranks gather a few MiB at a time, rank 0 writes them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <optional>

#include "kernels/casts.h"
#include "kernels/matmul.h"
#include "src/checkpoint/agree.h"
#include "src/checkpoint/made_folders.h"
#include "src/checkpoint/safetensors_files.h"
#include "src/checkpoint/weight_map.h"

namespace tessera {

namespace {

// "model.safetensors", or a part of several: what an export into a folder writes.
bool is_exported_name(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem)) return false;
  name.remove_prefix(stem.size());
  if (name == ".safetensors") return true;
  constexpr std::string_view kPart = "-00000-of-00000.safetensors";  // a 0 stands for any digit
  return std::ranges::equal(name, kPart, [](char found, char wanted) {
    return wanted == '0' ? found >= '0' && found <= '9' : found == wanted;
  });
}

namespace fs = std::filesystem;
using namespace checkpoint;

// The tensors of one file, and its places before and after the rename.
struct OutputFile {
  fs::path path, temporary;
  std::vector<const StoredTensor*> tensors;
  std::vector<TensorEntry> entries;  // of the same; begin and end are set by encode_tensors()
};

struct OutputFiles {
  fs::path folder;
  std::optional<fs::path> index;
  std::optional<fs::path> config;
  std::vector<OutputFile> files;

  OutputFiles(const fs::path& path, const WeightMap& map, const SafetensorsExport& options)
      : index_name_(options.stem + ".safetensors.index.json"), stem_(options.stem) {
    split(map, options);
    const bool names_file = path.extension() == ".safetensors";
    if (names_file && options.max_file_bytes > 0)
      throw UsageError(fmt::format("max_file_bytes is {} and '{}' is one file; name a folder for several",
                                   options.max_file_bytes, path.string()));
    folder = names_file ? path.parent_path() : path;
    if (folder.empty()) folder = ".";
    if (files.size() > 1) index = folder / index_name_;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string name = names_file ? path.filename().string()
                               : files.size() == 1
                                   ? stem_ + ".safetensors"
                                   : fmt::format("{}-{:05}-of-{:05}.safetensors", stem_, i + 1, files.size());
      files[i].path = folder / name;
      files[i].temporary = folder / ("." + name + ".tmp");
    }
    whole_folder_ = !names_file;
    config_text_ = options.config;
    if (whole_folder_ && !config_text_.empty()) config = folder / "config.json";
    if (whole_folder_) others_ = options.files;
  }

  // What would only be refused once all is written is refused here.
  void make_folder(std::optional<MadeFolders>& made) const {
    const auto cannot = [](const fs::path& path, const std::string& reason) {
      throw EnvironmentError(fmt::format("cannot write safetensors into '{}': {}", path.string(), reason));
    };
    std::error_code error;
    if (const fs::file_status there = fs::status(folder, error);
        fs::exists(there) && !fs::is_directory(there))
      throw EnvironmentError(
          fmt::format("'{}' is a file; name a folder, or a file that ends in .safetensors", folder.string()));
    for (const OutputFile& file : files)
      if (fs::is_directory(file.path, error)) cannot(file.path, "it is a folder");
    made.emplace(folder, error);
    if (error) cannot(folder, error.message());
    made->sync();
  }

  // What an earlier export left in the folder that this one does not replace.
  std::vector<fs::path> superseded() const {
    std::vector<fs::path> found;
    if (!whole_folder_) return found;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const bool replaced = std::ranges::any_of(
          files, [&](const OutputFile& file) { return file.path.filename() == entry.path().filename(); });
      if (!replaced && is_exported_name(entry.path().filename().string(), stem_))
        found.push_back(entry.path());
    }
    return found;
  }

  // The index first: where it is, it is of the files beside it.
  void publish() const {
    sync_folder(folder);
    if (whole_folder_) fs::remove(folder / index_name_);
    for (const OutputFile& file : files) rename_file(file.temporary, file.path, kSafetensors);
    for (const fs::path& old : superseded()) fs::remove(old);
    if (config) replace_text(*config, config_text_);
    for (const auto& [name, text] : others_) replace_text(folder / name, text);
    if (index) {
      std::map<std::string, std::string> names;
      std::int64_t bytes = 0;
      for (const OutputFile& file : files)
        for (const TensorEntry& entry : file.entries) {
          names[entry.name] = file.path.filename().string();
          bytes += entry.end - entry.begin;
        }
      replace_text(*index, encode_index(names, bytes));
    }
    sync_folder(folder);
  }

  std::vector<fs::path> written() const {
    std::vector<fs::path> paths;
    for (const OutputFile& file : files) paths.push_back(file.path);
    if (config) paths.push_back(*config);
    for (const auto& [name, text] : others_) paths.push_back(folder / name);
    if (index) paths.push_back(*index);
    return paths;
  }

 private:
  void split(const WeightMap& map, const SafetensorsExport& options) {
    if (options.max_file_bytes < 0)
      throw UsageError(
          fmt::format("max_file_bytes is {}; it must be 0 (no limit) or more", options.max_file_bytes));
    std::int64_t bytes = 0;  // of the last file
    for (const StoredTensor& tensor : map.tensors) {
      const std::int64_t own = numel_of(tensor.shape) * bytes_of(options.dtype);
      if (files.empty() ||
          (options.max_file_bytes > 0 && bytes > 0 && bytes + own > options.max_file_bytes)) {
        files.emplace_back();
        bytes = 0;
      }
      files.back().tensors.push_back(&tensor);
      files.back().entries.push_back({.name = tensor.name,
                                      .dtype = std::string(stored_name(options.dtype)),
                                      .shape = tensor.shape,
                                      .begin = 0,
                                      .end = own});
      bytes += own;
    }
  }

  const std::string index_name_, stem_;
  bool whole_folder_ = false;
  std::map<std::string, std::string> others_;
  std::string config_text_;
};

// Removes the temporary files on the way out; after the rename there are none. Then the folders that this
// export made, where nothing is in them.
struct Cleanup {
  const OutputFiles* output = nullptr;
  std::optional<MadeFolders> made_folders = {};
  ~Cleanup() {
    if (!output) return;
    std::error_code ignored;
    for (const OutputFile& file : output->files) fs::remove(file.temporary, ignored);
  }
};

constexpr std::align_val_t kWorkspaceAlignment{64};
struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, kWorkspaceAlignment); }
};

class Exporter {
 public:
  Exporter(Communicator& world, Engine& engine, DType type) : world_(world), engine_(engine), type_(type) {}

  void write(OutputFile& file) {
    together(world_, "export file", [&] {
      if (!first()) return;
      std::error_code ignored;
      fs::remove(file.temporary, ignored);  // of a run that was killed
      const std::string head = encode_tensors(file.entries);
      writer_ = std::make_unique<FileWriter>(file.temporary, file.entries.back().end, kSafetensors);
      writer_->write_at(0, std::as_bytes(std::span(head)));
    });
    for (std::size_t i = 0; i < file.tensors.size(); ++i) write_tensor(*file.tensors[i], file.entries[i]);
    together(world_, "export sync", [&] {
      if (first()) writer_->finish();
    });
    writer_.reset();
  }

 private:
  bool first() const { return world_.rank() == 0; }

  void write_tensor(const StoredTensor& tensor, const TensorEntry& entry) {
    const std::int64_t numel = numel_of(tensor.shape);
    const std::int64_t columns = tensor.transposed ? tensor.shape[0] : tensor.added ? tensor.shape[1] : 1;
    const std::int64_t chunk = rows_of_stage(numel / columns, columns) * columns;
    for (std::int64_t done = 0; done < numel; done += chunk) {
      read(tensor, done, std::min(chunk, numel - done));
      together(world_, "export write", [&] {
        if (!first()) return;
        if (tensor.transposed)
          write_rows(tensor, entry, done / columns);
        else
          put(tensor, entry.begin + done * bytes_of(type_), values_);
      });
    }
  }

  void read(const StoredTensor& tensor, std::int64_t begin, std::int64_t numel) {
    read(tensor.parameter, tensor.begin + begin, numel, values_);
    if (tensor.added) add(*tensor.added, begin, numel, tensor.shape[tensor.transposed ? 0 : 1]);
  }

  void read(const std::string& name, std::int64_t begin, std::int64_t numel, std::vector<float>& values) {
    const Layout& layout = engine_.layout();
    const ParameterId parameter = layout.find(name);
    const bool trainable = layout.flat(layout.place(parameter).flat).trainable;
    values.resize(static_cast<std::size_t>(numel));
    engine_.read(parameter, trainable ? StateKind::master : StateKind::parameter, begin, values);
  }

  // To values_, which are whole rows of so many columns from element `begin` of the tensor on.
  void add(const StoredTensor::Product& product, std::int64_t begin, std::int64_t numel,
           std::int64_t columns) {
    const std::int64_t rows = numel / columns;
    read(product.left, (product.left_row + begin / columns) * product.rank, rows * product.rank, left_);
    read(product.right, product.right_row * columns, product.rank * columns, right_);
    const kernels::MatmulShape shape = {
        .m = rows, .n = columns, .k = product.rank, .alpha = static_cast<float>(product.scale), .beta = 1.0f};
    const std::int64_t bytes = kernels::matmul_workspace_bytes(shape, 1);
    const std::unique_ptr<std::byte[], AlignedDelete> workspace(
        static_cast<std::byte*>(::operator new[](static_cast<std::size_t>(bytes), kWorkspaceAlignment)));
    kernels::matmul({.workspace = {.data = workspace.get(), .bytes = bytes}}, shape, left_.data(),
                    right_.data(), nullptr, values_.data());
  }

  // Rows of the parameter are columns in the file.
  void write_rows(const StoredTensor& tensor, const TensorEntry& entry, std::int64_t first_row) {
    const std::int64_t columns = tensor.shape[0], all_rows = tensor.shape[1];
    const std::int64_t rows = static_cast<std::int64_t>(values_.size()) / columns;
    transposed_.resize(values_.size());
    transpose(rows, columns, values_.data(), transposed_.data());
    if (rows == all_rows) return put(tensor, entry.begin, transposed_);
    for (std::int64_t column = 0; column < columns; ++column)
      put(tensor, entry.begin + (column * all_rows + first_row) * bytes_of(type_),
          std::span(transposed_)
              .subspan(static_cast<std::size_t>(column * rows), static_cast<std::size_t>(rows)));
  }

  void put(const StoredTensor& tensor, std::int64_t offset, std::span<const float> values) {
    if (type_ == DType::fp32) return writer_->write_at(offset, std::as_bytes(values));
    if (type_ == DType::fp16) check_fp16(tensor, values);
    bytes_.resize(values.size() * static_cast<std::size_t>(bytes_of(type_)));
    kernels::cast({}, static_cast<std::int64_t>(values.size()), DType::fp32, values.data(), type_,
                  bytes_.data());
    writer_->write_at(offset, bytes_);
  }

  static void check_fp16(const StoredTensor& tensor, std::span<const float> values) {
    constexpr float kOverflows = 65520.0f;  // rounds to infinity, as does all above
    for (const float value : values)
      if (std::isfinite(value) && std::fabs(value) >= kOverflows)
        throw UsageError(fmt::format(
            "tensor '{}' has a value of {}, more than fp16 can hold; use bf16 or fp32", tensor.name, value));
  }

  Communicator& world_;
  Engine& engine_;
  const DType type_;
  std::unique_ptr<FileWriter> writer_;  // on rank 0
  std::vector<float> values_, transposed_, left_, right_;
  std::vector<std::byte> bytes_;
};

}  // namespace

std::vector<fs::path> export_safetensors(const fs::path& path, Communicator world, Engine& engine,
                                         const WeightMap& map, const SafetensorsExport& options) {
  check_covers(map, engine.layout());
  OutputFiles output(path, map, options);
  const bool first = world.rank() == 0;
  Cleanup cleanup{.output = first ? &output : nullptr};
  together(world, "export folder", [&] {
    if (first) output.make_folder(cleanup.made_folders);
  });
  Exporter exporter(world, engine, options.dtype);
  for (OutputFile& file : output.files) exporter.write(file);
  together(world, "export rename", [&] {
    if (first) output.publish();
  });
  return output.written();
}

}  // namespace tessera
