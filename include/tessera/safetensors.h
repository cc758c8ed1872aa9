// Floor 6: weights exchanged as safetensors files, in one file or several with an index. Owns the format and
// how ranks share the work; which tensor is which parameter is a WeightMap (hugging_face.h makes those).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/engine.h"

namespace tessera {

// A tensor of a file, and the elements of a parameter that it holds: [begin, begin + numel_of(shape)). A
// transposed one is [columns, rows] in the file and [rows, columns] in the parameter.
struct StoredTensor {
  std::string name;
  Shape shape;            // in the file
  std::string parameter;  // not a tied one
  std::int64_t begin = 0;
  bool transposed = false;
};

// How a model's parameters are spread over the tensors of a file.
struct WeightMap {
  // A tensor that some files repeat under another name; where one does, the values must be the same.
  struct Copy {
    std::string name;
    std::string of;
  };

  std::vector<StoredTensor> tensors;  // each element of each parameter once; written in this order
  std::string prefix = {};            // of names, that some files leave out
  std::vector<Copy> copies = {};
  std::vector<std::string> ignored = {};  // ends of names: tensors that are no weights
};

struct SafetensorsExport {
  DType dtype = DType::fp32;        // of every tensor in the files
  std::int64_t max_file_bytes = 0;  // of the tensors in a file, a larger tensor has its own; 0: one file
  std::string config =
      {};  // text of a config.json in the same folder; only where `path` is a folder, "": none
};

// Sets the parameters from `path`: a file, an index, or a folder (its model.safetensors.index.json, else its
// model.safetensors, else its only *.safetensors). Master weights take the file's values, parameters those
// rounded to their type; moments are zeroed and counters begin anew, as by Engine::initialize. Collective,
// between steps; every rank sees the files and reads the bytes of the elements it holds, through a buffer of
// a few tens of MiB at most. Takes tensors of type F32, BF16 and F16.
// EnvironmentError for a file that is missing, truncated or contradicts itself, UsageError naming the tensor
// that is missing, is not one of the model's, or has another type or shape: the same on all ranks, with the
// engine as it was. Where values cannot be read, or differ between ranks, the engine has failed: an
// EnvironmentError on the rank whose read it was, CommunicationErrors that name the rank on the others.
void import_safetensors(const std::filesystem::path& path, Communicator world, Engine& engine,
                        const WeightMap& map);

// Writes the fp32 values of all parameters (master weights, where there are) as options.dtype. Collective,
// between steps; rank 0 writes, a few MiB at a time, that the ranks gather from their shards. `path` is the
// file's name where it ends in ".safetensors"; otherwise a folder, in which model.safetensors or
// model-00001-of-0000N.safetensors … with model.safetensors.index.json take the place of what an earlier
// export left under such names, and options.config that of config.json. Everything is written and synced
// under temporary names, then renamed; the index comes last. Returns the files. `world` is any communicator
// of the engine's ranks, whose deadline bounds how long rank 0 may keep the others waiting. UsageError for
// options that do not fit, or a value that fp16 cannot hold, EnvironmentError where a file cannot be written,
// the same on all ranks: the temporary files are then removed.
std::vector<std::filesystem::path> export_safetensors(const std::filesystem::path& path, Communicator world,
                                                      Engine& engine, const WeightMap& map,
                                                      const SafetensorsExport& options = {});

}  // namespace tessera
