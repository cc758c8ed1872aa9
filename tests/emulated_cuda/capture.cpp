#include "tests/emulated_cuda/capture.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "tests/emulated_cuda/calls.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/stream_work.h"

namespace tessera::emulated_cuda {
namespace {

thread_local std::vector<std::shared_ptr<Capture>> of_thread;  // that it has begun
std::atomic<int> instantiated{0}, launched{0};
std::atomic<int> refusing_gpu{-1};

}  // namespace

cudaError_t begin_unsafe_call(const char* name) {
  if (const cudaError_t refused = begin_call(name)) return refused;
  bool refused = false;
  for (const std::shared_ptr<Capture>& capture : of_thread)
    if (capture->mode != cudaStreamCaptureModeRelaxed) {
      capture->valid = false;
      refused = true;
    }
  return refused ? end_call(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

int graphs() { return instantiated.load(); }
int graph_launches() { return launched.load(); }
void refuse_graphs(int gpu) { refusing_gpu.store(gpu); }

}  // namespace tessera::emulated_cuda

using tessera::emulated_cuda::call_runtime;
using tessera::emulated_cuda::call_unsafe;
using tessera::emulated_cuda::calling_thread;
using tessera::emulated_cuda::Capture;
using tessera::emulated_cuda::HardwareQueue;
using tessera::emulated_cuda::Mark;
using tessera::emulated_cuda::StreamWork;
using tessera::emulated_cuda::work_of;

struct CUgraph_st {
  std::vector<Capture::Node> nodes;
  std::size_t streams = 0;
};
struct CUgraphExec_st {
  std::vector<Capture::Node> nodes;
  std::vector<std::shared_ptr<StreamWork>> streams;  // of its own, of other speeds than the captured ones
  std::shared_ptr<Mark> done = nullptr;              // of the last launch
};

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call_runtime("cudaStreamBeginCapture", [&] {
    if (stream == cudaStreamLegacy) return cudaErrorStreamCaptureUnsupported;
    StreamWork& work = *work_of(stream);
    if (work.captured().capture) return cudaErrorIllegalState;
    const auto capture = std::make_shared<Capture>(Capture{.origin = &work, .mode = mode});
    capture->streams.push_back(&work);
    tessera::emulated_cuda::of_thread.push_back(capture);
    work.join({.capture = capture, .behind = {}});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call_runtime("cudaStreamIsCapturing", [&] {
    const auto capture = work_of(stream)->captured().capture;
    *status = !capture         ? cudaStreamCaptureStatusNone
              : capture->valid ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

namespace {

cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  StreamWork& work = *work_of(stream);
  const std::shared_ptr<Capture> capture = work.captured().capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->origin != &work) return cudaErrorStreamCaptureUnmatched;
  if (capture->thread != std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed)
    return cudaErrorStreamCaptureWrongThread;
  std::vector<bool> is_waited_for(capture->nodes.size(), false);
  for (const Capture::Node& node : capture->nodes)
    for (const std::size_t before : node.behind) is_waited_for[before] = true;
  for (const std::size_t before : work.captured().behind) is_waited_for[before] = true;
  const bool joined = std::all_of(is_waited_for.begin(), is_waited_for.end(), [](bool is) { return is; });
  for (StreamWork* const one : capture->streams) one->join({});
  std::erase(tessera::emulated_cuda::of_thread, capture);
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{std::move(capture->nodes), capture->streams.size()};
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call_runtime("cudaStreamEndCapture", [&] { return end_capture(stream, graph); });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return call_runtime("cudaGraphGetNodes", [&] {
    if (nodes != nullptr) return cudaErrorInvalidValue;  // nothing here looks into one
    return *count = graph->nodes.size(), cudaSuccess;
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call_runtime("cudaGraphDestroy", [&] { return delete graph, cudaSuccess; });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return call_unsafe("cudaGraphInstantiate", [&] {
    if (flags != 0) return cudaErrorInvalidValue;
    const int ordinal = calling_thread().gpu;
    if (tessera::emulated_cuda::refusing_gpu.load() == ordinal) return cudaErrorMemoryAllocation;
    *exec = new CUgraphExec_st{.nodes = graph->nodes, .streams = {}};
    for (std::size_t i = 0; i < graph->streams; ++i)
      (*exec)->streams.push_back(StreamWork::start(ordinal, false, std::make_shared<HardwareQueue>()));
    ++tessera::emulated_cuda::instantiated;
    return cudaSuccess;
  });
}

// Only what nodes do may differ, not how many there are or what they come behind. Launches that were made
// keep what they were given.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  return call_unsafe("cudaGraphExecUpdate", [&] {
    const auto same_place = [](const Capture::Node& a, const Capture::Node& b) {
      return a.stream == b.stream && a.behind == b.behind;
    };
    const bool same =
        exec->streams.size() == graph->streams && std::ranges::equal(exec->nodes, graph->nodes, same_place);
    *info = {.result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged,
             .errorNode = nullptr,
             .errorFromNode = nullptr};
    if (!same) return cudaErrorGraphExecUpdateFailure;
    exec->nodes = graph->nodes;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return call_runtime("cudaGraphExecDestroy", [&] {
    for (const auto& stream : exec->streams) stream->close();
    --tessera::emulated_cuda::instantiated;
    return delete exec, cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return call_runtime("cudaGraphLaunch", [&] {
    StreamWork& work = *work_of(stream);
    if (work.captured().capture) return cudaErrorStreamCaptureUnsupported;  // a graph within a graph
    ++tessera::emulated_cuda::launched;
    const std::shared_ptr<Mark> begun = work.mark();
    for (const auto& own : exec->streams) {
      own->wait_for(begun);
      if (exec->done) own->wait_for(exec->done);
    }
    std::vector<std::shared_ptr<Mark>> marks;
    for (const Capture::Node& node : exec->nodes) {
      StreamWork& own = *exec->streams[node.stream];
      for (const std::size_t before : node.behind)
        if (exec->nodes[before].stream != node.stream) own.wait_for(marks[before]);
      own.give(node.operation);
      marks.push_back(own.mark());
    }
    for (const auto& own : exec->streams) work.wait_for(own->mark());
    exec->done = work.mark();
    return cudaSuccess;
  });
}
