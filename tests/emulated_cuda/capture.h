// What streams capture, and CUDA graphs that are made of it. Nodes depend on what the streams and their
// events say, and on nothing else: a launch does what does not depend on each other in any order.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace tessera::emulated_cuda {

class StreamWork;

// One capture, from cudaStreamBeginCapture() to cudaStreamEndCapture().
struct Capture {
  struct Node {
    std::function<void()> operation;
    std::size_t stream = 0;           // of those that take part
    std::vector<std::size_t> behind;  // nodes
  };

  const StreamWork* origin = nullptr;
  std::thread::id thread = std::this_thread::get_id();
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool valid = true;
  std::vector<Node> nodes = {};
  std::vector<StreamWork*> streams = {};
};

// A stream's part in a capture: behind which nodes its next one comes.
struct CapturedPlace {
  std::shared_ptr<Capture> capture;
  std::set<std::size_t> behind;
};

// Graphs that were instantiated and not destroyed.
int graphs();
// Launches of graphs, since the process began.
int graph_launches();

}  // namespace tessera::emulated_cuda
