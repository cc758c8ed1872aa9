// Which rank holds which element: each rank along the tensor axis has a share of every parameter, the shares
// are placed in flat buffers, and flat buffers are cut into shards. Pure arithmetic; takes no memory and runs
// no ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/cut.h"
#include "tessera/dtype.h"
#include "tessera/id_vector.h"
#include "tessera/mesh.h"
#include "tessera/unit_spec.h"

namespace tessera {

// Every parameter and every shard starts on a multiple of this many bytes.
inline constexpr std::int64_t kAlignmentBytes = 256;

// How the ranks along the tensor axis share the parameters of a flat buffer.
enum class TensorShare : std::uint8_t {
  copied,   // each has all of them, and of a trainable one the whole gradient
  partial,  // each has all of them, and a part of the sum that is the gradient
  cut       // each has elements that no other has
};
std::string_view name_of(TensorShare share);

// One flat buffer: the parameters of a unit that share dtype, trainability and how they lie over the tensor
// axis. Each is at an aligned offset, in declaration order. The end is padded so that the buffer divides into
// equal shards. All of it counts the elements of one rank along the tensor axis, and is equal for all.
//
//   | p0 ....pad| p1 .pad| p2 ........pad|....tail pad|
//   |<- shard 0: S ->|<- shard 1: S ->|<- shard 2: S ->|
struct Flat {
  UnitId unit = 0;
  DType dtype = DType::fp32;
  bool trainable = true;
  TensorShare over = TensorShare::copied;  // with one tensor rank always `copied`
  std::vector<ParameterId> parameters;     // ascending offsets
  std::int64_t parameter_numel = 0;        // elements that belong to a parameter, a cut's padding included
  std::int64_t shard_numel = 0;            // S; a multiple of slice_numel
  std::int64_t slice_numel = 0;            // of the slice of a shard that one replica holds; a multiple of
                                           // kAlignmentBytes / bytes_of(dtype)
  // Where tensor ranks have copies, each of them sums this many elements of a slice, equal parts of it; a
  // multiple of the same. Where they have none, it is all of the slice.
  std::int64_t piece_numel = 0;
  std::int64_t padded_numel = 0;  // S · shards
};

// Where a tensor rank's share of a parameter lies, the same on all. A tied parameter has the place of the one
// it is tied to.
struct Place {
  FlatId flat = 0;
  std::int64_t offset = 0;  // elements from the start of the flat buffer
  std::int64_t numel = 0;   // of the share, a cut's padding included
  ParameterId home = 0;     // itself, or the parameter it is tied to
};

// An element in global coordinates: independent of how many ranks there are.
struct Element {
  ParameterId parameter = 0;
  std::int64_t index = 0;  // row-major within the whole parameter
  bool operator==(const Element&) const = default;
};

// A run of one parameter inside a range of a flat buffer.
struct Piece {
  ParameterId parameter = 0;
  std::int64_t begin = 0;   // first element, row-major: pieces() within the share, global_pieces() within the
                            // whole parameter
  std::int64_t offset = 0;  // elements from the start of the flat buffer
  std::int64_t numel = 0;
};

// The flat buffers that one rank along the tensor axis has of a whole model, cut into `shards` equal shards,
// and each shard into one equal slice per replica. All tensor ranks have the same layout. Which elements of a
// cut parameter lie there depends on the tensor rank, so offsets and ranges of a flat buffer are local, and
// what takes or gives an Element or whole parameters is global.
class Layout {
 public:
  // Throws UsageError, naming the unit or parameter, for a name that is empty, repeated or not UTF-8, for a
  // dim below 1, for a cut that TensorShares refuses, and for a tie to a parameter that does not exist, is
  // itself tied, or differs in shape, dtype, trainability, group, cut or gradient. Also for shards, replicas
  // or tensor ranks below 1. Throws UnsupportedError for a cut that this version does not support.
  Layout(std::vector<UnitSpec> units, int shards, int replicas = 1, int tensor = 1);

  int shards() const { return shards_; }
  int replicas() const { return replicas_; }
  int tensor() const { return tensor_; }  // ranks along the tensor axis
  const IdVector<UnitSpec>& units() const { return units_; }
  const IdVector<Flat>& flats() const { return flats_; }
  // This and the functions below throw UsageError for an id or name that does not exist.
  const Flat& flat(FlatId id) const { return at(flats_, id, "flat buffer"); }
  int parameters() const { return places_.count(); }

