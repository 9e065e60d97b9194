// Every kernel that torch has for CUDA, replaced by one that calls the CPU's on the same memory.
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/adaption.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <map>
#include <set>
#include <string>

#include "pretend.h"

namespace pretend {
namespace {

using c10::DispatchKey;

// Composite for torch, but they choose by themselves between the CPU's and CUDA's code.
const std::set<std::string> ALSO{"aten::copy_", "aten::convolution", "aten::convolution_backward"};
// The host waits for a number that the device has found: how many there are.
const std::set<std::string> WAITS{"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
                                  "aten::unique_consecutive", "aten::equal", "aten::repeat_interleave.Tensor"};
const std::set<std::string> INDEXES{"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_",
                                    "aten::_unsafe_index", "aten::_unsafe_index_put"};

int64_t bytes_of(const at::Tensor& tensor) {
  if (tensor.is_sparse()) {
    const auto* parts = static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    return bytes_of(parts->indices()) + bytes_of(parts->values());
  }
  return tensor.numel() * static_cast<int64_t>(tensor.itemsize());
}

void gather_tensors(const c10::IValue& value, std::vector<at::Tensor>& into) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      into.push_back(value.toTensor());
    }
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      into.push_back(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toList()) {
      gather_tensors(element, into);
    }
  }
}

class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(const c10::OperatorHandle& op, DispatchKey host)
      : host_(host), full_(toString(op.operator_name())), name_(op.operator_name().name), method_("wrapper_CUDA_" + name_.substr(6)) {
    copies_ = name_ == "aten::copy_";
    reads_ = name_ == "aten::_local_scalar_dense";
    indexes_ = INDEXES.count(name_) > 0;
    waits_ = WAITS.count(full_) > 0;
    collective_ = name_.rfind("c10d::", 0) == 0;
    // NCCL takes tensors of any shape there that have as many numbers; gloo compares shapes.
    flat_ = name_ == "c10d::_allgather_base_" || name_ == "c10d::_reduce_scatter_base_";
    pairs_ = name_.rfind("aten::_foreach_", 0) == 0;
    on_cpu_ = op.hasComputedKernelForDispatchKey(host);
    const auto& arguments = op.schema().arguments();
    for (size_t place = 0; place < arguments.size(); ++place) {
      if (arguments[place].name() == "generator") {
        generator_ = static_cast<int>(place);
      }
    }
    seeded_ = op.hasTag(at::Tag::nondeterministic_seeded) && generator_ < 0;
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    TORCH_CHECK_NOT_IMPLEMENTED(on_cpu_, "pretend CUDA: ", full_, " has no kernel for the CPU that could stand in for it");
    TORCH_CHECK_NOT_IMPLEMENTED(!seeded_, "pretend CUDA: ", full_, " would draw from the CPU's generator, not from the device's");
    const auto& schema = op.schema();
    const size_t size = schema.arguments().size();
    const size_t first = stack->size() - size;
    const c10::Device device = device_of(schema, &(*stack)[first], size);
    auto twins = std::make_shared<Twins>();
    // Autograd leaves it to the kernels over lists to count what they write.
    std::vector<at::Tensor> written;
    if (pairs_ && name_.back() == '_') {
      gather_tensors((*stack)[first], written);
    }
    for (size_t place = 0; place < size; ++place) {
      c10::IValue& value = (*stack)[first + place];
      if (value.isDevice()) {
        value = c10::Device(c10::kCPU);
      } else if (static_cast<int>(place) == generator_) {
        value = host_generator(value.toOptional<at::Generator>(), device.index());
      } else if (collective_ && is_group(value)) {
        value = host_group(value);
      } else {
        value = twins->lend(value);
        if (flat_ && value.isTensor()) {
          value = value.toTensor().view(-1);
        }
      }
    }
    {
      const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
      op.redispatchBoxed(c10::DispatchKeySet(host_), stack);
    }
    twins->settle();
    for (const at::Tensor& tensor : written) {
      tensor.unsafeGetTensorImpl()->bump_version();
    }
    const size_t results = schema.returns().size();
    for (size_t place = stack->size() - results; place < stack->size(); ++place) {
      c10::IValue& value = (*stack)[place];
      value = collective_ && is_work(value) ? device_work(value, twins, device) : twins->take(value, device);
    }
  }

 private:
  // The device that the call is on, or torch's error where its tensors are on several.
  c10::Device device_of(const c10::FunctionSchema& schema, const c10::IValue* values, size_t size) const {
    std::optional<c10::Device> device;
    std::vector<at::Tensor> tensors;
    for (size_t place = 0; place < size; ++place) {
      if (values[place].isDevice()) {
        return numbered(values[place].toDevice());
      }
      const size_t before = tensors.size();
      gather_tensors(values[place], tensors);
      const auto* alias = schema.arguments()[place].alias_info();
      const bool written = alias != nullptr && alias->isWrite();
      for (size_t each = before; each < tensors.size() && !copies_ && !indexes_ && !pairs_; ++each) {
        check(device, tensors[each], schema.arguments()[place].name(), written);
      }
    }
    if (copies_) {
      note(tensors.at(1), tensors.at(0).device());
      return tensors.at(0).device().is_cuda() ? tensors.at(0).device() : tensors.at(1).device();
    }
    if (indexes_) {
      return indexed(tensors);
    }
    for (const at::Tensor& tensor : tensors) {
      if (tensor.device().is_cuda() && (!device || !device->is_cuda())) {
        device = tensor.device();
      }
    }
    TORCH_CHECK(device && device->is_cuda(), "pretend CUDA: ", full_, " got no tensor of a device");
    if (pairs_) {
      check_pairs(values, size);
    }
    if (reads_ || waits_) {
      note_copy(*device, c10::Device(c10::kCPU), reads_ ? bytes_of(tensors.at(0)) : 8);
    }
    return *device;
  }

  void check(std::optional<c10::Device>& device, const at::Tensor& tensor, const std::string& name, bool written) const {
    // A number on the host goes along with tensors of any device, but isn't written to.
    if (tensor.device().is_cpu() && tensor.dim() == 0 && !written && !collective_) {
      return;
    }
    if (!device) {
      device = tensor.device();
    } else if (*device != tensor.device()) {
      c10::impl::common_device_check_failure(*device, tensor, method_.c_str(), name.c_str());
    }
  }

  // Lists go along with one another tensor by tensor.
  void check_pairs(const c10::IValue* values, size_t size) const {
    std::vector<std::optional<c10::Device>> devices;
    for (size_t place = 0; place < size; ++place) {
      if (!values[place].isTensorList()) {
        continue;
      }
      const auto list = values[place].toTensorVector();
      devices.resize(std::max(devices.size(), list.size()));
      for (size_t each = 0; each < list.size(); ++each) {
        // `_foreach_copy_` is the one that copies between devices.
        if (name_ == "aten::_foreach_copy_" && devices[each] && *devices[each] != list[each].device()) {
          note(list[each], *devices[each]);
        } else {
          check(devices[each], list[each], "tensors", false);
        }
      }
    }
  }

  c10::Device indexed(const std::vector<at::Tensor>& tensors) const {
    const c10::Device device = tensors.at(0).device();
    const bool puts = name_.find("put") != std::string::npos;
    for (size_t place = 1; place < tensors.size(); ++place) {
      const at::Tensor& tensor = tensors[place];
      const bool value = puts && place + 1 == tensors.size();
      if (tensor.device() == device) {
        if (!value && (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte)) {
          note_copy(device, c10::Device(c10::kCPU), 8);  // how many there are
        }
        continue;
      }
      if (value) {
        if (tensor.dim() > 0) {
          c10::impl::common_device_check_failure(device, tensor, method_.c_str(), "values");
        }
        continue;
      }
      TORCH_CHECK_INDEX(
          tensor.device().is_cpu(), "indices should be either on cpu or on the same device as the indexed tensor (", device, ")");
      note(tensor, device);
    }
    return device;
  }

  static void note(const at::Tensor& tensor, c10::Device to) {
    if (tensor.device() != to) {
      note_copy(tensor.device(), to, bytes_of(tensor));
    }
  }

  DispatchKey host_;
  std::string full_, name_, method_;
  bool copies_, reads_, indexes_, waits_, collective_, flat_, pairs_, on_cpu_, seeded_;
  int generator_ = -1;
};

