#include "tests/simulated/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace tessera::simulated {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kSector = 512;

Disk*& the_disk() {
  static Disk* one = nullptr;
  return one;
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace

Disk* Disk::current() { return the_disk(); }

Disk::Disk(fs::path root, const Faults& faults)
    : root_(std::move(root)), faults_(faults), tree_(std::make_shared<Node>()) {
  fs::remove_all(root_);
  fs::create_directories(root_);
  tree_->folder = true;
  the_disk() = this;
}

Disk::~Disk() {
  the_disk() = nullptr;
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

bool Disk::holds(const std::string& path) const {
  const std::string& root = root_.native();
  return path.starts_with(root) && (path.size() == root.size() || path[root.size()] == '/');
}

bool Disk::has_room() {
  ++takes_room_;
  const bool full = faults_.full_from > 0 && takes_room_ >= faults_.full_from &&
                    takes_room_ < faults_.full_from + faults_.full_calls;
  refused_ += full;
  return !full;
}

// ---- the tree ----

std::shared_ptr<Disk::Node> Disk::find(const std::string& path) const {
  std::shared_ptr<Node> node = tree_;
  for (const fs::path& name : fs::path(path).lexically_relative(root_)) {
    if (name == ".") continue;
    const auto found = node->entries.find(name.string());
    if (found == node->entries.end()) return nullptr;
    node = found->second;
  }
  return node;
}

std::pair<std::shared_ptr<Disk::Node>, std::string> Disk::place_of(const std::string& path) const {
  const fs::path whole(path);
  std::shared_ptr<Node> folder = find(whole.parent_path().string());
  if (!folder) throw std::runtime_error("the disk does not know the folder of " + path);
  return {std::move(folder), whole.filename().string()};
}

void Disk::changed(Node& folder) { folder.versions.push_back(folder.entries); }

void Disk::made_file(const std::string& path) {
  const auto [folder, name] = place_of(path);
  if (!folder->entries.try_emplace(name, std::make_shared<Node>()).second) return;  // opened, not made
  changed(*folder);
}

void Disk::made_folder(const std::string& path) {
  const auto [folder, name] = place_of(path);
  const auto node = std::make_shared<Node>();
  node->folder = true;
  folder->entries[name] = node;
  changed(*folder);
}

void Disk::apply(const Change& change, std::string& bytes) {
  if (change.bytes.empty()) return bytes.resize(static_cast<std::size_t>(change.length), '\0');
  const auto end = static_cast<std::size_t>(change.offset) + change.bytes.size();
  if (bytes.size() < end) bytes.resize(end, '\0');
  change.bytes.copy(bytes.data() + change.offset, change.bytes.size());
}

void Disk::wrote(const std::string& path, std::int64_t offset, const void* data, std::size_t bytes) {
  const std::shared_ptr<Node> node = find(path);
  if (!node || bytes == 0) return;  // removed, and written through what is still open
  const auto* from = static_cast<const char*>(data);
  // By sectors, as the disk has them.
  for (std::size_t done = 0; done < bytes;) {
    const auto at = offset + static_cast<std::int64_t>(done);
    const auto piece = std::min(bytes - done, static_cast<std::size_t>(kSector - at % kSector));
    node->changes.push_back({.offset = at, .bytes = std::string(from + done, piece)});
    apply(node->changes.back(), node->bytes);
    done += piece;
  }
}

void Disk::resized(const std::string& path, std::int64_t bytes) {
  const std::shared_ptr<Node> node = find(path);
  if (!node) return;
  node->changes.push_back({.offset = 0, .bytes = {}, .length = bytes});
  apply(node->changes.back(), node->bytes);
}

void Disk::renamed(const std::string& from, const std::string& to, bool exchanged) {
  const auto [from_folder, from_name] = place_of(from);
  const auto [to_folder, to_name] = place_of(to);
  const std::shared_ptr<Node> moved = from_folder->entries.at(from_name);
  if (exchanged)
    from_folder->entries[from_name] = to_folder->entries.at(to_name);
  else
    from_folder->entries.erase(from_name);
  to_folder->entries[to_name] = moved;
  if (from_folder != to_folder) changed(*from_folder);
  changed(*to_folder);
}

void Disk::removed(const std::string& path) {
  const auto [folder, name] = place_of(path);
  folder->entries.erase(name);
  changed(*folder);
}

void Disk::synced(const std::string& path) {
  const std::shared_ptr<Node> node = find(path);
  if (!node) return;
  node->lasting = node->bytes;
  node->changes.clear();
  node->lasting_entries = node->entries;
  node->versions.clear();
}

// ---- what is left ----

// All, none or some of what was not synced, each as likely.
std::string Disk::lasting_bytes(const Node& file, Draws& draws) {
  std::string bytes = file.lasting;
  const std::int64_t mode = draws.below(3);
  for (const Change& change : file.changes)
    if (mode == 0 || (mode == 1 && draws.one_in(2))) apply(change, bytes);
  return bytes;
}

void Disk::write_out(const Node& folder, const fs::path& to, Draws* draws) {
  fs::create_directories(to);
  const Entries* entries = &folder.entries;
  if (draws != nullptr) {
    const std::int64_t version = draws->below(std::ssize(folder.versions) + 1);
    entries =
        version == 0 ? &folder.lasting_entries : &folder.versions[static_cast<std::size_t>(version - 1)];
  }
  for (const auto& [name, node] : *entries) {
    if (node->folder)
      write_out(*node, to / name, draws);
    else
      write_file(to / name, draws != nullptr ? lasting_bytes(*node, *draws) : node->bytes);
  }
}

void Disk::leave_lasting(const fs::path& to, Draws& draws) const { write_out(*tree_, to, &draws); }
void Disk::leave_all(const fs::path& to) const { write_out(*tree_, to, nullptr); }

}  // namespace tessera::simulated
