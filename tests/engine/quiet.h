// Whether a test that tells time had the machine to itself.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>

namespace tessera::testing {

// Seconds of processor time, over all cores, since it was made: what this process had, and what it might have
// missed, because others ran or a hypervisor gave the core to other machines. By ticks, of 10 ms mostly.
class ProcessorTime {
 public:
  ProcessorTime() : machine_(of_machine()), own_(of_process()) {}

  double others() const { return of_machine() - machine_ - (of_process() - own_); }
  // Some ticks, and what a machine's own services take.
  bool was_quiet() const {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
    return others() < 0.04 + 0.02 * elapsed.count();
  }

 private:
  // Busy and stolen, from /proc/stat: user nice system idle iowait irq softirq steal.
  static double of_machine() {
    std::ifstream file("/proc/stat");
    std::string name;
    file >> name;
    double ticks = 0, value = 0;
    for (int k = 0; k < 8 && file >> value; ++k)
      if (k != 3 && k != 4) ticks += value;
    return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  static double of_process() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }

  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double machine_, own_;
};

}  // namespace tessera::testing