struct Silent : c10::WarningHandler {  // torch warns where a kernel replaces another: here all do
  void process(const c10::Warning&) override {}
};

// Replaces what there is for `key` by what calls the kernels for `host`.
int cover(DispatchKey key, DispatchKey host) {
  // One for each namespace; they unregister what they hold when they go.
  auto& libraries = *new std::map<std::string, torch::Library>();
  int covered = 0;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    const bool also = key == DispatchKey::CUDA && ALSO.count(toString(name)) > 0;
    if (!op || (!op->hasKernelForDispatchKey(key) && !also)) {
      continue;
    }
    const std::string space = name.name.substr(0, name.name.find(':'));
    auto library = libraries.find(space);
    if (library == libraries.end()) {
      library = libraries.emplace(std::piecewise_construct, std::forward_as_tuple(space),
          std::forward_as_tuple(torch::Library::IMPL, space, key, __FILE__, __LINE__)).first;
    }
    auto kernel = torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(*op, host));
    library->second.impl(toString(name).c_str(), std::move(kernel));
    ++covered;
  }
  return covered;
}

}  // namespace
}  // namespace pretend

// The number of kernels; -1 with what went wrong on standard error.
extern "C" int pretend_install() {
  try {
    pretend::Silent silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    pretend::install_guard();
    pretend::install_timer();
    return pretend::cover(c10::DispatchKey::CUDA, c10::DispatchKey::CPU) +
        pretend::cover(c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCPU);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}
