// Finds where a checkpoint has the elements of a flat's state, for any mesh, placements and cuts that wrote
// it, by way of the elements of whole parameters.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "src/checkpoint/open_file.h"

namespace tessera::checkpoint {

// A file whose header was read. It is not kept open, because the files of many ranks are more than a process
// may have open.
struct StoredFile {
  std::filesystem::path path;
  Header header;
};

// A run of elements of a flat's state on this rank, and where it is stored.
struct StoredRun {
  const StoredFile* file = nullptr;
  const StoredBuffer* buffer = nullptr;
  int tensor_rank = 0;      // that stored it
  std::int64_t stored = 0;  // first element, in the stored buffer
  std::int64_t begin = 0;   // first element, in this rank's flat
  std::int64_t numel = 0;
};

// What of a checkpoint an engine takes: all states, which needs the same units and optimizer, or parameters
// alone, which needs parameters of the same names, shapes and ties.
enum class Takes : std::uint8_t { states, parameters };

class StoredStates {
 public:
  // Reads the header of rank 0's file, which always exists and has the run's state. Throws UsageError naming
  // what differs unless it has what `takes` needs of `engine`, which must outlive this.
  StoredStates(std::filesystem::path folder, const Engine& engine, Takes takes = Takes::states);

  const Header& header() const { return files_.at(0).header; }
  // Calls visit(run) for the elements [begin, end) of a flat of this rank, ascending. Together the runs cover
  // all elements that belong to parameters, and of a flat that was stored as it is here all that was. Without
  // blocks (Cut::blocks), what one tensor rank stored of one flat is ascending in what is stored, too. Reads
  // the headers of their files. Throws EnvironmentError naming what is missing or damaged.
  void each(FlatId flat, StateKind state, std::int64_t begin, std::int64_t end,
            const std::function<void(const StoredRun& run)>& visit);
  // The same for elements [begin, begin + numel) of a whole parameter that is tied to none, of the most exact
  // values that are stored: its master or, where there is none, the parameter. StoredRun::begin counts from
  // `begin`.
  void each_of_parameter(ParameterId parameter, std::int64_t begin, std::int64_t numel,
                         const std::function<void(const StoredRun& run)>& visit);
  // The type of these values.
  DType type_of_parameter(ParameterId parameter) const;

 private:
  // How a state of a flat is stored.
  struct State {
    int pipeline = 0;        // the place of the ranks that stored it
    Spread spread = {};      // over them
    std::int64_t numel = 0;  // of each buffer
    std::int64_t bytes = 0;
  };
  using Buffer = std::pair<const StoredFile*, const StoredBuffer*>;

  const Mesh& mesh() const { return header().mesh; }  // that wrote the checkpoint
  const StoredFile& file_of(int rank);
  Layout stored_layout() const;
  StateKind state_of_parameter(ParameterId parameter) const;
  // The file that holds the first elements of the flat's state. Flats are those of the checkpoint's layout.
  const StoredFile& first_file(FlatId flat, StateKind state);
  const State& state_of(FlatId flat, StateKind state);
  const Buffer& buffer_of(FlatId flat, StateKind state, int tensor_rank, std::int64_t offset);
  bool has_flat(FlatId flat) const;
  // Both call add(run).
  template <class Add>
  void each_of_flat(FlatId flat, StateKind state, int tensor_rank, std::int64_t offset, std::int64_t numel,
                    std::int64_t at, const Add& add);
  // For a part of this rank's share of a parameter, which begins at `at` in its flat.
  template <class Add>
  void each_of_share(ParameterId parameter, StateKind state, std::int64_t begin, std::int64_t numel,
                     std::int64_t at, const Add& add);

  const std::filesystem::path folder_;
  const Takes takes_;
  const Layout& own_layout_;
  const int own_tensor_rank_;
  const Header here_;
  const DType moment_type_;          // of this engine and, as was checked, of the checkpoint
  std::map<int, StoredFile> files_;  // by the rank that wrote the file
  IdVector<StoredUnit> stored_units_;
  std::optional<Layout> layout_;  // of the run that wrote the checkpoint
  std::map<std::pair<FlatId, StateKind>, State> states_;
  std::map<std::tuple<FlatId, StateKind, int, std::int64_t>, Buffer> buffers_;  // by tensor rank and place
};

// Throws EnvironmentError, the same on all ranks, unless every rank has opened the same checkpoint: ranks may
// see different folders, or the newest checkpoint at different times. Collective.
void check_same_checkpoint(Communicator& world, const std::filesystem::path& path, const Header& header);

}  // namespace tessera::checkpoint
