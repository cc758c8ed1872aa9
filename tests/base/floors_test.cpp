// The rule of the floors: a file includes only from its own floor or lower, within floor 2 along the arrows
// between its rooms, the top floor only public headers, and public headers name no library that an embedder
// would need. Backends of communication do not know of each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr int kTop = 8;

// Folders of the source tree, a longer prefix before a shorter one. Rules are headers that kernels compile.
const std::vector<std::pair<std::string, int>> kFolderFloors = {
    {"src/base/", 0},    {"src/layout/", 1},  {"src/program/", 2},    {"src/build/", 2},
    {"src/plan/", 2},    {"src/verify/", 2},  {"src/simulate/", 2},   {"src/tune/", 2},
    {"src/device/", 3},  {"kernels/", 4},     {"src/comm/", 5},       {"optim/rules", 4},
    {"optim/", 5},       {"src/engine/", 6},  {"src/checkpoint/", 6}, {"src/nn/", 7},
    {"src/elastic/", 7}, {"src/launch/", 7},  {"src/text/", 7},       {"src/trainer/", 7},
    {"src/cli/", kTop},  {"examples/", kTop}, {"benchmarks/", kTop},
};

// The folder that a public header belongs to.
const std::map<std::string, std::string> kPublicRooms = {
    {"error.h", "src/base/"},
    {"dtype.h", "src/base/"},
    {"device_type.h", "src/base/"},
    {"target.h", "src/base/"},
    {"loss_total.h", "src/base/"},
    {"exact_sum.h", "src/base/"},
    {"shape.h", "src/base/"},
    {"philox.h", "src/base/"},
    {"optimizer_options.h", "src/base/"},
    {"cut.h", "src/layout/"},
    {"layout.h", "src/layout/"},
    {"lora.h", "src/nn/"},
    {"fine_tuning.h", "src/nn/"},
    {"unit_spec.h", "src/layout/"},
    {"mesh.h", "src/layout/"},
    {"spread.h", "src/layout/"},
    {"id_vector.h", "src/base/"},
    {"operand.h", "src/program/"},
    {"reduction.h", "src/layout/"},
    {"space.h", "src/layout/"},
    {"strategy.h", "src/layout/"},
    {"activations.h", "src/program/"},
    {"value_id.h", "src/base/"},
    {"category.h", "src/program/"},
    {"memory_plan.h", "src/program/"},
    {"pass.h", "src/program/"},
    {"pipeline.h", "src/program/"},
    {"use.h", "src/program/"},
    {"program.h", "src/program/"},
    {"program_text.h", "src/program/"},
    {"world_programs.h", "src/program/"},
    {"link.h", "src/build/"},
    {"step_spec.h", "src/build/"},
    {"memory_report.h", "src/plan/"},
    {"plan_memory.h", "src/plan/"},
    {"numeric_differences.h", "src/verify/"},
    {"numerics.h", "src/verify/"},
    {"prove.h", "src/verify/"},
    {"verify.h", "src/verify/"},
    {"cluster.h", "src/simulate/"},
    {"cost_model.h", "src/simulate/"},
    {"exposed.h", "src/simulate/"},
    {"simulate.h", "src/simulate/"},
    {"budget.h", "src/tune/"},
    {"memory_budget.h", "src/tune/"},
    {"device.h", "src/device/"},
    {"waiting.h", "src/device/"},
    {"machine.h", "src/device/"},
    {"communicator.h", "src/comm/"},
    {"launch.h", "src/comm/"},
    {"launcher.h", "src/launch/"},
    {"learning_rate.h", "optim/"},
    {"loss_scaler.h", "optim/"},
    {"optimizer.h", "optim/"},
    {"optimizer_fields.h", "optim/"},
    {"c_api.h", "src/engine/"},
    {"c_arrays.h", "src/engine/"},
    {"arrays.h", "src/engine/"},
    {"engine.h", "src/engine/"},
    {"engine_options.h", "src/engine/"},
    {"c_checkpoint.h", "src/checkpoint/"},
    {"checkpoint.h", "src/checkpoint/"},
    {"safetensors.h", "src/checkpoint/"},
    {"hugging_face.h", "src/nn/"},
    {"model.h", "src/nn/"},
    {"module.h", "src/nn/"},
    {"tokenizer.h", "src/text/"},
    {"data.h", "src/trainer/"},
    {"sampling.h", "src/trainer/"},
    {"trainer.h", "src/trainer/"},
    {"tessera.h", "examples/"},  // all of them, for users
};

