#include "src/device/cuda_graph.h"

#include "src/device/activity.h"
#include "tessera/error.h"

namespace tessera::device {
namespace {

using GraphExec = CudaHandle<cudaGraphExec_t, &cudaGraphExecDestroy>;

class CudaGraph final : public CapturedWork {
 public:
  CudaGraph(cudaGraph_t graph, const CudaStreamSettings& settings) : settings_(settings) {
    check_cuda(cudaGraphGetNodes(graph, nullptr, &operations_), "cudaGraphGetNodes");
    cudaGraphExec_t exec = nullptr;
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    exec_.reset(exec);
  }
  ~CudaGraph() override { ignore_cuda(cudaSetDevice(settings_.ordinal)); }

  void launch(Stream& stream) override {
    const Activity activity(&describe_gpu, &settings_);
    make_current(settings_.ordinal);
    settings_.failure.rethrow();
    check_cuda(cudaGraphLaunch(exec_.get(), static_cast<cudaStream_t>(stream.native())), "cudaGraphLaunch");
  }
  std::size_t operations() const override { return operations_; }

 private:
  const CudaStreamSettings settings_;
  std::size_t operations_ = 0;
  GraphExec exec_;
};

}  // namespace

CudaCapture::CudaCapture(std::span<Stream* const> streams, const CudaStreamSettings& settings)
    : settings_(settings) {
  for (Stream* const stream : streams) {
    auto* const own = dynamic_cast<CudaStream*>(stream);
    if (own == nullptr)
      throw UnsupportedError("stream '" + stream->name() +
                             "' runs on the host: what it is given cannot be captured");
    streams_.push_back(own);
  }
  if (streams_.empty()) throw UsageError("begin_capture: streams is empty; give at least one");
  const Activity activity(&describe_gpu, &settings_);
  make_current(settings_.ordinal);
  for (CudaStream* const stream : streams_) stream->synchronize(stream->record());
  // Other threads of the process, which have GPUs of their own, go on as they like.
  check_cuda(cudaStreamBeginCapture(static_cast<cudaStream_t>(streams_[0]->native()),
                                    cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  going_on_ = true;
  for (CudaStream* const stream : streams_) stream->begin_capture();
  try {
    const Event fork = streams_[0]->record();
    for (CudaStream* const stream : streams_) stream->wait(fork);
  } catch (...) {
    drop();
    throw;
  }
}

CudaCapture::~CudaCapture() { drop(); }

void CudaCapture::drop() noexcept {
  if (!going_on_) return;
  try {
    stop();
  } catch (const std::exception&) {  // what was captured is dropped either way
  }
}

CudaCapture::Graph CudaCapture::stop() {
  going_on_ = false;
  for (CudaStream* const stream : streams_) stream->end_capture();
  make_current(settings_.ordinal);
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(static_cast<cudaStream_t>(streams_[0]->native()), &graph),
             "cudaStreamEndCapture");
  return Graph(graph);
}

std::unique_ptr<CapturedWork> CudaCapture::end() {
  const Activity activity(&describe_gpu, &settings_);
  for (CudaStream* const stream : streams_) streams_[0]->wait(stream->record());
  const Graph graph = stop();
  return std::make_unique<CudaGraph>(graph.get(), settings_);
}

}  // namespace tessera::device
