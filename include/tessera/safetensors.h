// Floor 6: imports and exports weights as safetensors files: one file, or several with an index. Owns the
// format and how ranks share the work. A WeightMap says which tensor is which parameter; hugging_face.h makes
// those.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/engine.h"

namespace tessera {

// A tensor of a file. It holds elements [begin, begin + numel_of(shape)) of a parameter. A transposed tensor
// is [columns, rows] in the file and [rows, columns] in the parameter.
struct StoredTensor {
  std::string name;
  Shape shape;            // in the file
  std::string parameter;  // must not be tied to another
  std::int64_t begin = 0;
  bool transposed = false;

  // Rows [left_row, …) of a matrix of `rank` columns times rows [right_row, right_row + rank) of another,
  // which has as many columns as the parameter.
  struct Product {
    std::string left, right;  // parameters, not cut into other tensors here
    std::int64_t left_row = 0, right_row = 0, rank = 0;
    double scale = 1.0;
  };
  // In an export, what is written is the parameter's rows + scale · product, in fp32. An import refuses it.
  std::optional<Product> added = {};
};

// How a model's parameters are spread over the tensors of a file.
struct WeightMap {
  // A tensor that some files repeat under another name. If a file does, its values must be the same.
  struct Copy {
    std::string name;
    std::string of;
  };

  // The elements of a parameter from `begin` on are in no file: they are 0.
  struct Padding {
    std::string parameter;
    std::int64_t begin = 0;
  };

  std::vector<StoredTensor> tensors;  // with `padding`, each element of each parameter once; in file order
  std::string prefix = {};            // prefix of tensor names that some files leave out
  std::vector<Copy> copies = {};
  std::vector<Padding> padding = {};
  std::vector<std::string> ignored = {};  // suffixes of names of tensors that are not weights
  bool whole = true;  // if not, parameters that no tensor has a part of are in other files, or in none
};

struct SafetensorsImport {
  bool allow_nonfinite = false;                             // whether infinities and NaNs are taken
  std::string name_of_allow_nonfinite = "allow_nonfinite";  // what a message calls it
};

struct SafetensorsExport {
  DType dtype = DType::fp32;        // type of every tensor in the files
  std::int64_t max_file_bytes = 0;  // most bytes of tensors in a file; a larger tensor gets a file of its
                                    // own. 0: one file
  std::string config = {};  // text of a config.json in the same folder, only if `path` is a folder; "": none
  std::map<std::string, std::string> files = {};  // likewise: other files, by name, such as a tokenizer's
  std::string stem = "model";                     // in a folder: model.safetensors
};

// Sets the parameters from `path`: a file, an index, or a folder (its model.safetensors.index.json, else its
// model.safetensors, else its only *.safetensors). Takes tensors of type F32, BF16 and F16. Master weights
// get the file's values, and parameters get those rounded to their type. Moments are set to 0 and counters
// start again, as by Engine::initialize. Collective, between steps. Every rank must see the files. Each first
// reads an equal part of all tensors, to see that it is finite, and then the bytes of the elements that it
// holds, through buffers of at most a few tens of MiB. Throws EnvironmentError for a file that is missing,
// truncated or contradicts itself, and UsageError naming a tensor that is missing, is not the model's, has
// another type or shape, or has an element that is not finite, with its index. These are the same on all
// ranks and leave the engine as it was. If values cannot be read, or differ between ranks, the engine has
// failed: the rank that could not read throws EnvironmentError, and the others throw CommunicationError
// naming the rank.
void import_safetensors(const std::filesystem::path& path, Communicator world, Engine& engine,
                        const WeightMap& map, const SafetensorsImport& options = {});

// The same from several files or folders, each with the parameters of its map. `others` gives the parameters
// that are in none of the maps; UsageError where there are such and it is empty, and for a parameter that is
// in two maps.
struct WeightSource {
  std::filesystem::path path;
  WeightMap map;
};
void import_safetensors(std::span<const WeightSource> sources, Communicator world, Engine& engine,
                        const SafetensorsImport& options = {}, const Engine::Fill& others = {});

// Writes the fp32 values of all parameters (the master weights, if there are any) as options.dtype. Returns
// the files. Collective, between steps: the ranks gather a few MiB at a time from their shards, and rank 0
// writes. `world` is any communicator of the engine's ranks. Its deadline bounds how long rank 0 may keep the
// others waiting.
// A `path` that ends in ".safetensors" names a file. Any other path is a folder. It gets model.safetensors
// (or another stem), or model-00001-of-0000N.safetensors … with model.safetensors.index.json, in place of
// files that an earlier export left under such names, options.config as config.json, and options.files.
// Everything is written and synced under temporary names and then renamed; the index comes last. Throws
// UsageError for options that do not fit or a value that fp16 cannot hold, and EnvironmentError if a file
// cannot be written. Errors are the same on all ranks; the temporary files are then removed.
std::vector<std::filesystem::path> export_safetensors(const std::filesystem::path& path, Communicator world,
                                                      Engine& engine, const WeightMap& map,
                                                      const SafetensorsExport& options = {});

}  // namespace tessera