// How headers of other libraries begin.
const std::vector<std::string> kLibraries = {
    "fmt/", "spdlog/",   "hwy/", "oneapi/", "dnnl", "mpi.h",    "cuda",  "cublas",   "cudnn", "nccl",
    "toml", "nlohmann/", "CLI/", "xxhash",  "asio", "liburing", "pcre2", "unicode/", "gtest/"};

bool is_library_header(const std::string& target) {
  return std::ranges::any_of(kLibraries, [&](const std::string& start) { return target.starts_with(start); });
}

struct Include {
  std::string file;  // relative to the source root
  int line = 0;
  std::string target;
  bool quoted = false;
};

const fs::path kRoot = TESSERA_SOURCE_DIR;

bool is_source(const fs::path& path) {
  for (const char* extension : {".h", ".cpp", ".cu", ".cuh", ".inc"})
    if (path.extension() == extension) return true;
  return false;
}

std::vector<std::string> sources_under(const std::string& folder) {
  std::vector<std::string> files;
  if (!fs::exists(kRoot / folder)) return files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / folder))
    if (entry.is_regular_file() && is_source(entry.path()))
      files.push_back(entry.path().lexically_relative(kRoot).generic_string());
  return files;
}

// What stands between the marks of an include line: `#include <x>` or `#include "x"`, however spaced.
std::optional<Include> parse_include(const std::string& text) {
  std::size_t at = text.find_first_not_of(" \t");
  if (at == std::string::npos || text[at] != '#') return std::nullopt;
  at = text.find_first_not_of(" \t", at + 1);
  if (at == std::string::npos || text.compare(at, 7, "include") != 0) return std::nullopt;
  at = text.find_first_of("<\"", at);
  if (at == std::string::npos) return std::nullopt;
  const bool quoted = text[at] == '"';
  const std::size_t end = text.find(quoted ? '"' : '>', at + 1);
  if (end == std::string::npos) return std::nullopt;
  return Include{.file = {}, .target = text.substr(at + 1, end - at - 1), .quoted = quoted};
}

std::vector<Include> includes_of(const std::string& file) {
  std::vector<Include> result;
  std::ifstream in(kRoot / file);
  std::string text;
  for (int line = 1; std::getline(in, text); ++line) {
    std::optional<Include> include = parse_include(text);
    if (!include) continue;
    include->file = file;
    include->line = line;
    result.push_back(*std::move(include));
  }
  return result;
}

std::string at(const Include& include) {
  return include.file + ":" + std::to_string(include.line) + " includes " + include.target;
}

// The folder of a path relative to the root ("src/comm/local/group.h"), or of an include path
// ("tessera/layout.h"), that has a floor; empty where it has none.
std::string room_of(std::string path) {
  if (path.starts_with("include/")) path = path.substr(8);
  if (path.starts_with("tessera/")) {
    const auto found = kPublicRooms.find(path.substr(8));
    return found == kPublicRooms.end() ? "" : found->second;
  }
  for (const auto& [folder, floor] : kFolderFloors)
    if (path.starts_with(folder)) return folder;
  return "";
}

std::optional<int> floor_of(const std::string& path) {
  const std::string room = room_of(path);
  for (const auto& [folder, floor] : kFolderFloors)
    if (folder == room) return floor;
  return std::nullopt;
}

// On floor 2, which is pure, programs are the ground; what builds, places, proves or times them does not know
// of the others, and what chooses among programs uses all.
bool along_the_arrows(const std::string& file, const std::string& target) {
  const std::string from = room_of(file), to = room_of(target);
  if (floor_of(file) != 2 || floor_of(target) != 2) return true;
  return from == to || to == "src/program/" || from == "src/tune/";
}

// Of "src/comm/local/group.h", "local"; empty for what all backends share and for what is elsewhere.
std::string backend_of(const std::string& path) {
  const std::string_view comm = "src/comm/";
  if (!path.starts_with(comm)) return "";
  const std::size_t end = path.find('/', comm.size());
  return end == std::string::npos ? "" : path.substr(comm.size(), end - comm.size());
}