  const ParameterSpec& parameter(ParameterId id) const;
  UnitId unit_of(ParameterId id) const { return at(unit_of_, id, "parameter"); }
  const Place& place(ParameterId id) const { return at(places_, id, "parameter"); }
  // The unit's parameters are first_parameter(unit) + 0, 1, … in declaration order, tied ones included.
  ParameterId first_parameter(UnitId unit) const { return at(first_, unit, "unit"); }
  // The UsageError names the closest known name.
  ParameterId find(const std::string& name) const;
  // Which elements of the parameter each tensor rank has.
  const TensorShares& shares(ParameterId id) const { return at(shares_, id, "parameter"); }

  // The unit's own flat buffers; empty if all its parameters are tied elsewhere, or it has none.
  std::span<const FlatId> flats_of(UnitId unit) const;
  // Every flat buffer that a use of the unit reads: its own and those of its tied parameters, ascending.
  std::span<const FlatId> flats_used_by(UnitId unit) const;

  // The number of elements of all whole parameters, ties counted once: the same on any number of ranks.
  std::int64_t total_numel() const;
  // The number of elements of one tensor rank's flat buffers that belong to no parameter: gaps for alignment,
  // and tails.
  std::int64_t padding_numel() const;

  // From an element of a tensor rank's flat buffer to its global coordinates, and back. locate() returns
  // parameter −1 for padding. For a tied parameter it returns the home. offset_of() is where the element lies
  // on every tensor rank that has it. UsageError for an offset, element or tensor rank that does not exist.
  Element locate(FlatId flat, std::int64_t offset, int tensor_rank = 0) const;
  std::int64_t offset_of(const Element& element) const;
  // The places, along the tensor axis and the shard axis, of the rank that holds the element: along the
  // tensor axis 0 if all hold it. The element's offset in that shard is offset_of(element) mod the flat's
  // shard_numel.
  int tensor_rank_of(const Element& element) const;
  int shard_of(const Element& element) const;

  // The parts of shares inside elements [begin, end) of a flat buffer, ascending, the padding of cuts
  // included: the same for every tensor rank. Together with gaps() they cover the range exactly once.
  // UsageError unless 0 ≤ begin ≤ end ≤ padded_numel.
  std::vector<Piece> pieces(FlatId flat, std::int64_t begin, std::int64_t end) const;
  // The parts of [begin, end) that belong to no parameter, ascending. `parameter` is −1 and `begin` is 0.
  std::vector<Piece> gaps(FlatId flat, std::int64_t begin, std::int64_t end) const;
  // The elements of whole parameters that a tensor rank has in [begin, end), ascending by offset; the padding
  // of cuts is left out. A parameter that is cut along a dim that is not its first has many. UsageError as
  // for pieces(), and for a tensor rank that does not exist.
  std::vector<Piece> global_pieces(FlatId flat, std::int64_t begin, std::int64_t end, int tensor_rank) const;

 private:
  template <class T>
  static const T& at(const IdVector<T>& list, int id, const char* what) {
    if (id < 0 || id >= list.count()) refuse(what, id, list.count());
    return list[id];
  }
  [[noreturn]] static void refuse(const char* what, int id, int count);

  void number_parameters();
  void place_unit(UnitId unit);
  void resolve_ties();
  void collect_used();
  TensorShare share_of(const ParameterSpec& parameter) const;
  ShareRun run_of(const Element& element) const;
  void check_range(FlatId flat, std::int64_t begin, std::int64_t end) const;
  // Index in flat.parameters of the last one that begins at or before `offset`.
  std::size_t slot_at(const Flat& flat, std::int64_t offset) const;
  ParameterId named(const std::string& name) const;  // −1 if there is none
  std::string closest(const std::string& name) const;

  IdVector<UnitSpec> units_;
  int shards_;
  int replicas_;
  int tensor_;
  IdVector<Flat> flats_;
  IdVector<Place> places_;
  IdVector<TensorShares> shares_;
  IdVector<UnitId> unit_of_;
  IdVector<ParameterId> first_;
  std::vector<ParameterId> by_name_;  // ascending by name
  IdVector<std::vector<FlatId>> own_, used_;
};

}  // namespace tessera
