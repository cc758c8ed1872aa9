// The tool's commands. Each prints for people on stdout, writes JSON where asked, and returns the exit
// status; errors are thrown.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

struct RunArguments {
  std::string config;                 // path
  std::vector<std::string> settings;  // "section.key=value", applied in order
  int ranks = 0;                      // of the world; 0: as the mesh says
};

// What `simulate` assumes of the machines.
struct ClusterArguments {
  double gflops = 100.0;                // what modules reach on a rank, 10^9 a second
  double peak_gflops = 0.0;             // utilisation is a share of it; 0: run.peak_tflops, else gflops
  double memory_gigabytes = 20.0;       // read plus written a second, of the optimizer, casts and sums
  double host_memory_gigabytes = 20.0;  // the same where the host updates
  double host_link_gigabytes = 25.0;    // copied a second between device and host, each way
  double disk_gigabytes = 2.0;          // read or written a second
  int ranks_per_node = 0;               // 0: all on one
  double inner_link_gigabytes = 10.0;   // a second, into a rank from another of its node
  double inner_latency_us = 5.0;        // of a message inside a node
  double outer_link_gigabytes = 10.0;   // a second, into a rank from another node
  double outer_latency_us = 5.0;        // of a message between nodes
  std::string collectives = "ring";     // an algorithm's name
  std::string trace;                    // path; empty: none
};

// What `plan` shows beside the table.
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
// Loads a checkpoint into the ranks of the configuration and writes its weights.
int export_command(const RunArguments& arguments, const std::string& checkpoint, const std::string& output);
int inspect_command(const std::string& path, bool verify, ResultFile& result);

}  // namespace tessera::cli