// A backend sees its own folder and what all share, which sees no backend. Backends of processes see what
// these share, too, which is no backend.
bool among_backends(const std::string& file, const std::string& target) {
  const std::string from = backend_of(file), to = backend_of(target);
  const bool shares = to == "staged" && (from == "mpi" || from == "process");
  return file.starts_with("src/comm/") && !to.empty() && to != from && !shares;
}

bool is_ours(const std::string& target) {
  return target.starts_with("tessera/") || target.starts_with("src/") || target.starts_with("kernels/") ||
         target.starts_with("optim/");
}

// Optimizers and communication are siblings on floor 5: neither knows of the other.
bool are_siblings(const std::string& file, const std::string& target) {
  const bool optim = file.starts_with("optim/");
  const bool comm = file.starts_with("src/comm/");
  return (optim && (target.starts_with("src/comm/") || target == "tessera/communicator.h")) ||
         (comm && (target.starts_with("optim/") || target == "tessera/optimizer.h"));
}

std::vector<std::string> all_sources() {
  std::vector<std::string> files = sources_under("include/tessera");
  for (const char* root : {"src", "kernels", "optim", "examples", "benchmarks"})
    for (std::string& file : sources_under(root)) files.push_back(std::move(file));
  return files;
}

TEST(Floors, TheTreeIsThere) { EXPECT_GE(all_sources().size(), 12u) << "looked in " << kRoot; }

TEST(Floors, EveryPublicHeaderHasAFloor) {
  for (const std::string& file : sources_under("include/tessera"))
    EXPECT_TRUE(floor_of(file).has_value())
        << file << " has no floor; add it to kPublicRooms in tests/base/floors_test.cpp";
}

// C's headers are for C.
TEST(Floors, TheUmbrellaHeaderIncludesAllOthers) {
  const std::vector<Include> included = includes_of("include/tessera/tessera.h");
  for (const auto& [header, room] : kPublicRooms) {
    EXPECT_TRUE(fs::exists(kRoot / "include/tessera" / header)) << header << " is listed and not there";
    if (header.starts_with("c_") || header == "tessera.h") continue;
    EXPECT_TRUE(std::ranges::any_of(
        included, [&](const Include& include) { return include.target == "tessera/" + header; }))
        << "tessera.h does not include tessera/" << header;
  }
}

TEST(Floors, EverySourceFolderHasAFloor) {
  for (const std::string& file : all_sources())
    EXPECT_TRUE(file.starts_with("include/") || floor_of(file).has_value())
        << file << " lies in a folder that has no floor";
}

TEST(Floors, IncludesPointDown) {
  for (const std::string& file : all_sources()) {
    const int floor = floor_of(file).value_or(kTop);
    for (const Include& include : includes_of(file)) {
      if (!is_ours(include.target)) continue;
      EXPECT_LE(floor_of(include.target).value_or(0), floor)
          << at(include) << ", which lies on a higher floor";
      EXPECT_FALSE(are_siblings(file, include.target))
          << at(include) << "; an optimizer never communicates and communication knows no optimizer";
      EXPECT_TRUE(along_the_arrows(file, include.target))
          << at(include) << "; within floor 2 only src/tune sees its neighbours, and all see src/program";
      EXPECT_FALSE(among_backends(file, include.target))
          << at(include) << "; what several backends need lies in src/comm itself";
    }
  }
}

TEST(Floors, QuotedIncludesNameTheirPathFromTheRoot) {
  for (const std::string& file : all_sources()) {
    if (floor_of(file).value_or(kTop) == kTop) continue;
    for (const Include& include : includes_of(file)) {
      if (!include.quoted || is_library_header(include.target)) continue;
      const bool exists =
          fs::exists(kRoot / include.target) || fs::exists(kRoot / "include" / include.target);
      EXPECT_TRUE(is_ours(include.target) && exists)
          << at(include) << "; write \"tessera/x.h\" or the path from the source root";
    }
  }
}

