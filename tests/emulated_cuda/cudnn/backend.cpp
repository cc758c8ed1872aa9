// The functions of <cudnn_graph.h>, see stand_in.h.
#include <cuda_runtime.h>
#include <cudnn_graph.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "tests/emulated_cuda/cudnn/engines.h"
#include "tests/emulated_cuda/cudnn/interpreter.h"
#include "tests/emulated_cuda/cudnn/stand_in.h"
#include "tests/emulated_cuda/emulator.h"
#include "tests/emulated_cuda/stream_work.h"

struct cudnnContext {
  int gpu = 0;
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  std::atomic<bool> in_use{false};
};

namespace tessera::emulated_cudnn {
namespace {

// Descriptors by what callers have of them.
struct Library {
  std::mutex mutex;  // guards all
  std::unordered_map<const void*, DescriptorPtr> descriptors;
  std::uintptr_t next = 1;
  Seen seen;
  int handles = 0;
  std::string failed;
};
Library& library() {
  static auto* const one = new Library;
  return *one;
}

thread_local std::string last_error;
thread_local int calls_until_failure = -1;
// The attribute whose reading has failed, and fails again: who asks for a count asks for the elements next.
using Read = std::pair<const void*, cudnnBackendAttributeName_t>;
thread_local std::optional<Read> failing_read;

DescriptorPtr find(const void* descriptor) {
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  const auto found = all.descriptors.find(descriptor);
  if (found == all.descriptors.end())
    throw Refusal{CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a descriptor that does not exist"};
  return found->second;
}

// Whether a test wants this call to fail.
bool fails(const char* name, const std::optional<Read>& read) {
  Library& all = library();
  const std::lock_guard lock(all.mutex);
  ++all.seen.calls;
  const bool now = calls_until_failure >= 0 && calls_until_failure-- == 0;
  if (now) {
    all.failed = name;
    failing_read = read;
  }
  return now || (read && read == failing_read);
}

// Runs a call: counts it, lets it fail where a test wants that, and turns a refusal into its status.
template <class Function>
cudnnStatus_t call(const char* name, Function&& function, const std::optional<Read>& read = {}) {
  if (fails(name, read)) {
    last_error = "a test has it fail";
    return CUDNN_STATUS_INTERNAL_ERROR;
  }
  try {
    function();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    last_error = std::string(name) + ": " + refusal.why;
    return refusal.status;
  }
}

void need(bool given, cudnnStatus_t otherwise, const char* why) {
  if (!given) throw Refusal{otherwise, why};
}

std::vector<DescriptorPtr> find_all(const void* elements, std::int64_t count) {
  std::vector<DescriptorPtr> found;
  for (std::int64_t i = 0; i < count; ++i)
    found.push_back(find(static_cast<const cudnnBackendDescriptor_t*>(elements)[i]));
  return found;
}

// --- What finalizing does besides the checks of attributes
// ------------------------------------------------------

DescriptorPtr made(cudnnBackendDescriptorType_t type) { return std::make_shared<Descriptor>(type); }

DescriptorPtr engine_descriptor(const Engine& engine, const std::vector<DescriptorPtr>& graph) {
  DescriptorPtr d = made(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  std::vector<cudnnBackendNumericalNote_t> notes = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  if (!engine.deterministic) notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  const cudnnBackendBehaviorNote_t behavior = CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
  d->set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  d->set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &engine.index);
  d->set(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, static_cast<std::int64_t>(notes.size()),
         notes.data());
  d->set(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, 1, &behavior);
  d->finalize();
  return d;
}

DescriptorPtr configuration(const Engine& engine, const std::vector<DescriptorPtr>& graph) {
  DescriptorPtr d = made(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  const std::int32_t shared_bytes = 98304;
  d->set(CUDNN_ATTR_ENGINECFG_ENGINE, {engine_descriptor(engine, graph)});
  d->set(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &engine.workspace_bytes);
  d->set(CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, CUDNN_TYPE_INT32, 1, &shared_bytes);
  d->finalize();
  return d;
}

void complete(Descriptor& d) {
  switch (d.type()) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      tensor_of(d);
      return;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      operation_of(d);
      return;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: {
      need(d.one<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE) != nullptr, CUDNN_STATUS_BAD_PARAM,
           "a graph without a handle");
      graph_of(d);
      const std::lock_guard lock(library().mutex);
      ++library().seen.graphs;
      return;
    }
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
      const std::vector<DescriptorPtr>& graph = d.descriptors(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      std::vector<DescriptorPtr> results;
      for (const Engine& engine : engines_of(graph_of(*graph.front())))
        results.push_back(configuration(engine, graph));
      d.set(CUDNN_ATTR_ENGINEHEUR_RESULTS, results);
      return;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const auto bytes = d.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                             .one<std::int64_t>(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE);
      d.set(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
      const std::lock_guard lock(library().mutex);
      ++library().seen.plans;
      return;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      need(d.count(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) == d.count(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS),
           CUDNN_STATUS_BAD_PARAM, "a variant pack has not as many pointers as uids");
      return;
    default:
      return;
  }
}

// --- Runs --------------------------------------------------------------------------------------------------

// All tensors that are not virtual, at addresses as aligned as they are said to be.
Bindings bind(const Graph& graph, const Descriptor& pack) {
  std::map<std::int64_t, std::byte*> given;
  if (pack.has(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)) {
    const auto uids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto pointers = pack.all<std::byte*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (std::size_t i = 0; i < uids.size(); ++i)
      if (!given.emplace(uids[i], pointers[i]).second)
        throw Refusal{CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                      "the variant pack has uid " + std::to_string(uids[i]) + " twice"};
  }
  Bindings bindings;
  for (const auto& [uid, tensor] : graph.tensors) {
    if (tensor.is_virtual) continue;
    const std::string name = "tensor " + std::to_string(uid);
    const auto found = given.find(uid);
    if (found == given.end()) throw Refusal{CUDNN_STATUS_BAD_PARAM, name + " is not in the variant pack"};
    if (found->second == nullptr) throw Refusal{CUDNN_STATUS_BAD_PARAM_NULL_POINTER, name + " is null"};
    if (tensor.by_value) {
      bindings.values[uid] = load_value(tensor.type, found->second);
      continue;
    }
    if (reinterpret_cast<std::uintptr_t>(found->second) % static_cast<std::uintptr_t>(tensor.alignment) != 0)
      throw Refusal{CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                    name + " is not at a multiple of " + std::to_string(tensor.alignment) + " bytes"};
    bindings.memory[uid] = found->second;
  }
  return bindings;
}

// One thread at a time has a handle.
class Use {
 public:
  explicit Use(cudnnHandle_t handle) : handle_(handle) {
    need(handle != nullptr, CUDNN_STATUS_BAD_PARAM, "no handle");
    need(!handle->in_use.exchange(true), CUDNN_STATUS_INTERNAL_ERROR, "two threads use a handle at once");
  }
  ~Use() { handle_->in_use.store(false); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  cudnnHandle_t handle_;
};

void check_finalized(const Descriptor& d, cudnnBackendDescriptorType_t type, const char* what) {
  need(d.type() == type, CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, what);
  need(d.is_finalized(), CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, what);
}

void run(cudnnHandle_t handle, const Descriptor& plan, const Descriptor& pack) {
  const Use use(handle);
  check_finalized(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "what is run is no finalized plan");
  check_finalized(pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "the variant pack is not finalized");
  int current = -1;
  need(cudaGetDevice(&current) == cudaSuccess && current == handle->gpu, CUDNN_STATUS_EXECUTION_FAILED_CUDART,
       "the thread's current GPU is not the handle's");
  need(handle->stream != nullptr, CUDNN_STATUS_NOT_SUPPORTED,
       "the stand-in does not run on the legacy stream");
  const Descriptor& engine =
      plan.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).descriptor(CUDNN_ATTR_ENGINECFG_ENGINE);
  const Graph graph = graph_of(engine.descriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
  const auto index = engine.one<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  const auto bytes = plan.one<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  const Bindings bindings = bind(graph, pack);
  auto* const workspace = pack.one_or<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  need(workspace != nullptr || bytes == 0, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the workspace is null");
  double factor = 1;
  {
    Library& all = library();
    const std::lock_guard lock(all.mutex);
    Seen& seen = all.seen;
    ++seen.runs;
    seen.engine = index;
    seen.workspace_bytes = bytes;
    seen.stream = handle->stream;
    if (index == kNondeterministicEngine && seen.runs % 2 == 0) factor = 1 + 0x1p-6;
  }
  const auto work = emulated_cuda::work_of(handle->stream);
  work->give([graph, bindings, workspace, bytes, factor, gpu = handle->gpu] {
    const emulated_cuda::Access access(gpu);
    if (bytes > 0) std::memset(workspace, 0xff, static_cast<std::size_t>(bytes));  // NaN, and all of it
    interpret(graph, bindings, factor);
  });
}

}  // namespace

Seen seen() {
  const std::lock_guard lock(library().mutex);
  return library().seen;
}
int left_over() {
  const std::lock_guard lock(library().mutex);
  return static_cast<int>(library().descriptors.size()) + library().handles;
}
void fail_after(int calls) {
  const std::lock_guard lock(library().mutex);
  if (calls >= 0) library().failed.clear();
  failing_read.reset();
  calls_until_failure = calls;
}
std::string failed_call() {
  const std::lock_guard lock(library().mutex);
  return library().failed;
}

}  // namespace tessera::emulated_cudnn

using namespace tessera::emulated_cudnn;

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_INTERNAL_ERROR:
      return "CUDNN_STATUS_INTERNAL_ERROR";
    default:
      return CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                                         : "CUDNN_STATUS_BAD_PARAM";
  }
}
void cudnnGetLastErrorString(char* message, std::size_t size) {
  if (size == 0) return;
  const std::size_t length = std::min(size - 1, last_error.size());
  last_error.copy(message, length);
  message[length] = '\0';
  last_error.clear();
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return call("cudnnCreate", [&] {
    need(handle != nullptr, CUDNN_STATUS_BAD_PARAM, "no place for the handle");
    auto* const created = new cudnnContext;
    cudaGetDevice(&created->gpu);
    created->memory = tessera::emulated_cuda::take_on(created->gpu, kHandleBytes);
    *handle = created;
    const std::lock_guard lock(library().mutex);
    ++library().handles;
    ++library().seen.handles;
  });
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  if (handle == nullptr) return CUDNN_STATUS_SUCCESS;
  cudaFree(handle->memory);
  delete handle;
  const std::lock_guard lock(library().mutex);
  --library().handles;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return call("cudnnSetStream", [&] {
    const Use use(handle);
    int gpu = handle->gpu;
    if (stream != nullptr) gpu = tessera::emulated_cuda::work_of(stream)->ordinal();
    need(gpu == handle->gpu, CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "the stream is another GPU's");
    handle->stream = stream;
  });
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return call("cudnnGetStream", [&] {
    const Use use(handle);
    *stream = handle->stream;
  });
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  return call("cudnnBackendCreateDescriptor", [&] {
    const DescriptorPtr created = made(type);
    Library& all = library();
    const std::lock_guard lock(all.mutex);
    // No address is used twice, so that a descriptor that was destroyed is known.
    *descriptor = reinterpret_cast<cudnnBackendDescriptor_t>(all.next++);
    all.descriptors.emplace(*descriptor, created);
  });
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  const std::lock_guard lock(library().mutex);
  return library().descriptors.erase(descriptor) == 1 ? CUDNN_STATUS_SUCCESS
                                                      : CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return call("cudnnBackendFinalize", [&] {
    const DescriptorPtr found = find(descriptor);
    Descriptor completed = *found;  // which a refusal leaves as it was
    const auto check = [&] {
      Descriptor checked = completed;
      checked.finalize();
    };
    check();
    complete(completed);
    completed.finalize();
    found->become(completed);
  });
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* elements) {
  return call("cudnnBackendSetAttribute", [&] {
    const DescriptorPtr found = find(descriptor);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && elements != nullptr)
      found->set(name, find_all(elements, count));
    else
      found->set(name, type, count, elements);
  });
}
cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       std::int64_t asked, std::int64_t* count, void* elements) {
  return call(
      "cudnnBackendGetAttribute",
      [&] {
        const DescriptorPtr found = find(descriptor);
        found->check_read(name, type);
        if (count != nullptr) *count = found->count(name);
        if (elements == nullptr || !found->has(name)) return;
        const std::int64_t given = std::min(asked, found->count(name));
        if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
          std::memcpy(elements, found->bytes(name).data(), bytes_of(type) * static_cast<std::size_t>(given));
          return;
        }
        const std::vector<DescriptorPtr> filled = find_all(elements, given);
        for (std::size_t i = 0; i < filled.size(); ++i) filled[i]->become(*found->descriptors(name)[i]);
      },
      Read(descriptor, name));
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  return call("cudnnBackendExecute", [&] { run(handle, *find(plan), *find(pack)); });
}
