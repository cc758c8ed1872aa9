// A folder as a disk under it would have it: what a file call changed and no sync has made lasting may be
// lost with the power, in part and in any order. The program's own file calls come here (disk_calls.cpp) and
// go on to the system, so that the folder is there to be looked at; beside it this keeps what is lasting. One
// disk at a time.
//
// The rules, which are POSIX's: fsync() of a file makes its bytes and its length lasting, fsync() of a folder
// its entries. Of the entries that changed since, the first few last, in each folder another number. Of the
// bytes that were written since, each sector of 512 lasts or does not. A rename is one change. Removing does
// not reach into what was lasting before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulated/draws.h"

namespace tessera::simulated {

class Disk {
 public:
  struct Faults {
    std::int64_t full_from = 0;  // from that call on, of those that take room, none does; 0: it is never full
    std::int64_t full_calls = 0;
  };
  // Makes `root`, an absolute path, and removes it at the end.
  Disk(std::filesystem::path root, const Faults& faults);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // From now on every call fails and does nothing: of what was killed, or has no power.
  void cut_off() { cut_off_ = true; }
  bool is_cut_off() const { return cut_off_; }
  // Makes in `to` what is there after a power failure now, and beside it what is there if processes alone
  // end.
  void leave_lasting(const std::filesystem::path& to, Draws& draws) const;
  void leave_all(const std::filesystem::path& to) const;
  std::int64_t room_calls() const { return takes_room_; }
  std::int64_t refused() const { return refused_; }  // for want of room

  // Called by the file calls, with paths under the root, once they have succeeded. `has_room` before.
  bool holds(const std::string& path) const;
  bool has_room();
  void made_file(const std::string& path);
  void made_folder(const std::string& path);
  void wrote(const std::string& path, std::int64_t offset, const void* data, std::size_t bytes);
  void resized(const std::string& path, std::int64_t bytes);
  void renamed(const std::string& from, const std::string& to, bool exchanged);
  void removed(const std::string& path);
  void synced(const std::string& path);

  static Disk* current();

 private:
  struct Node;
  using Entries = std::map<std::string, std::shared_ptr<Node>>;
  struct Change {  // of a file: bytes, or its length where there are none
    std::int64_t offset = 0;
    std::string bytes;
    std::int64_t length = 0;
  };
  struct Node {
    bool folder = false;
    std::string bytes, lasting;
    std::vector<Change> changes;  // of a file, since it was synced
    Entries entries, lasting_entries;
    std::vector<Entries> versions;  // of a folder, since it was synced
  };

  static void apply(const Change& change, std::string& bytes);
  std::shared_ptr<Node> find(const std::string& path) const;
  // The folder that the path lies in, and the path's last name.
  std::pair<std::shared_ptr<Node>, std::string> place_of(const std::string& path) const;
  static void changed(Node& folder);
  static std::string lasting_bytes(const Node& file, Draws& draws);
  static void write_out(const Node& folder, const std::filesystem::path& to, Draws* draws);

  const std::filesystem::path root_;
  const Faults faults_;
  std::shared_ptr<Node> tree_;
  bool cut_off_ = false;
  std::int64_t takes_room_ = 0, refused_ = 0;
};

}  // namespace tessera::simulated