// A user of the library has no "src/…", "kernels/…" or "optim/…"; neither have the tool and the examples.
// Files of one folder of the top floor may include each other. Benchmarks time kernels and the file on disk
// by themselves, too.
TEST(Floors, TheTopUsesPublicHeadersOnly) {
  for (const char* root : {"src/cli", "examples", "benchmarks"}) {
    for (const std::string& file : sources_under(root)) {
      for (const Include& include : includes_of(file)) {
        if (!is_ours(include.target) || include.target.starts_with("tessera/")) continue;
        const bool timed = root == std::string_view("benchmarks") &&
                           (include.target.starts_with("kernels/") || include.target == "src/device/disk.h");
        EXPECT_TRUE(timed || include.target.starts_with(std::string(root) + "/"))
            << at(include) << ", which is not a public header";
      }
    }
  }
}

TEST(Floors, PublicHeadersNameNoOtherLibrary) {
  for (const std::string& file : sources_under("include/tessera")) {
    for (const Include& include : includes_of(file)) {
      EXPECT_FALSE(is_library_header(include.target))
          << at(include) << "; an embedder would need that library";
      EXPECT_TRUE(!include.quoted || include.target.starts_with("tessera/"))
          << at(include) << ", which is not installed";
    }
  }
}

// Standard headers have neither a folder nor an ending; C's own have an ending. So MPI, oneDNN, fmt and CUDA
// are none.
bool is_standard_header(const std::string& target, bool of_c) {
  static const std::vector<std::string> c = {"stdbool.h", "stddef.h", "stdint.h"};
  return of_c ? std::ranges::count(c, target) > 0 : target.find_first_of("/.") == std::string::npos;
}

TEST(Floors, PublicHeadersIncludeStandardHeadersOnly) {
  for (const std::string& file : sources_under("include/tessera")) {
    const bool of_c = file.starts_with("include/tessera/c_");
    for (const Include& include : includes_of(file)) {
      if (include.quoted) continue;
      EXPECT_TRUE(is_standard_header(include.target, of_c))
          << at(include) << ", which an embedder may not have";
    }
  }
}

// All headers that a public header includes, directly or not.
std::set<std::string> reached_from(const std::string& header) {
  std::set<std::string> reached;
  std::vector<std::string> open = {"tessera/" + header};
  while (!open.empty()) {
    const std::string file = open.back();
    open.pop_back();
    for (const Include& include : includes_of("include/" + file))
      if (reached.insert(include.target).second && include.quoted) open.push_back(include.target);
  }
  return reached;
}

// Who includes engine.h pays for all that it includes; scripts/header_cost.sh measures how much. Programs,
// their plans, their proofs and devices are declared there, and defined in headers of their own.
TEST(Floors, TheEngineIncludesLittle) {
  static const std::set<std::string> cheap = {
      "array",   "chrono",  "compare",  "concepts", "cstddef",   "cstdint", "functional",  "initializer_list",
      "memory",  "numeric", "optional", "span",     "stdexcept", "string",  "string_view", "type_traits",
      "utility", "variant", "vector"};
  const std::set<std::string> reached = reached_from("engine.h");
  EXPECT_TRUE(reached.contains("tessera/communicator.h"));
  for (const std::string& header : reached)
    EXPECT_TRUE(header.starts_with("tessera/") || cheap.contains(header)) << "engine.h includes " << header;
  for (const char* header :
       {"budget", "device", "layout", "memory_plan", "program", "prove", "simulate", "step_spec", "verify"})
    EXPECT_FALSE(reached.contains("tessera/" + std::string(header) + ".h")) << "engine.h includes " << header;
}

// The types that a file defines, each as "namespace::Name", those that are the file's own left out.
// Namespaces and what lies in them directly begin at the first column.
std::vector<std::string> types_defined(std::istream& in) {
  static const std::regex definition(
      "(?:struct|class|enum class) (?:\\w+\\(.*\\) )?(\\w+)(?: final)?(?: :.*)? \\{.*");
  std::vector<std::string> types, spaces;
  std::string text;
  while (std::getline(in, text)) {
    if (text.starts_with("namespace ") && text.ends_with("{"))
      spaces.push_back(text.substr(10, text.size() - 11));
    else if (text.starts_with("}  // namespace") && !spaces.empty())
      spaces.pop_back();
    std::smatch found;
    if (std::ranges::count(spaces, "") > 0 || !std::regex_match(text, found, definition)) continue;
    std::string name;
    for (const std::string& space : spaces) name += space.substr(0, space.find(' ')) + "::";
    types.push_back(name + found[1].str());
  }
  return types;
}

