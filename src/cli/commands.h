// The tool's commands. Each prints for people on stdout, writes JSON if asked to, and returns the exit
// status. Errors are thrown.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

struct RunArguments {
  std::string config;                 // path
  std::vector<std::string> settings;  // "section.key=value", applied in order
  int ranks = 0;                      // number of ranks; 0: as the mesh says
};

// What `simulate` assumes about the machines.
struct ClusterArguments {
  double gflops = 100.0;                // rate that modules reach on a rank, in 10^9 operations a second
  double peak_gflops = 0.0;             // utilisation is a share of this; 0: run.peak_tflops, else gflops
  double memory_gigabytes = 20.0;       // GB/s, read plus written, of the optimizer, casts and sums
  double host_memory_gigabytes = 20.0;  // the same for the host's updates
  double host_link_gigabytes = 25.0;    // GB/s between device and host, in each direction
  double disk_gigabytes = 2.0;          // GB/s, read or written
  int ranks_per_node = 0;               // 0: all ranks on one node
  double inner_link_gigabytes = 10.0;   // GB/s into a rank from another on its node
  double inner_latency_us = 5.0;        // of a message inside a node
  double outer_link_gigabytes = 10.0;   // GB/s into a rank from another node
  double outer_latency_us = 5.0;        // of a message between nodes
  std::string collectives = "ring";     // an algorithm's name
  std::string trace;                    // path; empty: none
};

// What `plan` shows besides the table.
struct PlanArguments {
  bool why = false;     // the largest buffers at the peak
  std::string html;     // path of a page; empty: none
  std::string program;  // path of the programs' text; empty: none
};

// The two runs that `compare` compares: each as for `plan`.
struct CompareArguments {
  RunArguments a, b;
};

class ResultFile;  // src/cli/report.h

int train_command(const RunArguments& arguments, ResultFile& result);
int plan_command(const RunArguments& arguments, const PlanArguments& show, ResultFile& result);
int simulate_command(const RunArguments& arguments, const ClusterArguments& cluster, ResultFile& result);
// Whether two runs have the same bits: 0, or kDiffer.
inline constexpr int kDiffer = 3;
int compare_command(const CompareArguments& arguments, ResultFile& result);
int info_command(ResultFile& result);
// Loads a checkpoint into the ranks of the configuration and writes its weights to `output`.
int export_command(const RunArguments& arguments, const std::string& checkpoint, const std::string& output);
int inspect_command(const std::string& path, bool verify, ResultFile& result);
// Takes the words behind `--` off the command line of `tessera launch`: they are another program's.
std::vector<std::string> take_launched_command(int& argc, char** argv);
// `tessera launch` of these words. Sets the exit status.
void add_launch_command(CLI::App& app, const std::vector<std::string>& behind, int& status);
// `tessera tokenizer` and `tessera data` with their commands, and `tessera report`. They need no
// configuration, are run by the command line, and throw.
void add_tokenizer_commands(CLI::App& app);
void add_data_commands(CLI::App& app);
void add_report_command(CLI::App& app);

}  // namespace tessera::cli