// Two types of one name in one namespace are one to the linker: it keeps the inline functions of either for
// both. No compiler sees it, where no source includes both.
TEST(Floors, EveryTypeIsDefinedOnce) {
  std::map<std::string, std::string> defined;
  for (const std::string& file : all_sources()) {
    std::ifstream in(kRoot / file);
    for (const std::string& type : types_defined(in)) {
      const auto [entry, is_new] = defined.try_emplace(type, file);
      EXPECT_TRUE(is_new) << file << " defines " << type << ", and " << entry->second << " does, too";
    }
  }
  EXPECT_GE(defined.size(), 300u);
}

// The rules themselves: each must be able to fail.
TEST(Floors, TheRulesTellFloorsApart) {
  EXPECT_EQ(parse_include("#include <vector>")->target, "vector");
  EXPECT_EQ(parse_include("  #  include \"src/comm/local/group.h\"  // why")->target,
            "src/comm/local/group.h");
  EXPECT_TRUE(parse_include("#include \"a.h\"")->quoted);
  EXPECT_FALSE(parse_include("// #include <vector>").has_value());
  EXPECT_EQ(floor_of("include/tessera/layout.h"), 1);
  EXPECT_EQ(floor_of("tessera/engine.h"), 6);
  EXPECT_EQ(floor_of("src/comm/local/group.cpp"), 5);
  EXPECT_FALSE(floor_of("tessera/not_yet_listed.h").has_value());
  EXPECT_TRUE(are_siblings("optim/optimizer.cpp", "tessera/communicator.h"));
  EXPECT_FALSE(are_siblings("src/engine/engine.cpp", "tessera/communicator.h"));
  EXPECT_FALSE(along_the_arrows("src/build/link.cpp", "tessera/verify.h"));
  EXPECT_FALSE(along_the_arrows("include/tessera/program.h", "tessera/step_spec.h"));
  EXPECT_FALSE(along_the_arrows("src/plan/memory_plan.cpp", "src/tune/strategy_changes.h"));
  EXPECT_TRUE(along_the_arrows("src/tune/budget.cpp", "src/build/builder.h"));
  EXPECT_TRUE(along_the_arrows("src/verify/verify.cpp", "tessera/memory_plan.h"));
  EXPECT_TRUE(among_backends("src/comm/mpi/wire.h", "src/comm/local/group.h"));
  EXPECT_TRUE(among_backends("src/comm/staged/group.h", "src/comm/mpi/wire.h"));
  EXPECT_TRUE(among_backends("src/comm/local/group.h", "src/comm/staged/group.h"));
  EXPECT_TRUE(among_backends("src/comm/communicator.cpp", "src/comm/local/group.h"));
  EXPECT_FALSE(among_backends("src/comm/mpi/wire.h", "src/comm/call.h"));
  EXPECT_FALSE(among_backends("src/comm/mpi/wire.cpp", "src/comm/mpi/wire.h"));
  EXPECT_FALSE(among_backends("src/comm/mpi/init.cpp", "src/comm/staged/group.h"));
  for (const char* header :
       {"fmt/core.h", "hwy/highway.h", "oneapi/dnnl/dnnl.hpp", "mpi.h", "cuda_runtime.h"})
    EXPECT_TRUE(is_library_header(header)) << header;
  EXPECT_FALSE(is_library_header("vector"));
  for (const char* header : {"fmt/core.h", "mpi.h", "cuda_runtime.h", "stdint.h"})
    EXPECT_FALSE(is_standard_header(header, false)) << header;
  EXPECT_TRUE(is_standard_header("vector", false));
  EXPECT_TRUE(is_standard_header("stdint.h", true));
  EXPECT_TRUE(reached_from("c_api.h").contains("stdint.h"));
  std::istringstream source(
      "namespace tessera {\nstruct A;\nstruct A {\n  struct In {};\n};\nclass B final : public A {\n"
      "enum class C : int { one };\ntemplate <>\nstruct A<int> {\nnamespace {\nstruct Own {\n}  // "
      "namespace\n"
      "namespace inner {\nstruct A {\n}  // namespace inner\n}  // namespace tessera\n");
  EXPECT_EQ(types_defined(source),
            (std::vector<std::string>{"tessera::A", "tessera::B", "tessera::C", "tessera::inner::A"}));
}

}  // namespace
